"""Topics, their configs and offsets, by librdkafka's admin client. Everything here blocks: it is for threads."""

from __future__ import annotations

import socket
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast

from confluent_kafka import OFFSET_INVALID, KafkaException, TopicCollection
from confluent_kafka import IsolationLevel as ClientIsolation
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka import admin as untyped_admin

from eventbus.backends.base import EARLIEST, LATEST, MAX_TIMESTAMP
from eventbus.backends.kafka.failures import error_of, raised
from eventbus.backends.kafka.limits import TopicLimits
from eventbus.backends.kafka.wire import Address, Wire
from eventbus.broker import PartitionDescription, TopicDescription, TopicSpec
from eventbus.broker.configs import ConfigEntry as OurEntry
from eventbus.broker.configs import ConfigSource as OurSource
from eventbus.broker.names import check_topic_name
from eventbus.errors import (
    ConfigError,
    EventBusError,
    InvalidPartitions,
    InvalidRequest,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from eventbus.protocol import messages as m
from eventbus.suggest import nearest
from eventbus.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

_METADATA_SECONDS = 5.0
"""How long a broker may take to return metadata before the next broker is tried."""
_ANY_TOPIC = "__consumer_offsets"
_CONTROLLER_LOOKS = 10
_CONNECT_SECONDS, _PAUSE_SECONDS = 1.0, 0.1
_GRACE_SECONDS = 5.0
"""librdkafka keeps its own time, and answers a little later."""
_LEADER_NOT_AVAILABLE, _TOPIC_REFUSED, _CLUSTER_REFUSED = 5, 29, 31
_PATIENCE_SECONDS = (2.0, 4.0, 8.0)
"""How long a partition's leader may take to tell its offsets, the first time and the next ones."""
kafka: Any = untyped_admin  # its annotations leave out what its calls return
T = TypeVar("T")

_SOURCES: dict[int, OurSource] = {
    kafka.ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    kafka.ConfigSource.DYNAMIC_BROKER_CONFIG.value: "broker",
    kafka.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.value: "broker",
    kafka.ConfigSource.STATIC_BROKER_CONFIG.value: "broker",
}
_ISOLATION = {
    IsolationLevel.READ_COMMITTED: ClientIsolation.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: ClientIsolation.READ_UNCOMMITTED,
}


class KnownTopic(NamedTuple):
    """A topic as a broker describes it."""

    partitions: int
    id: str
    """It changes when the topic is deleted and a topic with its name is created."""


class TopicAdmin:
    """One cluster's topics."""

    def __init__(self, client: Any, wire: Wire, timeout_seconds: float) -> None:
        self._client = client
        self._wire = wire
        self._seconds = timeout_seconds

    def _result(self, future: Future[T], what: str) -> T:
        """Raises our error for librdkafka's."""
        try:
            return future.result(self._seconds + _GRACE_SECONDS)
        except KafkaException as failure:
            raise raised(failure, what) from None
        except TimeoutError:
            raise RequestTimedOut(f"{what}: no broker has answered in {self._seconds:.0f} s") from None

    # what there is ---------------------------------------------------------------------------------------------------

    def brokers(self) -> dict[int, Address]:
        """The brokers of the cluster, as it sees them."""
        try:
            return _addresses(self._metadata([]))
        except ConfigError:  # see `_topics`
            found = self._result(self._client.describe_cluster(request_timeout=self._seconds), "the brokers")
            return {node.id: (node.host, node.port) for node in found.nodes}

    def _metadata(self, names: Collection[str]) -> m.MetadataResponse:
        """Request topics and brokers from any broker that answers.

        librdkafka sends its own describe_topics and describe_cluster to the controller alone. A broker of KRaft names
        a random broker as that, also one that has died and whose session has not ended: 9 s by default.
        """
        topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return self._wire.call(request, timeout_seconds=min(self._seconds, _METADATA_SECONDS))

    def _topics(self, names: Collection[str]) -> tuple[dict[str, Any], dict[str, KafkaError], dict[int, Address]]:
        """Return the topics, the errors of the other topics, and the brokers."""
        found: dict[str, Any] = {}
        errors: dict[str, KafkaError] = {}
        try:
            answer = self._metadata(names)
        except ConfigError:  # our own connections do not take all of librdkafka's settings, a Java keystore say
            futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._seconds)
            for name, future in futures.items():
                try:
                    found[name] = _as_metadata(self._result(future, f"topic {name!r}"))
                except KafkaError as error:
                    errors[name] = error
            return found, errors, self.brokers()
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code:
                error = error_of(ClientError(topic.error_code), f"topic {name!r}")
                assert isinstance(error, KafkaError), "the error of a broker has a code"
                errors[name] = error
            else:
                found[name] = topic
        return found, errors, _addresses(answer)

    def _look_for_controller(self) -> None:
        """Have librdkafka learn of a controller that can be reached, before a request that only it takes."""
        for _ in range(_CONTROLLER_LOOKS):
            with suppress(KafkaException, OSError, KeyError):
                found = self._client.list_topics(_ANY_TOPIC, timeout=min(self._seconds, _METADATA_SECONDS))
                broker = found.brokers[found.controller_id]
                socket.create_connection((broker.host, broker.port), _CONNECT_SECONDS).close()
                return
            time.sleep(_PAUSE_SECONDS)  # in a thread: another broker, or this one later, names another controller

    def counts(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Topics and how many partitions each has: those named, as far as they exist, or all. Creates none."""
        if names is None:
            return self.all_counts()
        return {name: topic.partitions for name, topic in self.known(names).items()}

    def known(self, names: Collection[str]) -> dict[str, KnownTopic]:
        """Return those of the topics named that exist."""
        if not names:
            return {}
        found, errors, _ = self._topics(names)
        for error in errors.values():
            if error.retriable and error.code != UnknownTopicOrPartition.code:
                raise error  # it is there, as far as anybody knows
        return {name: KnownTopic(len(topic.partitions), _id_text(topic.topic_id)) for name, topic in found.items()}

    def limits(self, names: Collection[str]) -> dict[str, TopicLimits]:
        """Return what topics accept, except for those whose configs this user may not describe, or no broker does."""
        self._look_for_controller()
        resources = [kafka.ConfigResource(kafka.ResourceType.TOPIC, name) for name in names]
        futures = self._client.describe_configs(resources, request_timeout=self._seconds)
        found: dict[str, TopicLimits] = {}
        for resource, future in futures.items():
            with suppress(KafkaError):
                configs = self._result(future, f"the configs of {resource.name!r}")
                found[resource.name] = TopicLimits.read({name: entry.value for name, entry in configs.items()})
        return found

    def all_counts(self) -> dict[str, int]:
        try:
            found = self._client.list_topics(timeout=self._seconds)
        except KafkaException as failure:
            raise raised(failure, "the topics cannot be listed") from None
        return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    def count(self, topic: str) -> int:
        """Partitions of one topic. Raises UnknownTopicOrPartition; InvalidTopic for a name that no topic can have."""
        check_topic_name(topic)  # for some names the client library raises a ValueError
        found, errors, _ = self._topics([topic])
        if errors:
            raise errors[topic]
        return len(found[topic].partitions)

    def describe(self, names: Sequence[str] | None) -> list[TopicDescription]:
        """Raises UnknownTopicOrPartition."""
        wanted = sorted(self.counts()) if names is None else list(names)
        if not wanted:
            return []
        for name in wanted:
            if not name:
                raise UnknownTopicOrPartition("a topic has a name; '' is none")
        described, errors, brokers = self._topics(wanted)
        for name, error in errors.items():
            if not isinstance(error, UnknownTopicOrPartition):
                raise error
            if names is not None:
                raise self._unknown(name)
        wanted = [name for name in wanted if name in described]
        self._look_for_controller()
        configs = self._client.describe_configs(
            [kafka.ConfigResource(kafka.ResourceType.TOPIC, name) for name in wanted], request_timeout=self._seconds
        )
        where = [TopicPartition(name, one.partition_index) for name in wanted for one in described[name].partitions]
        ends = self._ends(where)
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
                _id_text(described[name].topic_id),
                [_partition(name, one, ends, sizes) for one in _in_order(described[name].partitions)],
                {key: _entry(entry) for key, entry in sorted(entries[name].items())},
                is_internal=described[name].is_internal or name.startswith("__"),
            )
            for name in wanted
        ]

    def _unknown(self, topic: str) -> UnknownTopicOrPartition:
        # An internal topic is looked for by programs, now and then: no reason to list a large cluster.
        known = () if topic.startswith("_") else self.counts()
        hint = nearest(topic, known) or f"; create it: `eventbus topics create {topic}`"
        return UnknownTopicOrPartition(f"there is no topic {topic!r}{hint}")

    def _without_leader(self, error: KafkaError, where: TopicPartition) -> KafkaError:
        """Return the error of a request that found no leader, or a better one if the partition does not exist.

        librdkafka returns the same code (_NOENT) for a partition that has no leader now and for one that does not
        exist. Only the first is worth waiting for.
        """
        if error.code not in (_LEADER_NOT_AVAILABLE, UnknownTopicOrPartition.code):
            return error
        try:
            count = self.counts([where.topic]).get(where.topic)
            if count is None:
                return self._unknown(where.topic)
        except EventBusError:
            return error
        if where.partition >= count:
            return UnknownTopicOrPartition(
                f"topic {where.topic!r} has {count} partition(s), 0 to {count - 1}; there is no partition "
                f"{where.partition}. `eventbus topics alter {where.topic} --partitions N` adds some"
            )
        return error

    def _entries(self, future: Future[Any]) -> dict[str, Any]:
        """Configs of a topic; none for somebody who may write to it and not look at them."""
        try:
            return self._result(future, "configs")
        except KafkaError as error:
            if error.code in (_TOPIC_REFUSED, _CLUSTER_REFUSED, UnknownTopicOrPartition.code):
                return {}
            raise

    def _ends(self, partitions: list[TopicPartition]) -> list[dict[TopicPartition, int]]:
        """First offset, last stable offset and end; -1 where no leader tells.

        A leader that has just died would be waited for as long as for any request, and librdkafka asks the one it knows
        of again. So whoever does not answer is given up soon, and the leaders are looked up before the next try.
        """
        asked = (
            (EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            (LATEST, IsolationLevel.READ_COMMITTED),
            (LATEST, IsolationLevel.READ_UNCOMMITTED),
        )
        found: list[dict[TopicPartition, int]] = [{} for _ in asked]
        for seconds in _PATIENCE_SECONDS:
            missing = [[where for where in partitions if some.get(where, -1) < 0] for some in found]
            if not any(missing):
                break
            if seconds != _PATIENCE_SECONDS[0]:
                self._look_up_leaders({where.topic for some in missing for where in some})
            futures = [
                self._ask_offsets(dict.fromkeys(wanted, at), isolation, min(seconds, self._seconds))
                for wanted, (at, isolation) in zip(missing, asked, strict=True)
            ]
            for some, answers in zip(found, futures, strict=True):
                some.update({where: _offset_or_none(future) for where, future in answers.items()})
        return found

    def _look_up_leaders(self, topics: Iterable[str]) -> None:
        for topic in sorted(topics):
            with suppress(KafkaException):  # who has no answer to this has none to the next question either
                self._client.list_topics(topic, timeout=self._seconds)

    def _sizes(self, leaders: Mapping[TopicPartition, Address]) -> dict[TopicPartition, int]:
        """Bytes on the disks of each partition's leader; nothing where it does not tell."""
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
        """Each one's outcome."""
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
        self._look_for_controller()
        futures = self._client.create_topics(
            wanted, validate_only=validate_only, request_timeout=self._seconds, operation_timeout=self._seconds
        )
        for name, future in futures.items():
            try:
                self._result(future, f"topic {name!r} was not created")
            except KafkaError as error:
                outcomes[name] = error
        return outcomes

    def delete(self, names: Sequence[str]) -> None:
        """Raises the first error; those without one are deleted."""
        self._look_for_controller()
        futures = self._client.delete_topics(
            list(names), request_timeout=self._seconds, operation_timeout=self._seconds
        )
        errors: list[EventBusError] = []
        for name, future in futures.items():
            try:
                self._result(future, f"topic {name!r} was not deleted")
            except EventBusError as error:
                errors.append(error)
        for error in errors:
            raise error

    def add_partitions(self, topic: str, total_count: int) -> None:
        known = self.count(topic)
        if total_count <= known:
            raise InvalidPartitions(f"topic {topic!r} has {known} partitions already, and never shrinks: ask for more")
        self._look_for_controller()
        futures = self._client.create_partitions(
            [kafka.NewPartitions(topic, total_count)], request_timeout=self._seconds, operation_timeout=self._seconds
        )
        self._result(futures[topic], f"topic {topic!r} has not grown")

    def alter_configs(self, topic: str, set: Mapping[str, str], delete: Sequence[str]) -> None:
        entries = [
            kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
            for name, value in set.items()
        ] + [kafka.ConfigEntry(name, None, incremental_operation=kafka.AlterConfigOpType.DELETE) for name in delete]
        if not entries:
            self.count(topic)
            return
        resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, topic, incremental_configs=entries)
        self._look_for_controller()
        (future,) = self._client.incremental_alter_configs([resource], request_timeout=self._seconds).values()
        self._result(future, f"the configs of topic {topic!r} were not changed")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        wanted = [ClientPartition(*where, offset) for where, offset in before.items()]
        futures = self._client.delete_records(wanted, request_timeout=self._seconds, operation_timeout=self._seconds)
        found: dict[TopicPartition, int] = {}
        for one, future in futures.items():
            where = TopicPartition(one.topic, one.partition)
            try:
                found[where] = self._result(future, f"no record of {where} was deleted").low_watermark
            except KafkaError as error:
                raise self._without_leader(error, where) from None
        return found

    # offsets ---------------------------------------------------------------------------------------------------------

    def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Raises the first error of those that do not pass while leaders are elected."""
        found, errors = self.try_offsets(at, isolation)
        for error in errors.values():
            raise error
        return found

    def try_offsets(
        self,
        at: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        patience_seconds: Sequence[float] = _PATIENCE_SECONDS,
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[TopicPartition, EventBusError]]:
        """Return the offsets, and the errors of the partitions whose offsets are not known.

        A request that may succeed when leaders are elected is repeated. Errors that may pass come last.
        """
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        missing = dict(at)
        errors: dict[TopicPartition, EventBusError] = {}
        passing: dict[TopicPartition, EventBusError] = {}
        for seconds in patience_seconds:
            passing.clear()
            for where, future in self._ask_offsets(missing, isolation, min(seconds, self._seconds)).items():
                try:
                    result = _answered(self._result(future, f"the offsets of {where}"), where)
                except EventBusError as failure:
                    error = self._without_leader(failure, where) if isinstance(failure, KafkaError) else failure
                    error.topic_partition = where
                    if error.retriable and not isinstance(error, UnknownTopicOrPartition):
                        passing[where] = error
                        continue
                    errors[where] = error
                else:
                    found[where] = OffsetAndTimestamp(result.offset, result.timestamp)
                del missing[where]
            if not missing:
                break
            self._look_up_leaders({where.topic for where in missing})
        return found, errors | passing

    def _ask_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel, seconds: float | None = None
    ) -> dict[TopicPartition, Future[Any]]:
        if not at:
            return {}
        wanted = {ClientPartition(*where): _offset_spec(when) for where, when in at.items()}
        futures = self._client.list_offsets(
            wanted, isolation_level=_ISOLATION[isolation], request_timeout=seconds or self._seconds
        )
        return {TopicPartition(one.topic, one.partition): future for one, future in futures.items()}


def _offset_spec(when: int) -> Any:
    if when == EARLIEST:
        return kafka.OffsetSpec.earliest()
    if when == LATEST:
        return kafka.OffsetSpec.latest()
    return kafka.OffsetSpec.max_timestamp() if when == MAX_TIMESTAMP else kafka.OffsetSpec.for_timestamp(when)


def _answered(result: Any, where: TopicPartition) -> Any:
    """What a leader said. librdkafka gives OFFSET_INVALID, and no error, where it found none to ask."""
    if result.offset == OFFSET_INVALID:
        raise RequestTimedOut(f"the offsets of {where}: it has no leader that can be asked")
    return result


def _offset_or_none(future: Future[Any]) -> int:
    try:
        return max(future.result().offset, -1)  # OFFSET_INVALID: see `_answered`
    except KafkaException:
        return -1


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


def _addresses(answer: Any) -> dict[int, Address]:
    return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}


def _as_metadata(topic: Any) -> Any:
    """Return what librdkafka describes in the form of a response."""
    partitions = [
        m.MetadataResponse.MetadataResponsePartition(
            partition_index=one.id,
            leader_id=-1 if one.leader is None else one.leader.id,
            replica_nodes=[node.id for node in one.replicas],
            isr_nodes=[node.id for node in one.isr],
        )
        for one in topic.partitions
    ]
    return m.MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=b64decode(str(topic.topic_id) + "=="),
        is_internal=topic.is_internal,
        partitions=partitions,
    )


def _id_text(topic_id: bytes) -> str:
    """Write an id as Kafka does: the base64 of URLs, without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _entry(entry: Any) -> OurEntry:
    synonyms: dict[str, Any] = entry.synonyms or {}
    default = next((one.value for one in synonyms.values() if _number(one.source) == _DEFAULT), entry.value)
    return OurEntry(entry.value or "", default or "", _SOURCES.get(_number(entry.source), "default"))


_DEFAULT = kafka.ConfigSource.DEFAULT_CONFIG.value


def _number(source: Any) -> int:
    return cast("int", getattr(source, "value", source))


def named(partitions: Iterable[TopicPartition]) -> str:
    """For messages."""
    return ", ".join(map(str, partitions))
