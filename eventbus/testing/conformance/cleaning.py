"""Deletion of records: compaction, retention, DeleteRecords."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from eventbus.errors import InvalidRecord, KafkaError, OffsetOutOfRange, PolicyViolation
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import UNCOMMITTED, World
from eventbus.types import TopicPartition

ROLLING: dict[str, Any] = {"segment_ms": 1_000, "min_cleanable_dirty_ratio": 0.01}
"""Rolls a new segment every second of the log's clock, so that cleaning has something to do."""
DAY_MS = 86_400_000


async def compacted(world: World, **configs: Any) -> str:
    return await world.topic(cleanup_policy="compact", **{**ROLLING, **configs})


async def push_on(world: World, topic: str) -> None:
    """Let time pass and send a dummy record, so that earlier segments are closed and may be cleaned."""
    world.target.advance(20_000)
    await world.bus.send(topic, b"", key=b"the last one", partition=0)


async def in_time(world: World, true: Callable[[], Awaitable[bool]], what: str) -> None:
    """Let time pass until a condition holds, because cleaning runs at intervals."""

    async def second_by_second() -> bool:
        world.target.advance(1_000)
        return await true()

    await world.eventually(second_by_second, what)


async def keyed(world: World, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(r.key, r.value) for r in await world.records(topic) if r.key != b"the last one"]


@promise("clock")
async def compaction_keeps_the_last_record_of_each_key(world: World) -> None:
    topic = await compacted(world)
    for number in range(6):
        for key in (b"a", b"b", b"c")[: 3 if number < 4 else 2]:
            await world.bus.send(topic, b"%s%d" % (key, number), key=key, partition=0)
        world.target.advance(2_000)
    before = {(record.key, record.value): record.offset for record in await world.records(topic)}
    end = await world.end_offset(topic)

    async def is_clean() -> bool:
        return await keyed(world, topic) == [(b"c", b"c3"), (b"a", b"a5"), (b"b", b"b5")]

    await push_on(world, topic)
    await in_time(world, is_clean, "compaction")
    left = [record for record in await world.records(topic) if record.key != b"the last one"]
    assert {(r.key, r.value): r.offset for r in left}.items() <= before.items(), "an offset has changed"
    assert await world.end_offset(topic) == end + 1
    assert (await world.bus.send(topic, b"a6", key=b"a", partition=0)).offset == end + 1


@promise("clock")
async def a_tombstone_removes_its_key_and_then_itself(world: World) -> None:
    topic = await compacted(world, delete_retention_ms=60_000)
    await world.bus.send(topic, b"1", key=b"gone", partition=0)
    await world.bus.send(topic, b"1", key=b"kept", partition=0)
    world.target.advance(2_000)
    await world.bus.send(topic, None, key=b"gone", partition=0)
    await push_on(world, topic)

    async def only_tombstone() -> bool:
        return await keyed(world, topic) == [(b"kept", b"1"), (b"gone", None)]

    await in_time(world, only_tombstone, "the value under a tombstone goes, the tombstone stays for a while")

    async def nothing() -> bool:
        await push_on(world, topic)
        world.target.advance(40_000)
        return await keyed(world, topic) == [(b"kept", b"1")]

    await world.eventually(nothing, "after delete.retention.ms the tombstone goes, too")


@promise()
async def a_compacted_topic_refuses_records_without_a_key(world: World) -> None:
    topic = await world.topic(cleanup_policy="compact")

    async def send() -> None:
        await world.bus.send(topic, b"whose?")

    await refused(InvalidRecord, send())
    await world.bus.send(topic, b"mine", key=b"key")
    assert await world.values(topic) == [b"mine"]


@promise("clock")
async def an_aborted_record_replaces_nothing(world: World) -> None:
    topic = await compacted(world)
    async with world.producer(world.name("id")) as producer:
        for key, value, commits in ((b"k", b"1", True), (b"k", b"2", True), (b"k", b"no", False)):
            await producer.begin()
            await producer.send(topic, value, key=key, partition=0)
            await (producer.commit() if commits else producer.abort())
            world.target.advance(2_000)
    await push_on(world, topic)

    async def is_clean() -> bool:
        values = await world.values(topic, isolation=UNCOMMITTED)
        return b"1" not in values and b"no" not in values

    await in_time(world, is_clean, "compaction of transactions")
    assert await keyed(world, topic) == [(b"k", b"2")]


