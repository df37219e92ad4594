"""The seam between clients and logs: what ``memory://``, ``file://`` and ``kafka://`` each implement.

It sits at client level because librdkafka owns batching, sequencing and group membership: any lower, and a real
cluster could not implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import KafkaError
from eventbus.types import (
    Compression,
    FetchedRecords,
    Headers,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)

EARLIEST = -2
"""``list_offsets``: the first offset held."""
LATEST = -1
"""``list_offsets``: the next offset to be written (under read_committed: the last stable one)."""
MAX_TIMESTAMP = -3
"""``list_offsets``: the record with the largest timestamp."""

Start = Literal["earliest", "latest", "none"]
"""Where a group without a committed offset begins (``auto.offset.reset``)."""


Append = Callable[[bytes | None, bytes | None, Headers, int], Delivery]
"""(key, value, headers, timestamp_ms) -> the handle of the record."""


Send = Callable[[bytes | None, bytes | None, Headers, int], Coroutine[Any, Any, RecordMetadata]]
"""(key, value, headers, timestamp_ms) -> a coroutine for the record's metadata."""
Add = Callable[[bytes | None, bytes | None, Headers, int], BatchDelivery]
"""(key, value, headers, timestamp_ms) -> the outcome of the batch it went into."""


class ProducerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's settings, Kafka's names. Sizes in bytes, times in milliseconds."""

    acks: int = -1
    """-1 (``"all"``): acknowledged when stored as safely as the log's ``fsync`` says; 1: when written; 0: never."""
    batch_size: int = 65_536
    """A batch leaves at this size. (Kafka's default is 16,384; 64 KiB is where throughput levels off.)"""
    linger_ms: int = 0
    """How long a batch waits for company."""
    buffer_memory: int = 33_554_432
    """Bytes on their way at most; beyond it a send waits."""
    max_block_ms: int = 60_000
    """How long a send waits for room before it raises `BufferExhausted`."""
    max_request_size: int = 1_048_576
    """The largest record accepted."""
    compression: Compression = Compression.NONE


class ConsumerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's settings, Kafka's names."""

    group: str | None = None
    start: Start = "earliest"
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    client_id: str = "eventbus"


class BackendProducer(Protocol):
    """Sends records of known partition. Order is kept per partition."""

    on_topics_changed: Callable[[], object]
    """Called when topics were created, grown or deleted: what the client remembers of them is stale."""

    def partition_count(self, topic: str) -> int:
        """Partitions of ``topic``. Raises UnknownTopicOrPartition."""
        ...

    def appender(self, topic: str, partition: int) -> Append:
        """The function that puts a record into the partition's open batch.

        It raises BufferExhausted, RecordTooLarge, ProducerClosed. Asked for once per partition, called per record.
        """
        ...

    def adder(self, topic: str, partition: int) -> Add:
        """The same, without a handle per record: it gives the outcome of the batch."""
        ...

    def sender(self, topic: str, partition: int) -> Send:
        """The function that sends one record and waits for its ack."""
        ...

    async def wait_for_room(self) -> None:
        """Return when the buffer has room; BufferExhausted after ``max_block_ms``."""
        ...

    async def flush(self) -> None:
        """Return when every record given so far is stored or failed."""
        ...

    async def run(self) -> None:
        """The sender's loop; the bus runs it as a task."""
        ...

    async def aclose(self) -> None:
        """Flush, then refuse further records."""
        ...


class BackendConsumer(Protocol):
    """Reads records; positions are per partition, commits per group."""

    on_revoked: Callable[[TopicPartition], object]
    """Called when a partition is no longer this consumer's, or no longer the same: its topic was deleted."""

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None: ...

    async def assign(self, partitions: Iterable[TopicPartition]) -> None: ...

    def assignment(self) -> list[TopicPartition]: ...

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        """What is there, one entry per partition; waits up to ``max_wait_ms`` for the first record."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store the *next* offset to read per partition; durable on return."""
        ...

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def position(self, partition: TopicPartition) -> int: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """One log, opened."""

    url: str

    @property
    def auto_creates_topics(self) -> bool:
        """A topic comes into being when it is first used; only where that was asked for."""
        ...

    async def start(self) -> None: ...

    async def run(self) -> None:
        """Background work (flush intervals, retention); the bus runs it as a task."""
        ...

    async def aclose(self) -> None: ...

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]: ...

    async def delete_topics(self, names: Sequence[str]) -> None: ...

    async def add_partitions(self, topic: str, total_count: int) -> None: ...

    async def alter_configs(self, topic: str, set: Mapping[str, str], delete: Sequence[str]) -> None: ...

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]: ...

    async def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]: ...

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None: ...

    async def list_groups(self) -> list[str]: ...

    async def delete_group(self, group: str) -> None: ...

    def producer(self, config: ProducerConfig) -> BackendProducer: ...

    def consumer(self, config: ConsumerConfig) -> BackendConsumer: ...
