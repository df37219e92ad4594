"""Joining: records that a handler sends while its exactly-once transaction is open belong to the transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.to_thread

from eventbus.client.bus import EventBus
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import UNCOMMITTED, World

Send = Callable[[bytes], Coroutine[Any, Any, None]]

WAYS = (b"without waiting", b"send", b"many", b"function", b"task", b"thread")


@promise(each=("async def", "def"))
async def what_an_exactly_once_handler_sends_counts_once(world: World, kind: str) -> None:
    """The second record fails after it has sent, so the transaction is aborted, and the first is handled again."""
    source, target, group = await world.topic(), await world.topic(), world.name("group")
    bus, seen = world.target.open(), list[bytes | None]()
    options: dict[str, Any] = {"group": group, "start": "earliest", "exactly_once": True, "on_error": "skip"}

    @bus.producer(target)
    async def function(value: bytes) -> bytes:
        return value

    def in_thread(value: bytes) -> None:
        with bus.blocking() as blocking:
            blocking.send(target, b"thread " + value)

    async def send(value: bytes) -> None:
        # The first send may wait for a lookup of the topic, which no producer has needed yet.
        bus.send_nowait(target, b"without waiting " + value)
        await bus.send(target, b"send " + value)
        await bus.send_many(target, [b"many " + value])
        await function(b"function " + value)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.send, target, b"task " + value)
        await anyio.to_thread.run_sync(in_thread, value)
        seen.extend([sent for sent in await world.values(target) if sent is not None and sent.endswith(value)])

    _handle_by(bus, kind, source, options, send)
    await world.bus.send_many(source, [b"good", b"bad"])
    async with bus:
        await bus.drain()
    assert await world.values(target) == [way + b" good" for way in WAYS]
    assert seen == [], "nothing is visible while its transaction is open"
    stored = await world.values(target, isolation=UNCOMMITTED)
    assert set(stored) == {way + which for way in WAYS for which in (b" good", b" bad")}


def _handle_by(bus: EventBus, kind: str, source: str, options: dict[str, Any], send: Send) -> None:
    """Declare a handler of that kind, which fails at the record ``bad`` after it has sent."""

    def check(value: bytes) -> None:
        if value == b"bad":
            raise ValueError("the handler fails")

    async def handle(value: bytes) -> None:
        await send(value)
        check(value)

    def handle_in_thread(value: bytes) -> None:
        with bus.blocking() as blocking:
            blocking.call(send, value)
        check(value)

    bus.consumer(source, **options)(handle if kind == "async def" else handle_in_thread)
