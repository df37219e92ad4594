"""`Wake`: an event that can be cleared, and an alarm that many waits share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.clock import RealTimers
from eventbus.backends.event_loop import EventLoop
from eventbus.backends.wake import Wake
from eventbus.testing import FakeClock

SECONDS = 0.01


async def test_a_set_before_the_wait_counts_until_it_is_cleared() -> None:
    wake = Wake()
    wake.set()
    assert await wake.wait()
    assert await wake.wait(0)
    wake.clear()
    assert not await wake.wait(SECONDS)


async def test_every_waiter_is_woken_also_beside_one_that_was_cancelled() -> None:
    wake, woken = Wake(), list[int]()

    async def wait(number: int) -> None:
        await wake.wait()
        woken.append(number)

    first, second, third = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    second.cancel()
    wake.set()
    wake.clear()  # those who wait are woken nevertheless
    await asyncio.gather(first, third)
    assert woken == [0, 2]
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_short_waits_share_an_alarm_and_none_is_too_late() -> None:
    loop = EventLoop.running()
    alarms: list[float] = []
    real = loop.call_later
    assert real is not None

    def call_later(seconds: float, function: Callable[[], object]) -> object:
        alarms.append(seconds)
        return real(seconds, function)

    loop.call_later = call_later
    wake, timers = Wake(loop), RealTimers()
    for _ in range(100):
        asyncio.get_running_loop().call_soon(wake.set)
        assert await wake.wait(10)
        wake.clear()
    assert alarms == [10]
    began = timers.current_time()
    while await wake.wait(began + 2 * SECONDS - timers.current_time()):
        pass  # an alarm may be that of an earlier wait
    assert timers.current_time() >= began + 2 * SECONDS
    assert len(alarms) == 2, "a wait that ends before the alarm has one of its own"


async def test_a_clock_that_a_test_moves_ends_the_wait() -> None:
    clock, wake = FakeClock(), Wake()
    waits = asyncio.create_task(wake.wait(60, clock))
    await clock.advance(seconds=59)
    assert not waits.done()
    await clock.advance(seconds=1)
    assert await waits is False


def test_it_works_on_trio_too() -> None:
    pytest.importorskip("trio", reason="the other event loop")

    async def main() -> None:
        wake = Wake()
        assert not await wake.wait(SECONDS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wake.wait)
            tasks.start_soon(wake.wait, math.inf)
            await anyio.wait_all_tasks_blocked()
            wake.set()

    anyio.run(main, backend="trio")


async def test_a_loop_of_fetches_keeps_no_other_task_from_running() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with EventBus("memory://", auto_create_topics=True) as bus:
        for _ in range(20):
            await bus.send("t", b"x")
        async with bus.new_consumer("t", max_partition_fetch_bytes=1) as consumer:
            task = asyncio.create_task(other())
            for _ in range(20):
                before = turns
                assert await consumer.poll() is not None
                assert turns > before
            task.cancel()


async def test_an_idle_handler_gets_a_record_in_the_first_turn_after_it_became_readable() -> None:
    bus, handled = EventBus("memory://", auto_create_topics=True), list[bytes]()

    @bus.consumer("t", group="g")
    async def handler(value: bytes) -> None:
        handled.append(value)

    async with bus:
        await bus.send("t", b"first")
        await bus.drain()
        await asyncio.sleep(2 * SECONDS)
        for number in range(10):
            await bus.send("t", b"%d" % number)
            await asyncio.sleep(0)
            assert handled[1:] == [b"%d" % before for before in range(number + 1)]
