"""The same answers as Kafka's own StandardAuthorizer, to every question about 200 random sets of ACLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.coordinator.acls import Acl, Operation, PatternType, Permission, ResourceType
from eventbus.server.security.acls import Authorizer
from tests.server.test_acls import Rules
from tests.vectors.make_acl_decisions import SCENARIOS, questions

pytestmark = pytest.mark.system

DECISIONS = Path(__file__).parents[1] / "vectors" / "acl_decisions.txt"


def read_acl(words: list[str]) -> Acl:
    kind, name, pattern, principal, host, operation, permission = words
    return Acl(
        ResourceType[kind], name, PatternType[pattern], principal, host, Operation[operation], Permission[permission]
    )


def answer(authorizer: Authorizer, question: tuple[str, ...]) -> bool:
    user, host, operation, kind, *name = question
    if name:
        return authorizer.allows(user, host, Operation[operation], ResourceType[kind], name[0])
    return authorizer.allows_some(user, host, Operation[operation], ResourceType[kind])


def test_every_decision_is_kafkas() -> None:
    asked = list(questions())
    compared = 0
    authorizer, rules = Authorizer(Rules()), Rules()
    for line in DECISIONS.read_text().splitlines():
        words = line.split("\t")
        if words[0] == "S":
            rules = Rules()
            authorizer = Authorizer(rules, words[2].split(";"), allow_everyone_if_no_acl_found=words[1] == "true")
        elif words[0] == "A":
            rules.add(read_acl(words[1:]))
        else:
            bits = int(line, 16)
            for place, question in enumerate(asked):
                expected = bool(bits >> place & 1)
                assert answer(authorizer, question) == expected, f"{question} with {rules.acls}: Kafka says {expected}"
                compared += 1
    assert compared == SCENARIOS * len(asked)
