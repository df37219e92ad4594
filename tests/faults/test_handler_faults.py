"""Handlers that raise, are cancelled, hang or are over their time; and what a bus costs that has long been at work.

Code that blocks the event loop: tests/client/test_blocked_loop.py. At every await: tests/client/test_cancel_trials.py.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.errors import HandlerError
from eventbus.testing import FakeClock, TestBus
from tests.tiers import quick

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OPTIONS: dict[str, dict[str, Any]] = {
    "partition": {},
    "one at a time": {"concurrency": 1},
    "key": {"order": "key", "concurrency": 3},
    "none": {"order": "none", "concurrency": 3},
    "at most once": {"delivery": "at-most-once"},
    "exactly once": {"exactly_once": True},
}


async def raises(clock: FakeClock) -> None:
    raise ValueError("the handler's own")


async def raises_something_rare(clock: FakeClock) -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


async def is_cancelled(clock: FakeClock) -> None:
    task = asyncio.ensure_future(asyncio.sleep(3_600))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def hangs(clock: FakeClock) -> None:
    await anyio.sleep_forever()


async def is_slow(clock: FakeClock) -> None:
    await clock.sleep(60)


async def never_gives_in(clock: FakeClock) -> None:
    """Swallows its cancellation."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        raise ValueError("not me") from None


FAULTS = (raises, raises_something_rare, is_cancelled, hangs, is_slow, never_gives_in)


def handling(bus: EventBus, fault: Any, calls: list[tuple[int, int]], **options: Any) -> None:
    clock: Any = bus.context.clock

    @bus.consumer("t", group="g", timeout=5, **options)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        calls.append((record.partition, record.offset))
        if value == b"bad":
            await fault(clock)


async def send(bus: EventBus) -> None:
    for number in range(5):
        await bus.send("t", b"bad" if number == 2 else b"good", key=b"%d" % number, partition=0)
        await bus.send("t", b"good", key=b"%d" % number, partition=1)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failure_stops_its_partition_and_no_other(fault: Any, options: dict[str, Any]) -> None:
    calls: list[tuple[int, int]] = []
    bus = TestBus(auto_create_topics=True)
    bus.topic("t", partitions=2)
    handling(bus, fault, calls, **options)
    async with bus:
        await send(bus)
        await bus.clock.advance(seconds=600)
        with pytest.raises(HandlerError, match="t-0 offset 2"):
            await bus.drain()
        assert calls.count((0, 2)) <= (2 if options.get("exactly_once") else 1), "it is not tried again and again"
        assert sorted(call for call in calls if call[0] == 1) == [(1, offset) for offset in range(5)]
    committed = bus.log.committed("g")
    assert committed[T1] == 5
    most = 3 if options.get("delivery") == "at-most-once" else 2
    assert 2 <= committed[T0] <= most, committed


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_failure_that_is_skipped_costs_its_record_alone(fault: Any, options: dict[str, Any]) -> None:
    calls: list[tuple[int, int]] = []
    bus = TestBus(auto_create_topics=True)
    bus.topic("t", partitions=2)
    handling(bus, fault, calls, on_error="skip", **options)
    async with bus:
        await send(bus)
        await bus.clock.advance(seconds=600)
        await bus.log.drain()
    assert set(calls) == {(partition, offset) for partition in range(2) for offset in range(5)}
    assert bus.log.committed("g") == {T0: 5, T1: 5}


# what stays -----------------------------------------------------------------------------------------------------------


def remembers_nothing(bus: EventBus, kind: str) -> None:
    match kind:
        case "payload":

            @bus.consumer("t", group="g")
            async def handle(value: bytes) -> None: ...

        case "producer":

            @bus.consumer("t", group="g")
            @bus.producer("out")
            async def copy(value: bytes) -> bytes | None:
                return value if value.endswith(b"7") else None

        case "plain":

            @bus.consumer("t", group="g")
            def plain(value: bytes) -> None: ...

        case "key":

            @bus.consumer("t", group="g", order="key", concurrency=8)
            async def by_key(value: bytes, record: ConsumerRecord) -> None: ...

        case "manual":

            @bus.consumer("t", group="g", ack="manual")
            async def acknowledge(record: ConsumerRecord) -> None:
                record.ack()

        case _:

            @bus.consumer("t", group="g", batch=100, timeout=10)
            async def batches(values: list[bytes]) -> None: ...


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["payload", "producer", "plain", "key", "manual", "batch"], ["producer", "key"]))
async def test_what_was_handled_leaves_nothing_behind(kind: str) -> None:
    """Objects that live after 10,000 records live after 50,000, and no more."""
    bus = TestBus(auto_create_topics=True)
    bus.topic("t", partitions=2, configs={"retention.bytes": 1_000})
    remembers_nothing(bus, kind)
    alive: list[int] = []
    async with bus:
        for _ in range(5):
            for _ in range(10):
                await bus.send_many("t", [b"%d" % n for n in range(1_000)], key=lambda value: value[-2:])
            await bus.log.drain()
            await bus.clock.advance(seconds=2)
            gc.collect()
            alive.append(len(gc.get_objects()))
    assert min(alive[-2:]) - alive[0] < 1_000, alive  # what is about to go may be there once


class CountingClock(FakeClock):
    """Counts who is woken."""

    woken = 0

    def _fire_next(self) -> None:
        self.woken += 1
        super()._fire_next()


async def test_a_bus_without_work_does_next_to_nothing() -> None:
    """A handler that waits is woken twice a second, by its long poll; the log now and then, for heartbeats."""
    clock = CountingClock()
    bus = TestBus(auto_create_topics=True, clock=clock)
    for name in "abc":

        @bus.consumer(f"t-{name}", name=name)
        async def handle(value: bytes) -> None: ...

        await anyio.lowlevel.checkpoint()
    async with bus:
        for name in "abc":
            await bus.send(f"t-{name}", b"x")
        await bus.log.drain()
        await clock.advance(seconds=5)
        clock.woken = 0
        await clock.advance(seconds=60)
        assert 0 < clock.woken <= 60 * (3 * 2 + 1), clock.woken
