"""What groups and transactions ask permission for, and the code of each refusal."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.protocol import messages as m
from eventbus.server.security.acls import CLUSTER_NAME, Operation, ResourceType
from eventbus.testing.server import KafkaServer
from tests.server.groups import (
    CommitPartition,
    CommitTopic,
    FetchGroup,
    FetchTopics,
    Identity,
    JoinProtocol,
    Member,
    TransactionalProducer,
    TxnCommitPartition,
    TxnCommitTopic,
    TxnTopic,
    commit,
    create,
)
from tests.server.wire import WireClient

TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, ID_REFUSED, NOT_ATTEMPTED = 29, 30, 31, 53, 55
GROUP, TOPIC = (ResourceType.GROUP, "g"), (ResourceType.TOPIC, "t")
TRANSACTIONAL_ID, CLUSTER = (ResourceType.TRANSACTIONAL_ID, "tx"), (ResourceType.CLUSTER, CLUSTER_NAME)


class Rules:
    """Everything may be done, but for what is denied."""

    def __init__(self, *denied: tuple[Operation, tuple[ResourceType, str]]) -> None:
        self.denied = {(operation, *resource) for operation, resource in denied}

    def allows(self, _: Any, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (operation, resource_type, name) not in self.denied

    def allows_some(self, _: Any, operation: Operation, resource_type: ResourceType) -> bool:
        return not any((operation, resource_type) == rule[:2] for rule in self.denied)


def offset_commit() -> m.OffsetCommitRequest:
    part = CommitPartition(partition_index=0, committed_offset=1)
    return m.OffsetCommitRequest(group_id="g", topics=[CommitTopic(name=name, partitions=[part]) for name in "tu"])


def offset_fetch(topics: list[Any] | None) -> m.OffsetFetchRequest:
    return m.OffsetFetchRequest(groups=[FetchGroup(group_id="g", topics=topics)])


def offset_delete() -> m.OffsetDeleteRequest:
    part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
    return m.OffsetDeleteRequest(group_id="g", topics=[topic(name=name, partitions=[part]) for name in "tu"])


def add_partitions() -> m.AddPartitionsToTxnRequest:
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_topics=[TxnTopic(name="t", partitions=[0]), TxnTopic(name="u", partitions=[0])],
    )


def txn_offset_commit() -> m.TxnOffsetCommitRequest:
    part = TxnCommitPartition(partition_index=0, committed_offset=1)
    topics = [TxnCommitTopic(name=name, partitions=[part]) for name in "tu"]
    return m.TxnOffsetCommitRequest(transactional_id="tx", group_id="g", producer_id=1, topics=topics)


def describe_producers() -> m.DescribeProducersRequest:
    topic = m.DescribeProducersRequest.TopicRequest
    return m.DescribeProducersRequest(topics=[topic(name=name, partition_indexes=[0]) for name in "tu"])


def codes(answer: Any) -> list[int]:
    """Every code in an answer, in order; those its version has no place for are 0."""
    found: list[int] = []
    for name in getattr(answer, "__struct_fields__", ()):
        value = getattr(answer, name)
        if name in ("error_code", "partition_error_code"):
            found.append(value)
        for one in value if isinstance(value, list) else ():
            found += codes(one)
    return found


READ, WRITE, DESCRIBE, DELETE, ALTER = (
    Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER
)  # fmt: skip
JOIN = m.JoinGroupRequest(
    group_id="g", session_timeout_ms=10_000, protocol_type="test", protocols=[JoinProtocol(name="range")]
)
LEAVE = m.LeaveGroupRequest(group_id="g", members=[Identity(member_id="x")])
END = m.EndTxnRequest(transactional_id="tx", producer_id=1)
INIT = m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1_000)
ADD_OFFSETS = m.AddOffsetsToTxnRequest(transactional_id="tx", group_id="g")
ALL_OF_U = FetchTopics(name="u", partition_indexes=[0])
ALL_OF_T = FetchTopics(name="t", partition_indexes=[0])


@pytest.mark.parametrize(
    ("request_", "version", "operation", "resource", "expected"),
    [
        (JOIN, 9, READ, GROUP, [GROUP_REFUSED]),
        (m.SyncGroupRequest(group_id="g"), 4, READ, GROUP, [GROUP_REFUSED]),
        (m.HeartbeatRequest(group_id="g"), 4, READ, GROUP, [GROUP_REFUSED]),
        (LEAVE, 5, READ, GROUP, [GROUP_REFUSED]),
        (offset_commit(), 8, READ, GROUP, [GROUP_REFUSED, GROUP_REFUSED]),
        (offset_commit(), 8, READ, TOPIC, [TOPIC_REFUSED, 0]),
        (offset_fetch([ALL_OF_T]), 8, DESCRIBE, GROUP, [0, GROUP_REFUSED]),
        (offset_fetch([ALL_OF_T, ALL_OF_U]), 8, DESCRIBE, TOPIC, [0, TOPIC_REFUSED, 0, 0]),
        (offset_fetch(None), 8, DESCRIBE, TOPIC, [0, 0, 0]),
        (offset_delete(), 0, DELETE, GROUP, [GROUP_REFUSED]),
        (offset_delete(), 0, READ, TOPIC, [0, TOPIC_REFUSED, 0]),
        (m.DescribeGroupsRequest(groups=["g"]), 5, DESCRIBE, GROUP, [GROUP_REFUSED]),
        (m.DeleteGroupsRequest(groups_names=["g"]), 2, DELETE, GROUP, [GROUP_REFUSED]),
        (INIT, 4, WRITE, TRANSACTIONAL_ID, [ID_REFUSED]),
        (add_partitions(), 3, WRITE, TRANSACTIONAL_ID, [0, ID_REFUSED, ID_REFUSED]),
        (add_partitions(), 3, WRITE, TOPIC, [0, TOPIC_REFUSED, NOT_ATTEMPTED]),
        (ADD_OFFSETS, 3, WRITE, TRANSACTIONAL_ID, [ID_REFUSED]),
        (ADD_OFFSETS, 3, READ, GROUP, [GROUP_REFUSED]),
        (txn_offset_commit(), 3, WRITE, TRANSACTIONAL_ID, [ID_REFUSED, ID_REFUSED]),
        (txn_offset_commit(), 3, READ, GROUP, [GROUP_REFUSED, GROUP_REFUSED]),
        (txn_offset_commit(), 3, READ, TOPIC, [TOPIC_REFUSED, 49]),
        (END, 3, WRITE, TRANSACTIONAL_ID, [ID_REFUSED]),
        (describe_producers(), 0, READ, TOPIC, [TOPIC_REFUSED, 0]),
        (m.DescribeTransactionsRequest(transactional_ids=["tx"]), 0, DESCRIBE, TRANSACTIONAL_ID, [ID_REFUSED]),
    ],
)
async def test_what_is_refused(
    request_: Any, version: int, operation: Operation, resource: tuple[ResourceType, str], expected: list[int]
) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await create(client, "u")
        await commit(client, "g", {("t", 0): 1, ("u", 0): 1})
        server.node.security = Rules((operation, resource))
        assert codes(await client.call(request_, version)) == expected
        server.node.security = Rules()
        assert codes(await client.call(request_, version)) != expected


async def test_an_idempotent_producer_needs_one_topic_to_write_to_or_the_cluster() -> None:
    """KIP-679."""
    async with KafkaServer() as server, WireClient(server) as client:
        request = m.InitProducerIdRequest(transactional_id=None)
        no_topic, no_cluster = (Operation.WRITE, TOPIC), (Operation.IDEMPOTENT_WRITE, CLUSTER)
        for denied, code in [((no_topic,), 0), ((no_cluster,), 0), ((no_topic, no_cluster), CLUSTER_REFUSED)]:
            server.node.security = Rules(*denied)
            assert (await client.call(request, 4)).error_code == code


async def test_lists_leave_out_what_may_not_be_seen() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        for group in ("g", "h"):
            await Member(client, group).enter()
        for transactional_id in ("tx", "ty"):
            await TransactionalProducer(client, transactional_id).init()
        server.node.security = Rules((DESCRIBE, GROUP), (DESCRIBE, CLUSTER), (DESCRIBE, TRANSACTIONAL_ID))
        assert [one.group_id for one in (await client.call(m.ListGroupsRequest(), 5)).groups] == ["h"]
        listed = (await client.call(m.ListTransactionsRequest(), 1)).transaction_states
        assert [one.transactional_id for one in listed] == ["ty"]
        server.node.security = Rules((DESCRIBE, GROUP))  # who may describe the cluster sees every group
        assert [one.group_id for one in (await client.call(m.ListGroupsRequest(), 5)).groups] == ["g", "h"]


async def test_markers_are_for_those_who_may_alter_the_cluster() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        server.node.security = Rules((ALTER, CLUSTER))
        assert (await client.call(m.WriteTxnMarkersRequest(), 1)).markers == []
        server.node.security = Rules((ALTER, CLUSTER), (Operation.CLUSTER_ACTION, CLUSTER))
        client.send(m.WriteTxnMarkersRequest(), 1)
        assert await client.is_closed()  # the answer has no place for a code
