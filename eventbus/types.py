"""The basic types that all layers use.

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
"""Kafka's value for a missing timestamp."""


class TopicPartition(NamedTuple):
    """A partition of a topic; used as the key of mappings."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(IntEnum):
    """The source of a record's timestamp (``message.timestamp.type``); the value is the batch's attribute bit."""

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
    """The visibility of open and aborted transactions to a reader."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to write: payload only, no position."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = NO_TIMESTAMP


class ConsumerRecord(msgspec.Struct, Generic[KeyT, ValueT], gc=False):
    """A record that was read, with its position.

    ``key`` and ``value`` are the stored bytes, or the results of a consumer's deserializers. A null key or value is
    ``None`` and never confused with an empty one. ``ConsumerRecord[str | None, Order | None]`` declares their types for
    a type checker.
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
        """The offset to commit once this record is finished: that of the next record to read, never of this record."""
        return self.offset + 1

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header called ``name``, or None."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def ack(self) -> None:
        """Mark the record as finished, in its handler or later, in any order: for handlers with ``ack="manual"``.

        It is committed once all records before it are finished too. A second call does nothing, nor does a call after
        the partition has been revoked. A call from a worker thread is passed to the event loop. Raises ConfigError for
        records of other handlers and of consumers.
        """
        raise self._not_manual()

    async def ack_now(self) -> None:
        """Mark the record as finished, and return when a commit that covers it is stored. Raises the commit's error."""
        raise self._not_manual()

    def _not_manual(self) -> ConfigError:
        return ConfigError(
            f"{self.topic}-{self.partition} offset {self.offset}: ack() is for handlers with "
            "@consumer(..., ack='manual'); without that a record is finished when its handler returns, and a consumer "
            "of your own commits with consumer.commit({record.topic_partition: record.next_offset})"
        )


class RecordMetadata(NamedTuple):
    """The position of a sent record. ``offset`` is -1 if the producer did not wait for an answer (``acks=0``)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class OffsetAndMetadata(NamedTuple):
    """A committed position: the *next* offset to read, and free text stored with it."""

    offset: int
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """The committing member: a member of a generation of a group (KIP-447).

    Generation -1 and no member id: no member, which only a group without members accepts.
    """

    group: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ProducerIdAndEpoch(NamedTuple):
    """A producer's identity: its id, and the epoch that fences earlier producers."""

    producer_id: int
    producer_epoch: int


class AbortedTransaction(NamedTuple):
    """A producer's aborted records of one partition: those from ``first_offset`` to the marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int


class FetchedRecords(msgspec.Struct, gc=False):
    """Records of one partition, in columns, as a backend passes them to the runner.

    Columns are used because most handlers need only the value: creating a `ConsumerRecord` for each would cost more
    than the handler call. All columns have the same length; ``headers`` is None if no record has any.
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
    """The offset from which to continue; after the last record, beyond control records or gaps that follow it."""

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
        """Return the ``index``-th record as an object."""
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
