"""Members of a group: assignments, their changes, and notifications of lost partitions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Unpack

from eventbus.client.consumer import Consumer
from eventbus.client.keywords import AssignorName, ConsumerOptions
from eventbus.client.rebalance import Listener
from eventbus.coordinator.assignors import Assignment, RebalanceProtocol, Subscription
from eventbus.errors import (
    EventBusError,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World, partitions_of
from eventbus.types import ConsumerRecord, TopicPartition

ASSIGNORS: tuple[AssignorName, ...] = ("range", "roundrobin", "sticky", "cooperative-sticky")
OUT = (UnknownMemberId, IllegalGeneration, RebalanceInProgress, FencedInstanceId)
"""The errors of a consumer that is no longer a member."""


def member(
    world: World,
    topic: str,
    group: str,
    assignor: AssignorName = "range",
    *,
    on_assigned: Listener | None = None,
    on_revoked: Listener | None = None,
    on_lost: Listener | None = None,
    **config: Unpack[ConsumerOptions],
) -> Consumer:
    options: ConsumerOptions = {**config, "partition_assignment_strategy": (assignor,)}
    return world.bus.new_consumer(
        topic, group=group, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost, **options
    )


@promise(each=ASSIGNORS)
async def each_partition_has_one_reader(world: World, assignor: AssignorName) -> None:
    topic, group = await world.topic(6), world.name("group")
    everything = partitions_of(topic, 6)
    async with AsyncExitStack() as stack:
        members: list[Consumer] = []
        for count in (1, 2, 3, 4):
            members.append(await stack.enter_async_context(member(world, topic, group, assignor)))
            await world.settled(members, everything)
            sizes = sorted(len(one.assignment()) for one in members)
            assert sizes[-1] - sizes[0] <= 1, f"{assignor} shares 6 among {count} as {sizes}"
        generations = {one.group_metadata().generation_id for one in members}
        assert len(generations) == 1
        assert len({one.group_metadata().member_id for one in members}) == 4


@promise(each=ASSIGNORS)
async def what_a_member_leaves_goes_to_the_others_from_its_last_commit(world: World, assignor: AssignorName) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    seen: list[ConsumerRecord] = []
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(world, topic, group, assignor)) for _ in range(3)]
        seen += await world.settled(members, everything)
        for partition in range(4):
            await world.send(topic, b"1", b"2", partition=partition)
        seen += [record for one in members for record in await world.take(one, 2 * len(one.assignment()))]
        for one in members:
            await one.commit()
        await members.pop().aclose()
        seen += await world.settled(members, everything)
        for partition in range(4):
            await world.send(topic, b"3", partition=partition)
        seen += [record for one in members for record in await world.take(one, len(one.assignment()))]
    found = sorted((record.partition, record.value) for record in seen)
    assert found == [(partition, value) for partition in range(4) for value in (b"1", b"2", b"3")]


@promise(each=ASSIGNORS)
async def a_joiner_repeats_only_what_was_not_committed(world: World, assignor: AssignorName) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    for partition in range(4):
        await world.send(topic, b"1", b"2", b"3", partition=partition)
    async with member(world, topic, group, assignor) as first, member(world, topic, group, assignor) as second:
        records: list[ConsumerRecord] = []
        while len(records) < 12:
            records += [*await first.poll(timeout_ms=5), *await second.poll(timeout_ms=5)]
            for one in (first, second):
                try:
                    await one.commit()
                except OUT:
                    continue
        await world.settled([first, second], everything)
        for one in (first, second):
            await one.commit()
        distinct = {(record.partition, record.offset) for record in records}
        assert distinct == {(partition, offset) for partition in range(4) for offset in range(3)}
        committed = await world.admin.group_offsets(group)
        assert {where: at.offset for where, at in committed.items()} == dict.fromkeys(everything, 3)


@promise()
async def a_cooperative_member_keeps_what_stays(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    for where in everything:
        await world.send(topic, b"x", partition=where.partition)
    async with member(world, topic, group, "cooperative-sticky") as first:
        read = await world.settled([first], everything)
        await world.take(first, 4 - len(read))  # records in flight would move the positions
        before = {where: await first.position(where) for where in everything}
        async with member(world, topic, group, "cooperative-sticky") as second:
            kept: set[TopicPartition] = set(first.assignment())
            while sorted([*first.assignment(), *second.assignment()]) != everything or not second.assignment():
                await first.poll(timeout_ms=1)
                kept &= set(first.assignment())
                await second.poll(timeout_ms=1)
            assert len(kept) == 2, "a member that stays gave up more than what moved"
            assert kept == set(first.assignment())
            assert {where: await first.position(where) for where in kept} == {where: before[where] for where in kept}


class Told:
    """Records the calls of a member's listeners, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []

    def listeners(self) -> dict[str, Any]:
        def note(what: str, partitions: list[TopicPartition]) -> None:
            self.calls.append((what, sorted(partitions)))

        return {f"on_{what}": partial(note, what) for what in ("assigned", "revoked", "lost")}

    def of(self, what: str) -> list[TopicPartition]:
        return sorted(partition for kind, partitions in self.calls if kind == what for partition in partitions)


