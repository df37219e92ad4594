"""Administrators' requests, byte for byte over a connection: topics, partitions, the cluster and its disks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.protocol import ZERO_UUID, uuid_bytes
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.testing.server import KafkaServer
from tests.server.wire import WireClient

CreatableTopic = m.CreateTopicsRequest.CreatableTopic
Assignment = m.CreateTopicsRequest.CreatableReplicaAssignment
Config = m.CreateTopicsRequest.CreatableTopicConfig

TOPIC_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS, INVALID_FACTOR, INVALID_ASSIGNMENT = 36, 17, 37, 38, 39
INVALID_CONFIG, INVALID_REQUEST, UNKNOWN_TOPIC, UNKNOWN_ID = 40, 42, 3, 100


def on_server(
    test: Callable[[KafkaServer, WireClient], Awaitable[None]], server: Callable[[], KafkaServer] = KafkaServer
) -> None:
    async def main() -> None:
        running = server()
        async with running, WireClient(running) as client:
            await test(running, client)

    asyncio.run(main())


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> Any:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)


async def create(client: WireClient, *topics: Any, version: int = 7, **more: Any) -> dict[str, Any]:
    response = await client.call(m.CreateTopicsRequest(topics=list(topics), **more), version)
    return {one.name: one for one in response.topics}


# create ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
def test_create_tells_what_each_version_knows(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        configs = [Config(name="retention.ms", value="60000")]
        one = (await create(client, topic("orders", 3, configs=configs), version=version))["orders"]
        assert (one.error_code, one.error_message) == (0, None)
        assert server.node.broker.partition_count("orders") == 3
        if version >= 5:
            assert (one.num_partitions, one.replication_factor) == (3, 1)
            told = {config.name: (config.value, config.config_source) for config in one.configs}
            assert told["retention.ms"] == ("60000", 1)
            assert told["cleanup.policy"] == ("delete", 5)
        assert one.topic_id == (server.node.topic_id("orders") if version >= 7 else ZERO_UUID)

    on_server(test)


def test_minus_one_means_the_servers_defaults() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        one = (await create(client, topic("orders", -1, -1)))["orders"]
        assert (one.error_code, one.num_partitions, one.replication_factor) == (0, 4, 1)

    on_server(test, lambda: KafkaServer(num_partitions=4))


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (topic("there"), TOPIC_EXISTS, "Topic 'there' already exists."),
        (topic("no/slash"), INVALID_TOPIC, "'/'"),
        (topic("__consumer_offsets"), INVALID_TOPIC, "internal"),
        (topic("t", 0), INVALID_PARTITIONS, "0 partitions"),
        (topic("t", 1, 3), INVALID_FACTOR, "replication factor 3"),
        (topic("t", 1, 0), INVALID_FACTOR, "replication factor 0"),
        (topic("t", configs=[Config(name="retention.msec", value="1")]), INVALID_CONFIG, "retention.ms"),
        (topic("t", configs=[Config(name="retention.ms", value="soon")]), INVALID_CONFIG, "soon"),
        (topic("t", configs=[Config(name="retention.ms", value=None)]), INVALID_CONFIG, "no value"),
        (topic("t", assignments=[Assignment(partition_index=0, broker_ids=[1])]), INVALID_REQUEST, "-1"),
        (
            topic("t", -1, -1, assignments=[Assignment(partition_index=1, broker_ids=[1])]),
            INVALID_ASSIGNMENT,
            "0, 1, 2",
        ),
        (topic("t", -1, -1, assignments=[Assignment(partition_index=0, broker_ids=[2])]), INVALID_ASSIGNMENT, "[2]"),
        (topic("t", -1, -1, assignments=[Assignment(partition_index=0, broker_ids=[])]), INVALID_ASSIGNMENT, "[]"),
    ],
)
def test_what_is_refused_is_told_beside_what_is_created(asked: Any, code: int, told: str) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("there"))
        results = await create(client, asked, topic("good"))
        refused = results[asked.name]
        assert refused.error_code == code
        assert told in refused.error_message
        assert results["good"].error_code == 0
        assert server.node.broker.has_topic("good")

    on_server(test)


def test_a_topic_twice_in_a_request_is_created_by_neither() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        results = await create(client, topic("twice"), topic("twice", 2), topic("once"))
        assert {name: one.error_code for name, one in results.items()} == {"twice": INVALID_REQUEST, "once": 0}
        assert server.node.broker.list_topics() == ["once"]

    on_server(test)


def test_partitions_may_be_assigned_to_the_one_broker() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        assigned = [Assignment(partition_index=number, broker_ids=[1]) for number in (1, 0)]
        one = (await create(client, topic("t", -1, -1, assignments=assigned)))["t"]
        assert (one.error_code, one.num_partitions) == (0, 2)

    on_server(test)


def test_validate_only_creates_nothing() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        one = (await create(client, topic("orders", 2), validate_only=True))["orders"]
        assert (one.error_code, one.num_partitions) == (0, 2)
        assert server.node.broker.list_topics() == []

    on_server(test)


def test_more_replicas_are_accepted_only_when_asked_to() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        assert (await create(client, topic("t", 1, 3)))["t"].error_code == 0

    config = ServerConfig(listeners=(Listener(port=0),), accept_replication_factor=True)
    on_server(test, lambda: KafkaServer(config=config))


# delete ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("orders"), topic("kept"))
        names = ["orders", "nowhere"]
        request = m.DeleteTopicsRequest(
            topic_names=names, topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        )
        response = await client.call(request, version)
        assert {one.name: one.error_code for one in response.responses} == {"orders": 0, "nowhere": UNKNOWN_TOPIC}
        assert server.node.broker.list_topics() == ["kept"]

    on_server(test)


def test_delete_by_id() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        topic_id = (await create(client, topic("orders")))["orders"].topic_id
        state = m.DeleteTopicsRequest.DeleteTopicState
        other = uuid_bytes("AAAAAAAAAAAAAAAAAAAAZg")
        asked = [state(topic_id=topic_id), state(topic_id=other), state(), state(name="orders", topic_id=topic_id)]
        response = await client.call(m.DeleteTopicsRequest(topics=asked), 6)
        assert [(one.name, one.error_code) for one in response.responses] == [
            ("orders", 0),
            (None, UNKNOWN_ID),
            (None, INVALID_REQUEST),
            ("orders", INVALID_REQUEST),
        ]
        assert server.node.topic_name(topic_id) is None

    on_server(test)


def test_a_topic_twice_in_a_request_is_not_deleted() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("twice"), topic("once"))
        response = await client.call(m.DeleteTopicsRequest(topic_names=["twice", "once", "twice"]), 5)
        assert [(one.name, one.error_code) for one in response.responses] == [("twice", INVALID_REQUEST), ("once", 0)]
        assert server.node.broker.list_topics() == ["twice"]

    on_server(test)


def test_a_topic_of_a_deleted_name_has_another_id() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        first = (await create(client, topic("orders")))["orders"].topic_id
        await client.call(m.DeleteTopicsRequest(topic_names=["orders"]), 5)
        second = (await create(client, topic("orders")))["orders"].topic_id
        assert first != second

    on_server(test)


# partitions -----------------------------------------------------------------------------------------------------------


def grown(name: str, count: int, *assignments: list[int]) -> Any:
    kind = m.CreatePartitionsRequest.CreatePartitionsTopic
    given = [m.CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=one) for one in assignments]
    return kind(name=name, count=count, assignments=given or None)


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a", 2), topic("b", 2), topic("c", 2), topic("d", 2))
        asked = [grown("a", 4), grown("b", 2), grown("c", 4, [1]), grown("d", 3, [2]), grown("e", 1), grown("b", 3)]
        response = await client.call(m.CreatePartitionsRequest(topics=asked), version)
        assert {one.name: one.error_code for one in response.results} == {
            "a": 0, "b": INVALID_REQUEST, "c": INVALID_ASSIGNMENT, "d": INVALID_ASSIGNMENT, "e": UNKNOWN_TOPIC,
        }  # fmt: skip
        assert [server.node.broker.partitions_of(name) for name in "abcd"] == [4, 2, 2, 2]
        response = await client.call(m.CreatePartitionsRequest(topics=[grown("b", 1), grown("c", 3, [1])]), version)
        assert {one.name: one.error_code for one in response.results} == {"b": INVALID_PARTITIONS, "c": 0}
        response = await client.call(m.CreatePartitionsRequest(topics=[grown("d", 9)], validate_only=True), version)
        assert response.results[0].error_code == 0
        assert [server.node.broker.partitions_of(name) for name in "bcd"] == [2, 3, 2]

    on_server(test)


@pytest.mark.parametrize("page", [1, 2, 3, 5, 2000])
def test_topics_are_described_page_by_page(page: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a", 2), topic("b", 1), topic("c", 3))
        seen: list[tuple[str, int]] = []
        cursor: Any = None
        while True:
            request = m.DescribeTopicPartitionsRequest(response_partition_limit=page, cursor=cursor)
            response = await client.call(request, 0)
            found = [(one.name, each.partition_index) for one in response.topics for each in one.partitions]
            assert len(found) <= page
            seen += found
            if response.next_cursor is None:
                break
            cursor = m.DescribeTopicPartitionsRequest.Cursor(
                topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
            )
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]

    on_server(test)


def test_pages_that_cannot_be_and_names_that_are_none() -> None:
    """Codes and counts are those of Apache Kafka 4.3."""

    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a", 3), topic("c", 1))
        ask, cursor = m.DescribeTopicPartitionsRequest, m.DescribeTopicPartitionsRequest.Cursor
        a, c, bad = (ask.TopicRequest(name=name) for name in ("a", "c", "no/"))

        async def told(request: Any) -> list[tuple[str, int, int]]:
            topics = (await client.call(request, 0)).topics
            return [(one.name, one.error_code, len(one.partitions)) for one in topics]

        assert await told(ask(topics=[a, a], response_partition_limit=0)) == [("a", 0, 1)]
        assert await told(ask(topics=[a], cursor=cursor(topic_name="a", partition_index=1))) == [("a", 0, 2)]
        assert await told(ask(topics=[a], cursor=cursor(topic_name="a", partition_index=50))) == [("a", 0, 0)]
        gone = ask(topics=[a, c], cursor=cursor(topic_name="b", partition_index=0))
        assert await told(gone) == [("a", INVALID_REQUEST, 0), ("c", INVALID_REQUEST, 0)]
        before = ask(topics=[a], cursor=cursor(topic_name="a", partition_index=-1))
        assert await told(before) == [("a", INVALID_REQUEST, 0)]
        assert await told(ask(topics=[bad])) == [("no/", INVALID_TOPIC, 0)]

    on_server(test)


def test_a_described_topic() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        asked = [m.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("nowhere", "a")]
        response = await client.call(m.DescribeTopicPartitionsRequest(topics=asked), 0)
        found, missing = response.topics
        assert (missing.name, missing.error_code, missing.topic_id) == ("nowhere", UNKNOWN_TOPIC, ZERO_UUID)
        assert (found.name, found.error_code, found.topic_id) == ("a", 0, server.node.topic_id("a"))
        [partition] = found.partitions
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert found.topic_authorized_operations == 0b0000_1101_1111_1000

    on_server(test)


# the cluster ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_one_broker_which_is_its_controller(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        response = await client.call(m.DescribeClusterRequest(), version)
        assert (response.error_code, response.controller_id, response.endpoint_type) == (0, 1, 1)
        assert response.cluster_id == server.node.cluster_id
        [broker] = response.brokers
        assert (broker.broker_id, f"{broker.host}:{broker.port}") == (1, server.bootstrap)
        assert response.cluster_authorized_operations == -(1 << 31)
        asked = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await client.call(asked, version)).cluster_authorized_operations > 0
        if version > 0:
            assert (await client.call(m.DescribeClusterRequest(endpoint_type=2), version)).error_code == 114
            assert (await client.call(m.DescribeClusterRequest(endpoint_type=9), version)).error_code == 115

    on_server(test)


def test_the_quorum_is_one_voter() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        data = m.DescribeQuorumRequest.TopicData
        asked = [
            data(topic_name="__cluster_metadata", partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)])
        ]
        for version in range(3):
            response = await client.call(m.DescribeQuorumRequest(topics=asked), version)
            [partition] = response.topics[0].partitions
            assert (response.error_code, partition.error_code, partition.leader_id) == (0, 0, 1)
            assert [voter.replica_id for voter in partition.current_voters] == [1]
            assert partition.high_watermark == partition.current_voters[0].log_end_offset > 0
        asked = [data(topic_name="a", partitions=[m.DescribeQuorumRequest.PartitionData(partition_index=0)])]
        response = await client.call(m.DescribeQuorumRequest(topics=asked), 2)
        assert response.topics[0].partitions[0].error_code == UNKNOWN_TOPIC

    on_server(test)


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directories_and_sizes(version: int, tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a", 2), topic("b"))
        bus = server.bus()
        async with bus:
            await bus.send("a", b"x" * 1_000, partition=1)
        response = await client.call(m.DescribeLogDirsRequest(topics=None), version)
        [found] = response.results
        assert (response.error_code, found.error_code, found.log_dir) == (0, 0, str(tmp_path))
        sizes = {one.name: [each.partition_size for each in one.partitions] for one in found.topics}
        assert sizes["a"][0] == 0 and sizes["a"][1] > 1_000 and sizes["b"] == [0]
        if version >= 4:
            assert found.total_bytes > found.usable_bytes > 0
        some = m.DescribeLogDirsRequest.DescribableLogDirTopic(topic="a", partitions=[1, 7])
        response = await client.call(m.DescribeLogDirsRequest(topics=[some]), version)
        [only] = response.results[0].topics
        assert (only.name, [each.partition_index for each in only.partitions]) == ("a", [1])

    on_server(test, lambda: KafkaServer(f"file://{tmp_path}"))


def test_nothing_is_moved_and_nobody_elected() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a", 2))
        assert (await client.call(m.ListPartitionReassignmentsRequest(topics=None), 0)).topics == []
        kind = m.AlterPartitionReassignmentsRequest.ReassignableTopic
        part = m.AlterPartitionReassignmentsRequest.ReassignablePartition
        moves = [part(partition_index=0, replicas=[1]), part(partition_index=1, replicas=[2]),
                 part(partition_index=0, replicas=None), part(partition_index=7, replicas=[1])]  # fmt: skip
        response = await client.call(m.AlterPartitionReassignmentsRequest(topics=[kind(name="a", partitions=moves)]), 1)
        codes = [each.error_code for each in response.responses[0].partitions]
        assert codes == [0, INVALID_ASSIGNMENT, 85, UNKNOWN_TOPIC]

        some = [m.ElectLeadersRequest.TopicPartitions(topic="a", partitions=[0, 7])]
        for version in range(3):
            response = await client.call(m.ElectLeadersRequest(topic_partitions=some), version)
            [elected] = response.replica_election_results
            assert [each.error_code for each in elected.partition_result] == [84, UNKNOWN_TOPIC]
            everything = await client.call(m.ElectLeadersRequest(topic_partitions=None), version)
            assert (everything.error_code, everything.replica_election_results) == (0, [])

    on_server(test)


def test_there_is_one_log_directory(tmp_path: Path) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        await create(client, topic("a"))
        kind = m.AlterReplicaLogDirsRequest.AlterReplicaLogDir
        one = m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
        asked = [kind(path=str(tmp_path), topics=[one(name="a", partitions=[0, 1])]),
                 kind(path="/elsewhere", topics=[one(name="a", partitions=[0, 9])])]  # fmt: skip
        response = await client.call(m.AlterReplicaLogDirsRequest(dirs=asked), 2)
        [result] = response.results
        assert [(each.partition_index, each.error_code) for each in result.partitions] == [
            (0, 0), (1, UNKNOWN_TOPIC), (0, 57), (9, 57),
        ]  # fmt: skip

    on_server(test, lambda: KafkaServer(f"file://{tmp_path}"))


@pytest.mark.parametrize("version", range(3))
def test_no_feature_has_levels(version: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        update = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="metadata.version", max_version_level=7)
        response = await client.call(m.UpdateFeaturesRequest(feature_updates=[update]), version)
        assert response.error_code == 95 and "metadata.version" in response.error_message
        assert (await client.call(m.UpdateFeaturesRequest(), version)).error_code == 0

    on_server(test)
