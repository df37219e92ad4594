"""The vocabulary: the few types that travel through every floor.

``last_*`` is inclusive, ``end`` and ``next`` are exclusive. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import msgspec

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default, which typing has from Python 3.13 on

    KeyT = TypeVar("KeyT", default=Any)
    ValueT = TypeVar("ValueT", default=Any)
    ReadKeyT = TypeVar("ReadKeyT", default=bytes)
    ReadValueT = TypeVar("ReadValueT", default=bytes)
else:
    from typing import TypeVar

    KeyT = TypeVar("KeyT")
    ValueT = TypeVar("ValueT")

Header = tuple[str, bytes | None]
"""One record header: a name and a value. A name may occur more than once; order is kept."""

Headers = tuple[Header, ...]

NO_TIMESTAMP = -1
"""Kafka's "no timestamp"."""


class TopicPartition(NamedTuple):
    """One partition of a topic; the key of every map."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(IntEnum):
    """Who set a record's timestamp (``message.timestamp.type``); the value is the batch's attribute bit."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Compression(IntEnum):
    """``compression.type``; the value is the codec number in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class IsolationLevel(IntEnum):
    """What a reader sees of open and aborted transactions."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """What is written: payload only, no position."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = NO_TIMESTAMP


class ConsumerRecord(msgspec.Struct, Generic[KeyT, ValueT], gc=False):
    """What is read: a record and where it stands.

    ``key`` and ``value`` are the stored bytes, or what a consumer's deserializers made of them. A null key or value is
    ``None`` and never confused with an empty one. ``ConsumerRecord[str | None, Order | None]`` names their types for a
    type checker.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: KeyT
    value: ValueT
    headers: Headers = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def next_offset(self) -> int:
        """The offset to commit once this record is finished: the next one to read, never this one."""
        return self.offset + 1

    def header(self, name: str) -> bytes | None:
        """The value of the last header called ``name``, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def ack(self) -> None:
        """Say that the record is finished, in its handler or later, in any order: for handlers with ``ack="manual"``.

        It is committed once all records before it are finished too. A second time does nothing, nor when the partition
        has gone to another member. From a worker thread it is passed on to the event loop. Raises ConfigError for
        records of other handlers and of consumers.
        """
        raise self._not_manual()

    async def ack_now(self) -> None:
        """As `ack`, and return when a commit that covers the record is stored. Raises what keeps it from being."""
        raise self._not_manual()

    def _not_manual(self) -> ConfigError:
        return ConfigError(
            f"{self.topic}-{self.partition} offset {self.offset}: ack() is for handlers with "
            "@consumer(..., ack='manual'); without that a record is finished when its handler returns, and a consumer "
            "of your own commits with consumer.commit({record.topic_partition: record.next_offset})"
        )


class RecordMetadata(NamedTuple):
    """Where a sent record landed. ``offset`` is -1 when the producer did not wait for an answer (``acks=0``)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetAndMetadata(NamedTuple):
    """A committed position: the *next* offset to read, and a free text kept beside it."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """Who commits: a member of a generation of a group (KIP-447).

    Generation -1 and no member id: nobody in particular, which only a group without members accepts.
    """

    group: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ProducerIdAndEpoch(NamedTuple):
    """Who writes: a producer id and the epoch that fences the producers before it."""

    producer_id: int
    producer_epoch: int


class AbortedTransaction(NamedTuple):
    """A producer's aborted records of one partition: those from ``first_offset`` to the marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class OffsetAndTimestamp(NamedTuple):
    """The answer to "which offset at this time": the first record at or after it."""

    offset: int
    timestamp_ms: int


class FetchedRecords(msgspec.Struct, gc=False):
    """Records of one partition, in columns: what a backend hands to the runner.

    Columns, because most handlers want the value alone: building a `ConsumerRecord` for each costs more than the
    handler call. All columns have the same length; ``headers`` is None when no record has any.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    timestamp_type: TimestampType
    next_offset: int
    """Where reading goes on; beyond the last record when control records or gaps follow it."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        """The size of all keys, values and headers."""
        size = sum(map(len, filter(None, self.values))) + sum(map(len, filter(None, self.keys)))
        for headers in self.headers or ():
            size += sum(len(name) + len(value or b"") for name, value in headers)
        return size

    def record(self, index: int) -> ConsumerRecord:
        """The ``index``-th record as an object."""
        return ConsumerRecord(
            self.topic,
            self.partition,
            self.offsets[index],
            self.timestamps_ms[index],
            self.timestamp_type,
            self.keys[index],
            self.values[index],
            self.headers[index] if self.headers is not None else (),
        )

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return map(self.record, range(len(self.offsets)))
