"""Progress: a partition that is held back does not stop others, and a handler that is done has no lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel

from eventbus.client.bus import EventBus
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World
from eventbus.testing.faulty import Call, FaultyBackend, Wait
from eventbus.types import ConsumerRecord, TopicPartition

HANDLERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "by key": {"order": "key", "concurrency": 4},
    "at most once": {"delivery": "at-most-once"},
    "exactly once": {"exactly_once": True},
}
TURNS = 500
"""The turns of the event loop that another task gets meanwhile."""


@promise(each=("in order", "by key"))
async def an_output_whose_acknowledgement_is_late_stalls_no_other_task(world: World, kind: str) -> None:
    """Later outputs are acknowledged first: they are in other partitions, on other brokers."""
    source, target, group = await world.topic(), await world.topic(8), world.name("group")
    bus, may_be_stored = world.target.open(), anyio.Event()
    backend = FaultyBackend(bus.context.backend)
    # The producer treats a record that is held back as in flight. Records to other partitions overtake it.
    backend.hooks.append(lambda call: _held(call, target, may_be_stored))
    values = [b"%d" % number for number in range(20)]

    @bus.consumer(source, group=group, start="earliest", **HANDLERS[kind])
    @bus.producer(target, key=lambda value: value)
    async def copy(value: bytes) -> bytes:
        return value

    assert copy is not None

    async def are_stored() -> bool:
        ends = await world.admin.list_offsets({TopicPartition(target, number): -1 for number in range(8)})
        return sum(end.offset for end in ends.values()) >= len(values) // 2

    await world.bus.send_many(source, values)
    with bus.context.on_backend(backend, world.bus.context.now_ms):
        async with bus:
            await world.eventually(are_stored, "outputs in other partitions are stored")
            for _ in range(TURNS):
                await anyio.lowlevel.checkpoint()
            assert await world.admin.group_offsets(group) == {}, "the first output is not stored"
            may_be_stored.set()
            await bus.drain()
    assert (await world.admin.group_offsets(group))[TopicPartition(source, 0)].offset == len(values)


def _held(call: Call, topic: str, may_be_stored: anyio.Event) -> Wait | None:
    return may_be_stored.wait if call.step == "send" and call.topic == topic and call.value == b"0" else None


@promise(each=tuple(HANDLERS))
async def a_handler_that_is_done_has_no_lag_after_transactions(world: World, kind: str) -> None:
    """A transaction's marker and aborted records follow the last record."""
    topic, group = await world.topic(2), world.name("group")
    handled: list[bytes] = []

    def opened() -> EventBus:
        bus = world.target.open()

        @bus.consumer(topic, group=group, start="earliest", **HANDLERS[kind])
        async def handle(value: bytes) -> None:
            handled.append(value)

        assert handle is not None
        return bus

    async with world.producer(world.name("id")) as producer:

        async def write(commits: bool) -> None:
            await producer.begin()
            for partition in range(2):
                await producer.send(topic, b"yes" if commits else b"no", partition=partition)
            await (producer.commit() if commits else producer.abort())

        async with opened() as bus:
            for commits in (False, True, False):
                await write(commits)
                await bus.drain()
                await _is_level(world, bus, topic, group)
        await write(False)
        async with opened() as bus:  # it gets no records
            await bus.drain()
            await _is_level(world, bus, topic, group)
    assert handled == [b"yes"] * 2


async def _is_level(world: World, bus: EventBus, topic: str, group: str) -> None:
    ends = await world.admin.list_offsets({TopicPartition(topic, number): -1 for number in range(2)})
    committed = await world.admin.group_offsets(group)
    assert {at: one.offset for at, one in committed.items()} == {at: one.offset for at, one in ends.items()}
    [health] = (await bus.health()).handlers
    assert (health.lag, health.status) == (0, "idle"), health.reason


@promise()
async def a_commit_of_a_consumer_covers_what_is_no_record(world: World) -> None:
    """A transaction's marker and aborted records follow the last record, and `poll` has passed them."""
    topic, group = await world.topic(), world.name("group")
    where = TopicPartition(topic, 0)
    async with world.producer(world.name("id")) as producer:
        for commits in (True, False):
            await producer.begin()
            await producer.send(topic, b"x")
            await (producer.commit() if commits else producer.abort())
    async with world.bus.new_consumer(topic, group=group) as consumer:
        found: Sequence[ConsumerRecord] = await world.take(consumer, 1)
        end = await world.end_offset(topic)
        while await consumer.position(where) < end:
            found = [*found, *await consumer.poll(timeout_ms=10)]
        await consumer.commit()
        assert [record.value for record in found] == [b"x"]
        assert (await consumer.committed(where))[where].offset == end
