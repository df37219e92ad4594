"""Topics and their configs, by librdkafka's admin client. Everything here blocks, and runs in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

from confluent_kafka import admin as untyped_admin

from eventbus.backends.kafka.admin_handle import AdminHandle
from eventbus.backends.kafka.cluster_metadata import ClusterMetadata, id_text
from eventbus.backends.kafka.limits import TopicLimits
from eventbus.backends.kafka.offset_admin import OffsetAdmin
from eventbus.backends.kafka.wire import Address, Wire
from eventbus.broker import PartitionDescription, TopicDescription, TopicSpec
from eventbus.broker.configs import ConfigEntry as OurEntry
from eventbus.broker.configs import ConfigSource as OurSource
from eventbus.broker.names import check_topic_name
from eventbus.errors import (
    EventBusError,
    InvalidPartitions,
    InvalidRequest,
    KafkaError,
    UnknownTopicOrPartition,
)
from eventbus.protocol import messages as m
from eventbus.types import TopicPartition

_TOPIC_REFUSED, _CLUSTER_REFUSED = 29, 31
kafka: Any = untyped_admin  # its annotations leave out what its calls return

_SOURCES: dict[int, OurSource] = {
    kafka.ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    kafka.ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker",
    kafka.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "broker",
    kafka.ConfigSource.STATIC_BROKER_CONFIG.value: "broker",
}


class TopicAdmin:
    """Administration of a cluster's topics."""

    def __init__(self, handle: AdminHandle, wire: Wire, timeout_seconds: float) -> None:
        self.metadata = ClusterMetadata(handle, wire, timeout_seconds)
        self.offsets = OffsetAdmin(self.metadata, wire)
        self._handle = handle
        self._wire = wire
        self._seconds = timeout_seconds

    # what there is ---------------------------------------------------------------------------------------------------

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        """Return the limits of topics, without those whose configs this user may not describe, or no broker returns."""
        self.metadata.look_for_controller()
        resources = [kafka.ConfigResource(kafka.ResourceType.TOPIC, name) for name in names]
        futures = self._handle.client.describe_configs(resources, request_timeout=self._seconds)
        found: dict[str, TopicLimits] = {}
        for resource, future in futures.items():
            with suppress(KafkaError):
                configs = self.metadata.result(future, f"the configs of {resource.name!r}")
                found[resource.name] = TopicLimits.read({name: entry.value for name, entry in configs.items()})
        return found

    def describe(self, names: Sequence[str] | None) -> list[TopicDescription]:
        """Describe the named topics, or all. Raises UnknownTopicOrPartition."""
        wanted = sorted(self.metadata.counts()) if names is None else list(names)
        if not wanted:
            return []
        for name in wanted:
            if not name:
                raise UnknownTopicOrPartition("a topic has a name; '' is none")
        described, errors, brokers = self.metadata.topics(wanted)
        for name, error in errors.items():
            if not isinstance(error, UnknownTopicOrPartition):
                raise error
            if names is not None:
                raise self.metadata.unknown(name)
        wanted = [name for name in wanted if name in described]
        self.metadata.look_for_controller()
        configs = self._handle.client.describe_configs(
            [kafka.ConfigResource(kafka.ResourceType.TOPIC, name) for name in wanted], request_timeout=self._seconds
        )
        where = [TopicPartition(name, one.partition_index) for name in wanted for one in described[name].partitions]
        ends = self.offsets.ends(where)
        sizes = self._sizes(
            {
                TopicPartition(name, one.partition_index): brokers[one.leader_id]
                for name in wanted
                for one in described[name].partitions
                if one.leader_id in brokers
            }
        )
        entries = {resource.name: self._entries(future) for resource, future in configs.items()}
        return [
            TopicDescription(
                name,
                id_text(described[name].topic_id),
                [_partition(name, one, ends, sizes) for one in _in_order(described[name].partitions)],
                {key: _entry(entry) for key, entry in sorted(entries[name].items())},
                is_internal=described[name].is_internal or name.startswith("__"),
            )
            for name in wanted
        ]

    def _entries(self, future: Future[Any]) -> dict[str, Any]:
        """Return a topic's configs; none if the user may write to it but not describe it."""
        try:
            return self.metadata.result(future, "configs")
        except KafkaError as error:
            if error.code in (_TOPIC_REFUSED, _CLUSTER_REFUSED, UnknownTopicOrPartition.code):
                return {}
            raise

    def _sizes(self, leaders: Mapping[TopicPartition, Address]) -> dict[TopicPartition, int]:
        """Return the size of each partition on its leader's disk, if the leader reports it."""
        asked: dict[Address, dict[str, list[int]]] = {}
        for (topic, partition), leader in leaders.items():
            asked.setdefault(leader, {}).setdefault(topic, []).append(partition)
        sizes: dict[TopicPartition, int] = {}
        for leader, topics in asked.items():
            wanted = [
                m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ]
            try:
                answer = self._wire.call(m.DescribeLogDirsRequest(topics=wanted), at=leader)
            except EventBusError:
                continue
            sizes |= {
                TopicPartition(topic.name, one.partition_index): one.partition_size
                for result in answer.results
                for topic in result.topics
                for one in topic.partitions
                if not one.is_future_key
            }
        return sizes

    # changing --------------------------------------------------------------------------------------------------------

    def create(self, specs: Sequence[TopicSpec], *, validate_only: bool) -> dict[str, KafkaError | None]:
        """Create topics; return None or the error for each."""
        outcomes: dict[str, KafkaError | None] = {}
        wanted: list[Any] = []
        for spec in specs:
            try:
                check_topic_name(spec.name)
                if spec.partitions < 1 and spec.partitions != -1:
                    raise InvalidPartitions(f"topic {spec.name!r}: {spec.partitions} partitions; at least 1")
                if any(spec.name == other.topic for other in wanted):
                    raise InvalidRequest(f"topic {spec.name!r} is named twice in one request")
            except KafkaError as error:
                outcomes[spec.name] = error
                continue
            outcomes[spec.name] = None
            wanted.append(_new_topic(spec))
        if not wanted:
            return outcomes
        self.metadata.look_for_controller()
        futures = self._handle.client.create_topics(
            wanted, validate_only=validate_only, request_timeout=self._seconds, operation_timeout=self._seconds
        )
        for name, future in futures.items():
            try:
                self.metadata.result(future, f"topic {name!r} was not created")
            except KafkaError as error:
                outcomes[name] = error
        return outcomes

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics. Raises the first error; those without an error are deleted."""
        self.metadata.look_for_controller()
        futures = self._handle.client.delete_topics(
            list(names), request_timeout=self._seconds, operation_timeout=self._seconds
        )
        errors: list[EventBusError] = []
        for name, future in futures.items():
            try:
                self.metadata.result(future, f"topic {name!r} was not deleted")
            except EventBusError as error:
                errors.append(error)
        for error in errors:
            raise error

    def add_partitions(self, topic: str, total_count: int) -> None:
        known = self.metadata.count(topic)
        if total_count <= known:
            raise InvalidPartitions(f"topic {topic!r} has {known} partitions already, and never shrinks: ask for more")
        self.metadata.look_for_controller()
        futures = self._handle.client.create_partitions(
            [kafka.NewPartitions(topic, total_count)], request_timeout=self._seconds, operation_timeout=self._seconds
        )
        self.metadata.result(futures[topic], f"topic {topic!r} has not grown")

    def alter_configs(self, topic: str, set: Mapping[str, str], delete: Sequence[str]) -> None:
        entries = [
            kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
            for name, value in set.items()
        ] + [kafka.ConfigEntry(name, None, incremental_operation=kafka.AlterConfigOpType.DELETE) for name in delete]
        if not entries:
            self.metadata.count(topic)
            return
        resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, topic, incremental_configs=entries)
        self.metadata.look_for_controller()
        (future,) = self._handle.client.incremental_alter_configs([resource], request_timeout=self._seconds).values()
        self.metadata.result(future, f"the configs of topic {topic!r} were not changed")


def _new_topic(spec: TopicSpec) -> Any:
    configs = {name: str(value) for name, value in spec.configs.items()}
    if spec.assignments:
        brokers = [list(one) for one in spec.assignments]
        return kafka.NewTopic(spec.name, len(brokers), replica_assignment=brokers, config=configs)
    return kafka.NewTopic(spec.name, spec.partitions, spec.replication_factor, config=configs)


def _partition(
    topic: str, one: Any, ends: list[dict[TopicPartition, int]], sizes: Mapping[TopicPartition, int]
) -> PartitionDescription:
    where = TopicPartition(topic, one.partition_index)
    first, stable, end = (some.get(where, -1) for some in ends)
    return PartitionDescription(
        partition=one.partition_index,
        leader=one.leader_id,
        replicas=tuple(one.replica_nodes),
        isr=tuple(one.isr_nodes),
        log_start_offset=first,
        high_watermark=end,
        last_stable_offset=stable,
        log_end_offset=end,
        size_bytes=sizes.get(where, 0),
    )


def _in_order(partitions: Iterable[Any]) -> list[Any]:
    return sorted(partitions, key=lambda one: one.partition_index)


def _entry(entry: Any) -> OurEntry:
    synonyms: dict[str, Any] = entry.synonyms or {}
    default = next((one.value for one in synonyms.values() if _number(one.source) == _DEFAULT), entry.value)
    return OurEntry(entry.value or "", default or "", _SOURCES.get(_number(entry.source), "default"))


_DEFAULT = kafka.ConfigSource.DEFAULT_CONFIG.value


def _number(source: Any) -> int:
    return cast("int", getattr(source, "value", source))


def named(partitions: Iterable[TopicPartition]) -> str:
    """List partitions in a message."""
    return ", ".join(map(str, partitions))
