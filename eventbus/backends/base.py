"""The seam between clients and logs: what ``memory://``, ``file://`` and ``kafka://`` each implement.

It sits at client level because librdkafka owns batching, sequencing and group membership: any lower, and a real
cluster could not implement it.
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
"""``list_offsets``: the first offset held."""
LATEST = -1
"""``list_offsets``: the next offset to be written (under read_committed: the last stable one)."""
MAX_TIMESTAMP = -3
"""``list_offsets``: the record with the largest timestamp."""

Start = Literal["earliest", "latest", "none", "by_duration"]
"""Where a group without a committed offset begins (``auto.offset.reset``)."""


Append = Callable[[bytes | None, bytes | None, Headers, int], Delivery]
"""(key, value, headers, timestamp_ms) -> the handle of the record."""


Send = Callable[[bytes | None, bytes | None, Headers, int], Coroutine[Any, Any, RecordMetadata]]
"""(key, value, headers, timestamp_ms) -> a coroutine for the record's metadata."""
Add = Callable[[bytes | None, bytes | None, Headers, int], BatchDelivery]
"""(key, value, headers, timestamp_ms) -> the outcome of the batch it went into."""
Then = Callable[[EventBusError | None], object]
"""Called once with what went wrong, or None."""


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Shown without its secrets."""

    given: frozenset[str] | None = None
    """The fields that a caller gave a value, be it the default. None: the fields that differ from their default."""

    def __repr__(self) -> str:
        shown = msgspec.structs.asdict(self)
        del shown["given"]
        shown["kafka"] = {name: shown_value(name, value) for name, value in shown["kafka"].items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class ProducerConfig(_Settings, frozen=True, kw_only=True):
    """A producer's settings, described by `eventbus.settings.clients`."""

    acks: int = -1
    """-1 is "all"."""
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
    """Settings of librdkafka for this producer alone, under its names; a log in this process ignores them."""


class ConsumerConfig(_Settings, frozen=True, kw_only=True):
    """A consumer's settings, described by `eventbus.settings.clients`."""

    group: str | None = None
    start: Start = "earliest"
    start_duration_ms: int = 0
    """With ``start="by_duration"``: how long before now the first record to read may have been written (KIP-1106)."""
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
    """``partition_assignment_strategy``: names, or `Assignor` objects; the preferred first."""
    enable_auto_commit: bool = False
    auto_commit_interval_ms: int = 5_000
    kafka: dict[str, str] = {}
    """Settings of librdkafka for this consumer alone, under its names; a log in this process ignores them."""


class BackendProducer(Protocol):
    """Sends records of known partition. Order is kept per partition."""

    on_topics_changed: Callable[[], object]
    """Called when topics were created, grown or deleted: what the client remembers of them is stale."""

    def partition_count(self, topic: str) -> int | None:
        """Partitions of ``topic``; None where the log has to be asked first. Raises UnknownTopicOrPartition."""
        ...

    def look_up(self, topic: str, then: Then) -> None:
        """Ask the log for a topic, and call ``then`` once `partition_count` knows it, or with why it does not."""
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

    async def init_transactions(self) -> None:
        """Take over the transactional id: older producers are fenced, what they left open is aborted. Idempotent."""
        ...

    def begin_transaction(self) -> None:
        """From here on records belong to the transaction. Raises InvalidTxnState, ProducerFenced."""
        ...

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        """Commit a group's offsets with the transaction. Raises what a commit of the group raises."""
        ...

    async def commit_transaction(self) -> None:
        """On return every record and offset of the transaction is visible to read-committed readers, and on disk.

        Raises TransactionAborted (nothing of it is visible), ProducerFenced, TransactionOutcomeUnknown.
        """
        ...

    async def abort_transaction(self) -> None:
        """On return nothing of the transaction is or will be visible to read-committed readers."""
        ...

    async def run(self) -> None:
        """The sender's loop; the bus runs it as a task."""
        ...

    async def aclose(self) -> None:
        """Flush, then refuse further records. Cancelled, it refuses them all the same; then `give_up`."""
        ...

    def give_up(self, error: EventBusError) -> int:
        """After an `aclose` that was cancelled: fail what has no outcome yet; how many records that is."""
        ...


