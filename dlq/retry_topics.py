"""Count the records of all groups in a log that wait for their next try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dlq.reading import WAIT_MS
from dlq.selection import looks_like_retries
from eventbus import EventBus
from eventbus.delays.retry_partition import RetryPartition
from eventbus.ledger import read_partitions
from eventbus.recovery import retry_topic_of
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.broker import TopicDescription

_EMPTY = "Empty"
"""The state of a group without members. Unknown groups are "Dead"."""


class WaitingRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a group that wait in a topic for their next try."""

    topic: str
    group: str
    count: int
    next_due_ms: int | None
    """When the first of the records is due."""
    has_members: bool
    """True if the group has a running member. Without one the records are not handled."""


class RetryTopics:
    """Counts waiting records in the retry topics of a log. A partition that has not changed is not read again."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._known: dict[_Range, _Counted] = {}

    async def waiting(self) -> list[WaitingRecords]:
        """Return the records that wait now, by topic and group."""
        admin = self._bus.admin
        topics = [
            topic
            for topic in await admin.describe_topics()
            if looks_like_retries(topic.name, {key: str(entry.value) for key, entry in topic.configs.items()})
        ]
        if not topics:
            return []
        states = {listing.group: listing.state for listing in await admin.list_groups()}
        offsets = {group: await admin.group_offsets(group) for group in states}
        topics_by_group = {group: {partition.topic for partition in known} for group, known in offsets.items()}
        before, self._known = self._known, {}
        found: list[WaitingRecords] = []
        for topic in topics:
            for group in _groups_of(topic, topics_by_group):
                starts = {partition: at.offset for partition, at in offsets.get(group, {}).items()}
                counted = [await self._counted(part, before) for part in _ranges(topic, group, starts)]
                if count := sum(part.entries for part in counted):
                    dues = [part.next_due_ms for part in counted if part.next_due_ms is not None]
                    has_members = states.get(group, _EMPTY) not in (_EMPTY, "Dead")
                    found.append(
                        WaitingRecords(
                            topic=topic.name, group=group, count=count, next_due_ms=min(dues, default=None),
                            has_members=has_members,
                        )
                    )  # fmt: skip
        return found

    async def _counted(self, part: _Range, before: Mapping[_Range, _Counted]) -> _Counted:
        counted = before.get(part)
        if counted is None:
            waiting = await _entries(self._bus, part)
            counted = _Counted(len(waiting), waiting.next_due_ms())
        self._known[part] = counted
        return counted


class _Range(NamedTuple):
    """The offsets of a retry partition that a group has not finished."""

    group: str
    topic_id: str
    partition: TopicPartition
    start: int
    end: int


class _Counted(NamedTuple):
    entries: int
    next_due_ms: int | None


def _ranges(topic: TopicDescription, group: str, starts: Mapping[TopicPartition, int]) -> Iterator[_Range]:
    for part in topic.partitions:
        partition = TopicPartition(topic.name, part.partition)
        start = max(starts.get(partition, 0), part.log_start_offset)
        yield _Range(group, topic.topic_id, partition, start, part.last_stable_offset)


def _groups_of(topic: TopicDescription, topics_by_group: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the groups that read a retry topic: those with an offset there, else the one that it is named after."""
    groups = sorted(group for group, topics in topics_by_group.items() if topic.name in topics)
    prefix = retry_topic_of("")
    return groups or ([topic.name.removeprefix(prefix)] if topic.name.startswith(prefix) else [])


async def _entries(bus: EventBus, part: _Range) -> RetryPartition:
    waiting = RetryPartition("key", owner=part.group)
    if part.start < part.end:
        consumer = bus.context.reader(start="earliest", fetch_max_wait_ms=WAIT_MS)
        await read_partitions(consumer, {part.partition: part.end}, waiting.add, starts={part.partition: part.start})
    return waiting
