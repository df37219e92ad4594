"""Build a retry partition: records at offsets, fetched in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eventbus.delays.retry_entry import RetryEntry
from eventbus.delays.retry_partition import RetryPartition
from eventbus.types import ConsumerRecord, FetchedRecords, Header, Record, TimestampType, TopicPartition

SOURCE = TopicPartition("orders", 3)
RETRY = TopicPartition("retry.billing", 3)


def source_record(
    offset: int, key: bytes | None = b"k", value: bytes | None = b"v", headers: Iterable[Header] = ()
) -> ConsumerRecord:
    """Return a record of the handler's own partition."""
    return ConsumerRecord(
        *SOURCE, offset, 1_700_000_000_000 + offset, TimestampType.LOG_APPEND_TIME, key, value, tuple(headers)
    )


def fetched(records: Sequence[tuple[int, Record]], next_offset: int | None = None) -> FetchedRecords:
    """Return records of the retry partition as a fetch, by offset."""
    end = records[-1][0] + 1 if next_offset is None else next_offset
    return FetchedRecords(
        *RETRY,
        [offset for offset, _ in records],
        [0] * len(records),
        [record.key for _, record in records],
        [record.value for _, record in records],
        [record.headers for _, record in records],
        TimestampType.CREATE_TIME,
        end,
    )


def add(waiting: RetryPartition, *records: Record, at: int = 0) -> None:
    """Add records at consecutive offsets, from ``at`` on."""
    waiting.add(fetched(list(enumerate(records, at))))


def places(entries: Sequence[RetryEntry]) -> list[int]:
    """Return the source offsets of entries."""
    return [entry.record.offset for entry in entries]
