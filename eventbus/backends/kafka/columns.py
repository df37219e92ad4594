"""Convert librdkafka's messages to the columns that the runner receives. Optimised for the cost per record."""

from __future__ import annotations

import logging
from bisect import bisect_left
from itertools import groupby
from operator import length_hint
from typing import Any

import msgspec
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from eventbus.types import FetchedRecords, Headers, TimestampType, TopicPartition

logger = logging.getLogger("eventbus.consumer")


class Columns(msgspec.Struct, gc=False):
    """Records of one partition, in order of arrival."""

    offsets: list[int] | range
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None
    timestamp_type: TimestampType

    @classmethod
    def of(cls, messages: list[Message], timestamps_ms: list[int]) -> Columns:
        first, last = messages[0].offset() or 0, messages[-1].offset() or 0
        # Offsets only grow: if the range from first to last equals the number of messages, it has no gaps.
        is_dense = last - first + 1 == len(messages)
        left = iter(messages)
        try:
            raw_headers: list[Any] = [message.headers() for message in left]
        except (SystemError, UnicodeDecodeError):
            raw_headers = _readable_headers(messages, len(messages) - length_hint(left) - 1)
        kind, _ = messages[0].timestamp()
        return cls(
            range(first, last + 1) if is_dense else [message.offset() or 0 for message in messages],
            timestamps_ms,
            [message.key() for message in messages],  # pyright: ignore[reportArgumentType]  bytes, whatever its stub says
            [message.value() for message in messages],  # as above
            [tuple(one or ()) for one in raw_headers] if any(raw_headers) else None,
            TimestampType.LOG_APPEND_TIME if kind == TIMESTAMP_LOG_APPEND_TIME else TimestampType.CREATE_TIME,
        )

    def extend(self, more: Columns) -> None:
        """Append the records of ``more``, which follow these."""
        if more.headers is not None or self.headers is not None:
            self.headers = [*(self.headers or [()] * len(self.offsets)), *(more.headers or [()] * len(more.offsets))]
        begin, end = self.offsets[0], more.offsets[-1]
        is_dense = end - begin + 1 == len(self.offsets) + len(more.offsets)
        self.offsets = range(begin, end + 1) if is_dense else [*self.offsets, *more.offsets]
        self.timestamps_ms += more.timestamps_ms
        self.keys += more.keys
        self.values += more.values

    def records(self, where: TopicPartition) -> FetchedRecords:
        return FetchedRecords(
            where.topic,
            where.partition,
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.headers,
            self.timestamp_type,
            self.offsets[-1] + 1,
        )


def _readable_headers(messages: list[Message], failed: int) -> list[Any]:
    """Return the headers of each record, and none for a record with a header whose name is not UTF-8, which is logged.

    ``failed``: the index of the first such record, which was already accessed. Kafka stores such names; confluent-kafka
    raises for them (UnicodeDecodeError inside a SystemError) and gives no other access to the bytes. That must not lose
    all records of the poll: librdkafka has handed them over, and the next poll continues after them. Such a message is
    accessed only once, because its second result contains a null pointer.
    """
    found: list[Any] = [message.headers() for message in messages[:failed]]
    found.append(_unreadable_headers(messages[failed]))
    for message in messages[failed + 1 :]:
        try:
            found.append(message.headers())
        except (SystemError, UnicodeDecodeError):
            found.append(_unreadable_headers(message))
    return found


def _unreadable_headers(message: Message) -> None:
    logger.error(
        "The record %s-%s offset %s is delivered without its headers. The client library cannot read the name of one "
        "of them, which is not UTF-8. Correct its sender",
        message.topic(), message.partition(), message.offset(),
    )  # fmt: skip


class Collected:
    """The records of one poll, by partition."""

    def __init__(self) -> None:
        self._found: dict[TopicPartition, Columns] = {}

    def add(self, messages: list[Message], topics: set[str]) -> list[Message]:
        """Add messages; return those that are events instead of records. ``topics``: the topics being read.

        The messages are released at once: so many live objects would make Python's garbage collector scan them
        repeatedly, which costs as much per record as its handler.
        """
        notices: list[Message] = []
        timestamps_ms = [message.timestamp()[1] for message in messages]
        if min(timestamps_ms) < 0:  # messages that are not records have no timestamp; so do few records
            notices = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
            timestamps_ms = [message.timestamp()[1] for message in messages]
        start = 0
        for where, count in _runs(messages, topics):
            end = start + count
            columns = Columns.of(messages[start:end], timestamps_ms[start:end])
            known = self._found.get(where)
            if known is None:
                self._found[where] = columns
            else:
                known.extend(columns)
            start = end
        return notices

    def records(self) -> dict[TopicPartition, FetchedRecords]:
        return {where: columns.records(where) for where, columns in self._found.items()}


def _runs(messages: list[Message], topics: set[str]) -> list[tuple[TopicPartition, int]]:
    """Return the runs of consecutive messages of each partition, with their lengths."""
    if not messages:
        return []
    numbers = [message.partition() or 0 for message in messages]
    topic, last = messages[0].topic() or "", messages[-1].topic()
    # Nearly always all are of the same topic, in long runs per partition. (Messages of partitions that are revoked
    # during a poll can only come first.)
    if topics == {topic} and last == topic:
        if numbers.count(numbers[0]) == len(numbers):
            return [(TopicPartition(topic, numbers[0]), len(numbers))]
        places = [TopicPartition(topic, number) for number in numbers]
    else:
        topics_of = [message.topic() or "" for message in messages]
        places = list(map(TopicPartition, topics_of, numbers))
    return [(where, sum(1 for _ in run)) for where, run in groupby(places)]


def joined(parts: list[FetchedRecords]) -> FetchedRecords:
    """Join consecutive parts of a partition to one fetch."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    begin, end, count = first.offsets[0], last.offsets[-1], sum(map(len, parts))
    headers: list[Headers] | None = None
    if any(part.headers is not None for part in parts):
        headers = [one for part in parts for one in (part.headers or [()] * len(part))]
    return FetchedRecords(
        first.topic,
        first.partition,
        range(begin, end + 1) if end - begin + 1 == count else [one for part in parts for one in part.offsets],
        [one for part in parts for one in part.timestamps_ms],
        [one for part in parts for one in part.keys],
        [one for part in parts for one in part.values],
        headers,
        first.timestamp_type,
        last.next_offset,
    )


def part_from(records: FetchedRecords, offset: int) -> FetchedRecords:
    """Return the records from ``offset`` on."""
    first = bisect_left(records.offsets, offset)
    if not first:
        return records
    return FetchedRecords(
        records.topic,
        records.partition,
        records.offsets[first:],
        records.timestamps_ms[first:],
        records.keys[first:],
        records.values[first:],
        None if records.headers is None else records.headers[first:],
        records.timestamp_type,
        records.next_offset,
    )
