"""Groups of the consumer protocol over the wire (KIP-848): heartbeats, descriptions, and offsets with member epochs."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_protocol import decode_assignment, encode_subscription
from eventbus.protocol import messages as m
from eventbus.testing import FakeClock
from eventbus.testing.server import KafkaServer
from eventbus.types import TopicPartition
from tests.server.consumer_group_answers import Consumer, Held, create, describe, fetch_offsets, send_offset
from tests.server.groups import Identity, Member, clocked_server
from tests.server.wire import WireClient

INVALID_REQUEST, UNSUPPORTED_VERSION, UNKNOWN_MEMBER, INVALID_GROUP, NOT_FOUND = 42, 35, 25, 24, 69
FENCED_EPOCH, UNRELEASED_INSTANCE, UNSUPPORTED_ASSIGNOR, STALE_EPOCH, INVALID_REGEX = 110, 111, 112, 113, 128
REBALANCE_IN_PROGRESS = 27


@pytest.mark.parametrize("version", [0, 1])
async def test_two_members_share_a_topic_and_one_leaves(version: int) -> None:
    async with KafkaServer(group_consumer_heartbeat_interval_ms=321) as server, WireClient(server) as client:
        await create(client, "t", 4)
        topic_id = server.node.topic_id("t")
        first, second = Consumer(client, "m1", version=version), Consumer(client, "m2", version=version)
        joined = await first.join("t")
        assert (joined.error_code, joined.error_message, joined.heartbeat_interval_ms) == (0, None, 321)
        assert (first.told, first.epoch) == ({topic_id: [0, 1, 2, 3]}, 2)
        assert (await first.done()).assignment is None, "nothing new"
        await second.join("t")
        assert (second.told, second.epoch) == ({}, 3), "it waits for the first"
        await first.done()
        assert (first.told, first.epoch) == ({topic_id: [0, 1]}, 2), "told to give some up"
        await second.done()
        assert second.told == {}, "not confirmed yet"
        await first.done()
        assert first.epoch == 3
        await second.done()
        assert second.told == {topic_id: [2, 3]}
        assert (await first.beat(member_epoch=-1)).member_epoch == -1
        await second.done()
        assert (second.partitions, second.epoch) == ([0, 1, 2, 3], 4)


async def test_v0_gives_out_a_member_id_and_v1_wants_one() -> None:
    """KIP-1082."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 1)
        old = Consumer(client, "", version=0)
        await old.join("t")
        assert len(old.member_id) == 22
        refused = await Consumer(client, "").join("t")
        assert refused.error_code == INVALID_REQUEST
        assert "makes its own id" in refused.error_message


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID_REQUEST),
        ({"instance_id": ""}, INVALID_REQUEST),
        ({"rack_id": " "}, INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, INVALID_REQUEST),
        ({"topic_partitions": None}, INVALID_REQUEST),
        ({"topic_partitions": [Held(topic_id=bytes(16), partitions=[0])]}, INVALID_REQUEST),
        ({"subscribed_topic_names": None}, INVALID_REQUEST),
        ({"member_epoch": -3}, INVALID_REQUEST),
        ({"member_epoch": -2}, INVALID_REQUEST),
        ({"server_assignor": "sticky"}, UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, INVALID_REGEX),
        ({"subscribed_topic_regex": "(?=a)"}, INVALID_REGEX),
        ({"member_epoch": 1}, UNKNOWN_MEMBER),
        ({"member_epoch": -1}, UNKNOWN_MEMBER),
    ],
    ids=str,
)
async def test_a_heartbeat_that_is_refused_says_why(fields: dict[str, Any], code: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        told = await Consumer(client).beat(
            **{
                "subscribed_topic_names": ["t"],
                "rebalance_timeout_ms": 1000,
                "topic_partitions": [],
                **fields,
            }
        )
        assert told.error_code == code
        assert told.error_message
        assert (await client.call(m.ListGroupsRequest(), 5)).groups == []


async def test_a_wrong_epoch_is_fenced_and_joins_again_with_0() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 1)
        member = Consumer(client)
        await member.join("t")
        assert (await member.beat(member_epoch=9)).error_code == FENCED_EPOCH
        assert (await member.join("t")).error_code == 0
        assert member.partitions == [0]


