"""Count the records that wait for their next try in a log, whichever group they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dlq.reading import POLL_RECORDS, reader
from dlq.selection import looks_like_retries
from dlq.waiting import WaitingEntries
from eventbus import EventBus
from eventbus.recovery import retry_topic_of
from eventbus.types import ConsumerRecord, FetchedRecords, TopicPartition

if TYPE_CHECKING:
    from eventbus.broker import TopicDescription

_EMPTY = "Empty"
"""The state of a group without members; "Dead" where nothing of it is known."""


class WaitingRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one group that wait for their next try in one topic."""

    topic: str
    group: str
    count: int
    next_due_ms: int | None
    """When the first of them is due."""
    has_members: bool
    """True if a member of the group runs. The records are not handled otherwise."""


async def waiting_records(bus: EventBus) -> list[WaitingRecords]:
    """Return what waits, by topic and group."""
    topics = [
        topic
        for topic in await bus.admin.describe_topics()
        if looks_like_retries(topic.name, {key: str(entry.value) for key, entry in topic.configs.items()})
    ]
    if not topics:
        return []
    states = {listing.group: listing.state for listing in await bus.admin.list_groups()}
    offsets = {group: await bus.admin.group_offsets(group) for group in states}
    found: list[WaitingRecords] = []
    for topic in topics:
        for group in _groups_of(topic, {name: {one.topic for one in known} for name, known in offsets.items()}):
            starts = {one: at.offset for one, at in offsets.get(group, {}).items()}
            counted = [await _entries(bus, group, topic, part.partition, starts) for part in topic.partitions]
            count = sum(len(entries) for entries in counted)
            if count:
                dues = [due for entries in counted if (due := entries.next_due_ms()) is not None]
                has_members = states.get(group, _EMPTY) not in (_EMPTY, "Dead")
                found.append(
                    WaitingRecords(
                        topic=topic.name, group=group, count=count, next_due_ms=min(dues, default=None),
                        has_members=has_members,
                    )
                )  # fmt: skip
    return found


def _groups_of(topic: TopicDescription, topics_by_group: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the groups that read a retry topic: those with an offset there, else the one that it is named after."""
    groups = sorted(group for group, topics in topics_by_group.items() if topic.name in topics)
    prefix = retry_topic_of("")
    return groups or ([topic.name.removeprefix(prefix)] if topic.name.startswith(prefix) else [])


async def _entries(
    bus: EventBus, group: str, topic: TopicDescription, number: int, starts: Mapping[TopicPartition, int]
) -> WaitingEntries:
    waiting, partition = WaitingEntries("key", owner=group), TopicPartition(topic.name, number)
    described = next(one for one in topic.partitions if one.partition == number)
    position = max(starts.get(partition, 0), described.log_start_offset)
    end = described.last_stable_offset
    if position >= end:
        return waiting
    async with reader(bus, [partition]) as consumer:
        consumer.seek(partition, position)
        while position < end:
            records = list(await consumer.poll(max_records=POLL_RECORDS))
            position = await consumer.position(partition)
            if records:
                waiting.add(_columns(partition, records, position))
    return waiting


def _columns(partition: TopicPartition, records: list[ConsumerRecord], next_offset: int) -> FetchedRecords:
    return FetchedRecords(
        *partition,
        [record.offset for record in records],
        [record.timestamp_ms for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
        records[0].timestamp_type,
        next_offset,
    )
