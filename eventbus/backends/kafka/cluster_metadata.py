"""Topics, brokers and leaders, from any broker that answers. Everything here blocks, and runs in threads."""

from __future__ import annotations

import socket
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException, TopicCollection

from eventbus.backends.kafka.admin_handle import AdminHandle
from eventbus.backends.kafka.failures import error_of, raised
from eventbus.backends.kafka.wire import Address, Wire
from eventbus.broker.names import check_topic_name
from eventbus.errors import ConfigError, KafkaError, RequestTimedOut, UnknownTopicOrPartition
from eventbus.protocol import messages as m
from eventbus.suggest import nearest
from eventbus.types import TopicPartition

_METADATA_SECONDS = 5.0
"""How long a broker may take to return metadata before the next broker is tried."""
_ANY_TOPIC = "__consumer_offsets"
_CONTROLLER_LOOKS = 10
_CONNECT_SECONDS, _PAUSE_SECONDS = 1.0, 0.1
_GRACE_SECONDS = 5.0
"""How much later than the timeout of its request librdkafka may report."""
T = TypeVar("T")


class KnownTopic(NamedTuple):
    """A topic in a broker's metadata."""

    partitions: int
    id: str
    """The id changes if the topic is deleted and created again."""
    leaderless: frozenset[TopicPartition]
    """The partitions that have no leader now."""


class Topics(NamedTuple):
    """Topics in a broker's metadata."""

    found: dict[str, Any]
    """Topics by name, each a MetadataResponseTopic."""
    errors: dict[str, KafkaError]
    brokers: dict[int, Address]

    @property
    def leaders(self) -> dict[TopicPartition, Address]:
        """The leaders of the partitions that have one."""
        return {
            TopicPartition(name, partition.partition_index): self.brokers[partition.leader_id]
            for name, topic in self.found.items()
            for partition in topic.partitions
            if partition.leader_id in self.brokers
        }


class ClusterMetadata:
    """The topics and brokers of one cluster."""

    def __init__(self, handle: AdminHandle, wire: Wire, timeout_seconds: float) -> None:
        self.handle = handle
        self.timeout_seconds = timeout_seconds
        self._wire = wire

    def result(self, future: Future[T], what: str) -> T:
        """Wait for librdkafka's request. Raises our error for librdkafka's."""
        try:
            return future.result(self.timeout_seconds + _GRACE_SECONDS)
        except KafkaException as failure:
            raise raised(failure, what) from None
        except TimeoutError:
            raise RequestTimedOut(f"{what}: no broker has answered in {self.timeout_seconds:.0f} s") from None

    def brokers(self) -> dict[int, Address]:
        """Return the brokers of the cluster from its metadata."""
        try:
            return _addresses(self._request([]))
        except ConfigError:  # see `topics`
            found = self.result(
                self.handle.client.describe_cluster(request_timeout=self.timeout_seconds), "the brokers"
            )
            return {node.id: (node.host, node.port) for node in found.nodes}

    def _request(self, names: Collection[str]) -> m.MetadataResponse:
        """Request topics and brokers from any broker that answers.

        librdkafka sends its own describe_topics and describe_cluster only to the controller. A KRaft broker returns a
        random broker as the controller, even a dead one whose session has not ended: for 9 s by default.
        """
        topics = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return self._wire.call(request, timeout_seconds=min(self.timeout_seconds, _METADATA_SECONDS))

    def topics(self, names: Collection[str]) -> Topics:
        """Return topics, the errors of the other topics, and the brokers; store the leaders of partitions."""
        try:
            answer = self._request(names)
        # Our own connections do not support all of librdkafka's settings, a Java keystore for example.
        except ConfigError:
            return self._topics_by_librdkafka(names)
        topics = Topics({}, {}, _addresses(answer))
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code:
                error = error_of(ClientError(topic.error_code), f"topic {name!r}")
                assert isinstance(error, KafkaError), "the error of a broker has a code"
                topics.errors[name] = error
            else:
                topics.found[name] = topic
        self._wire.leaders.update(topics.leaders)
        return topics

    def _topics_by_librdkafka(self, names: Collection[str]) -> Topics:
        topics = Topics({}, {}, self.brokers())
        futures = self.handle.client.describe_topics(TopicCollection(list(names)), request_timeout=self.timeout_seconds)
        for name, future in futures.items():
            try:
                topics.found[name] = _as_metadata(self.result(future, f"topic {name!r}"))
            except KafkaError as error:
                topics.errors[name] = error
        return topics

    def look_for_controller(self) -> None:
        """Make librdkafka find a reachable controller, before a request that only the controller accepts."""
        for _ in range(_CONTROLLER_LOOKS):
            with suppress(KafkaException, OSError, KeyError):
                found = self.handle.client.list_topics(_ANY_TOPIC, timeout=min(self.timeout_seconds, _METADATA_SECONDS))
                broker = found.brokers[found.controller_id]
                socket.create_connection((broker.host, broker.port), _CONNECT_SECONDS).close()
                return
            time.sleep(_PAUSE_SECONDS)  # in a thread: another broker, or this broker later, returns another controller

    def counts(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Return the partition counts of the named topics that exist, or of all. Creates none."""
        if names is None:
            return self.all_counts()
        return {name: topic.partitions for name, topic in self.known(names).items()}

    def known(self, names: Collection[str]) -> dict[str, KnownTopic]:
        """Return the named topics that exist."""
        if not names:
            return {}
        topics = self.topics(names)
        for error in topics.errors.values():
            if error.retriable and error.code != UnknownTopicOrPartition.code:
                raise error  # the topic may exist
        known: dict[str, KnownTopic] = {}
        for name, topic in topics.found.items():
            led = {one.partition_index for one in topic.partitions if one.leader_id in topics.brokers}
            rest = {one.partition_index for one in topic.partitions} - led
            leaderless = frozenset(TopicPartition(name, number) for number in rest)
            known[name] = KnownTopic(len(topic.partitions), id_text(topic.topic_id), leaderless)
        return known

    def all_counts(self) -> dict[str, int]:
        """Return the partition counts of all topics of the cluster."""
        try:
            found = self.handle.client.list_topics(timeout=self.timeout_seconds)
        except KafkaException as failure:
            raise raised(failure, "the topics cannot be listed") from None
        return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    def count(self, topic: str) -> int:
        """Return the partition count of a topic. Raises UnknownTopicOrPartition, or InvalidTopic for an invalid
        name."""
        check_topic_name(topic)  # for some names the client library raises a ValueError
        topics = self.topics([topic])
        if topics.errors:
            raise topics.errors[topic]
        return len(topics.found[topic].partitions)

    def unknown(self, topic: str) -> UnknownTopicOrPartition:
        """Return the error for a topic that does not exist, with the nearest existing name."""
        # Programs look for internal topics now and then, which is not worth listing a large cluster.
        known = () if topic.startswith("_") else self.counts()
        hint = nearest(topic, known) or f"; create it: `eventbus topics create {topic}`"
        return UnknownTopicOrPartition(f"there is no topic {topic!r}{hint}")


def id_text(topic_id: bytes) -> str:
    """Format an id as Kafka does: URL-safe base64, without padding."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _addresses(answer: Any) -> dict[int, Address]:
    return {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}


def _as_metadata(topic: Any) -> Any:
    """Return librdkafka's description in the form of a response."""
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
