"""Writes acl_decisions.txt: what Kafka's own StandardAuthorizer (4.3) answers to every question about random ACLs.

    .venv/bin/python tests/vectors/make_acl_decisions.py

A scenario is a line with its settings, a line per ACL, and the answers to all of `questions` as a hexadecimal number,
the first one in its lowest bit.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SCENARIOS = 200

TYPES = ("TOPIC", "GROUP")
NAMES = ("a", "ab", "abc", "b", "x")
USERS = ("User:alice", "User:bob", "User:root")
HOSTS = ("10.0.0.1", "10.0.0.2")
OPERATIONS = ("READ", "WRITE", "DESCRIBE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")


def questions() -> Iterator[tuple[str, ...]]:
    """(user, host, operation, type, name), and without a name: some resource of the type."""
    yield from itertools.product(USERS, HOSTS, OPERATIONS, TYPES, NAMES)
    yield from itertools.product(USERS, HOSTS, ("READ", "WRITE"), TYPES)


def scenario(chance: random.Random) -> list[str]:
    everyone = chance.choice(("false", "false", "true"))
    lines = [f"S\t{everyone}\tUser:root"]
    for _ in range(chance.randrange(8)):
        pattern = chance.choice(("LITERAL", "LITERAL", "PREFIXED"))
        words = (
            chance.choice(TYPES),
            chance.choice((*NAMES, "*") if pattern == "LITERAL" else NAMES),
            pattern,
            chance.choice(("User:alice", "User:alice", "User:bob", "User:*", "Group:alice")),
            chance.choice(("*", "*", *HOSTS)),
            chance.choice((*OPERATIONS, "ALL")),
            chance.choice(("ALLOW", "ALLOW", "DENY")),
        )
        lines.append("\t".join(("A", *words)))
    return list(dict.fromkeys(lines))  # the same ACL twice is one


def main() -> None:
    chance = random.Random(11)
    scenarios = [scenario(chance) for _ in range(SCENARIOS)]
    asked = ["\t".join(("Q" if len(words) == 5 else "T", *words)) for words in questions()]
    told = "".join(line + "\n" for lines in scenarios for line in lines + asked)
    jars = HERE.parent.parent / ".venv" / "kafka" / "4.3.1"
    command = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{jars}/*", "AclOracle.java"]
    answers = subprocess.run(command, cwd=HERE, input=told, capture_output=True, text=True, check=True).stdout
    assert len(answers) == SCENARIOS * len(asked)
    out: list[str] = []
    for number, lines in enumerate(scenarios):
        bits = answers[number * len(asked) : (number + 1) * len(asked)]
        out += [*lines, f"{int(bits[::-1], 2):x}"]
    (HERE / "acl_decisions.txt").write_text("".join(line + "\n" for line in out))


if __name__ == "__main__":
    main()
