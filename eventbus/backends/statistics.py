"""Statistics of a log and its clients: plain numbers at a moment."""

from __future__ import annotations

import msgspec

from eventbus.backends.histogram import Histogram
from eventbus.types import TopicPartition


class BrokerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a broker, from the point of view of a client."""

    broker_id: int
    address: str
    is_up: bool
    requests_waiting: int
    """Requests that were sent, and not answered yet."""
    sent_bytes: int
    received_bytes: int
    errors: int
    """Requests that failed, or were not answered in time."""
    connects: int
    disconnects: int
    round_trip_ms: float
    """The mean over the last interval; 0 without a request."""
    round_trip_p99_ms: float
    throttle_ms: float
    """The mean delay that the broker imposed because of a quota."""


class PartitionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a partition, from the point of view of a client."""

    topic_partition: TopicPartition
    leader: int
    queued_records: int
    """Records of a producer that wait to be sent, or of a consumer that were fetched ahead."""
    queued_bytes: int
    sent_records: int
    sent_bytes: int
    received_records: int
    received_bytes: int
    lag: int | None
    """Records between a consumer's position and the end; None if unknown."""


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the batches that a Kafka producer sends to a topic: means over the last interval."""

    topic: str
    records: float
    size_bytes: float


class ClientStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a Kafka producer or consumer. Counts are since it was opened."""

    name: str
    """A name that is unique in this process."""
    client_id: str
    kind: str
    """Either ``producer`` or ``consumer``."""
    age_ms: int
    """The age of these numbers."""
    queued_records: int
    """Records of a producer that have no outcome yet, or of a consumer that were fetched ahead."""
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
    """Statistics of a topic of a log in this process."""

    topic: str
    partitions: int
    records: int
    """Offsets between the first and the end; compaction and transactions leave fewer records to read."""
    size_bytes: int


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a log in this process, since it was opened here."""

    flush_seconds: Histogram
    """The durations of flushes."""
    batch_records: Histogram
    """The sizes of batches that producers of this process wrote, in records."""
    batch_bytes: Histogram
    queued_records: int
    """Records of producers of this process without an outcome yet."""
    queued_bytes: int
    """The used part of ``buffer_memory``, which an open batch occupies as a whole."""
    rebalances: dict[str, dict[str, int]]
    """The coordinator's counts, by group and by cause."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """All statistics of a log that are available without network requests."""

    clients: tuple[ClientStatistics, ...] = ()
    """Each Kafka producer and consumer of this process, as of the last ``statistics.interval.ms``."""
    log: LogStatistics | None = None
    """Statistics of a log in this process as a whole."""
    topics: tuple[TopicStatistics, ...] = ()
    """Statistics of the topics of a log in this process."""
