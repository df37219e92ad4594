"""Handlers that hang, and clocks that jump."""

from __future__ import annotations

import anyio
import pytest

from tests.dlq.faults.failing import Breaking, letters, retry, settle


async def test_a_handler_that_hangs_has_failed_when_its_time_is_over(log: Breaking) -> None:
    bus, begun, done = log.bus(), list[int](), list[bytes]()

    @bus.consumer(log.topic, group=log.group, timeout=5, retry=retry())
    async def bill(order: bytes) -> None:
        if order == b"hangs":
            begun.append(log.now_ms())
            await anyio.sleep_forever()
        done.append(order)

    async with bus:
        for order in (b"hangs", b"goes"):
            await bus.send(log.topic, order, key=order)
        await log.passes(100)
        await log.drain(bus)
        assert done == [b"goes"]
        assert [later - begun[0] for later in begun] == [0, 15_000, 80_000], "time-out, delay, time-out, delay"
        (letter,) = await letters(log, bus)
        assert (letter.reason, letter.attempts) == ("exhausted", 3)
        assert "timeout=5 s" in letter.message


@pytest.mark.system
@pytest.mark.parametrize("hours", [1, 24 * 365])
async def test_after_a_jump_of_the_clock_what_is_due_is_tried_once(log: Breaking, hours: int) -> None:
    """A machine that slept: no try is made up for."""
    bus, tried = log.bus(), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: bytes) -> None:
        tried.append(log.now_ms())
        raise LookupError(order)

    async with bus:
        await bus.send(log.topic, b"order", key=b"k")
        await log.until(lambda: tried)
        await log.passes(1)
        await log.clock.jump(seconds=3_600 * hours)
        await log.until(lambda: len(tried) == 2)
        await log.passes(50)
        assert len(tried) == 2, "the next delay counts from then on"
        await settle(log, bus)
        assert len(tried) == 3
        assert tried[2] - tried[1] >= 60_000


async def test_max_age_counts_through_a_jump(log: Breaking) -> None:
    bus, tried = log.bus(), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=retry(max_age="1h"))
    async def bill(order: bytes) -> None:
        tried.append(log.now_ms())
        raise LookupError(order)

    async with bus:
        await bus.send(log.topic, b"order", key=b"k")
        await log.until(lambda: tried)
        await log.passes(1)
        await log.clock.jump(seconds=7_200)
        await settle(log, bus)
        (letter,) = await letters(log, bus)
        assert (letter.reason, len(tried)) == ("too-old", 2)
