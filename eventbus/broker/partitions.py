"""Opening of partitions on first use, the broker's own appends, and its internal topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eventbus.broker.groups import GroupsLog
from eventbus.broker.logs import Logs, Partition
from eventbus.broker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from eventbus.broker.settings import BrokerConfig
from eventbus.broker.shard_log import ShardLog
from eventbus.broker.topic_admin import TopicAdmin
from eventbus.broker.transactions import TransactionsLog
from eventbus.coordinator import GroupsShard, TopicsShard, TransactionsShard
from eventbus.coordinator.consumer_group_topics import TopicsView
from eventbus.coordinator.group_rules import GroupConfig
from eventbus.coordinator.transaction_codec import TransactionMetadata
from eventbus.errors import PartitionOffline, UnknownTopicOrPartition
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.wall_time import WallTime
from eventbus.records import ControlType, EndTransactionMarker, build_marker, read_header
from eventbus.types import ProducerIdAndEpoch, TopicPartition


class Opener:
    """Returns the logs of known topics, and opens them."""

    def __init__(
        self,
        logs: Logs,
        metadata: ShardLog[TopicsShard],
        topic_admin: TopicAdmin,
        check_open: Callable[[], None],
        wall_now_ms: Callable[[], int],
    ) -> None:
        self._logs = logs
        self._partitions = logs.partitions
        self._metadata = metadata
        self._topic_admin = topic_admin
        self._check_open = check_open
        self._wall_now_ms = wall_now_ms

    def log(self, topic_partition: TopicPartition) -> PartitionLog:
        """Return the log of a partition, opening it if necessary. Raises UnknownTopicOrPartition."""
        partition = self._partitions.get(topic_partition)
        return (partition or self.open(topic_partition, self._wall_now_ms())).log

    def open(self, topic_partition: TopicPartition, wall_now_ms: int) -> Partition:
        """Open a partition on first use. Nothing is on disk before it is appended to."""
        self._check_open()
        error = self.refusal(topic_partition) or self.offline(topic_partition)
        if error is not None:
            raise error
        topic = self._topic_admin.topics[topic_partition.topic]
        # The flush of the topic's creation failed, so the topic may be gone after a restart, and its records with it.
        if topic.name in self._topic_admin.uncertain:  # records stored in it now might be lost
            self._metadata.log.raise_if_poisoned()
        config = self._topic_admin.log_config(topic.name)
        return self._logs.open_partition(TopicPartition(*topic_partition), config, topic.topic_id, wall_now_ms)

    def offline(self, topic_partition: TopicPartition) -> PartitionOffline | None:
        """Return the error for a partition that was too damaged to open, or None."""
        why = self._logs.offline.get(topic_partition)
        if why is None:
            return None
        return PartitionOffline(f"{topic_partition} is offline, the other partitions are not. {why}")

    def refusal(self, topic_partition: TopicPartition) -> UnknownTopicOrPartition | None:
        """Return the error for a partition that does not exist, or None."""
        topic, number = topic_partition
        state = self._topic_admin.topics.get(topic)
        if state is None:
            return self._metadata.shard.unknown(topic)
        if 0 <= number < state.partitions:
            return None
        return UnknownTopicOrPartition(
            f"topic {topic!r} has {state.partitions} partition(s), 0 to {state.partitions - 1}; there is no partition "
            f"{number}. `eventbus topics alter {topic} --partitions N` adds some"
        )


class Writes:
    """Appends of the broker itself, without policies or size limits."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self.storage = logs.storage

    def append(self, log: PartitionLog, batch: bytearray, wall_now_ms: int) -> AppendInfo:
        """Append records of a shard."""
        info = log.append(batch, read_header(batch), wall_now_ms)
        self._logs.commit.appended(log, batch)
        self._advanced(log)
        return info

    def append_lazily(self, log: PartitionLog, batch: bytearray, wall_now_ms: int) -> AppendInfo:
        """Append records that the next flush may include, but that do not need a flush themselves."""
        info = log.append(batch, read_header(batch), wall_now_ms)
        self._logs.commit.appended_lazily(log, batch)
        self._advanced(log)
        return info

    def append_metadata(self, log: PartitionLog, batch: bytearray, wall_now_ms: int) -> AppendInfo:
        """Append a change of topics. `Logs.sync_metadata` flushes it, outside of group commits."""
        if self._logs.advances_at_append:
            return self.append(log, batch, wall_now_ms)
        return log.append(batch, read_header(batch), wall_now_ms)

    def append_marker(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        wall_now_ms: int,
    ) -> AppendInfo | None:
        """End a producer's transaction in a partition; return None if the partition is gone.

        Raises InvalidProducerEpoch, TransactionCoordinatorFenced, StorageError.
        """
        partition = self._logs.partitions.get(topic_partition)
        # The topic was deleted while its transaction was being ended.
        if partition is None:
            return None
        marker = EndTransactionMarker(ControlType.COMMIT if committed else ControlType.ABORT, coordinator_epoch)
        batch = build_marker(
            marker, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, timestamp_ms=wall_now_ms
        )
        # Markers are flushed eagerly: readers of committed records wait for the last stable offset, which they move.
        return self.append(partition.log, batch, wall_now_ms)

    def _advanced(self, log: PartitionLog) -> None:
        if self._logs.advances_at_append:
            self._logs.advanced(log.topic_partition)