async def test_a_static_member_comes_back_to_its_place() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        first, other = Consumer(client, "a"), Consumer(client, "b")
        await first.join("t", instance_id="i1")
        await other.join("t", instance_id="i2")
        again = Consumer(client, "a2")
        assert (await again.join("t", instance_id="i1")).error_code == UNRELEASED_INSTANCE
        assert (await first.beat(member_epoch=-2, instance_id="i1")).member_epoch == -2
        assert (await again.join("t", instance_id="i1")).error_code == 0
        assert again.partitions == [0]
        assert [one.member_id for one in (await describe(client)).members] == ["b", "a2"]


async def test_a_pattern_finds_topics_that_come_later() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "orders-eu", 1)
        await create(client, "flights", 1)
        member = Consumer(client)
        await member.join(subscribed_topic_regex="orders-.*")
        assert [*member.told] == [server.node.topic_id("orders-eu")]
        await create(client, "orders-us", 1)
        await member.done()
        assert {*member.told} == {server.node.topic_id("orders-eu"), server.node.topic_id("orders-us")}


async def test_describe_and_list_tell_of_both_kinds() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        member = Consumer(client)
        await member.join("t", rack_id="r", server_assignor="range")
        classic = Member(client, "old", version=3)
        await classic.join()
        found = await describe(client)
        assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
        assert found.assignor_name == "range"
        (told,) = found.members
        assert (told.member_id, told.rack_id, told.client_id, told.client_host) == ("m1", "r", "wire", "/127.0.0.1")
        assert (told.member_epoch, told.subscribed_topic_names, told.subscribed_topic_regex) == (2, ["t"], "")
        (topic,) = told.assignment.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("t", [0, 1])
        assert told.target_assignment == told.assignment
        assert told.member_type == 1
        assert (await describe(client, version=0)).members[0].member_type == -1
        for group in ("old", "none"):
            assert (await describe(client, group)).error_code == NOT_FOUND
        (dead,) = (await client.call(m.DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert (dead.error_code, dead.group_state) == (NOT_FOUND, "Dead")
        groups = (await client.call(m.ListGroupsRequest(), 5)).groups
        assert [(one.group_id, one.group_type, one.protocol_type) for one in groups] == [
            ("g", "consumer", "consumer"),
            ("old", "classic", "test"),
        ]
        for kind, name in (("CONSUMER", "g"), ("classic", "old")):
            (only,) = (await client.call(m.ListGroupsRequest(types_filter=[kind]), 5)).groups
            assert only.group_id == name
        (only,) = (await client.call(m.ListGroupsRequest(states_filter=["stable"]), 4)).groups
        assert only.group_id == "g"


async def test_offsets_are_committed_and_fetched_with_the_member_epoch() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        member, other = Consumer(client, "a"), Consumer(client, "b")
        await member.join("t")

        async def send(member_id: str, epoch: int, partition: int = 0, version: int = 9) -> int:
            return await send_offset(client, "g", member_id, epoch, partition, version)

        async def fetch(member_id: str | None, epoch: int) -> Any:
            return await fetch_offsets(client, "g", member_id, epoch)

        assert await send("a", 2) == 0
        assert await send("a", 3) == STALE_EPOCH
        assert await send("a", 3, version=8) == UNSUPPORTED_VERSION
        assert await send("a", 2, version=8) == UNSUPPORTED_VERSION, "it cannot know what an epoch is"
        assert await send("x", 2) == UNKNOWN_MEMBER
        assert await send("", -1) == UNKNOWN_MEMBER, "the group has members"
        found = await fetch("a", 2)
        assert (found.error_code, found.topics[0].partitions[0].committed_offset) == (0, 5)
        assert (await fetch("a", 0)).error_code == STALE_EPOCH
        assert (await fetch("x", 1)).error_code == UNKNOWN_MEMBER
        assert (await fetch(None, -1)).error_code == 0, "an admin client"
        await other.join("t")
        await member.done()
        await member.done()
        assert member.epoch == 3
        assert await send("a", 2, 0) == 0, "an old epoch counts for what it has held since"
        assert await send("a", 2, 1) == STALE_EPOCH


async def test_a_classic_group_is_converted_while_it_runs_and_back() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as another:
        await create(client, "t", 2)
        old = Member(another, version=3, metadata=encode_subscription(Subscription(topics=("t",))))
        old.protocol_type = "consumer"
        await old.join()
        await old.sync({old.member_id: b""})
        new = Consumer(client)
        await new.join("t")
        assert new.partitions == [0], "nobody holds it"
        (group,) = (await client.call(m.ListGroupsRequest(), 5)).groups
        assert (group.group_type, group.group_state) == ("consumer", "Reconciling")
        assert await old.heartbeat() == REBALANCE_IN_PROGRESS
        joined = await old.join()
        assert (joined.error_code, joined.generation_id, joined.leader, joined.members) == (0, 2, "", [])
        synced = await old.sync({})
        assert decode_assignment(synced.assignment) == [TopicPartition("t", 1)]
        assert await old.heartbeat() == 0
        assert [one.member_type for one in (await describe(client)).members] == [0, 1]
        assert await old.commit({("t", 0): 3}) == {("t", 0): 0}
        await new.beat(member_epoch=-1)
        (group,) = (await client.call(m.ListGroupsRequest(), 5)).groups
        assert group.group_type == "classic"
        joining = await old.join()
        assert (joining.error_code, joining.leader) == (0, old.member_id)


async def test_a_session_ends_without_heartbeats_and_so_does_a_revocation() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        await create(client, "t", 2)
        slow, quick = Consumer(client, "slow"), Consumer(client, "quick")
        await slow.join("t", rebalance_timeout_ms=20_000)
        await quick.join("t")
        await slow.done()
        assert slow.partitions == [0], "told to give one up"
        await clock.advance(seconds=15)
        assert (await slow.beat()).error_code == 0
        await quick.done()
        await clock.advance(seconds=6)
        assert (await slow.beat()).error_code == UNKNOWN_MEMBER
        await quick.done()
        assert quick.partitions == [0, 1]
        await clock.advance(seconds=46)
        assert (await quick.done()).error_code == UNKNOWN_MEMBER
        assert (await describe(client)).group_state == "Empty"


async def test_a_group_is_there_again_after_a_restart(tmp_path: Any) -> None:
    url = f"file://{tmp_path / 'log'}"
    async with KafkaServer(url) as server, WireClient(server) as client:
        await create(client, "t", 3)
        member = Consumer(client)
        await member.join("t", instance_id="i")
        before = await describe(client)
    async with KafkaServer(url) as server, WireClient(server) as client:
        assert await describe(client) == before
        member.client = client
        told = await member.done()
        assert (told.error_code, told.member_epoch) == (0, 2)


async def test_deleting_a_group_of_the_consumer_protocol() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 1)
        member = Consumer(client)
        await member.join("t")
        (refused,) = (await client.call(m.DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert refused.error_code == 68
        await member.beat(member_epoch=-1)
        (deleted,) = (await client.call(m.DeleteGroupsRequest(groups_names=["g"]), 2)).results
        assert deleted.error_code == 0
        assert (await describe(client)).error_code == NOT_FOUND


async def test_leave_group_removes_a_static_member_by_its_instance() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 1)
        await Consumer(client).join("t", instance_id="i")
        request = m.LeaveGroupRequest(group_id="g", members=[Identity(member_id="", group_instance_id="i")])
        (left,) = (await client.call(request, 5)).members
        assert left.error_code == 0
        assert (await describe(client)).group_state == "Empty"
