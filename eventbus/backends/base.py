"""The interface between clients and logs, which ``memory://``, ``file://`` and ``kafka://`` implement.

It is at the level of clients because librdkafka contains batching, sequencing and group membership: at a lower level, a
real cluster could not implement it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from eventbus.backends.clock import Timers
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.backends.masking import shown_value
from eventbus.backends.statistics import Statistics
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.coordinator.requests import (
    GroupDescription,
    GroupListing,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from eventbus.errors import EventBusError, KafkaError
from eventbus.types import (
    Compression,
    FetchedRecords,
    GroupMetadata,
    Headers,
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    RecordMetadata,
    TopicPartition,
)

EARLIEST = -2
"""Selects, in ``list_offsets``, the first offset that exists."""
LATEST = -1
"""Selects, in ``list_offsets``, the next offset to be written (under read_committed: the last stable offset)."""
MAX_TIMESTAMP = -3
"""Selects, in ``list_offsets``, the record with the largest timestamp."""

Start = Literal["earliest", "latest", "none", "by_duration"]
"""The start position of a group without a committed offset (``auto.offset.reset``)."""


Append = Callable[[bytes | None, bytes | None, Headers, int], Delivery]
"""Takes (key, value, headers, timestamp_ms); returns the handle of the record."""


Send = Callable[[bytes | None, bytes | None, Headers, int], Coroutine[Any, Any, RecordMetadata]]
"""Takes (key, value, headers, timestamp_ms); returns a coroutine for the record's metadata."""
Add = Callable[[bytes | None, bytes | None, Headers, int], BatchDelivery]
"""Takes (key, value, headers, timestamp_ms); returns the outcome of the record's batch."""
Then = Callable[[EventBusError | None], object]
"""Called once with the error, or None."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings whose repr hides secrets."""

    given: frozenset[str] | None = None
    """The fields that a caller set, even to their default. None: the fields that differ from their default."""

    def __repr__(self) -> str:
        shown = msgspec.structs.asdict(self)
        del shown["given"]
        shown["kafka"] = {name: shown_value(name, value) for name, value in shown["kafka"].items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class ProducerConfig(_Settings, frozen=True, kw_only=True):
    """A producer's settings, described by `eventbus.settings.clients`."""

    acks: int = -1
    """The number of acks; -1 means "all"."""
    batch_size: int = 65_536
    linger_ms: int = 0
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    max_request_size: int = 1_048_576
    compression: Compression = Compression.NONE
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    client_id: str = "eventbus"
    kafka: dict[str, str] = {}
    """Additional librdkafka settings of this producer, under its names; ignored by a log in this process."""


class ConsumerConfig(_Settings, frozen=True, kw_only=True):
    """A consumer's settings, described by `eventbus.settings.clients`."""

    group: str | None = None
    start: Start = "earliest"
    start_duration_ms: int = 0
    """The age of the first record to read (KIP-1106), with ``start="by_duration"``."""
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    client_id: str = "eventbus"
    group_instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[Any, ...] = ("range", "cooperative-sticky")
    """``partition_assignment_strategy``: names, or `Assignor` objects, in order of preference."""
    enable_auto_commit: bool = False
    auto_commit_interval_ms: int = 5_000
    kafka: dict[str, str] = {}
    """Additional librdkafka settings of this consumer, under its names; ignored by a log in this process."""


class BackendProducer(Protocol):
    """Sends records to given partitions. Order is kept per partition."""

    on_topics_changed: Callable[[], object]
    """Called when topics were created, grown or deleted, so that the client drops cached metadata."""

    def partition_count(self, topic: str) -> int | None:
        """Return the partition count of ``topic``; None if it must be looked up first. Raises
        UnknownTopicOrPartition."""
        ...

    def look_up(self, topic: str, then: Then) -> None:
        """Look up a topic, and call ``then`` once `partition_count` has it, or with the error."""
        ...

    def appender(self, topic: str, partition: int) -> Append:
        """Return the function that adds a record to the partition's open batch.

        The function raises BufferExhausted, RecordTooLarge, ProducerClosed. Obtain it once per partition, call it per
        record.
        """
        ...

    def adder(self, topic: str, partition: int) -> Add:
        """Return the function that adds a record without a handle: it returns the outcome of the batch."""
        ...

    def sender(self, topic: str, partition: int) -> Send:
        """Return the function that sends one record and waits for its ack."""
        ...

    async def wait_for_room(self) -> None:
        """Return when the buffer has space. Raises BufferExhausted after ``max_block_ms``."""
        ...

    async def flush(self) -> None:
        """Return when every record sent so far is stored or failed."""
        ...

    async def init_transactions(self) -> None:
        """Take over the transactional id: older producers are fenced, their open transactions aborted. Idempotent."""
        ...

    def begin_transaction(self) -> None:
        """Begin a transaction, which contains all records from now on. Raises InvalidTxnState, ProducerFenced."""
        ...

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with the transaction. Raises what a commit of the group raises."""
        ...

    async def commit_transaction(self) -> None:
        """Return when all of the transaction is visible to read-committed readers, and on disk.

        Raises TransactionAborted (nothing of it is visible), ProducerFenced, TransactionOutcomeUnknown.
        """
        ...

    async def abort_transaction(self) -> None:
        """Return when nothing of the transaction is visible or will ever be visible to read-committed readers."""
        ...

    async def run(self) -> None:
        """Run the sender's loop; the bus runs it as a task."""
        ...

    async def aclose(self) -> None:
        """Flush, then refuse further records. If cancelled, it refuses records nevertheless; call `give_up` then."""
        ...

    def give_up(self, error: EventBusError) -> int:
        """Fail all records without an outcome, after a cancelled `aclose`. Return their number."""
        ...


class BackendConsumer(Protocol):
    """Reads records; positions are per partition, commits per group."""

    on_revoked: Callable[[TopicPartition], object]
    """Called when a partition no longer belongs to this consumer, or its topic was deleted. Nothing may be committed
    for it any more."""
    on_revoking: Callable[[list[TopicPartition]], Awaitable[object]]
    """Awaited by `fetch` before partitions are revoked in a rebalance: finish and commit records in flight."""
    on_assigned: Callable[[list[TopicPartition]], Awaitable[object]]
    """Awaited by `fetch` when a rebalance assigned partitions, before the first record of them is returned."""
    on_settled: Callable[[], object]
    """Called when a rebalance is over for this consumer, even if none of its partitions moved. `fetch` continues to
    wait for records, so it would not report that for a long time."""
    on_readable: Callable[[TopicPartition], object]
    """Called when a partition may have a record for a `fetch` that waits. Not every consumer calls it. A task that is
    woken here runs after that fetch, in the same turn of the event loop."""

    @property
    def deleted_unread(self) -> Counter[TopicPartition]:
        """The number of offsets that were skipped because their records were deleted before they were read."""
        ...

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None: ...

    async def assign(self, partitions: Iterable[TopicPartition]) -> None: ...

    def subscription(self) -> list[str]:
        """Return the subscribed topics; with a pattern, those that match it now."""
        ...

    def assignment(self) -> list[TopicPartition]: ...

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        """Return available records, one entry per partition; wait up to ``max_wait_ms`` for the first record.

        The event loop turns in each call, so a loop of fetches keeps no other task from running.
        """
        ...

    def passed(self) -> dict[TopicPartition, int]:
        """Return the positions that have moved past offsets without records for readers since the last call.

        Such offsets are transaction markers, aborted records and what compaction removed. Every record below a
        returned position has been returned by `fetch`; a position is kept for a later call while that is not so.
        """
        ...

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Return the partitions that cannot be read now but will be read later without further calls, each with the
        reason."""
        ...

    def polled(self) -> bool:
        """Record a poll for ``max_poll_interval_ms``, because the owner took records that were fetched before.

        Return True if the group waits for this member: then call `fetch` (0 ms is enough).
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store the *next* offset to read per partition; durable on return.

        Raises IllegalGeneration, UnknownMemberId, RebalanceInProgress, FencedInstanceId: the partitions belong, or will
        belong, to another member.
        """
        ...

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's present member id and generation. Raises ConfigError without a group."""
        ...

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def position(self, partition: TopicPartition) -> int:
        """Return the position of `fetch`; wait until it is known. Raises ConfigError if the partition is not
        assigned."""
        ...

    async def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the positions of ``partitions`` (default: of the assignment) as one snapshot.

        Partitions that are not assigned, or are given up while this waits, are left out. A caller that reads
        `assignment` and awaits anything before it uses the list needs this call instead of `position`.
        """
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of assigned topics, each of the topic whose records `fetch` returns.

        The id is empty for a broker without topic ids. Raises the error of a broker that does not answer.
        """
        ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """A log that is open, with its clients."""

    url: str

    @property
    def timers(self) -> Timers:
        """The timers that everything on this log uses for waiting."""
        ...

    @property
    def auto_creates_topics(self) -> bool:
        """True if topics are created on first use; only if that was configured."""
        ...

    @property
    def trouble(self) -> str:
        """The problem that presently separates clients from the log, in a line; empty if there is none."""
        ...

    def statistics(self) -> Statistics:
        """Return current statistics, without network requests."""
        ...

    async def start(self) -> None: ...

    async def run(self) -> None:
        """Run background work (flush intervals, retention); the bus runs it as a task."""
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

    async def list_groups(self) -> list[GroupListing]: ...

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]: ...

    async def delete_group(self, group: str) -> None: ...

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None: ...

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        """Remove members, by member id or group instance id; all of them by default."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1: below the high watermark); return the new log start offsets."""
        ...

    async def list_transactions(self) -> list[TransactionListing]: ...

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Describe transactions. Raises TransactionalIdNotFound."""
        ...

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]: ...

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the id's open transaction and fence its producer (``kafka-transactions --abort``)."""
        ...

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        """Take the id over without writing: older producers are fenced (Kafka's ``fenceProducers``)."""
        ...

    def producer(self, config: ProducerConfig) -> BackendProducer: ...

    def consumer(self, config: ConsumerConfig) -> BackendConsumer: ...
