"""Calls that take too long: seen by one task that looks at all of them, at intervals."""

from __future__ import annotations

import logging
import threading
from random import Random
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, consumer
from eventbus.client.handling.call_timeouts import CallTimeouts
from eventbus.client.handling.handlers import Handler
from eventbus.errors import HandlerError
from eventbus.testing import FakeClock
from tests.client.fakes import T0, T1, Running, on_both, records, running


class Slow:
    """A handler that takes the seconds said for an offset, and remembers how its calls ended."""

    def __init__(self, clock: FakeClock, **options: Any) -> None:
        self.seconds: dict[int, float] = {}
        self.done: list[int] = []
        self.took: dict[int, float] = {}

        @consumer("t", group="g", **options)
        async def handle(value: bytes) -> None:
            offset, begun_at = int(value), clock.current_time()
            try:
                await clock.sleep(self.seconds.get(offset, 0))
                self.done.append(offset)
            finally:
                self.took[offset] = clock.current_time() - begun_at

        self.handler: Handler[..., Any] = handle


WAYS: list[dict[str, Any]] = [{}, {"order": "key", "concurrency": 4}, {"order": "none", "concurrency": 1}]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.get("order", "partition"))
@on_both
async def test_a_call_that_takes_too_long_is_cancelled_and_its_partition_stops(way: dict[str, Any]) -> None:
    clock = FakeClock()
    slow = Slow(clock, timeout=2, **way)
    slow.seconds = {3: 60}
    async with running(slow.handler, clock) as run:
        run.consumer.deliver(records(T0, range(10), lambda offset: b"k"))
        await clock.advance(seconds=10)
        error = run.runner.error
        assert isinstance(error, HandlerError) and "t-0 offset 3" in str(error)
        assert isinstance(error.__cause__, TimeoutError)
        assert 2 <= slow.took[3] <= 2.2
        assert slow.done == [0, 1, 2] and run.consumer.offsets[T0].offset == 3
        counts = run.runner.counts
        assert (counts.handled, counts.failed, counts.timed_out, counts.skipped) == (3, 1, 1, 0)
        run.consumer.deliver(records(T1, range(100, 105)))
        await clock.advance(seconds=1)
        assert sorted(slow.done[3:]) == list(range(100, 105)), "the other partitions go on"


@pytest.mark.parametrize("way", [*WAYS, {"ack": "manual"}], ids=str)
@on_both
async def test_a_call_that_takes_too_long_is_passed_over(way: dict[str, Any]) -> None:
    clock = FakeClock()
    done: list[int] = []

    @consumer("t", group="g", timeout=2, on_error="skip", **way)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        await clock.sleep(60 if record.offset in (3, 4, 9) else 0.5)
        done.append(record.offset)
        if way.get("ack"):
            record.ack()

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(10), lambda offset: b"k"))
        await clock.advance(seconds=20)
        assert done == [0, 1, 2, 5, 6, 7, 8]
        assert run.consumer.offsets[T0].offset == 10
        counts = run.runner.counts
        assert (counts.handled, counts.failed, counts.timed_out, counts.skipped) == (7, 3, 3, 3)
        assert await run.runner.is_idle() and run.runner.error is None


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.get("order", "partition"))
@on_both
async def test_a_call_that_takes_too_long_ends_the_bus_where_that_is_wanted(way: dict[str, Any]) -> None:
    clock = FakeClock()
    slow = Slow(clock, timeout=2, on_error="crash", **way)
    slow.seconds = {3: 60}
    run = Running(slow.handler, clock)
    run.consumer.deliver(records(T0, range(10), lambda offset: b"k"))
    with pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.runner.run)
            await clock.advance(seconds=10)
    assert raised.group_contains(HandlerError, match="t-0 offset 3")
    assert run.consumer.offsets[T0].offset == 3


@on_both
async def test_a_batch_that_takes_too_long() -> None:
    clock = FakeClock()
    done: list[list[bytes]] = []

    @consumer("t", group="g", timeout=1, on_error="skip", batch=3)
    async def handle(values: list[bytes]) -> None:
        await clock.sleep(30 if b"4" in values else 0.5)
        done.append(values)

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(8)))
        await clock.advance(seconds=5)
        assert done == [[b"0", b"1", b"2"], [b"6", b"7"]]
        assert run.consumer.offsets[T0].offset == 8


@pytest.mark.parametrize("seed", range(8))
@on_both
async def test_a_call_is_cancelled_at_its_time_and_never_before(seed: int) -> None:
    random, clock = Random(seed), FakeClock()
    timeout = random.choice([0.05, 0.3, 1.0, 7.0, 90.0])
    slow = Slow(clock, timeout=timeout, on_error="skip", **random.choice(WAYS))
    slow.seconds = {offset: random.choice([0.1, 0.5, 0.97, 1.2, 3]) * timeout for offset in range(30)}
    async with running(slow.handler, clock) as run:
        for offset in range(30):
            run.consumer.deliver(records(T0, [offset], lambda offset: b"k"))
            await clock.advance(seconds=random.random() * timeout)
        await clock.advance(seconds=60 * timeout)
        assert sorted(slow.took) == list(range(30))
        for offset, seconds in slow.took.items():
            assert (offset in slow.done) == (slow.seconds[offset] < timeout)
            assert timeout - 1e-6 <= seconds <= 1.1 * timeout or offset in slow.done


