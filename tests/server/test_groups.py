"""The classic group protocol over the wire: who joins, who waits, what each version is told."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from eventbus.broker import TopicSpec
from eventbus.coordinator.consumer_protocol import decode_assignment
from eventbus.protocol import messages as m
from eventbus.testing import FakeClock
from eventbus.testing.server import KafkaServer
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.server.groups import Identity, Member, clocked_server, commit, committed, create
from tests.server.wire import WireClient

ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP, UNKNOWN_MEMBER, INVALID_SESSION = 22, 23, 24, 25, 26
REBALANCE_IN_PROGRESS, NON_EMPTY_GROUP, GROUP_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE = 27, 68, 69, 79, 82


async def describe(client: WireClient, *groups: str, version: int = 6) -> list[m.DescribeGroupsResponse.DescribedGroup]:
    return (await client.call(m.DescribeGroupsRequest(groups=list(groups)), version)).groups


# join -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
async def test_join_sync_heartbeat_commit_leave_in_every_version(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        member = Member(client, version=version)
        joined = await member.join()
        assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
        assert joined.protocol_name == "range"
        assert joined.protocol_type == ("test" if version >= 7 else None)
        assert [(one.member_id, one.metadata) for one in joined.members] == [(member.member_id, b"m")]
        synced = await member.sync({member.member_id: b"all"}, min(version, 5))
        assert (synced.error_code, synced.assignment) == (0, b"all")
        assert await member.heartbeat(min(version, 4)) == 0
        assert await member.commit({("t", 0): 3}, max(2, version)) == {("t", 0): 0}
        left = await member.leave(min(version, 5))
        assert left.error_code == 0
        assert [one.error_code for one in left.members] == ([0] if version >= 3 else [])
        assert [one.group_state for one in await describe(client, "g")] == ["Empty"]


async def test_trap_a_new_member_is_given_its_id_first_from_v4_on() -> None:
    """MEMBER_ID_REQUIRED with the id; a static member, and a client of before, join at once."""
    async with KafkaServer() as server, WireClient(server) as client:
        first = await client.call(Member(client).join_request(), 4)
        assert (first.error_code, first.generation_id) == (MEMBER_ID_REQUIRED, -1)
        assert first.member_id.startswith("wire-")
        assert (await client.call(Member(client, "old").join_request(), 3)).error_code == 0
        assert (await client.call(Member(client, "static", instance="i").join_request(), 5)).error_code == 0


@pytest.mark.parametrize(("version", "told"), [(6, ""), (7, None)])
async def test_trap_a_protocol_name_that_cannot_be_null_is_empty(version: int, told: str | None) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        answer = await client.call(Member(client).join_request(), version)
        assert (answer.error_code, answer.protocol_name) == (MEMBER_ID_REQUIRED, told)


async def test_what_a_join_is_refused_for() -> None:
    async with KafkaServer(group_min_session_timeout_ms=6_000) as server, WireClient(server) as client:

        async def code(member: Member, version: int = 3) -> int:
            return (await client.call(member.join_request(), version)).error_code

        assert await code(Member(client, "")) == INVALID_GROUP
        impatient = Member(client)
        impatient.session_ms = 5_999
        assert await code(impatient) == INVALID_SESSION
        stranger = Member(client)
        stranger.member_id = "nobody"
        assert await code(stranger) == UNKNOWN_MEMBER
        assert await code(Member(client)) == 0
        other = Member(client)
        other.protocol_type = "connect"
        assert await code(other) == INCONSISTENT_PROTOCOL
        other = Member(client)
        other.protocols = ("roundrobin",)
        assert await code(other) == INCONSISTENT_PROTOCOL


async def test_the_protocol_is_chosen_by_vote_among_those_all_support() -> None:
    async with KafkaServer() as server, AsyncExitStack() as stack:
        offers = (("sticky", "range"), ("range", "sticky"), ("other", "range", "sticky"))
        members = [Member(await stack.enter_async_context(WireClient(server)), version=3) for _ in offers]
        for member, protocols in zip(members, offers, strict=True):
            member.protocols = protocols
        first = await members[0].join()
        assert first.protocol_name == "sticky"
        joins = [asyncio.create_task(member.join()) for member in members[1:]]
        while (await members[0].heartbeat()) != REBALANCE_IN_PROGRESS:
            pass
        while len((await describe(members[0].client, "g"))[0].members) < 3:
            pass
        again = await members[0].join()
        others = [await join for join in joins]
        assert {answer.protocol_name for answer in (again, *others)} == {"range"}
        assert len({answer.generation_id for answer in (again, *others)}) == 1
        assert len(again.members) == 3 and [len(answer.members) for answer in others] == [0, 0]


async def test_rebalance_of_two_parked_joins_and_syncs() -> None:
    async with KafkaServer() as server, WireClient(server) as first_client, WireClient(server) as second_client:
        first, second = Member(first_client), Member(second_client)
        await first.enter()
        joining = asyncio.create_task(second.join())
        while (code := await first.heartbeat()) != REBALANCE_IN_PROGRESS:
            assert code == 0
        assert (await describe(first_client, "g"))[0].group_state == "PreparingRebalance"
        led = await first.join()
        follows = await joining
        assert (led.generation_id, follows.generation_id, follows.leader) == (2, 2, first.member_id)
        assert sorted(one.member_id for one in led.members) == sorted([first.member_id, second.member_id])
        assert (await describe(first_client, "g"))[0].group_state == "CompletingRebalance"
        syncing = asyncio.create_task(second.sync())
        # A heartbeat while syncs are awaited is no reason to join again.
        assert await first.heartbeat() == 0
        shares = {first.member_id: b"one", second.member_id: b"two"}
        assert (await first.sync(shares)).assignment == b"one"
        assert (await syncing).assignment == b"two"
        (group,) = await describe(first_client, "g")
        assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "test", "range")
        assert {one.member_id: one.member_assignment for one in group.members} == shares
        assert {(one.client_id, one.client_host) for one in group.members} == {("wire", "/127.0.0.1")}


async def test_trap_a_join_asked_once_more_on_one_connection_answers_the_first_too() -> None:
    """Or the connection, whose answers leave in order, would be silent for ever."""
    async with KafkaServer() as server, WireClient(server) as leader, WireClient(server) as client:
        first = Member(leader)
        await first.enter()
        second = Member(client)
        second.member_id = (await client.call(second.join_request(), 9)).member_id
        parked = client.send(second.join_request(), 9)
        repeated = client.send(second.join_request(), 9)
        assert (await client.receive(parked)).error_code == REBALANCE_IN_PROGRESS
        await first.join()
        assert (await client.receive(repeated)).error_code == 0


async def test_a_member_that_goes_while_its_join_is_parked_disturbs_nobody() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        first = Member(client)
        await first.enter()
        async with WireClient(server) as gone:
            second = Member(gone)
            second.member_id = (await gone.call(second.join_request(), 9)).member_id
            gone.send(second.join_request(), 9)
            while await first.heartbeat() != REBALANCE_IN_PROGRESS:
                pass
        answer = await first.join()
        assert (answer.error_code, len(answer.members)) == (0, 2)
        syncing = asyncio.create_task(first.sync({first.member_id: b"all"}))
        assert (await syncing).error_code == 0
        await clock.advance(seconds=9.9)
        assert await first.heartbeat() == 0
        await clock.advance(seconds=0.2)
        assert await first.heartbeat() == REBALANCE_IN_PROGRESS
        answer = await first.join()
        assert [one.member_id for one in answer.members] == [first.member_id]


async def test_a_member_that_joins_and_never_syncs_is_dropped_after_the_rebalance_timeout() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        member = Member(client)
        member.session_ms = 120_000
        await member.join()
        await clock.advance(seconds=61)
        assert await member.heartbeat() == UNKNOWN_MEMBER
        assert (await describe(client, "g"))[0].group_state == "Empty"


async def test_a_session_that_ends_without_heartbeats() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        member = Member(client)
        await member.enter()
        await clock.advance(seconds=9)
        assert await member.heartbeat() == 0
        await clock.advance(seconds=9)
        assert await member.heartbeat() == 0
        await clock.advance(seconds=11)
        assert await member.heartbeat() == UNKNOWN_MEMBER
        assert (await describe(client, "g"))[0].group_state == "Empty"


# sync -----------------------------------------------------------------------------------------------------------------


async def test_trap_a_consumer_that_is_assigned_nothing_gets_an_assignment_it_can_read() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        consumer = Member(client, "consumers")
        consumer.protocol_type = "consumer"
        await consumer.join()
        assert decode_assignment((answer := await consumer.sync()).assignment) == []
        assert len(answer.assignment) >= 6
        worker = Member(client, "workers")
        worker.protocol_type = "connect"
        await worker.join()
        assert (await worker.sync()).assignment == b""


async def test_sync_tells_a_member_of_another_generation_or_protocol() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        member = Member(client)
        await member.enter()
        request = member.sync_request()
        request.protocol_type, request.protocol_name = "consumer", "range"
        assert (await client.call(request, 5)).error_code == INCONSISTENT_PROTOCOL
        for missing in ("protocol_type", "protocol_name"):
            request = member.sync_request()
            setattr(request, missing, None)
            assert (await client.call(request, 5)).error_code == INCONSISTENT_PROTOCOL
        answer = await client.call(member.sync_request(), 5)
        assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (0, "test", "range")
        member.generation += 1
        assert (await member.sync()).error_code == ILLEGAL_GENERATION
        assert await member.heartbeat() == ILLEGAL_GENERATION
        member.generation, member.member_id = 1, "somebody"
        assert (await member.sync()).error_code == UNKNOWN_MEMBER


# static members -------------------------------------------------------------------------------------------------------


async def test_trap_a_static_member_under_a_new_id_fences_the_old_one() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as again:
        await create(client)
        old = Member(client, instance="i")
        await old.enter()
        new = Member(again, instance="i")
        answer = await new.join()
        assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, True)
        assert answer.member_id != old.member_id and answer.leader == answer.member_id
        assert await old.heartbeat() == FENCED_INSTANCE
        assert await old.commit({("t", 0): 1, ("t", 9): 1}) == {("t", 0): FENCED_INSTANCE, ("t", 9): 3}
        assert (await new.sync()).assignment == b"mine"
        assert await new.heartbeat() == 0


async def test_trap_a_static_leader_of_before_v9_must_not_assign_when_it_comes_back() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as again:
        old = Member(client, version=8, instance="i")
        await old.enter()
        new = Member(again, version=8, instance="i")
        answer = await new.join()
        assert (answer.error_code, answer.leader, answer.members) == (0, old.member_id, [])
        assert (await new.sync()).assignment == b"mine"


async def test_members_are_removed_by_instance_id_alone() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as admin:
        member = Member(client, instance="i")
        await member.enter()
        request = m.LeaveGroupRequest(
            group_id="g",
            members=[Identity(member_id="", group_instance_id=name, reason="by hand") for name in ("i", "j")],
        )
        answer = await admin.call(request, 5)
        assert answer.error_code == 0
        assert [(one.group_instance_id, one.error_code) for one in answer.members] == [("i", 0), ("j", UNKNOWN_MEMBER)]
        assert await member.heartbeat() == UNKNOWN_MEMBER


async def test_leaving_a_group_that_is_not_there() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        stranger = Member(client)
        stranger.member_id = "nobody"
        assert (await stranger.leave(2)).error_code == UNKNOWN_MEMBER
        answer = await stranger.leave(3)
        assert (answer.error_code, [one.error_code for one in answer.members]) == (0, [UNKNOWN_MEMBER])


# admin ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
async def test_a_group_nobody_knows_is_dead(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        (group,) = await describe(client, "nobody", version=version)
        assert (group.group_id, group.group_state, group.members) == ("nobody", "Dead", [])
        assert group.error_code == (GROUP_NOT_FOUND if version >= 6 else 0)
        assert bool(group.error_message) == (version >= 6)
        assert group.authorized_operations == -(1 << 31)


async def test_authorized_operations_are_told_when_asked_for() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        request = m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
        (group,) = (await client.call(request, 3)).groups
        # READ, DELETE, DESCRIBE, and the two of its configs.
        assert group.authorized_operations & (1 << 3 | 1 << 6 | 1 << 8) == 1 << 3 | 1 << 6 | 1 << 8


@pytest.mark.parametrize("version", range(6))
async def test_list_groups(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        await Member(client, "with members").enter()
        assert await commit(client, "offsets only", {("t", 0): 1}) == {("t", 0): 0}

        async def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
            groups = (await client.call(m.ListGroupsRequest(**filters), version)).groups
            return [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in groups]

        classic = "classic" if version >= 5 else ""
        stable, empty = ("Stable", "Empty") if version >= 4 else ("", "")
        everything = [("offsets only", "", empty, classic), ("with members", "test", stable, classic)]
        assert await listed() == everything
        if version >= 4:
            assert await listed(states_filter=["stable"]) == everything[1:]
        if version >= 5:
            assert await listed(types_filter=["Classic"]) == everything
            assert await listed(types_filter=["consumer"]) == []


@pytest.mark.parametrize("version", range(3))
async def test_delete_groups(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        member = Member(client)
        await member.enter()
        names = ["g", "nobody"]

        async def delete() -> list[tuple[str, int]]:
            results = (await client.call(m.DeleteGroupsRequest(groups_names=names), version)).results
            return [(one.group_id, one.error_code) for one in results]

        assert await delete() == [("g", NON_EMPTY_GROUP), ("nobody", GROUP_NOT_FOUND)]
        await member.leave()
        assert await delete() == [("g", 0), ("nobody", GROUP_NOT_FOUND)]
        assert await delete() == [("g", GROUP_NOT_FOUND), ("nobody", GROUP_NOT_FOUND)]


async def test_the_groups_of_the_bus_and_of_the_wire_are_the_same() -> None:
    async with KafkaServer() as server, WireClient(server) as client, server.bus() as bus:
        await bus.admin.create_topics([TopicSpec("t", 2)])
        member = Member(client)
        await member.enter()
        (group,) = await bus.admin.describe_groups(["g"])
        assert [one.member_id for one in group.members] == [member.member_id]
        assert await member.commit({("t", 1): 7}) == {("t", 1): 0}
        assert await bus.admin.group_offsets("g") == {TopicPartition("t", 1): OffsetAndMetadata(7)}
        await bus.admin.alter_group_offsets("other", {TopicPartition("t", 0): 3})
        assert await committed(client, "other", [("t", 0)]) == {("t", 0): (3, "", 0)}
