"""A bus stops while records wait, or partitions move: nothing is lost or handled twice."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import pairwise

from dlq.letters import DeadLetter
from tests.dlq.runtime.ladder import letters, policy
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import promise
from tests.dlq.runtime.shapes import (
    BY_KEY,
    FEW,
    IN_ORDER,
    KEEP_ORDER,
    ONCE,
    SHAPES,
    Calls,
    Shape,
    failing,
    handle,
)


@promise(KEEP_ORDER, on_kafka=FEW)
async def what_waits_is_found_again(log: Log, shape: Shape) -> None:
    calls = Calls(log, failing(b1=2, c1=9))
    began_ms, dead = log.now_ms(), list[DeadLetter]()
    for number in range(6):
        bus = log.bus()
        handle(bus, log, shape, calls, retry=policy(log, 4, 4, immediate=0))
        async with bus:
            if number == 0:
                await log.send(bus, "b1 c1 b2 a1 c2")
                await log.until(lambda: "a1" in calls.done and calls.count("b1") and calls.count("c1"))
            elif number == 5:
                await log.until(lambda: len(calls.done) == 5 - 1)
                await log.drain(bus)
                dead = await letters(log, bus)
            else:
                await log.passes(log.delay(1))
    first, second, third = calls.of("b1")
    assert [first.attempt, second.attempt, third.attempt] == [0, 1, 2]
    assert second.at_ms - first.at_ms >= log.delay_ms(4) and third.at_ms - second.at_ms >= log.delay_ms(4)
    assert calls.done.index("b1") < calls.done.index("b2")
    assert sorted(calls.done) == ["a1", "b1", "b2", "c2"]
    assert [(letter.value, letter.attempts) for letter in dead] == [(b"c1", 3)]
    assert dead[0].first_failed_ms is not None and dead[0].first_failed_ms - began_ms < log.delay_ms(4) + 30_000


@promise(SHAPES, on_kafka=FEW)
async def what_waits_moves_with_its_partition(log: Log, shape: Shape) -> None:
    """A second member joins and leaves while records wait."""
    failures = {f"{key}1": 2 for key in "abcdefgh"}
    calls = Calls(log, failing(**failures))
    async with AsyncExitStack() as first:
        bus = log.bus(partitions=4)
        handle(bus, log, shape, calls, retry=policy(log, 4, 4, immediate=0))
        await first.enter_async_context(bus)
        await log.send(bus, [f"{key}{number}" for number in (1, 2) for key in "abcdefgh"])
        await log.until(lambda: len(calls.made) >= 8)
        other = log.bus(partitions=4)
        handle(other, log, shape, calls, retry=policy(log, 4, 4, immediate=0))
        async with other:
            await log.until(lambda: all(one.context.runners[0].last_assigned_at is not None for one in (bus, other)))
            await log.until(lambda: not any(one.context.runners[0].is_rebalancing for one in (bus, other)))
            await log.send(bus, [f"{key}3" for key in "abcdefgh"])
            await log.until(lambda: all(calls.count(value) >= 2 for value in failures))
        await log.until(lambda: len(calls.done) >= 24)
        await log.drain(bus)
        assert await letters(log, bus) == []
    assert sorted(calls.done) == sorted(f"{key}{number}" for number in (1, 2, 3) for key in "abcdefgh")
    if shape in KEEP_ORDER:
        for key in "abcdefgh":
            assert [value for value in calls.done if value[0] == key] == [f"{key}1", f"{key}2", f"{key}3"]
    for value in failures:
        tries = calls.of(value)
        assert [one.attempt for one in tries] == [0, 1, 2]
        assert all(later.at_ms - one.at_ms >= log.delay_ms(4) for one, later in pairwise(tries))


@promise((IN_ORDER, ONCE, BY_KEY))
async def the_latest_is_not_later_than_what_waits(log: Log, shape: Shape) -> None:
    """``start="latest"`` applies only to the handler's own topics."""
    calls = Calls(log, failing(b1=1))
    bus = log.bus()
    handle(bus, log, shape, calls, retry=policy(log, 2, immediate=0), start="latest")
    async with bus:
        while not calls.made:  # where a Kafka's latest is settles some time after the start
            await log.send(bus, "a0")
            await log.passes(log.delay(1))
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1"))
    again = log.bus()
    handle(again, log, shape, calls, retry=policy(log, 2, immediate=0), start="latest")
    async with again:
        await log.until(lambda: calls.done[-1] == "b1")