class InternalTopics:
    """The shards of groups and transactions, each on its partition; their topics are created on first use."""

    def __init__(
        self,
        config: BrokerConfig,
        topic_admin: TopicAdmin,
        opener: Opener,
        writes: Writes,
        new_id: Callable[[], str],
        wall: WallTime,
    ) -> None:
        self._wall = wall
        self._config = config
        self._topic_admin = topic_admin
        self._opener = opener
        self._writes = writes
        self._new_id = new_id
        self._group_config = GroupConfig(*(getattr(config, key) for key in GroupConfig._fields))
        self._topics_view = TopicsView(topic_admin.topics, lambda: topic_admin.version)

    def new_groups_shard(self) -> GroupsShard:
        return GroupsShard(self._group_config, self._new_id, self._topics_view, self._wall)

    def open_groups_shard(self, number: int, wall_now_ms: int) -> GroupsLog:
        """Return the shard with the state that its partition holds."""
        config = self._config
        configs = {"compression.type": "producer"} | _segments_of(config.offsets_topic_segment_bytes)
        log = self._log(CONSUMER_OFFSETS, number, config.offsets_topic_num_partitions, configs, wall_now_ms)
        shard_log = ShardLog(
            self.new_groups_shard(), log, self._writes.append, self._writes.append_marker, self._writes.storage
        )
        shard_log.load()
        return shard_log

    def open_transactions_shard(
        self, number: int, producers: dict[int, TransactionMetadata], wall_now_ms: int
    ) -> TransactionsLog:
        """Return the shard. ``producers``, by producer id, is shared by all shards."""
        config = self._config
        configs = {"compression.type": "uncompressed"} | _segments_of(config.transaction_state_log_segment_bytes)
        log = self._log(TRANSACTION_STATE, number, config.transaction_state_log_num_partitions, configs, wall_now_ms)
        shard = TransactionsShard(producers, self._wall)
        shard_log = ShardLog(shard, log, self._writes.append, storage=self._writes.storage)
        shard_log.load()
        return shard_log

    def _log(
        self, topic: str, number: int, partitions_count: int, configs: Mapping[str, object], wall_now_ms: int
    ) -> PartitionLog:
        # Created on first use, so that a log without groups and transactions has no internal topics.
        if topic not in self._topic_admin.topics:
            self._topic_admin.create_internal(
                topic, partitions_count, {"cleanup.policy": "compact", **configs}, wall_now_ms
            )
        return self._opener.log(TopicPartition(topic, number))


def _segments_of(size_bytes: int) -> dict[str, object]:
    """Return the config for the segment size. Kafka's public key accepts at least 1 MiB."""
    return {"segment.bytes" if size_bytes >= 1 << 20 else "internal.segment.bytes": size_bytes}
