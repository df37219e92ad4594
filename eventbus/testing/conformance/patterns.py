"""Patterns: the topics that ``pattern=`` reads, while topics are created and deleted."""

from __future__ import annotations

import re

from eventbus.broker import TopicSpec
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World
from eventbus.types import ConsumerRecord, OffsetAndMetadata, TopicPartition

EXPRESSIONS = {
    r"{}-\d+": {"1", "22"},
    r"{}-\d": {"1"},
    r"{}-(?!audit|d).*": {"1", "22"},
    r"{}-(?:audit|none)": {"audit"},
    r"(?i){}-AUDIT": {"audit"},
    r"{}": set[str](),
}
"""Expressions that POSIX or RE2 interpret differently or refuse, with the suffixes of the names that match."""


async def _topics(world: World) -> str:
    """Create the topics that `EXPRESSIONS` match, with a record in each, and return the prefix of their names."""
    stem = world.name("pattern")
    names = [f"{stem}-{end}" for end in ("1", "22", "d", "audit")]
    await world.admin.create_topics([TopicSpec(name, 1) for name in names])
    for name in names:
        await world.send(name, name.encode())
    return stem


def _written(stem: str) -> dict[str, list[bytes]]:
    """Return the expressions for topics with this prefix, each with the values of the topics that it matches."""
    return {
        expression.format(re.escape(stem)): sorted(f"{stem}-{end}".encode() for end in ends)
        for expression, ends in EXPRESSIONS.items()
    }


@promise()
async def a_handlers_pattern_is_a_python_expression(world: World) -> None:
    stem = await _topics(world)
    expected = _written(stem)
    handled: dict[str, list[bytes]] = {pattern: [] for pattern in expected}
    bus = world.target.open()
    for number, pattern in enumerate(expected):

        async def handle(value: bytes, pattern: str = pattern) -> None:
            handled[pattern].append(value)

        handle.__name__ = f"handle_{number}"
        bus.consumer(pattern=pattern, group=world.name("group"))(handle)
    async with bus:
        await bus.drain()
        health = await bus.health()
    assert {pattern: sorted(values) for pattern, values in handled.items()} == expected
    assert health.status == "ok", health.reason


@promise(each=("group", "no group"))
async def a_consumers_pattern_is_a_python_expression(world: World, kind: str) -> None:
    stem = await _topics(world)
    for pattern, values in _written(stem).items():
        if not values:
            continue
        group = world.name("group") if kind == "group" else None
        async with world.bus.new_consumer(group=group) as consumer:
            await consumer.subscribe(pattern=pattern)
            records = await world.take(consumer, len(values))
            assert sorted(record.value for record in records) == values
            assert consumer.subscription() == sorted(value.decode() for value in values)
            assert {where.topic for where in consumer.assignment()} == set(consumer.subscription())


@promise()
async def a_pattern_takes_up_new_topics_and_leaves_the_others_alone(world: World) -> None:
    stem, group = world.name("pattern"), world.name("group")
    old, kept, new, other = (f"{stem}-{number}" for number in ("1", "2", "3", "x"))
    handled: list[bytes] = []
    bus = world.target.open()

    @bus.consumer(pattern=rf"{re.escape(stem)}-\d", group=group, start="latest", commit_interval_ms=3_600_000)
    async def handle(value: bytes) -> None:
        handled.append(value)

    assert handle is not None
    async with bus:
        await bus.drain()  # no topic matches yet
        assert (await bus.health()).status == "ok"
        for number, name in enumerate((old, kept, new, other)):
            await bus.admin.create_topic(name)
            await bus.send(name, b"%d" % number)
            if name == other:
                break
            await bus.drain()  # all records of a topic that was created while the handler runs are new
            assert handled == [b"%d" % one for one in range(number + 1)]
        await bus.admin.delete_topics(old)
        await bus.send(kept, b"again")
        await bus.drain()
        assert handled == [b"0", b"1", b"2", b"again"]
        (health,) = (await bus.health()).handlers
        assert {where.topic for where in health.assignment} == {kept, new}
    assert await world.admin.group_offsets(group) == {
        TopicPartition(kept, 0): OffsetAndMetadata(2),
        TopicPartition(new, 0): OffsetAndMetadata(1),
    }


@promise()
async def internal_topics_are_read_by_name_only(world: World) -> None:
    group = world.name("group")
    await world.admin.alter_group_offsets(group, {TopicPartition(await world.topic(), 0): 1})
    internal = "__consumer_offsets"
    async with world.bus.new_consumer(pattern=internal) as consumer:
        assert consumer.subscription() == consumer.assignment() == []
    records: list[ConsumerRecord] = []
    async with world.bus.new_consumer(internal) as consumer:
        assert consumer.subscription() == [internal]
        while not records:
            records += await consumer.poll(timeout_ms=100)
