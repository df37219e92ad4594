"""Offsets come from the leaders of partitions, also after a leader has changed or while there is none."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from confluent_kafka import OFFSET_INVALID
from confluent_kafka.admin import AdminClient

from eventbus import EventBus
from eventbus.backends.base import LATEST, MAX_TIMESTAMP
from eventbus.backends.kafka.cluster_metadata import ClusterMetadata
from eventbus.backends.kafka.offset_admin import OffsetAdmin
from eventbus.errors import (
    ConfigError,
    EventBusError,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for_code,
)
from eventbus.protocol import messages as m
from eventbus.testing import KafkaServer
from eventbus.types import IsolationLevel, TopicPartition

pytestmark = pytest.mark.system

ORDERS = TopicPartition("orders", 0)
OLD, NEW = ("old", 1), ("new", 2)
NO_LEADER, NOT_LEADER = 5, 6


class Brokers:
    """A cluster of which `NEW` leads orders-0, or no broker. `OLD` did, and returns an error or no answer."""

    def __init__(self, old: int | EventBusError = NOT_LEADER, leader_id: int = 2, version: int = 11) -> None:
        self.leaders = {ORDERS: OLD}
        self.asked: list[Any] = []
        self._old = old
        self._leader_id = leader_id
        self._version = version

    def call(self, request: m.MetadataRequest, **_: Any) -> m.MetadataResponse:
        brokers = [m.MetadataResponse.MetadataResponseBroker(node_id=2, host="new", port=2)]
        partition = m.MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=self._leader_id)
        topics = [m.MetadataResponse.MetadataResponseTopic(name="orders", partitions=[partition])]
        return m.MetadataResponse(brokers=brokers, topics=topics)

    def ask(self, make: Any, api: str, at: Any, **_: Any) -> m.ListOffsetsResponse:
        make(self._version)
        self.asked.append(at)
        if at == OLD and isinstance(self._old, EventBusError):
            raise self._old
        code = self._old if at == OLD else 0
        partition = m.ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=7)
        topic = m.ListOffsetsResponse.ListOffsetsTopicResponse(name="orders", partitions=[partition])
        return m.ListOffsetsResponse(topics=[topic])


def offset(brokers: Any, client: Any = None, at: int = LATEST) -> int:
    handle: Any = SimpleNamespace(client=client)
    admin = OffsetAdmin(ClusterMetadata(handle, brokers, 30), brokers)
    return admin.list_offsets({ORDERS: at}, IsolationLevel.READ_COMMITTED)[ORDERS].offset


@pytest.mark.parametrize("old", [NOT_LEADER, UnknownTopicOrPartition.code, RequestTimedOut("no answer")])
def test_a_leader_that_fails_is_looked_up_again(old: int | EventBusError) -> None:
    brokers = Brokers(old)
    assert (offset(brokers), brokers.asked) == (7, [OLD, NEW])
    assert (offset(brokers), brokers.asked) == (7, [OLD, NEW, NEW]), "the new one is remembered"


def test_a_partition_without_a_leader_is_named() -> None:
    with pytest.raises(KafkaError, match=r"orders-0.*no leader") as caught:
        offset(Brokers(leader_id=-1))
    assert (caught.value.code, caught.value.retriable) == (NO_LEADER, True)


def test_an_old_broker_has_no_largest_timestamp() -> None:
    with pytest.raises(UnsupportedVersion, match=r"MAX_TIMESTAMP.*Kafka 3\.0"):
        offset(Brokers(version=6), at=MAX_TIMESTAMP)


async def test_librdkafka_is_not_used_for_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main thread frees such a request while the calling thread still uses it: the process crashed."""
    monkeypatch.delattr(AdminClient, "list_offsets")
    monkeypatch.delattr(AdminClient, "delete_records")
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        for n in range(3):
            await bus.send("orders", n)
        assert await bus.admin.delete_records({ORDERS: 2}) == {ORDERS: 2}
        [topic] = await bus.admin.describe_topics(["orders"])
        assert (topic.partitions[0].log_start_offset, topic.partitions[0].log_end_offset) == (2, 3)
        with pytest.raises(UnknownTopicOrPartition, match="has 1 partition"):
            await bus.admin.delete_records({TopicPartition("orders", 1): 0})


class NoConnections:
    """Settings that our own connections do not take."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, Any] = {}

    def call(self, *_: Any, **__: Any) -> Any:
        raise ConfigError("ssl.keystore.location")

    ask = call


class Client:
    """librdkafka's admin client of a cluster whose broker 2 leads orders-0, unless ``leader`` is another one."""

    def __init__(self, offset: int = 7, leader: int = 2) -> None:
        self.asked: list[str] = []
        self._offset = offset
        self._leader = leader

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return _done(SimpleNamespace(nodes=[SimpleNamespace(id=2, host="new", port=2)]))

    def describe_topics(self, *_: Any, **__: Any) -> dict[str, Future[Any]]:
        leader = SimpleNamespace(id=2)
        partition = SimpleNamespace(id=0, leader=leader, replicas=[], isr=[])
        topic = SimpleNamespace(name="orders", topic_id="A" * 22, is_internal=False, partitions=[partition])
        return {"orders": _done(topic)}

    def list_topics(self, topic: str, **_: Any) -> Any:
        self.asked.append("list_topics")
        partitions = {0: SimpleNamespace(leader=self._leader)}
        return SimpleNamespace(brokers={2: None}, topics={topic: SimpleNamespace(partitions=partitions)})

    def list_offsets(self, wanted: Iterable[Any], **_: Any) -> dict[Any, Future[Any]]:
        found = SimpleNamespace(offset=self._offset, timestamp=-1)
        self.asked += ["list_offsets" for _ in wanted]
        return {where: _done(found) for where in wanted}


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def test_librdkafka_knows_the_leader_before_it_is_asked_for_offsets() -> None:
    client = Client()
    assert (offset(NoConnections(), client), client.asked) == (7, ["list_topics", "list_offsets"])


@pytest.mark.parametrize("leader", [-1, 3])
def test_librdkafka_is_not_asked_about_a_partition_without_a_leader(leader: int) -> None:
    client = Client(leader=leader)
    with pytest.raises(type(error_for_code(NO_LEADER, "")), match=r"orders-0.*no leader"):
        offset(NoConnections(), client)
    assert "list_offsets" not in client.asked


def test_no_offset_of_librdkafka_is_not_taken_for_one() -> None:
    with pytest.raises(KafkaError, match=r"orders-0.*no leader"):
        offset(NoConnections(), Client(OFFSET_INVALID))
    assert offset(NoConnections(), Client(-1)) == -1, "a time after the last record has no offset"