class Standing:
    """Timers that stand still."""

    def __init__(self) -> None:
        self.now = 0.0

    def current_time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await anyio.Event().wait()

    def move_on_after(self, seconds: float, *, shield: bool = False) -> anyio.CancelScope:
        return anyio.CancelScope(shield=shield)


@pytest.mark.parametrize("way", [*WAYS, {"ack": "manual"}], ids=str)
@on_both
async def test_a_call_that_ends_in_the_turn_it_is_cancelled_in_has_ended_in_time(way: dict[str, Any]) -> None:
    timers, begun, go_on = Standing(), anyio.Event(), anyio.Event()
    calls: list[int] = []
    done: list[int] = []

    @consumer("t", group="g", timeout=2, **way)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        calls.append(record.offset)
        if record.offset == 1:
            begun.set()
            await go_on.wait()
        else:
            await anyio.lowlevel.checkpoint()
        done.append(record.offset)
        if way.get("ack"):
            record.ack()

    async with running(handle, timers) as run:
        timeouts: CallTimeouts = run.runner._timeouts
        run.consumer.deliver(records(T0, range(5), lambda offset: b"k"))
        await begun.wait()
        timeouts._check()
        timers.now = 2.5
        go_on.set()  # the handler is about to go on ...
        timeouts._check()  # ... when it is found to be late: it gets to its end all the same
        await run.idle()
        assert done == calls == [0, 1, 2, 3, 4]
        assert run.runner.counts.timed_out == 0 and run.runner.error is None
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 5


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_a_handler_that_cleans_up_with_another_error_was_late_all_the_same(way: dict[str, Any]) -> None:
    clock = FakeClock()

    @consumer("t", group="g", timeout=2, **way)
    async def handle(value: bytes) -> None:
        try:
            await clock.sleep(60)
        except BaseException:
            raise ValueError("cleaning up") from None

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(3), lambda offset: b"k"))
        await clock.advance(seconds=5)
        assert isinstance(run.runner.error, HandlerError)
        assert run.runner.counts.failed == 1 and T0 not in run.consumer.offsets


@pytest.mark.parametrize("way", [{}, {"order": "key", "concurrency": 2}], ids=str)
@on_both
async def test_a_plain_function_that_takes_too_long_stops_its_partition_at_once(way: dict[str, Any]) -> None:
    clock = FakeClock()
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    @consumer("t", group="g", timeout=2, **way)
    def handle(value: bytes) -> None:
        if value == b"3":
            begun.set()
            go_on.wait(10)
        done.append(int(value))

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(10), lambda offset: b"k"))
        with anyio.fail_after(10):
            while not begun.is_set():
                await anyio.lowlevel.checkpoint()
        await clock.advance(seconds=3)
        try:
            assert isinstance(run.runner.error, HandlerError) and "offset 3" in str(run.runner.error)
            assert isinstance(run.runner.error.__cause__, TimeoutError)
        finally:
            go_on.set()
        with anyio.fail_after(10):
            while not run.runner.drivers[T0].ended.is_set():
                await anyio.lowlevel.checkpoint()
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 3, "what it came to later is ignored, what was before it counts"
        assert 4 not in done


@on_both
async def test_a_plain_function_that_takes_too_long_is_warned_of_where_it_may_be_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    begun, go_on = threading.Event(), threading.Event()

    @consumer("t", group="g", timeout=2, on_error="skip")
    def handle(value: bytes) -> None:
        if value == b"1":
            begun.set()
            go_on.wait(10)

    async with running(handle, clock) as run:
        run.consumer.deliver(records(T0, range(3)))
        with anyio.fail_after(10):
            while not begun.is_set():
                await anyio.lowlevel.checkpoint()
        await clock.advance(seconds=30)
        go_on.set()
        await run.idle()
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 3
    late = [record for record in caplog.records if "takes longer than timeout=2" in record.getMessage()]
    assert len(late) == 1 and late[0].levelno == logging.WARNING and "t-0 offset 1" in late[0].getMessage()


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_a_partition_that_moves_while_a_call_is_late(way: dict[str, Any]) -> None:
    clock = FakeClock()
    slow = Slow(clock, timeout=2, on_error="skip", **way)
    slow.seconds = {1: 60}
    async with running(slow.handler, clock) as run:
        run.consumer.deliver(records(T0, range(3), lambda offset: b"k"))
        await clock.advance(seconds=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.consumer.revoke, T0)
            await clock.advance(seconds=5)
        assert run.consumer.offsets[T0].offset == 2, "passed over, as always"
        assert slow.done == [0]


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_what_is_at_work_and_since_when(way: dict[str, Any]) -> None:
    clock = FakeClock()
    slow = Slow(clock, **way)
    slow.seconds = {5: 100}
    async with running(slow.handler, clock) as run:
        assert run.runner.in_flight() == []
        await clock.advance(seconds=50)
        run.consumer.deliver(records(T0, range(5, 8), lambda offset: b"k"))
        await clock.advance(seconds=20)
        [one] = run.runner.in_flight()
        assert one.topic_partition == T0 and one.offset == 5 and 50 <= one.since <= 51
        await clock.advance(seconds=100)
        assert run.runner.in_flight() == []
        timers = len(clock._timers) - clock._over
        assert timers == 0, "nobody waits by time while there is nothing to do"
