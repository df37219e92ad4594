"""Handlers stop exactly where they must: outages, damaged partitions, process exits, and a close with a deadline."""

from __future__ import annotations

import anyio

from eventbus.client.bus import EventBus
from eventbus.errors import HandlerError
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World
from eventbus.types import TopicPartition

_SHORT_MS = 200
"""The ``drain_timeout_ms`` of a bus whose handler hangs."""


def _read(world: World, topic: str, group: str, values: list[bytes]) -> EventBus:
    """Return a bus with a handler that collects values."""
    bus = world.target.open()

    @bus.consumer(topic, group=group, start="earliest")
    async def collect(value: bytes) -> None:
        values.append(value)

    return bus


@promise()
async def a_record_that_meets_an_outage_is_handled_until_it_is_over(world: World) -> None:
    topic = await world.topic()
    await world.send(topic, b"1", b"2", b"3")
    bus, calls = world.target.open(), list[bytes]()

    @bus.consumer(topic, group=world.name("group"), start="earliest")
    async def handle(value: bytes) -> None:
        calls.append(value)
        if value == b"2" and calls.count(b"2") < 3:
            raise ConnectionError("the database does not answer")

    async with bus:
        await bus.drain()
        assert bus.failure is None
    assert calls == [b"1", b"2", b"2", b"2", b"3"]


@promise(each=("async def", "def", "exactly once"))
async def an_exit_in_a_handler_ends_the_bus(world: World, kind: str) -> None:
    topic, out, group = await world.topic(), await world.topic(), world.name("group")
    await world.send(topic, b"1", b"2", b"3")
    bus = world.target.open()

    def leave(value: bytes) -> bytes:
        if value == b"2":
            raise SystemExit(3)
        return value

    if kind == "def":
        bus.consumer(topic, group=group, start="earliest")(leave)
    else:

        @bus.consumer(topic, group=group, start="earliest", exactly_once=kind == "exactly once")
        @bus.producer(out)
        async def handle(value: bytes) -> bytes:
            return leave(value)

    try:
        async with bus:
            await bus.drain()
    except SystemExit as error:
        assert error.code == 3
        assert f"{topic}-0 offset 1" in error.__notes__[0], "the record is named"
    else:
        raise AssertionError("the bus went on")
    values: list[bytes] = []
    async with _read(world, topic, group, values) as again:
        await again.drain()
    assert values[-2:] == [b"2", b"3"], "the record is handled again"


@promise("damage")
async def a_partition_that_cannot_be_read_stops_alone(world: World) -> None:
    topic, values = await world.topic(2), list[bytes]()
    await world.send(topic, b"lost", partition=0)
    await world.send(topic, b"1", b"2", partition=1)
    await world.close_buses()
    await world.target.damage(TopicPartition(topic, 0))
    async with _read(world, topic, world.name("group"), values) as bus:
        try:
            await bus.drain()
        except HandlerError as error:
            assert f"{topic}-0" in str(error)
        else:
            raise AssertionError("nothing was reported")

        async def others_go_on() -> bool:
            return values == [b"1", b"2", b"3"]

        await bus.send(topic, b"3", partition=1)
        await world.eventually(others_go_on, "the other partition is read on")
        assert (await bus.health()).status == "degraded"


@promise(each=("stuck", "waiting for an outage"))
async def a_close_has_a_deadline(world: World, why: str) -> None:
    """A handler that does not return delays the close by ``drain_timeout_ms``, and its record is handled again."""
    topic, group, begun = await world.topic(), world.name("group"), anyio.Event()
    await world.send(topic, b"1")
    bus = world.target.open()
    bus.context.drain_timeout_ms = _SHORT_MS

    @bus.consumer(topic, group=group, start="earliest")
    async def handle(value: bytes) -> None:
        begun.set()
        if why == "stuck":
            await anyio.sleep_forever()
        raise ConnectionError("the database does not answer")

    async with bus:
        await begun.wait()
    values: list[bytes] = []
    async with _read(world, topic, group, values) as again:
        await again.drain()
    assert values == [b"1"]
