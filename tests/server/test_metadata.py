"""Metadata: topics by name, by id and all of them; creation on demand; what old clients make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.protocol import ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.testing import KafkaServer
from tests.server.batches import create
from tests.server.wire import WireClient

UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_REQUEST, UNKNOWN_ID = 3, 17, 42, 100
NOT_ASKED = -(1 << 31)


def asking(*names: str, ids: tuple[bytes, ...] = (), **more: object) -> m.MetadataRequest:
    topic = m.MetadataRequest.MetadataRequestTopic
    topics = [topic(name=name) for name in names] + [topic(name=None, topic_id=one) for one in ids]
    return m.MetadataRequest(topics=topics, **more)


async def test_the_one_broker_is_told_where_it_is_advertised() -> None:
    listener = Listener(port=0, advertised_host="kafka.example.org", advertised_port=19092)
    async with KafkaServer(config=ServerConfig(listeners=(listener,))) as server, WireClient(server) as client:
        for version in range(14):
            response = await client.call(asking("t"), version)
            (broker,) = response.brokers
            assert (broker.node_id, broker.host, broker.port) == (1, "kafka.example.org", 19092)
            assert response.controller_id == (1 if version >= 1 else -1)
            assert response.cluster_id == (server.node.cluster_id if version >= 2 else None)
            (topic,) = response.topics
            assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
            (partition,) = topic.partitions
            assert (partition.partition_index, partition.leader_id) == (0, 1)
            assert partition.leader_epoch == (0 if version >= 7 else -1)
            assert partition.replica_nodes == partition.isr_nodes == [1] and not partition.offline_replicas
            assert topic.topic_id == (server.node.topic_id("t") if version >= 10 else ZERO_UUID)
            assert topic.topic_authorized_operations == response.cluster_authorized_operations == NOT_ASKED


async def test_no_topics_means_all_in_version_0_and_none_afterwards() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "a", 2)
        await create(client, "b")
        for version in range(14):
            response = await client.call(m.MetadataRequest(topics=[]), version)
            assert [topic.name for topic in response.topics] == (["a", "b"] if version == 0 else [])
            if version >= 1:
                response = await client.call(m.MetadataRequest(topics=None), version)
                assert [(topic.name, len(topic.partitions)) for topic in response.topics] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("version", [0, 3, 4, 13])
async def test_a_missing_topic_is_created_when_it_is_asked_for(version: int) -> None:
    async with KafkaServer(num_partitions=4) as server, WireClient(server) as client:
        response = await client.call(asking("new"), version)
        (topic,) = response.topics
        assert (topic.error_code, len(topic.partitions)) == (0, 4)
        assert server.node.broker.has_topic("new")


@pytest.mark.parametrize("version", [0, 4, 13])
async def test_a_missing_topic_is_not_created_where_the_log_does_not_allow_it(version: int) -> None:
    async with KafkaServer(auto_create_topics=False) as server, WireClient(server) as client:
        response = await client.call(asking("new"), version)
        assert [(topic.error_code, topic.name) for topic in response.topics] == [(UNKNOWN_TOPIC, "new")]
        assert not server.node.broker.has_topic("new")


async def test_a_client_may_ask_that_nothing_is_created() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        for version in range(4, 14):
            response = await client.call(asking("new", allow_auto_topic_creation=False), version)
            assert [topic.error_code for topic in response.topics] == [UNKNOWN_TOPIC]
        assert not server.node.broker.list_topics()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "x" * 250, "é", "a\0"])
async def test_an_illegal_name_is_said_and_never_created(name: str) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        for version in (0, 1, 4, 9, 13):
            response = await client.call(asking(name, "good"), version)
            assert [topic.error_code for topic in response.topics] == [INVALID_TOPIC, 0]
            response = await client.call(asking(name, "new", allow_auto_topic_creation=False), max(version, 4))
            assert [topic.error_code for topic in response.topics] == [INVALID_TOPIC, UNKNOWN_TOPIC]
        assert server.node.broker.list_topics() == ["good"]


async def test_internal_topics_are_told_apart_and_never_created_on_demand() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        response = await client.call(asking("__consumer_offsets", "__transaction_state"), 9)
        assert [topic.error_code for topic in response.topics] == [UNKNOWN_TOPIC, UNKNOWN_TOPIC]
        server.node.broker.groups.partition_of("some group")
        response = await client.call(m.MetadataRequest(topics=None), 9)
        assert [(topic.name, topic.is_internal) for topic in response.topics] == [("__consumer_offsets", True)]


async def test_topics_by_id() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        topic_id = await create(client, "t", 3)
        for version in (12, 13):
            response = await client.call(asking(ids=(topic_id, b"x" * 16)), version)
            found, unknown = response.topics
            assert (found.error_code, found.name, len(found.partitions)) == (0, "t", 3)
            assert (unknown.error_code, unknown.name, unknown.topic_id) == (UNKNOWN_ID, None, b"x" * 16)
        response = await client.call(asking(ids=(topic_id,)), 11)
        assert [topic.error_code for topic in response.topics] == [INVALID_REQUEST]


async def test_ids_outlive_a_restart_and_die_with_their_topic(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    async with KafkaServer(url) as server, WireClient(server) as client:
        kept = await create(client, "kept")
        lost = await create(client, "lost")
    async with KafkaServer(url) as server, WireClient(server) as client:
        response = await client.call(asking(ids=(kept, lost)), 12)
        assert [topic.name for topic in response.topics] == ["kept", "lost"]
        await client.call(m.DeleteTopicsRequest(topic_names=["lost"], timeout_ms=1_000), 5)
        again = await create(client, "lost")
        response = await client.call(asking(ids=(kept, lost, again)), 12)
        assert [(topic.name, topic.error_code) for topic in response.topics] == [
            ("kept", 0), (None, UNKNOWN_ID), ("lost", 0),
        ]  # fmt: skip


async def test_a_deleted_topic_is_unknown_at_once() -> None:
    async with KafkaServer(auto_create_topics=False) as server, WireClient(server) as client:
        await create(client, "t")
        await client.call(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 5)
        response = await client.call(asking("t"), 9)
        assert [topic.error_code for topic in response.topics] == [UNKNOWN_TOPIC]


async def test_operations_are_told_when_they_are_asked_for() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        flags = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        for version in (8, 9, 10):
            response = await client.call(asking("t", **flags), version)
            assert response.topics[0].topic_authorized_operations > 0
            assert response.cluster_authorized_operations > 0
        response = await client.call(asking("t", include_topic_authorized_operations=True), 13)
        assert response.topics[0].topic_authorized_operations > 0
