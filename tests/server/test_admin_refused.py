"""Administrators' requests of somebody who may do nothing: each is refused, by the code Kafka has for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus.protocol import ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing.server import KafkaServer
from tests.server.test_admin import on_server
from tests.server.wire import WireClient

TOPIC_REFUSED, CLUSTER_REFUSED = 29, 31
CONFIG = ServerConfig(listeners=(Listener(port=0),), security=SecurityConfig(acls=True))

_Describe = m.DescribeConfigsRequest.DescribeConfigsResource
_Alter = m.IncrementalAlterConfigsRequest.AlterConfigsResource
_Change = m.IncrementalAlterConfigsRequest.AlterableConfig
_Old = m.AlterConfigsRequest.AlterConfigsResource


def changed(kind: int, name: str) -> Any:
    change = _Change(name="retention.ms", config_operation=0, value="1")
    return m.IncrementalAlterConfigsRequest(
        resources=[_Alter(resource_type=kind, resource_name=name, configs=[change])]
    )


CASES: list[tuple[Any, int, Callable[[Any], int], int]] = [
    (
        m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1)]),
        7, lambda answer: answer.topics[0].error_code, TOPIC_REFUSED,
    ),
    (
        m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="there")]),
        6, lambda answer: answer.responses[0].error_code, TOPIC_REFUSED,
    ),
    (
        m.CreatePartitionsRequest(topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="there", count=9)]),
        3, lambda answer: answer.results[0].error_code, TOPIC_REFUSED,
    ),
    (
        m.DescribeConfigsRequest(resources=[_Describe(resource_type=2, resource_name="there")]),
        4, lambda answer: answer.results[0].error_code, TOPIC_REFUSED,
    ),
    (
        m.DescribeConfigsRequest(resources=[_Describe(resource_type=4, resource_name="1")]),
        4, lambda answer: answer.results[0].error_code, CLUSTER_REFUSED,
    ),
    (changed(2, "there"), 1, lambda answer: answer.responses[0].error_code, TOPIC_REFUSED),
    (changed(4, "1"), 1, lambda answer: answer.responses[0].error_code, CLUSTER_REFUSED),
    (
        m.AlterConfigsRequest(resources=[_Old(resource_type=2, resource_name="there")]),
        2, lambda answer: answer.responses[0].error_code, TOPIC_REFUSED,
    ),
    (
        m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name="there")]),
        0, lambda answer: answer.topics[0].error_code, TOPIC_REFUSED,
    ),
    (m.DescribeLogDirsRequest(topics=None), 5, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.ListPartitionReassignmentsRequest(topics=None), 0, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.AlterPartitionReassignmentsRequest(), 1, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.ElectLeadersRequest(topic_partitions=None), 2, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.ListConfigResourcesRequest(), 1, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.DescribeQuorumRequest(), 2, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (m.UpdateFeaturesRequest(), 2, lambda answer: answer.error_code, CLUSTER_REFUSED),
    (
        m.AlterReplicaLogDirsRequest(
            dirs=[
                m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                    path="/x",
                    topics=[m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name="there", partitions=[0])],
                )
            ]
        ),
        2, lambda answer: answer.results[0].partitions[0].error_code, CLUSTER_REFUSED,
    ),
]  # fmt: skip
"""A request, its version, where its answer tells the outcome, and which one."""


@pytest.mark.parametrize(
    ("request_", "version", "code_of", "code"), CASES, ids=[type(case[0]).__name__ for case in CASES]
)
def test_refused(request_: Any, version: int, code_of: Callable[[Any], int], code: int) -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        async with server.bus() as bus:
            await bus.admin.create_topic("there", 2)
            assert code_of(await client.call(request_, version)) == code
            [topic] = await bus.admin.describe_topics()
        assert (topic.name, len(topic.partitions)) == ("there", 2)
        assert topic.configs["retention.ms"].source == "default"

    on_server(test, lambda: KafkaServer(config=CONFIG))


def test_what_may_not_be_seen_is_not_told() -> None:
    async def test(server: KafkaServer, client: WireClient) -> None:
        async with server.bus() as bus:
            await bus.admin.create_topic("there")
            topic_id = server.node.topic_id("there")
            everything = await client.call(m.DescribeTopicPartitionsRequest(), 0)
            assert everything.topics == []
            by_id = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id)])
            [result] = (await client.call(by_id, 6)).responses
            assert (result.name, result.error_code, "there" in result.error_message) == (None, TOPIC_REFUSED, False)
            asked = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
            assert (await client.call(asked, 2)).cluster_authorized_operations == 0
            assert topic_id != ZERO_UUID and server.node.broker.has_topic("there")

    on_server(test, lambda: KafkaServer(config=CONFIG))
