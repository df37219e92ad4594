"""What the broker is asked for, and how it describes what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from eventbus.broker.configs import ConfigEntry
from eventbus.errors import KafkaError
from eventbus.types import AbortedTransaction, TopicPartition

if TYPE_CHECKING:
    from eventbus.records.batch import Buffer

BROKER_ID = 1
"""The one node. Not 0: clients have mistaken that for "no leader known"."""


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic to create. -1 means the broker's default, as in Kafka."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, Any] = {}
    """Kafka's topic configs; values as text, or as Python's own int, bool or list."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """The brokers of each partition, in place of `partitions` and `replication_factor`; those say -1 or the same."""


class PartitionDescription(msgspec.Struct, frozen=True):
    """One partition, as it stands now."""

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
    """One topic, as it stands now."""

    name: str
    topic_id: str
    partitions: list[PartitionDescription]
    configs: dict[str, ConfigEntry]
    is_internal: bool = False
    warnings: tuple[str, ...] = ()
    """Said once, when the topic is created: the name collides with another one, a config has no effect here."""

    @property
    def replication_factor(self) -> int:
        """How many brokers hold a partition; where they differ, as while a partition moves, the fewest."""
        return min((len(one.replicas) for one in self.partitions), default=1)


class FetchData(msgspec.Struct, frozen=True, gc=False):
    """What a fetch found: whole batches back to back, starting with the one that holds the offset asked for."""

    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """Of a read-committed fetch: the aborted transactions with records in it. Give them to `fetched_records`."""


class OffsetCommitResult(NamedTuple):
    """What became of a commit. The accepted offsets are safe once the record at ``last_offset`` is durable."""

    topic_partition: TopicPartition
    """The partition of ``__consumer_offsets`` that keeps the group."""
    last_offset: int
    """The last record stored there for this commit; -1 when none was."""
    errors: dict[TopicPartition, KafkaError]
    """The partitions whose offset was refused; the others are committed."""
