"""Where a dead letter may be sent, and the record that is sent. Pure.

A letter's headers say where it came from, and whoever wrote them may have lied: nothing is sent to a topic that is not
there, is the log's own, or holds dead letters itself, unless the operator names it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from dlq.selection import LetterId, looks_dead
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord, Headers

if TYPE_CHECKING:
    from dlq.letters import DeadLetter
    from eventbus.broker import TopicDescription

REASONS = {
    "status": "somebody has dealt with them already",
    "hops": "they were redriven as often as max_hops allows, and failed again: mend the cause, or raise max_hops",
    "no-source": "they do not say where they came from: name a topic with to=",
    "no-topic": "the topic they came from is not there: create it, or name another one with to=",
    "internal": "the topic they came from is one of the log's own",
    "delicate": "the topic they came from holds dead letters, retries or the like: name it in allow= if that is meant",
    "not-allowed": "the topic they came from is not in allow=",
    "no-payload": "their payload is no longer in the topic they came from",
    "gone": "retention has removed them",
    "refused": "the topic does not take them",
}
"""Why letters are left out."""
_OURS = ("eb-dlq-", "eb-redrive-", "eb-retry-", "__dlq.errors.")


class Target(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    """None: by key."""


class Targets:
    """The topics of a log, as places to send letters to."""

    def __init__(
        self,
        topics: Collection[TopicDescription],
        dead: Collection[str],
        state_topic: str,
        *,
        to: str | None = None,
        allow: Collection[str] | None = None,
    ) -> None:
        """``dead``: topics that hold dead letters, whatever their names. Raises ConfigError for a ``to`` not fit."""
        self._partitions = {one.name: len(one.partitions) for one in topics}
        self._internal = {one.name for one in topics if one.is_internal or one.name.startswith("__")} | {state_topic}
        self._delicate = {*dead} | {
            one.name
            for one in topics
            if one.name.startswith(("_", "retry."))
            or looks_dead(one.name, {key: str(entry.value) for key, entry in one.configs.items()})
        }
        self._to = to
        self._allow = None if allow is None else {*allow}
        reason = None if to is None else self._objection(to)
        if reason is not None:
            raise ConfigError(f"to={to!r}: {_OF_ONE[reason]}")

    def of(self, letter: DeadLetter) -> Target | str:
        """Where the letter goes; else the reason why it cannot."""
        if self._to is not None:
            return Target(self._to, None)
        source = letter.source
        if source is None:
            return "no-source"
        reason = self._objection(source.topic)
        if reason is not None:
            return reason
        is_there = 0 <= source.partition < self._partitions[source.topic]
        return Target(source.topic, source.partition if is_there else None)

    def _objection(self, topic: str) -> str | None:
        if topic not in self._partitions:
            return "no-topic"
        if topic in self._internal:
            return "internal"
        if self._allow is not None:
            return None if topic in self._allow else "not-allowed"
        return "delicate" if topic in self._delicate else None


_OF_ONE = {
    "no-topic": "there is no such topic; create it first",
    "not-allowed": "it is not in allow=",
    "internal": "it is one of the log's own topics",
    "delicate": "it holds dead letters, retries or the like; name it in allow= too if that is meant",
}


def redrive_headers(
    headers: Headers, letter: LetterId, *, hops: int, at_ms: int, by: str, edited: bool = False
) -> Headers:
    """Those of a record that is sent again: its own, and where it comes from."""
    link = msgspec.json.encode(list(letter))
    return (
        *((name, value) for name, value in headers if not name.startswith(_OURS)),
        ("eb-redrive-of", link),
        ("eb-redrive-hops", str(hops).encode()),
        ("eb-redrive-at", str(at_ms).encode()),
        *((("eb-redrive-by", by.encode()),) if by else ()),
        *((("eb-redrive-edited", b"1"),) if edited else ()),
    )


def id_of(letter: DeadLetter | ConsumerRecord) -> LetterId:
    return LetterId(letter.topic, letter.partition, letter.offset)