class BackendConsumer(Protocol):
    """Reads records; positions are per partition, commits per group."""

    on_revoked: Callable[[TopicPartition], object]
    """Called when a partition is no longer this consumer's, or no longer the same: its topic was deleted. Nothing may
    be committed for it any more."""
    on_revoking: Callable[[list[TopicPartition]], Awaitable[object]]
    """Awaited by `fetch` before partitions are given up in a rebalance: finish and commit what is at work."""
    on_assigned: Callable[[list[TopicPartition]], Awaitable[object]]
    """Awaited by `fetch` when a rebalance brought partitions, before the first record of them is returned."""
    on_settled: Callable[[], object]
    """Called when a rebalance is over for this consumer, also when none of its partitions moved: then `fetch`, which
    goes on waiting for records, would not say so for long."""

    @property
    def deleted_unread(self) -> Counter[TopicPartition]:
        """How many offsets were skipped because their records were deleted before they were read."""
        ...

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None: ...

    async def assign(self, partitions: Iterable[TopicPartition]) -> None: ...

    def subscription(self) -> list[str]:
        """The topics subscribed to; with a pattern, those that match it now."""
        ...

    def assignment(self) -> list[TopicPartition]: ...

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        """What is there, one entry per partition; waits up to ``max_wait_ms`` for the first record."""
        ...

    def passed(self) -> dict[TopicPartition, int]:
        """Return the positions that have moved past offsets without records for readers since the last call.

        Such offsets are transaction markers, aborted records and what compaction removed. Every record below a
        returned position has been returned by `fetch`; a position is kept for a later call while that is not so.
        """
        ...

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Partitions that cannot be read now and are read later without further calls, each with the reason."""
        ...

    def polled(self) -> bool:
        """Its owner took records that were fetched before: a poll, as far as ``max_poll_interval_ms`` goes.

        True: the group waits for this member, call `fetch` (0 ms will do).
        """
        ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Store the *next* offset to read per partition; durable on return.

        Raises IllegalGeneration, UnknownMemberId, RebalanceInProgress, FencedInstanceId: the partitions are, or will
        be, another's.
        """
        ...

    def group_metadata(self) -> GroupMetadata:
        """Which member of which generation this consumer is now. Raises ConfigError without a group."""
        ...

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def position(self, partition: TopicPartition) -> int:
        """Return where `fetch` goes on; wait until that is known. Raises ConfigError for a partition not assigned."""
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
        """Return the ids of assigned topics, each that of the topic whose records `fetch` returns.

        The id is empty for a broker without topic ids. Raises the error of a broker that does not answer.
        """
        ...

    async def aclose(self) -> None: ...


class Backend(Protocol):
    """One log, opened."""

    url: str

    @property
    def timers(self) -> Timers:
        """What everything on this log waits by."""
        ...

    @property
    def auto_creates_topics(self) -> bool:
        """A topic comes into being when it is first used; only where that was asked for."""
        ...

    @property
    def trouble(self) -> str:
        """What stands between its clients and the log now, in a line; empty when nothing does."""
        ...

    def statistics(self) -> Statistics:
        """What is counted, as of now, without asking anybody over a network."""
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

    async def list_groups(self) -> list[GroupListing]: ...

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]: ...

    async def delete_group(self, group: str) -> None: ...

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None: ...

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        """Make members leave, by member id or group instance id; all of them by default."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset (-1: below the high watermark); the new log start offsets."""
        ...

    async def list_transactions(self) -> list[TransactionListing]: ...

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        """Raises TransactionalIdNotFound."""
        ...

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]: ...

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort what the id's producer has open and fence that producer (``kafka-transactions --abort``)."""
        ...

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        """Take the id over without writing: older producers are fenced (Kafka's ``fenceProducers``)."""
        ...

    def producer(self, config: ProducerConfig) -> BackendProducer: ...

    def consumer(self, config: ConsumerConfig) -> BackendConsumer: ...
