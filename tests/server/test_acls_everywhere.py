"""Every request that is served, sent by somebody who may nothing: refused by Kafka's code, or answered with nothing.

A new API without a line here fails the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from eventbus.coordinator.acls import Acl, Operation, PatternType, Permission, ResourceType
from eventbus.protocol import API_KEYS, ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.protocol.schema import Structure, message
from eventbus.server.node import load_apis
from eventbus.testing import KafkaServer
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.server.batches import batch, produce
from tests.server.groups import TransactionalProducer, create, read
from tests.server.test_acls_wire import User, server

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53
NOT_ITS_PRODUCER = 49
ALLOW = Permission.ALLOW
UNKNOWN_TOPIC_ID = 100
CLOSED = -1
"""The connection ends: the answer has no place for the code."""
BEFORE_ANYBODY_IS_KNOWN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}


class Case(NamedTuple):
    request: dict[str, Any]
    refused: int = 0
    """By which code. 0: nothing is refused, and ``told`` is all that is said."""
    told: dict[str, Any] = {}  # noqa: RUF012 - never changed
    version: int | None = None
    """None: the highest."""


def of_topic(**partition: Any) -> dict[str, Any]:
    return {"name": "t", "partitions": [partition]}


PRODUCER = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
MEMBER = {"group_id": "g", "member_id": "", "generation_id": -1}
CONFIGS = {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]}

CASES: dict[str, Case] = {
    "Produce": Case(
        {"acks": -1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": None}]}]}, TOPIC, {}, 9
    ),
    "Fetch": Case({"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, TOPIC, {}, 12),
    "ListOffsets": Case({"topics": [of_topic(partition_index=0, timestamp=-1)]}, TOPIC),
    "Metadata": Case({"topics": None}, told={"topics": [], "controller_id": 1}),
    "OffsetCommit": Case({"group_id": "g", "topics": [of_topic(partition_index=0, committed_offset=0)]}, GROUP, {}, 9),
    "OffsetFetch": Case({"groups": [{"group_id": "g", "topics": None}]}, GROUP),
    "FindCoordinator": Case({"key_type": 0, "coordinator_keys": ["g"]}, GROUP),
    "JoinGroup": Case(
        {"group_id": "g", "session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [{"name": "range"}]},
        GROUP,
    ),
    "Heartbeat": Case(MEMBER, GROUP),
    "LeaveGroup": Case({"group_id": "g", "members": [{"member_id": "m"}]}, GROUP),
    "SyncGroup": Case(MEMBER, GROUP),
    "DescribeGroups": Case({"groups": ["g"]}, GROUP),
    "ListGroups": Case({}, told={"groups": [], "error_code": 0}),
    "CreateTopics": Case({"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}]}, TOPIC),
    "DeleteTopics": Case({"topics": [{"name": "t"}]}, TOPIC),
    "DeleteRecords": Case({"topics": [of_topic(partition_index=0, offset=0)]}, TOPIC),
    "InitProducerId": Case({"transactional_id": "x", "transaction_timeout_ms": 1_000}, TRANSACTIONAL_ID),
    "OffsetForLeaderEpoch": Case({"topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, TOPIC),
    "AddPartitionsToTxn": Case(
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        },
        TRANSACTIONAL_ID,
        {},
        3,
    ),
    "AddOffsetsToTxn": Case({**PRODUCER, "group_id": "g"}, TRANSACTIONAL_ID),
    "EndTxn": Case({**PRODUCER, "committed": True}, TRANSACTIONAL_ID),
    "WriteTxnMarkers": Case(
        {"markers": [{"producer_id": 1, "topics": [{"name": "t", "partition_indexes": [0]}]}]}, CLOSED
    ),
    "TxnOffsetCommit": Case(
        {**PRODUCER, "group_id": "g", "topics": [of_topic(partition_index=0, committed_offset=0)]}, TRANSACTIONAL_ID
    ),
    "DescribeAcls": Case({"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}, CLUSTER),
    "CreateAcls": Case({"creations": [{"resource_type": 2}]}, CLUSTER),
    "DeleteAcls": Case({"filters": [{"resource_type_filter": 1}]}, CLUSTER),
    "DescribeConfigs": Case({"resources": [{"resource_type": 2, "resource_name": "t"}]}, TOPIC),
    "AlterConfigs": Case(CONFIGS, TOPIC),
    "AlterReplicaLogDirs": Case({"dirs": [{"path": "/", "topics": [{"name": "t", "partitions": [0]}]}]}, CLUSTER),
    "DescribeLogDirs": Case({"topics": None}, CLUSTER),
    "CreatePartitions": Case({"topics": [{"name": "t", "count": 9, "assignments": None}]}, TOPIC),
    "DeleteGroups": Case({"groups_names": ["g"]}, GROUP),
    "ElectLeaders": Case({"topic_partitions": None}, CLUSTER),
    "IncrementalAlterConfigs": Case(CONFIGS, TOPIC),
    "AlterPartitionReassignments": Case({"topics": [of_topic(partition_index=0, replicas=[1])]}, CLUSTER),
    "ListPartitionReassignments": Case({"topics": None}, CLUSTER),
    "OffsetDelete": Case({"group_id": "g", "topics": [of_topic(partition_index=0)]}, GROUP),
    "DescribeClientQuotas": Case({}, CLUSTER),
    "AlterClientQuotas": Case({"entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}]}]}, CLUSTER),
    "DescribeUserScramCredentials": Case({"users": None}, CLUSTER),
    "AlterUserScramCredentials": Case({"deletions": [{"name": "admin", "mechanism": 1}]}, CLUSTER),
    "DescribeQuorum": Case({"topics": [{"topic_name": "__cluster_metadata", "partitions": [{}]}]}, CLUSTER),
    "UpdateFeatures": Case({"feature_updates": [{"feature": "kraft.version", "max_version_level": 1}]}, CLUSTER),
    "DescribeCluster": Case({"include_cluster_authorized_operations": True}, told={"cluster_authorized_operations": 0}),
    "DescribeProducers": Case({"topics": [{"name": "t", "partition_indexes": [0]}]}, TOPIC),
    "DescribeTransactions": Case({"transactional_ids": ["x"]}, TRANSACTIONAL_ID),
    "ListTransactions": Case({}, told={"transaction_states": [], "error_code": 0}),
    "ConsumerGroupHeartbeat": Case(
        {"group_id": "g", "member_id": "m", "subscribed_topic_names": ["t"], "rebalance_timeout_ms": 1_000}, GROUP
    ),
    "ConsumerGroupDescribe": Case({"group_ids": ["g"]}, GROUP),
    "ListConfigResources": Case({}, CLUSTER),
    "DescribeTopicPartitions": Case({"topics": [{"name": "t"}]}, TOPIC),
}


@pytest.fixture
async def restricted() -> AsyncIterator[KafkaServer]:
    """A server with a record in topic t and an offset of group g, that nobody but admin may see."""
    async with server() as running:
        async with running.bus() as bus:
            await bus.admin.create_topic("t")
            await bus.send("t", b"secret")
            await bus.admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(1, "secret")})
        yield running


def test_every_api_has_a_case() -> None:
    served = {api.name for api in load_apis().values() if not api.before_authentication}
    assert served == set(CASES)
    assert {api.name for api in load_apis().values() if api.before_authentication} == BEFORE_ANYBODY_IS_KNOWN


@pytest.mark.parametrize("name", CASES)
async def test_nothing_is_done_or_told_for_who_may_nothing(restricted: KafkaServer, name: str) -> None:
    case = CASES[name]
    request = filled(name + "Request", message(name + "Request").body, case.request)
    (key,) = [key for key, api in API_KEYS.items() if api.name == name]
    version = restricted.node.apis[key].max_version if case.version is None else case.version
    before = repr(restricted.node.broker)
    async with User(restricted, "alice") as alice:
        if case.refused == CLOSED:
            alice.send(request, version)
            assert await alice.is_closed()
            answer = {"error_code": CLOSED}
        else:
            answer = msgspec.to_builtins(await alice.call(request, version))
    assert repr(restricted.node.broker) == before, "something was done"
    assert b"secret" not in repr(answer).encode()
    codes = {code for code in error_codes(answer) if code}
    assert codes == ({case.refused} if case.refused else set()), answer
    assert {field: answer[field] for field in case.told} == case.told


def filled(name: str, structure: Structure, values: dict[str, Any]) -> Any:
    """A message, or a structure in it, with the values of a dictionary."""
    fields = {field.name: field for field in structure.fields}
    told: dict[str, Any] = {}
    for key, value in values.items():
        inner = fields[key].structure
        told[key] = value if inner is None or value is None else [filled(name, inner, item) for item in value]
    whole = getattr(m, name)
    return (whole if structure is message(name).body else getattr(whole, structure.name))(**told)


def error_codes(answer: Any) -> Iterator[int]:
    if isinstance(answer, dict):
        for field, value in answer.items():
            if field in ("error_code", "partition_error_code"):
                yield value
            else:
                yield from error_codes(value)
    elif isinstance(answer, list):
        for item in answer:
            yield from error_codes(item)


@pytest.mark.parametrize("version", [9, 11, 12])
@pytest.mark.parametrize(
    ("transactional_id", "is_transactional", "code"),
    [(None, True, TRANSACTIONAL_ID), ("alices", True, NOT_ITS_PRODUCER), (None, False, NOT_ITS_PRODUCER)],
)
async def test_no_record_is_forged_into_another_producers_transaction(
    version: int, transactional_id: str | None, is_transactional: bool, code: int
) -> None:
    """Write on the topic is not enough. The victim's own record would be taken for a duplicate of the forged one."""
    async with server() as running, User(running, "admin") as admin, User(running, "alice") as alice:
        await create(admin, "t")
        victim = TransactionalProducer(admin, "victims", version=4 if version < 12 else 5)
        await victim.init()
        await TransactionalProducer(admin, "alices").init()
        for resource, name in ((ResourceType.TOPIC, "t"), (ResourceType.TRANSACTIONAL_ID, "alices")):
            await admin.create(Acl(resource, name, PatternType.LITERAL, "User:alice", "*", Operation.WRITE, ALLOW))

        async def forge(number: int, sequence: int) -> int:
            data = batch(
                b"forged",
                producer_id=victim.producer_id,
                producer_epoch=victim.epoch,
                base_sequence=sequence,
                is_transactional=is_transactional,
            )
            answer = await produce(alice, "t", number, data, version=version, transactional_id=transactional_id)
            return answer.error_code

        assert await forge(0, 0) == code, "before its transaction"
        if version < 12:
            await victim.add(("t", 0))
        assert await victim.send("t", 0, "first") == 0
        assert await forge(0, 1) == code, "in its transaction"
        assert await forge(1, 0) == code, "in a partition that its transaction has not reached"
        assert await victim.send("t", 0, "second") == 0
        assert await victim.end() == 0
        assert await read(admin, "t", committed=False) == ["first", "second"]
        assert await read(admin, "t", 1, committed=False) == []


async def test_topic_ids_are_no_way_around(restricted: KafkaServer) -> None:
    """By its id a topic that one may not describe is not there."""
    topic_id = restricted.node.topic_id("t")
    async with User(restricted, "alice") as alice:
        asked = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None)])
        (topic,) = (await alice.call(asked, 12)).topics
        assert topic.error_code in (TOPIC, UNKNOWN_TOPIC_ID)
        assert (topic.name, topic.partitions) == (None, [])
        fetch = m.FetchRequest(
            topics=[
                m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=[m.FetchRequest.FetchPartition(partition=0)])
            ]
        )
        (partition,) = (await alice.call(fetch, 13)).responses[0].partitions
        assert partition.error_code == TOPIC
        doomed = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id, name=None)])
        (deleted,) = (await alice.call(doomed, 6)).responses
        assert deleted.error_code in (TOPIC, UNKNOWN_TOPIC_ID)
        assert deleted.name is None
        assert topic_id != ZERO_UUID
