"""Committed offsets over the wire: every version, codes, and what must not be told."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.protocol import ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.testing.server import KafkaServer
from tests.server.groups import (
    CommitPartition,
    CommitTopic,
    FetchGroup,
    FetchTopic,
    FetchTopics,
    Member,
    TransactionalProducer,
    commit,
    committed,
    create,
)
from tests.server.wire import WireClient

UNKNOWN_TOPIC, METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP, UNKNOWN_MEMBER = 3, 12, 22, 24, 25
REBALANCE_IN_PROGRESS, GROUP_NOT_FOUND, GROUP_SUBSCRIBED, UNSTABLE, UNKNOWN_TOPIC_ID = 27, 69, 86, 88, 100


@pytest.mark.parametrize("version", range(2, 11))
async def test_commit_and_fetch_in_every_version(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        topic_id = server.node.topic_id("t")
        by_id = version >= 10
        request = m.OffsetCommitRequest(
            group_id="g",
            topics=[
                CommitTopic(
                    name="t",
                    topic_id=topic_id,
                    partitions=[
                        CommitPartition(
                            partition_index=1, committed_offset=5, committed_leader_epoch=0, committed_metadata="été"
                        ),
                        CommitPartition(partition_index=2, committed_offset=5, committed_metadata=None),
                    ],
                )
            ],
        )
        (topic,) = (await client.call(request, version)).topics
        assert (topic.name, topic.topic_id) == (("", topic_id) if by_id else ("t", ZERO_UUID))
        assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(1, 0), (2, UNKNOWN_TOPIC)]

        epoch = 0 if version >= 6 else -1
        for fetch_version in range(1, 11):
            (topic,) = await fetch(client, fetch_version, topic_id)
            assert (topic.name, getattr(topic, "topic_id", ZERO_UUID)) == (
                ("", topic_id) if fetch_version >= 10 else ("t", ZERO_UUID)
            )
            told = epoch if fetch_version >= 5 else -1
            assert [
                (one.partition_index, one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code)
                for one in topic.partitions
            ] == [(1, 5, told, "été", 0), (0, -1, -1, "", 0)]


async def fetch(client: WireClient, version: int, topic_id: bytes = ZERO_UUID, group: str = "g") -> list[Any]:
    if version < 8:
        request = m.OffsetFetchRequest(group_id=group, topics=[FetchTopic(name="t", partition_indexes=[1, 0])])
        response = await client.call(request, version)
        assert response.error_code == 0
        return response.topics
    topics = [FetchTopics(name="t", topic_id=topic_id, partition_indexes=[1, 0])]
    response = await client.call(m.OffsetFetchRequest(groups=[FetchGroup(group_id=group, topics=topics)]), version)
    assert response.groups[0].error_code == 0
    return response.groups[0].topics


@pytest.mark.parametrize("version", range(1, 11))
async def test_trap_an_unknown_group_has_no_offsets_and_no_error(version: int) -> None:
    """Offset -1 and metadata "" (never null): an error here keeps consumers from starting (fact 2)."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        (topic,) = await fetch(client, version, server.node.topic_id("t"), group="nobody")
        assert [
            (one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in topic.partitions
        ] == [(1, -1, "", 0), (0, -1, "", 0)]


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
async def test_null_topics_are_all_topics(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await create(client, "u")
        await commit(client, "g", {("t", 0): 1, ("u", 1): 2})
        if version < 8:
            topics = (await client.call(m.OffsetFetchRequest(group_id="g", topics=None), version)).topics
        else:
            request = m.OffsetFetchRequest(groups=[FetchGroup(group_id="g", topics=None), FetchGroup(group_id="h")])
            groups = (await client.call(request, version)).groups
            assert [(one.group_id, one.error_code) for one in groups] == [("g", 0), ("h", 0)]
            assert groups[1].topics == []
            topics = groups[0].topics
        names = ["t", "u"] if version < 10 else [server.node.topic_id("t"), server.node.topic_id("u")]
        assert [
            (one.name if version < 10 else one.topic_id, part.partition_index, part.committed_offset)
            for one in topics
            for part in one.partitions
        ] == [(names[0], 0, 1), (names[1], 1, 2)]


async def test_offsets_of_very_many_groups_in_one_request() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        await commit(client, "g", {("t", 0): 1})
        names = ["g", *(f"g{number}" for number in range(5_000)), "g"]
        wanted = [FetchTopics(name="t", partition_indexes=[0])]
        request = m.OffsetFetchRequest(groups=[FetchGroup(group_id=name, topics=wanted) for name in names])
        groups = (await client.call(request, 8)).groups
        assert [one.group_id for one in groups] == names
        offsets = [one.topics[0].partitions[0].committed_offset for one in groups]
        assert offsets == [1, *[-1] * 5_000, 1]


async def test_topic_ids_nobody_has() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        strange = bytes(range(16))
        request = m.OffsetCommitRequest(
            group_id="g", topics=[CommitTopic(topic_id=strange, partitions=[CommitPartition(partition_index=0)])]
        )
        (topic,) = (await client.call(request, 10)).topics
        assert (topic.topic_id, [one.error_code for one in topic.partitions]) == (strange, [UNKNOWN_TOPIC_ID])
        (topic,) = await fetch(client, 10, strange)
        assert (topic.topic_id, {one.error_code for one in topic.partitions}) == (strange, {UNKNOWN_TOPIC_ID})


async def test_trap_metadata_comes_back_as_it_was_up_to_4096_characters() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        assert await commit(client, "g", {("t", 0): 1}, metadata="x" * 4096) == {("t", 0): 0}
        assert await commit(client, "g", {("t", 1): 1}, metadata="x" * 4097) == {("t", 1): METADATA_TOO_LARGE}
        assert await commit(client, "h", {("t", 0): 1}, metadata=None) == {("t", 0): 0}
        assert await committed(client, "g", [("t", 0), ("t", 1)]) == {
            ("t", 0): (1, "x" * 4096, 0),
            ("t", 1): (-1, "", 0),
        }
        assert await committed(client, "h", [("t", 0)]) == {("t", 0): (1, "", 0)}


async def test_trap_an_offset_below_zero_is_kept_as_kafka_keeps_it() -> None:
    """KafkaJS resets a group by committing -1 and -2; for a bus that is no commit at all."""
    async with KafkaServer() as server, WireClient(server) as client, server.bus() as bus:
        await create(client)
        assert await commit(client, "g", {("t", 0): -2, ("t", 1): 4}) == {("t", 0): 0, ("t", 1): 0}
        assert await committed(client, "g", None) == {("t", 0): (-2, "", 0), ("t", 1): (4, "", 0)}
        assert {str(tp): found.offset for tp, found in (await bus.admin.group_offsets("g")).items()} == {"t-1": 4}


@pytest.mark.parametrize(("version", "code"), [(8, ILLEGAL_GENERATION), (9, GROUP_NOT_FOUND)])
async def test_a_commit_of_a_member_of_a_group_that_is_not_there(version: int, code: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        assert await commit(client, "g", {("t", 0): 1}, version, generation=3, member_id="me") == {("t", 0): code}


async def test_who_may_commit() -> None:
    """Without a member only while the group has none; a member only of the generation that is."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        assert await commit(client, "", {("t", 0): 1}) == {("t", 0): INVALID_GROUP}
        assert await commit(client, "g", {("t", 0): 1}) == {("t", 0): 0}
        member = Member(client)
        joined = await member.join()
        assert joined.error_code == 0
        assert await member.commit({("t", 0): 2}) == {("t", 0): REBALANCE_IN_PROGRESS}
        await member.sync({member.member_id: b""})
        assert await member.commit({("t", 0): 2}) == {("t", 0): 0}
        assert await commit(client, "g", {("t", 0): 9}) == {("t", 0): UNKNOWN_MEMBER}
        member.generation += 1
        assert await member.commit({("t", 0): 9}) == {("t", 0): ILLEGAL_GENERATION}
        assert await committed(client, "g", [("t", 0)]) == {("t", 0): (2, "", 0)}


async def test_trap_offsets_an_open_transaction_may_change_are_unstable() -> None:
    """Per partition, and only for those who ask for stable ones (KIP-447)."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        await commit(client, "g", {("t", 0): 1, ("t", 1): 1})
        producer = TransactionalProducer(client)
        await producer.init()
        assert await producer.add_offsets("g") == 0
        assert await producer.commit_offsets("g", {("t", 0): 5}) == {("t", 0): 0}
        both = [("t", 0), ("t", 1)]
        assert await committed(client, "g", both) == {("t", 0): (1, "", 0), ("t", 1): (1, "", 0)}
        assert await committed(client, "g", both, require_stable=True) == {
            ("t", 0): (-1, "", UNSTABLE),
            ("t", 1): (1, "", 0),
        }
        assert await producer.end() == 0
        assert await committed(client, "g", both, require_stable=True) == {("t", 0): (5, "", 0), ("t", 1): (1, "", 0)}


async def test_delete_offsets() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "read")
        await create(client, "left")

        async def delete(group: str, *partitions: tuple[str, int]) -> tuple[int, list[tuple[str, int, int]]]:
            topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
            part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition
            request = m.OffsetDeleteRequest(
                group_id=group,
                topics=[topic(name=name, partitions=[part(partition_index=number)]) for name, number in partitions],
            )
            found = await client.call(request, 0)
            codes = [(one.name, p.partition_index, p.error_code) for one in found.topics for p in one.partitions]
            return found.error_code, codes

        assert await delete("g", ("read", 0)) == (GROUP_NOT_FOUND, [])
        await commit(client, "g", {("read", 0): 1, ("left", 0): 2, ("left", 1): 3})
        member = Member(client, metadata=b"\0\0\0\0\0\1\0\4read\0\0\0\0")
        member.protocol_type = "consumer"
        await member.enter()
        assert await delete("g", ("read", 0), ("left", 0), ("left", 5)) == (
            0,
            [("read", 0, GROUP_SUBSCRIBED), ("left", 0, 0), ("left", 5, UNKNOWN_TOPIC)],
        )
        assert await committed(client, "g", None) == {("read", 0): (1, "", 0), ("left", 1): (3, "", 0)}
