"""Decide where a dead letter may be sent. Pure.

A letter goes to the group that failed, through the retry topic that only this group reads. If it is sent to its source
topic instead, which is an option, all other groups of that topic get it too.

A letter's headers state where it came from, and they may be forged. Nothing is sent to a topic that does not exist, is
internal to the log, or holds dead letters itself, unless the operator names it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from dlq.group_reads import GroupReads
from dlq.selection import LetterId, is_made_for_retries, looks_dead, looks_like_retries
from eventbus.errors import ConfigError
from eventbus.recovery import retry_topic_of
from eventbus.types import ConsumerRecord

if TYPE_CHECKING:
    from dlq.letters import DeadLetter
    from eventbus.broker import TopicDescription

_WHOLE = "or send them to all groups that read the topic with whole_topic=True"
REASONS = {
    "status": "they were redriven, edited, parked or resolved already",
    "hops": "they were redriven as often as max_hops allows, and failed again: fix the cause, or raise max_hops",
    "no-source": "they do not say where they came from: name a topic with to=",
    "no-topic": "the topic they came from is not there: create it, or name another one with to=",
    "internal": "the topic they came from is one of the log's own",
    "delicate": "the topic they came from holds dead letters or retries: name it in allow= to send them there",
    "retries": "the topic they came from is a retry topic, whose handler skips records that are not entries",
    "not-allowed": "the topic they would go to is not in allow=",
    "no-payload": "their payload is no longer in the topic they came from",
    "gone": "retention has removed them",
    "refused": "the topic does not take them",
    "no-retry-topic": "the group that failed has no retry topic. Start its handler once, which creates one if it has "
    f"dead letters, {_WHOLE}",
    "several-retry-topics": "the group that failed does not run, and has offsets in several retry topics. Start its "
    f"handler first, or delete the topics that it no longer reads, {_WHOLE}",
    "not-a-group": f"another system wrote them, whose groups read no retry topic. Name a topic with to=, {_WHOLE}",
}
"""Reasons why letters are left out, with the messages shown for them."""


class Target(msgspec.Struct, frozen=True):
    topic: str
    partition: int | None
    """None: the key chooses the partition."""
    group: str | None = None
    """The group whose retry topic it is. None if all groups that read the topic get the record."""


class Targets:
    """The topics of a log to which letters may be sent."""

    def __init__(
        self,
        topics: Collection[TopicDescription],
        dead: Collection[str],
        state_topic: str,
        groups: Mapping[str, GroupReads],
        *,
        to: str | None = None,
        whole_topic: bool = False,
        allow: Collection[str] | None = None,
    ) -> None:
        """Raises ConfigError if ``to`` is not allowed.

        ``dead`` are topics that hold dead letters, whatever their names. ``groups`` are the topics that the letters'
        groups read.
        """
        configs = {one.name: {key: str(entry.value) for key, entry in one.configs.items()} for one in topics}
        self._configs = configs
        self._partitions = {one.name: len(one.partitions) for one in topics}
        self._internal = {one.name for one in topics if one.is_internal or one.name.startswith("__")} | {state_topic}
        self._retries = {name for name, config in configs.items() if looks_like_retries(name, config)}
        self._delicate = {*dead, *self._retries} | {
            name for name, config in configs.items() if name.startswith("_") or looks_dead(name, config)
        }
        self._groups = groups
        self._to = to
        self._whole_topic = whole_topic
        self._allow = None if allow is None else {*allow}
        reason = None if to is None else self._objection(to)
        if reason is not None:
            raise ConfigError.about("to", to, *_OF_ONE[reason])
        if to is not None and whole_topic:
            raise ConfigError(
                f"to={to!r} and whole_topic=True exclude each other. All groups that read {to!r} get its records "
                "anyway. Leave one of them out"
            )

    def of(self, letter: DeadLetter) -> Target | str:
        """Return where the letter goes, or the reason why it cannot."""
        if self._to is not None:
            return Target(self._to, None)
        source = letter.source
        if source is None:
            return "no-source"
        if not self._whole_topic:
            return self._in_retry_topic(letter)
        reason = self._objection(source.topic)
        if reason is not None:
            return reason
        is_there = 0 <= source.partition < self._partitions[source.topic]
        return Target(source.topic, source.partition if is_there else None)

    def _in_retry_topic(self, letter: DeadLetter) -> Target | str:
        if letter.family != "eventbus" or not letter.group:
            return "not-a-group"
        if letter.source is None or letter.source_offset is None:
            return "no-source"
        topic = self._retry_topic(letter, letter.source.topic)
        if topic is None:
            return "no-retry-topic"
        if not topic:
            return "several-retry-topics"
        if self._allow is not None and topic not in self._allow:
            return "not-allowed"
        # As the runner does: then a single member has both the entry and its source partition.
        return Target(topic, letter.source.partition % self._partitions[topic], letter.group)

    def _retry_topic(self, letter: DeadLetter, source: str) -> str | None:
        """Return the retry topic that the letter's handler reads: None if there is none, "" if it is ambiguous.

        A running group is judged by the topics that its members read. For a group that does not run, only committed
        offsets are known; they may belong to another handler of the group, so the topic must be the one that the letter
        names.
        """
        reads = self._groups.get(letter.group, GroupReads())
        if reads.members:
            found = {topic for topics in reads.members if source in topics for topic in topics} & self._retries
            if not found and letter.retry_topic in frozenset[str]().union(*reads.members) & self._retries:
                found = {letter.retry_topic}  # its handler no longer reads the topic that the letter came from
        else:
            found = {*reads.committed, retry_topic_of(letter.group)} & self._retries
            if letter.retry_topic not in found:
                return None
        found -= {source}
        if len(found) > 1:
            return letter.retry_topic if reads.members and letter.retry_topic in found else ""
        return next(iter(found), None)

    def timestamp_of(self, letter: DeadLetter, topic: str, now_ms: int) -> int | None:
        """Return the original timestamp, or None if the record is so old that retention would soon delete it."""
        time_ms = letter.original_timestamp_ms
        retention_ms = int(self._configs[topic].get("retention.ms") or -1)
        if time_ms is None or (retention_ms >= 0 and now_ms - time_ms > retention_ms // 2):
            return None
        return time_ms

    def _objection(self, topic: str) -> str | None:
        if topic not in self._partitions:
            return "no-topic"
        if topic in self._internal:
            return "internal"
        if is_made_for_retries(self._configs[topic]):
            return "retries"
        if self._allow is not None:
            return None if topic in self._allow else "not-allowed"
        return "delicate" if topic in self._delicate else None


_OF_ONE = {
    "no-topic": ("the topic does not exist", "Create it first"),
    "not-allowed": ("it is not in allow=",),
    "internal": ("it is one of the log's own topics",),
    "delicate": ("it holds dead letters or retries", "Name it in allow= too to send them there"),
    "retries": (
        "it is a retry topic, whose handler skips records that are not entries",
        "Leave to= out: each letter goes through the retry topic of its group",
    ),
}
"""Reasons why ``to=`` is refused, with advice."""


def id_of(letter: DeadLetter | ConsumerRecord) -> LetterId:
    return LetterId(letter.topic, letter.partition, letter.offset)
