"""What a log and its clients count: plain numbers, as of a moment."""

from __future__ import annotations

import msgspec

from eventbus.backends.histogram import Histogram
from eventbus.types import TopicPartition


class BrokerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as one client sees it."""

    broker_id: int
    address: str
    is_up: bool
    requests_waiting: int
    """Sent, and not answered yet."""
    sent_bytes: int
    received_bytes: int
    errors: int
    """Requests that failed, and those that were not answered in time."""
    connects: int
    disconnects: int
    round_trip_ms: float
    """On average, over the last interval; 0 without a request."""
    round_trip_p99_ms: float
    throttle_ms: float
    """How long the broker had it wait for a quota, on average."""


class PartitionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, as one client sees it."""

    topic_partition: TopicPartition
    leader: int
    queued_records: int
    """A producer's that wait to be sent, or a consumer's that were fetched ahead."""
    queued_bytes: int
    sent_records: int
    sent_bytes: int
    received_records: int
    received_bytes: int
    lag: int | None
    """Records between what a consumer has read and the end; None where it is not known."""


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer of a Kafka sends to a topic at a time, on average over the last interval."""

    topic: str
    records: float
    size_bytes: float


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One producer or consumer of a Kafka. Counts are since it was opened."""

    name: str
    """Of its own, in this process."""
    client_id: str
    kind: str
    """``producer`` or ``consumer``."""
    age_ms: int
    """Of these numbers."""
    queued_records: int
    """A producer's that have no outcome yet, or a consumer's that were fetched ahead."""
    queued_bytes: int
    sent_records: int
    sent_bytes: int
    received_records: int
    received_bytes: int
    rebalances: int
    brokers: tuple[BrokerStatistics, ...] = ()
    partitions: tuple[PartitionStatistics, ...] = ()
    batches: tuple[BatchStatistics, ...] = ()


class TopicStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of a log in this process."""

    topic: str
    partitions: int
    records: int
    """Between the first offset held and the end; compaction and transactions leave fewer to read."""
    size_bytes: int


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A log in this process, since it was opened here."""

    flush_seconds: Histogram
    """How long the disk took to store what was written."""
    batch_records: Histogram
    """What producers of this process wrote at a time."""
    batch_bytes: Histogram
    queued_records: int
    """Of producers of this process: without an outcome yet."""
    queued_bytes: int
    """Of ``buffer_memory``, which an open batch takes as a whole."""
    rebalances: dict[str, dict[str, int]]
    """By group and by cause, as its coordinator knows them."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a log can tell of itself without being asked over a network."""

    clients: tuple[ClientStatistics, ...] = ()
    """Of a Kafka: each producer and consumer of this process, as of the last ``statistics.interval.ms``."""
    log: LogStatistics | None = None
    """A log in this process as a whole."""
    topics: tuple[TopicStatistics, ...] = ()
    """Of a log in this process."""
