"""Requests to the broker, and descriptions of its topics and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from eventbus.broker.configs import ConfigEntry
from eventbus.errors import KafkaError
from eventbus.types import AbortedTransaction, TopicPartition

if TYPE_CHECKING:
    from eventbus.records.batch import Buffer

BROKER_ID = 1
"""The id of the only node. It is not 0, because clients have mistaken 0 for "no leader known"."""


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic to create. -1 means the broker's default, as in Kafka."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, Any] = {}
    """Kafka's topic configs; values as text, or as Python's own int, bool or list."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """The brokers of each partition. If given, `partitions` and `replication_factor` must be -1 or agree."""


class PartitionDescription(msgspec.Struct, frozen=True):
    """The present state of one partition."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    size_bytes: int


class TopicDescription(msgspec.Struct, frozen=True):
    """The present state of one topic."""

    name: str
    topic_id: str
    partitions: list[PartitionDescription]
    configs: dict[str, ConfigEntry]
    is_internal: bool = False
    warnings: tuple[str, ...] = ()
    """Reported once, when the topic is created: its name collides with another name, or a config has no effect here."""

    @property
    def replication_factor(self) -> int:
        """The number of brokers that hold a partition; the smallest if they differ, as while a partition moves."""
        return min((len(one.replicas) for one in self.partitions), default=1)


class FetchData(msgspec.Struct, frozen=True, gc=False):
    """The result of a fetch: whole batches back to back, starting with the batch that contains the requested offset."""

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """After a read-committed fetch, the aborted transactions with records in it. Pass them to `fetched_records`."""


class OffsetCommitResult(NamedTuple):
    """The result of a commit. The accepted offsets are safe once the record at ``last_offset`` is durable."""

    topic_partition: TopicPartition
    """The partition of ``__consumer_offsets`` that stores the group."""
    last_offset: int
    """The last record stored there for this commit; -1 if none was."""
    errors: dict[TopicPartition, KafkaError]
    """The partitions whose offset was refused; the others are committed."""
