"""Create, delete, grow, configure and describe topics. Part of the broker; it writes only ``__cluster_metadata-0``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from eventbus.broker import configs, names
from eventbus.broker.descriptions import BROKER_ID, PartitionDescription, TopicDescription, TopicSpec
from eventbus.broker.logs import Logs
from eventbus.broker.settings import BrokerConfig
from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import Decision, TopicsShard, TopicState
from eventbus.errors import InvalidReplicationFactor, InvalidRequest, KafkaError, error_for_code
from eventbus.log.config import LogConfig
from eventbus.types import TopicPartition

_logger = logging.getLogger("eventbus.broker")


class TopicAdmin:
    """Checks names, configs and partition counts for the topics' shard. Every change is on disk on return."""

    def __init__(
        self, logs: Logs, shard_log: ShardLog[TopicsShard], config: BrokerConfig, new_topic_id: Callable[[], str]
    ) -> None:
        self._logs = logs
        self._shard_log = shard_log
        self._config = config
        self._defaults = configs.normalise(config.log_defaults)
        self._new_topic_id = new_topic_id
        self._log_configs: dict[str, LogConfig] = {}
        self.topics = shard_log.shard.topics
        self.version = 0
        """Rises with every change of topics or partitions."""
        self.uncertain: set[str] = set()
        """Topics whose last change failed to reach the disk, or seemed to: a restart may not find it."""

    # look ------------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        """Return the topic. Raises UnknownTopicOrPartition with the nearest name."""
        return self._shard_log.shard.topic(name)

    def log_config(self, name: str) -> LogConfig:
        """Return the present settings of the topic's logs."""
        config = self._log_configs.get(name)
        if config is None:
            config = configs.log_config(self.topic(name).configs, self._defaults)
            self._log_configs[name] = config
        return config

    def configs_of(self, name: str) -> dict[str, configs.ConfigEntry]:
        """Return all configs of a topic with their sources. Raises UnknownTopicOrPartition."""
        return configs.describe(self.topic(name).configs, self._defaults)

    @property
    def defaults(self) -> Mapping[str, str]:
        """Configs for topics that do not set them, where they differ from Kafka's defaults."""
        return self._defaults

    @property
    def metadata_end_offset(self) -> int:
        """The offset that the next change of topics will have in their log."""
        return self._shard_log.log.log_end_offset

    def describe(self, topics: Iterable[str] | None) -> list[TopicDescription]:
        """Describe the named topics, or all of them by name. Raises UnknownTopicOrPartition."""
        return [self._describe(self.topic(name)) for name in (sorted(self.topics) if topics is None else topics)]

    def _describe(self, topic: TopicState, warnings: tuple[str, ...] = ()) -> TopicDescription:
        return TopicDescription(
            topic.name,
            topic.topic_id,
            [self._describe_partition(TopicPartition(topic.name, number)) for number in range(topic.partitions)],
            configs.describe(topic.configs, self._defaults),
            topic.name in names.INTERNAL_TOPICS,
            warnings,
        )

    def _describe_partition(self, topic_partition: TopicPartition) -> PartitionDescription:
        partition = self._logs.partitions.get(topic_partition)
        if partition is None:  # nothing was ever stored there
            return PartitionDescription(topic_partition.partition, BROKER_ID, (BROKER_ID,), (BROKER_ID,), 0, 0, 0, 0, 0)
        log = partition.log
        return PartitionDescription(
            topic_partition.partition,
            BROKER_ID,
            (BROKER_ID,),
            (BROKER_ID,),
            log.log_start_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.log_end_offset,
            log.size_bytes,
        )

    # change ----------------------------------------------------------------------------------------------------------

    def create(
        self, specs: Sequence[TopicSpec], now_ms: int, *, validate_only: bool
    ) -> dict[str, TopicDescription | KafkaError]:
        """Create topics; return a description or an error for each. ``validate_only`` changes nothing."""
        results: dict[str, TopicDescription | KafkaError] = {}
        for spec in specs:
            try:
                decision = self._decide_create(spec, now_ms)
                warnings = self._warnings(decision.reply)
                if not validate_only:
                    self._shard_log.execute(decision, now_ms)
                    self.version += 1
                results[spec.name] = self._describe(decision.reply, warnings)
            except KafkaError as error:
                results[spec.name] = error
        self._sync(name for name, result in results.items() if not isinstance(result, KafkaError))
        return results

    def create_internal(self, name: str, partitions: int, topic_configs: Mapping[str, object], now_ms: int) -> None:
        """Create an internal topic."""
        decision = self._shard_log.shard.create(
            name, partitions, configs.normalise(topic_configs), self._new_topic_id(), now_ms
        )
        self._shard_log.execute(decision, now_ms)
        self.version += 1
        self._sync((name,))

    def allocate_producer_ids(self, now_ms: int) -> range:
        """Reserve a block of producer ids that were never used, and will not be used again after a crash."""
        block = self._shard_log.execute(self._shard_log.shard.allocate_producer_ids(), now_ms)
        self._logs.sync_metadata(self._shard_log.log)
        return block

    def _sync(self, changed: Iterable[str]) -> None:
        """Make changes of topics durable. Raises StorageError."""
        try:
            self._logs.sync_metadata(self._shard_log.log)
        except KafkaError:
            self.uncertain.update(changed)
            raise

    def _decide_create(self, spec: TopicSpec, now_ms: int) -> Decision[TopicState]:
        names.check_topic_name(spec.name)
        names.check_not_internal(spec.name, "created")
        partitions = self._config.num_partitions if spec.partitions == -1 else spec.partitions
        if spec.assignments:
            check_assignments(spec.name, spec.assignments)
            if spec.partitions not in (-1, len(spec.assignments)) or spec.replication_factor not in (-1, 1):
                raise InvalidRequest(
                    f"topic {spec.name!r}: its partitions are assigned one by one, so leave their number and the "
                    "replication factor at -1"
                )
            partitions = len(spec.assignments)
        elif spec.replication_factor not in (-1, 1):
            raise InvalidReplicationFactor(
                f"topic {spec.name!r} with replication factor {spec.replication_factor}: this log is one broker, so 1 "
                "is all there is; a Kafka cluster replicates (change the URL to kafka://host:9092)"
            )
        own = configs.normalise(spec.configs)
        configs.check_together(configs.effective(own, self._defaults))
        return self._shard_log.shard.create(spec.name, partitions, own, self._new_topic_id(), now_ms)

    def _warnings(self, topic: TopicState) -> tuple[str, ...]:
        collision = names.collision_warning(topic.name, self.topics)
        effects = ((key, value, configs.no_effect(key, value)) for key, value in topic.configs.items())
        idle = [f"{key}={value}: {why}" for key, value, why in effects if why]
        return ((collision,) if collision else ()) + tuple(idle)

    def delete(self, name: str, now_ms: int) -> None:
        """Remove a topic from the metadata; its logs still exist. Raises UnknownTopicOrPartition."""
        names.check_not_internal(name, "deleted")
        decision = self._shard_log.shard.delete(name)
        self._logs.reserve.spend(lambda: self._shard_log.execute(decision, now_ms))
        self._log_configs.pop(name, None)
        self.version += 1
        self._logs.sync_metadata(self._shard_log.log)

    def add_partitions(self, name: str, total_count: int, now_ms: int) -> None:
        """Raise the partition count. Raises UnknownTopicOrPartition, InvalidPartitions."""
        self._shard_log.execute(self.check_add_partitions(name, total_count), now_ms)
        self.version += 1
        self._sync((name,))

    def check_add_partitions(self, name: str, total_count: int) -> Decision[TopicState]:
        """Return the decision to grow the topic, without executing it. Raises UnknownTopicOrPartition,
        InvalidPartitions."""
        names.check_not_internal(name, "altered")
        return self._shard_log.shard.add_partitions(name, total_count)

    def check_alter(self, name: str, set: Mapping[str, object], delete: Sequence[str]) -> Decision[TopicState]:
        """Return the decision to alter configs, without executing it. Raises UnknownTopicOrPartition, InvalidConfig."""
        names.check_not_internal(name, "altered")
        changed = configs.normalise(set)
        for key in delete:
            configs.config_key(key)
        decision = self._shard_log.shard.alter_configs(name, changed, delete)
        configs.check_together(configs.effective(decision.reply.configs, self._defaults))
        return decision

    def alter_configs(
        self, name: str, set: Mapping[str, object], delete: Sequence[str], now_ms: int
    ) -> TopicDescription:
        """Set and unset configs; the topic's logs use them at once. Raises UnknownTopicOrPartition, InvalidConfig."""
        decision = self.check_alter(name, set, delete)
        self._shard_log.execute(decision, now_ms)
        self._logs.sync_metadata(self._shard_log.log)
        self._log_configs.pop(name, None)
        config = self.log_config(name)
        for number in range(decision.reply.partitions):
            partition = self._logs.partitions.get(TopicPartition(name, number))
            if partition is not None:
                partition.obey(config)
        return self._describe(decision.reply, self._warnings(decision.reply))


def check_assignments(name: str, assignments: Sequence[Sequence[int]]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT (39) unless each partition is assigned to the only broker."""
    for number, brokers in enumerate(assignments):
        if list(brokers) != [BROKER_ID]:
            raise error_for_code(
                39,
                f"partition {number} of topic {name!r} on broker(s) {list(brokers)}: this log is one broker, so "
                f"[{BROKER_ID}] is all there is",
            )
