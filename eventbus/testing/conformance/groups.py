"""Groups: their commits, permission to commit, and operations of an admin."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from eventbus.client.keywords import Start
from eventbus.errors import (
    ConfigError,
    EventBusError,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NoCommittedOffset,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World, partitions_of
from eventbus.types import OffsetAndMetadata, TopicPartition

IN_USE = (NonEmptyGroup, UnknownMemberId)
"""The errors of an admin that tries to change the offsets of an active group."""
DAY_MS = 86_400_000


@promise()
async def a_group_goes_on_where_it_committed(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    await world.send(topic, *(b"%d" % number for number in range(10)))
    for start in (0, 3, 6):
        async with world.bus.new_consumer(topic, group=group) as consumer:
            records = await world.take(consumer, 3)
            assert [record.offset for record in records] == [start, start + 1, start + 2]
            await consumer.commit()
    async with world.bus.new_consumer(topic, group=group) as consumer:
        assert [record.offset for record in await world.take(consumer, 1)] == [9]


@promise()
async def nothing_is_committed_by_itself(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    await world.send(topic, b"1", b"2")
    for _ in range(2):
        async with world.bus.new_consumer(topic, group=group) as consumer:
            assert [record.offset for record in await world.take(consumer, 2)] == [0, 1]
            assert await consumer.committed() == {}
    assert await world.admin.group_offsets(group) == {}


@promise()
async def groups_do_not_see_each_other(world: World) -> None:
    topic = await world.topic()
    await world.send(topic, b"1", b"2")
    for _ in range(3):
        async with world.bus.new_consumer(topic, group=world.name("group")) as consumer:
            assert len(await world.take(consumer, 2)) == 2
            await consumer.commit()


@promise()
async def metadata_is_kept_beside_an_offset(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    first, second = partitions_of(topic, 2)
    async with world.bus.new_consumer(topic, group=group) as consumer:
        await world.settled([consumer], [first, second])
        await consumer.commit({first: OffsetAndMetadata(3, "état ✓"), second: 4})
        assert await consumer.committed() == {
            first: OffsetAndMetadata(3, "état ✓"),
            second: OffsetAndMetadata(4, ""),
        }
        await refused(OffsetMetadataTooLarge, consumer.commit({first: OffsetAndMetadata(5, "x" * 5_000)}))
        assert await consumer.committed(first) == {first: OffsetAndMetadata(3, "état ✓")}


@promise()
async def a_commit_for_no_partition_is_refused_and_the_others_are_stored(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    where, nowhere = TopicPartition(topic, 0), TopicPartition(topic, 9)
    async with world.bus.new_consumer(topic, group=group) as consumer:
        await world.settled([consumer], [where])
        await refused(UnknownTopicOrPartition, consumer.commit({where: 1, nowhere: 1}))
    assert await world.admin.group_offsets(group) == {where: OffsetAndMetadata(1)}


@promise("restart")
async def committed_offsets_survive_a_restart(world: World) -> None:
    topic, groups = await world.topic(3), [world.name("group") for _ in range(3)]
    expected: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
    for number, group in enumerate(groups):
        offsets = {where: OffsetAndMetadata(number + where.partition, group) for where in partitions_of(topic, 3)}
        await world.admin.alter_group_offsets(group, offsets)
        expected[group] = offsets
    for _ in range(2):
        await world.restart()
        assert {group: await world.admin.group_offsets(group) for group in groups} == expected
    await world.admin.alter_group_offsets(groups[0], {TopicPartition(topic, 0): 99})
    assert (await world.admin.group_offsets(groups[0]))[TopicPartition(topic, 0)].offset == 99


@promise("kill")
async def committed_offsets_survive_a_kill(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    where = TopicPartition(topic, 0)
    consumer = await world.doomed(world.bus.new_consumer(topic, group=group))
    await world.settled([consumer], [where])
    await consumer.commit({where: 7})
    await world.kill()
    assert await world.admin.group_offsets(group) == {where: OffsetAndMetadata(7)}
    await world.send(topic, *(b"%d" % number for number in range(9)))
    async with world.bus.new_consumer(topic, group=group) as consumer:
        assert [record.offset for record in await world.take(consumer, 2)] == [7, 8]


@promise()
async def a_deleted_topic_takes_its_offsets_along(world: World) -> None:
    topic, other, group = await world.topic(), await world.topic(), world.name("group")
    kept = TopicPartition(other, 0)
    await world.admin.alter_group_offsets(group, {TopicPartition(topic, 0): 5, kept: 6})
    await world.admin.delete_topics(topic)
    await world.admin.create_topic(topic)
    assert await world.admin.group_offsets(group) == {kept: OffsetAndMetadata(6)}


@promise()
async def a_topic_created_again_is_read_from_its_beginning(world: World) -> None:
    """The positions of its readers belong to the deleted topic."""
    topic, group = await world.topic(), world.name("group")
    async with world.bus.new_consumer(topic, group=group) as member, world.bus.new_consumer(topic) as reader:
        await world.send(topic, b"0", b"1", b"2")
        for consumer in (member, reader):
            assert len(await world.take(consumer, 3)) == 3
        await member.commit()
        await world.admin.delete_topics(topic)
        await world.admin.create_topic(topic)
        await world.send(topic, b"3", b"4", b"5", b"6", b"7")
        for consumer in (member, reader):
            assert [record.value for record in await world.take(consumer, 5)] == [b"3", b"4", b"5", b"6", b"7"]
        await member.commit()
        assert await world.admin.group_offsets(group) == {TopicPartition(topic, 0): OffsetAndMetadata(5)}


@promise()
async def a_topic_created_again_is_lost_before_it_is_assigned(world: World) -> None:
    """The state that a listener keeps for a partition belongs to the topic that was assigned last."""
    topic, heard = await world.topic(), list[str]()

    def listener(word: str) -> Callable[[list[TopicPartition]], None]:
        return lambda _: heard.append(word)

    async with world.bus.new_consumer(group=world.name("group")) as consumer:
        await consumer.subscribe(topic, on_assigned=listener("assigned"), on_lost=listener("lost"))
        await world.send(topic, b"0")
        assert len(await world.take(consumer, 1)) == 1
        await world.admin.delete_topics(topic)
        await world.admin.create_topic(topic)
        await world.send(topic, b"1")
        assert len(await world.take(consumer, 1)) == 1
        assert heard[0] == heard[-1] == "assigned" and "lost" in heard


@promise()
async def a_topic_created_again_is_read_from_where_start_specifies(world: World) -> None:
    """All records that ``latest`` reads were sent since the consumer began."""
    now_ms = int((await world.bus.send(await world.topic(), b"now")).timestamp_ms)
    cases: tuple[tuple[Start, list[bytes] | None], ...] = (
        ("latest", [b"old", b"new"]),
        (timedelta(days=1), [b"new"]),
        ("none", None),
    )
    for start, expected in cases:
        topic, group = await world.topic(), world.name("group")
        await world.admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
        async with world.bus.new_consumer(topic, group=group, start=start) as consumer:
            await world.send(topic, b"0")
            assert len(await world.take(consumer, 1)) == 1
            await world.admin.delete_topics(topic)
            await world.admin.create_topic(topic)
            await world.bus.send(topic, b"old", timestamp_ms=now_ms - 2 * DAY_MS)
            await world.send(topic, b"new")
            if expected is None:
                await refused(NoCommittedOffset, world.take(consumer, 1))
            else:
                assert [record.value for record in await world.take(consumer, len(expected))] == expected


@promise()
async def groups_are_listed_and_described(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    (unknown,) = await world.admin.describe_groups([group])
    assert (unknown.state, unknown.members) == ("Dead", ())
    async with world.bus.new_consumer(topic, group=group, client_id="who") as consumer:
        await world.settled([consumer], partitions_of(topic, 2))
        (described,) = await world.admin.describe_groups([group])
        assert (described.state, described.protocol_type) == ("Stable", "consumer")
        (member,) = described.members
        assert member.client_id == "who"
        assert member.member_id == consumer.group_metadata().member_id
        assert described.generation_id == consumer.group_metadata().generation_id
        await consumer.commit({TopicPartition(topic, 0): 1})
    (described,) = await world.admin.describe_groups([group])
    assert (described.state, described.members) == ("Empty", ())
    assert [one.state for one in await world.admin.list_groups() if one.group == group] == ["Empty"]


@promise()
async def a_group_at_work_is_left_alone(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    where = TopicPartition(topic, 0)
    async with world.bus.new_consumer(topic, group=group) as consumer:
        await world.settled([consumer], [where])
        await consumer.commit({where: 1})
        await refused(NonEmptyGroup, world.admin.delete_group(group))
        await refused(IN_USE, world.admin.alter_group_offsets(group, {where: 0}))
        await refused(GroupSubscribedToTopic, world.admin.delete_group_offsets(group, [where]))
        assert await world.admin.group_offsets(group) == {where: OffsetAndMetadata(1)}


@promise()
async def an_idle_groups_offsets_are_reset_and_deleted(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    first, second = partitions_of(topic, 2)
    await world.send(topic, b"0", b"1", b"2")
    await world.admin.alter_group_offsets(group, {first: 3, second: 0})
    await world.admin.alter_group_offsets(group, {first: OffsetAndMetadata(1, "reset")})
    assert await world.admin.group_offsets(group) == {
        first: OffsetAndMetadata(1, "reset"),
        second: OffsetAndMetadata(0),
    }
    async with world.bus.new_consumer(topic, group=group) as consumer:
        assert [record.offset for record in await world.take(consumer, 2)] == [1, 2]
    await world.admin.delete_group_offsets(group, [first])
    assert await world.admin.group_offsets(group) == {second: OffsetAndMetadata(0)}
    await world.admin.delete_group(group)
    assert await world.admin.group_offsets(group) == {}
    assert group not in [one.group for one in await world.admin.list_groups()]
    await refused(GroupIdNotFound, world.admin.delete_group(group))


@promise("clock")
async def offsets_of_a_forgotten_group_expire(world: World) -> None:
    topic, group, busy = await world.topic(), world.name("group"), world.name("group")
    where = TopicPartition(topic, 0)
    async with (
        world.bus.new_consumer(topic, group=busy, max_poll_interval_ms=20 * DAY_MS) as at_work,
        world.bus.new_consumer(topic, group=group) as consumer,
    ):
        await world.settled([at_work], [where])
        await world.settled([consumer], [where])
        await at_work.commit({where: 1})
        await consumer.commit({where: 2})
        await consumer.aclose()
        world.target.advance(6 * DAY_MS)
        await at_work.poll(timeout_ms=20)
        assert await world.admin.group_offsets(group) == {where: OffsetAndMetadata(2)}
        world.target.advance(2 * DAY_MS)

        async def is_gone() -> bool:
            return await world.admin.group_offsets(group) == {}

        await world.eventually(is_gone, "seven days after its last member left, a group's offsets expire")
        assert await world.admin.group_offsets(busy) == {where: OffsetAndMetadata(1)}


@promise()
async def a_commit_without_a_group_is_refused(world: World) -> None:
    topic = await world.topic()
    async with world.bus.new_consumer(topic) as consumer:
        await refused((ConfigError, EventBusError), consumer.commit({TopicPartition(topic, 0): 1}))


@promise()
async def a_drained_bus_has_handled_stored_its_outputs_and_committed(world: World) -> None:
    """The commit interval never ends, so only `drain` commits."""
    topic, outputs, group = await world.topic(2), await world.topic(), world.name("group")
    bus = world.target.open()

    @bus.consumer(topic, group=group, commit_interval_ms=3_600_000)
    @bus.producer(outputs)
    async def answer(value: bytes) -> bytes:
        return value.upper()

    assert answer is not None
    async with bus:
        for partition in (0, 1):
            await world.send(topic, b"a", b"b", partition=partition)
        await bus.drain()
        assert sorted(await world.values(outputs), key=str) == [b"A", b"A", b"B", b"B"]
        offsets = await world.admin.group_offsets(group)
        assert {where: one.offset for where, one in offsets.items()} == dict.fromkeys(partitions_of(topic, 2), 2)