@promise(each=("range", "cooperative-sticky"))
async def listeners_hear_what_moves_as_the_assignor_moves_it(world: World, assignor: AssignorName) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    told = Told()
    async with member(world, topic, group, assignor, **told.listeners()) as first:
        await world.settled([first], everything)
        assert told.of("assigned") == everything
        assert told.of("revoked") == []
        told.calls.clear()
        async with member(world, topic, group, assignor) as second:
            await world.settled([first, second], everything)
            moved = sorted(second.assignment())
            eager = assignor == "range"
            assert told.of("revoked") == (everything if eager else moved)
            assert told.of("assigned") == (sorted(first.assignment()) if eager else [])
            assert [kind for kind, partitions in told.calls if partitions][:1] == ["revoked"]
        told.calls.clear()
        await world.settled([first], everything)
        assert told.of("assigned") == (everything if eager else moved), told.calls
        assert told.of("lost") == [], told.calls


@promise()
async def a_commit_while_partitions_are_given_up_still_counts(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    everything = partitions_of(topic, 2)
    for where in everything:
        await world.send(topic, b"1", b"2", partition=where.partition)

    async def commit_all(partitions: list[TopicPartition]) -> None:
        await first.commit(dict.fromkeys(partitions, 2))

    async with member(world, topic, group, on_revoked=commit_all) as first:
        await world.settled([first], everything)
        async with member(world, topic, group) as second:
            await world.settled([first, second], everything)
            assert await second.position(second.assignment()[0]) == 2


@promise("clock")
async def listeners_hear_of_what_is_lost(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    told = Told()
    async with (
        member(world, topic, group, max_poll_interval_ms=20_000, **told.listeners()) as idle,
        member(world, topic, group, max_poll_interval_ms=3_600_000) as busy,
    ):
        await world.settled([idle, busy], partitions_of(topic, 2))
        theirs = idle.assignment()
        told.calls.clear()
        world.target.advance(25_000)
        await world.settled([busy], partitions_of(topic, 2))
        await idle.poll(timeout_ms=1)
        assert told.of("lost") == theirs
        assert told.of("revoked") == []


class AllToTheLast:
    """A custom assignor: the member with the last id reads everything."""

    name = "all-to-the-last"
    protocol: RebalanceProtocol = "eager"

    def __init__(self) -> None:
        self.got: list[TopicPartition] = []

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return b"about this member"

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        assert all(subscription.user_data == b"about this member" for subscription in subscriptions.values())
        everything = [TopicPartition(topic, n) for topic, count in partition_counts.items() for n in range(count)]
        last = max(subscriptions)
        return {member_id: everything if member_id == last else [] for member_id in subscriptions}

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        self.got = partitions


@promise()
async def an_assignor_of_ones_own_is_asked(world: World) -> None:
    topic, group = await world.topic(3), world.name("group")
    mine, theirs = AllToTheLast(), AllToTheLast()
    async with (
        world.bus.new_consumer(topic, group=group, partition_assignment_strategy=(mine,)) as first,
        world.bus.new_consumer(topic, group=group, partition_assignment_strategy=(theirs,)) as second,
    ):
        while first.group_metadata().generation_id != second.group_metadata().generation_id:
            await world.settled([first, second], partitions_of(topic, 3))
        last = max((first, second), key=lambda one: one.group_metadata().member_id)
        assert last.assignment() == partitions_of(topic, 3)
        assert sorted([*mine.got, *theirs.got]) == partitions_of(topic, 3)


@promise()
async def members_on_several_buses_share_a_group(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    other = await world.another_bus()
    async with (
        world.bus.new_consumer(topic, group=group) as here,
        other.new_consumer(topic, group=group) as there,
    ):
        await world.settled([here, there], partitions_of(topic, 4))
        assert len(here.assignment()) == len(there.assignment()) == 2


@promise()
async def members_of_one_group_read_different_topics(world: World) -> None:
    one, other, group = await world.topic(2), await world.topic(2), world.name("group")
    async with (
        world.bus.new_consumer(one, group=group) as first,
        world.bus.new_consumer(other, group=group) as second,
    ):
        await world.settled([first, second], partitions_of(one, 2) + partitions_of(other, 2))
        assert first.assignment() == partitions_of(one, 2)
        assert second.assignment() == partitions_of(other, 2)


@promise()
async def members_without_an_assignor_in_common_are_refused(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")

    async def join() -> None:
        async with member(world, topic, group, "roundrobin") as second:
            while True:
                await second.poll(timeout_ms=5)

    async with member(world, topic, group, "range") as first:
        await world.settled([first], partitions_of(topic, 2))
        await refused(InconsistentGroupProtocol, join())
        await world.settled([first], partitions_of(topic, 2))


@promise()
async def the_assignor_is_one_that_all_members_know(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    async with (
        world.bus.new_consumer(topic, group=group, partition_assignment_strategy=("sticky", "range")) as first,
        world.bus.new_consumer(topic, group=group, partition_assignment_strategy=("roundrobin", "range")) as second,
    ):
        await world.settled([first, second], partitions_of(topic, 2))
        (described,) = await world.admin.describe_groups([group])
        assert described.protocol_name == "range"


@promise()
async def a_pattern_takes_up_new_topics(world: World) -> None:
    group, stem = world.name("group"), world.name("matching")
    await world.admin.create_topic(f"{stem}.one", 2)
    await world.admin.create_topic(world.name("other"))
    one, two = partitions_of(f"{stem}.one", 2), partitions_of(f"{stem}.two", 2)
    async with (
        world.bus.new_consumer(group=group, pattern=f"{stem}\\..*") as first,
        world.bus.new_consumer(group=group, pattern=f"{stem}\\..*") as second,
    ):
        await world.settled([first, second], one)
        await world.admin.create_topic(f"{stem}.two", 2)
        await world.send(f"{stem}.two", b"new")
        records = await world.settled([first, second], one + two)
        while not records:
            records += [*await first.poll(timeout_ms=5), *await second.poll(timeout_ms=5)]
        assert [record.value for record in records] == [b"new"]
        await world.admin.delete_topics(f"{stem}.one")
        await world.settled([first, second], two)


@promise()
async def partitions_that_are_added_are_shared_and_read_from_their_beginning(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    async with (
        world.bus.new_consumer(topic, group=group, start="latest") as first,
        world.bus.new_consumer(topic, group=group, start="latest") as second,
    ):
        await world.settled([first, second], partitions_of(topic, 2))
        await world.admin.add_partitions(topic, 4)
        await world.bus.send(topic, b"early", partition=3)
        records = await world.settled([first, second], partitions_of(topic, 4))
        while not records:
            records += [*await first.poll(timeout_ms=5), *await second.poll(timeout_ms=5)]
        assert [record.value for record in records] == [b"early"]


@promise()
async def a_static_member_that_returns_keeps_its_partitions(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    async with member(world, topic, group, group_instance_id="stays") as stays:
        async with member(world, topic, group, group_instance_id="returns") as leaves:
            await world.settled([stays, leaves], everything)
            theirs = leaves.assignment()
            before = stays.group_metadata()
        for _ in range(10):
            await stays.poll(timeout_ms=1)
        assert sorted(stays.assignment() + theirs) == everything, "its partitions wait for it"
        async with member(world, topic, group, group_instance_id="returns") as returns:
            await world.settled([stays, returns], everything)
            assert returns.assignment() == theirs
            assert stays.group_metadata() == before, "nobody had to rejoin"


@promise()
async def of_two_static_members_of_one_name_the_first_is_fenced(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    where = TopicPartition(topic, 0)

    async def use(consumer: Consumer) -> None:
        for _ in range(1_000):
            await consumer.poll(timeout_ms=5)
            await consumer.commit({where: 1})

    async with member(world, topic, group, group_instance_id="one") as first:
        await world.settled([first], partitions_of(topic, 2))
        async with member(world, topic, group, group_instance_id="one") as second:
            while not second.assignment():
                await second.poll(timeout_ms=5)
            await refused(FencedInstanceId, use(first))
            await second.commit({where: 2})
    assert (await world.admin.group_offsets(group))[where].offset == 2


@promise("clock")
async def a_static_member_that_stays_away_loses_its_partitions(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    async with member(world, topic, group, group_instance_id="stays", max_poll_interval_ms=3_600_000) as stays:
        async with member(world, topic, group, group_instance_id="leaves", session_timeout_ms=10_000) as leaves:
            await world.settled([stays, leaves], everything)
        world.target.advance(9_000)
        for _ in range(10):
            await stays.poll(timeout_ms=2)
        assert len(stays.assignment()) == 2
        world.target.advance(2_000)
        await world.settled([stays], everything)


@promise("clock")
async def a_member_that_does_not_poll_is_out(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    everything = partitions_of(topic, 2)
    await world.send(topic, b"1", b"2", partition=0)
    await world.send(topic, b"1", b"2", partition=1)
    async with (
        member(world, topic, group, max_poll_interval_ms=20_000) as idle,
        member(world, topic, group, max_poll_interval_ms=3_600_000) as busy,
    ):
        await world.settled([idle, busy], everything)
        theirs = idle.assignment()
        world.target.advance(25_000)
        await world.settled([busy], everything)
        await busy.commit(dict.fromkeys(theirs, 2))
        await refused(OUT, idle.commit(dict.fromkeys(theirs, 1)))
        committed = await world.admin.group_offsets(group)
        assert all(committed[where].offset == 2 for where in theirs), "a zombie moved an offset back"
        # It may come back, as a new member.
        await world.settled([idle, busy], everything)
        assert len(idle.assignment()) == 1


@promise()
async def a_member_that_an_admin_removes_is_out(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    where = TopicPartition(topic, 0)
    async with member(world, topic, group) as consumer:
        await world.settled([consumer], partitions_of(topic, 2))
        before = consumer.group_metadata()
        await world.admin.remove_group_members(group)
        (described,) = await world.admin.describe_groups([group])
        assert before.member_id not in [one.member_id for one in described.members]
        await world.settled([consumer], partitions_of(topic, 2))
        await consumer.commit({where: 1})
        assert consumer.group_metadata().member_id != before.member_id


@promise()
async def a_commit_of_an_old_generation_is_refused(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    where = TopicPartition(topic, 0)
    async with world.producer(world.name("id")) as producer, member(world, topic, group) as first:
        await world.settled([first], partitions_of(topic, 2))
        old = first.group_metadata()
        await first.commit({where: 5})
        async with member(world, topic, group) as second:
            await world.settled([first, second], partitions_of(topic, 2))
            await producer.begin()
            await refused(EventBusError, producer.send_offsets({where: 1}, old))
            await producer.abort()
            await producer.begin()
            await producer.send_offsets({where: 6}, first.group_metadata())
            await producer.commit()
    assert (await world.admin.group_offsets(group))[where].offset == 6


@promise()
async def a_session_timeout_out_of_bounds_is_refused(world: World) -> None:
    topic = await world.topic()

    async def join(session_timeout_ms: int) -> None:
        async with member(world, topic, world.name("group"), session_timeout_ms=session_timeout_ms) as consumer:
            while True:
                await consumer.poll(timeout_ms=5)

    for session_timeout_ms in (4_000, 2_000_000):
        await refused(InvalidSessionTimeout, join(session_timeout_ms))


@promise("restart")
async def a_group_comes_together_again_after_a_restart(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    for round in range(3):
        async with member(world, topic, group) as first, member(world, topic, group) as second:
            await world.settled([first, second], everything)
            await first.commit(dict.fromkeys(first.assignment(), round + 1))
            await second.commit(dict.fromkeys(second.assignment(), round + 1))
        await world.restart()
        committed = await world.admin.group_offsets(group)
        assert {where: at.offset for where, at in committed.items()} == dict.fromkeys(everything, round + 1)


@promise("kill")
async def a_group_comes_together_again_after_a_kill(world: World) -> None:
    topic, group = await world.topic(4), world.name("group")
    everything = partitions_of(topic, 4)
    first = await world.doomed(member(world, topic, group))
    second = await world.doomed(member(world, topic, group))
    await world.settled([first, second], everything)
    await world.kill()
    async with member(world, topic, group) as third, member(world, topic, group) as fourth:
        await world.settled([third, fourth], everything)