@promise("clock")
async def an_open_transaction_is_not_compacted(world: World) -> None:
    topic = await compacted(world)
    async with world.producer(world.name("id"), transaction_timeout_ms=900_000) as producer:
        await world.bus.send(topic, b"old", key=b"k", partition=0)
        await world.bus.send(topic, b"before", key=b"k", partition=0)
        world.target.advance(2_000)
        await producer.begin()
        await producer.send(topic, b"open", key=b"k", partition=0)
        await push_on(world, topic)

        async def is_clean() -> bool:
            return b"old" not in await world.values(topic)

        await in_time(world, is_clean, "compaction below the open transaction")
        assert await world.values(topic) == [b"before"]
        await producer.abort()
    assert await keyed(world, topic) == [(b"k", b"before")]


@promise("clock")
async def records_older_than_retention_go(world: World) -> None:
    topic = await world.topic(retention_ms=DAY_MS, segment_ms=1_000)
    for number in range(3):
        await world.bus.send(topic, b"old %d" % number)
        world.target.advance(2_000)
    world.target.advance(DAY_MS)
    await world.bus.send(topic, b"new")
    assert await world.end_offset(topic) == 4

    async def is_gone() -> bool:
        return await world.values(topic) == [b"new"]

    await in_time(world, is_gone, "retention.ms")
    assert await world.first_offset(topic) == 3
    assert await world.end_offset(topic) == 4


@promise("clock")
async def records_beyond_retention_bytes_go(world: World) -> None:
    topic = await world.topic(retention_ms=-1, retention_bytes=3_000, segment_ms=1_000)
    for number in range(10):
        await world.bus.send(topic, b"%d" % number * 1_000)
        world.target.advance(2_000)
    await world.bus.send(topic, b"last")

    async def is_small() -> bool:
        return 0 < await world.first_offset(topic) <= 8

    async def time_passes() -> bool:
        world.target.advance(300_000)
        return await is_small()

    await world.eventually(time_passes, "retention.bytes")
    sizes = sum(len(value or b"") for value in await world.values(topic))
    assert sizes >= 2_000, "more went than had to"


@promise()
async def records_are_deleted_up_to_an_offset(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    where, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await world.send(topic, *(b"%d" % number for number in range(10)))
    await world.send(topic, b"other", partition=1)
    await world.admin.alter_group_offsets(group, {where: 1})
    assert await world.admin.delete_records({where: 4}) == {where: 4}
    assert await world.first_offset(topic) == 4
    assert await world.values(topic) == [b"%d" % number for number in range(4, 10)]
    assert await world.admin.delete_records({where: 2}) == {where: 4}, "what is gone stays gone"
    async with world.bus.new_consumer(topic, group=group) as consumer:
        records = await world.take(consumer, 7)
        assert sorted(r.offset for r in records if r.partition == 0) == list(range(4, 10)), "it goes on at what is left"
    await refused(OffsetOutOfRange, world.admin.delete_records({where: 11}))
    assert await world.admin.delete_records({where: -1}) == {where: 10}
    assert await world.values(topic) == []
    assert await world.values(topic, other.partition) == [b"other"]
    assert (await world.bus.send(topic, b"next", partition=0)).offset == 10


@promise("restart")
async def deleted_records_stay_deleted_after_a_restart(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    await world.send(topic, *(b"%d" % number for number in range(10)))
    await world.admin.delete_records({where: 7})
    for _ in range(2):
        await world.restart()
        assert await world.first_offset(topic) == 7
        assert await world.values(topic) == [b"7", b"8", b"9"]


@promise()
async def records_of_a_compacted_topic_are_not_deleted_by_offset(world: World) -> None:
    topic = await world.topic(cleanup_policy="compact")
    await world.bus.send(topic, b"x", key=b"k")
    error = await refused(KafkaError, world.admin.delete_records({TopicPartition(topic, 0): 1}))
    assert isinstance(error, PolicyViolation)


@promise()
async def records_are_deleted_under_transactions(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    async with world.producer(world.name("id")) as producer:
        for number in range(4):
            await producer.begin()
            await producer.send(topic, b"%d" % number)
            await producer.send(topic, b"%d" % number)
            await (producer.abort() if number % 2 else producer.commit())
    everything = await world.records(topic)
    assert [record.value for record in everything] == [b"0", b"0", b"2", b"2"]
    for offset in range(1, await world.end_offset(topic) + 1):
        await world.admin.delete_records({where: offset})
        left = [record.offset for record in everything if record.offset >= offset]
        assert [record.offset for record in await world.records(topic)] == left
