"""Kafka's own command lines as commands of ours: its scripts' names, and its actions written as flags.

``kafka-topics.sh --create --topic orders`` is ``eventbus kafka-topics --create --topic orders``, is
``eventbus topics --create --topic orders``, is ``eventbus topics create orders``.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.cli.parser import UsageError

SCRIPTS: dict[str, tuple[str, ...]] = {
    "kafka-acls": ("acls",),
    "kafka-configs": ("configs",),
    "kafka-console-consumer": ("consume",),
    "kafka-console-producer": ("produce",),
    "kafka-consumer-groups": ("groups",),
    "kafka-consumer-perf-test": ("perf", "consume"),
    "kafka-delete-records": ("topics", "delete-records"),
    "kafka-dump-log": ("log", "dump"),
    "kafka-get-offsets": ("offsets", "--time", "latest"),
    "kafka-groups": ("groups",),
    "kafka-producer-perf-test": ("perf", "produce"),
    "kafka-server-start": ("serve",),
    "kafka-topics": ("topics",),
    "kafka-transactions": ("transactions",),
}
"""Kafka's scripts, and the words that stand for each here. What the words set, a flag that follows may set again."""

_ACTIONS: dict[str, tuple[str, ...]] = {
    "acls": ("add", "remove", "list"),
    "configs": ("describe", "alter"),
    "groups": ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex"),
    "topics": ("list", "create", "describe", "alter", "delete"),
}
"""The actions that Kafka's scripts take as flags."""

_SUFFIXES = (".sh", ".bat")


def translate(argv: Sequence[str], place: int | None) -> list[str]:
    """``argv`` in words of ours; ``place`` is where its command stands. Raises UsageError for two actions at once."""
    if place is None:
        return list(argv)
    before, name, after = list(argv[:place]), argv[place], _one_property_each(argv[place + 1 :])
    words = script_words(name) or (name,)
    actions = _ACTIONS.get(words[0], ()) if len(words) == 1 else ()
    found = [flag for flag in dict.fromkeys(after) if flag.startswith("--") and flag[2:] in actions]
    if not found or (after and after[0] in actions):
        return [*before, *words, *after]
    if len(found) > 1:
        raise UsageError(
            f"eventbus {words[0]}: {' and '.join(found)} are two actions: give one\n  see: eventbus {words[0]} --help"
        )
    return [*before, *words, found[0][2:], *(word for word in after if word != found[0])]


def _one_property_each(words: Sequence[str]) -> list[str]:
    """``--command-property a=1 b=2``, as the perf tests take it, as two flags: a topic may follow here."""
    result: list[str] = []
    repeating = False
    for place, word in enumerate(words):
        repeating &= "=" in word and not word.startswith("-")
        if repeating and words[place - 1] != "--command-property":
            result.append("--command-property")
        repeating |= word == "--command-property"
        result.append(word)
    return result


def script_words(name: str) -> tuple[str, ...] | None:
    """Return the words for a script of Kafka's; None when ``name`` is none."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return SCRIPTS.get(name)
