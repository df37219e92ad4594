"""Calls that never suspend let the event loop turn after 10 ms, however they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.backends.delivery import this_loop
from eventbus.client.handling.call_loop import Slices, TimeSlice
from eventbus.client.handling.call_timeouts import CallTimeouts
from eventbus.client.handling.handlers import consumer
from eventbus.testing import FakeClock
from tests.client.dispatching import chunk_of, dispatch_of, driver_of, run

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
RECORDS = 200
LATER = 30
KEYS = 7
CALL_SECONDS = 0.01


class Computing(FakeClock):
    """A clock that a handler moves by what its computation takes, without a turn of the event loop."""

    def compute(self, seconds: float) -> None:
        self._elapsed_us += round(seconds * 1_000_000)


class Invoker:
    def __init__(self) -> None:
        self.clock = Computing()
        self.begun = 0
        self.on_begun: Callable[[int], object] = lambda begun: None
        self.most_between_turns = 0
        """Calls begun between two turns of the event loop, at most."""
        self._since_turn = 0

    def compute(self, seconds: float = CALL_SECONDS) -> bool:
        if not self._since_turn:
            loop = this_loop()
            (getattr(loop, "call_soon", None) or loop.run_sync_soon)(self._turned)
        self._since_turn += 1
        self.most_between_turns = max(self.most_between_turns, self._since_turn)
        self.begun += 1
        self.on_begun(self.begun)
        self.clock.compute(seconds)
        return True

    def _turned(self) -> None:
        self._since_turn = 0


Declare = Callable[[EventBus, Invoker], object]
WAYS: dict[str, Declare] = {}


def way(declare: Declare) -> Declare:
    WAYS[declare.__name__] = declare
    return declare


def handled(bus: EventBus, calls: Invoker, options: dict[str, Any]) -> None:
    @bus.consumer("t", group="g", **options)
    async def handle(value: int) -> None:
        calls.compute()


async def passing_on(record: Any, call_next: Any) -> Any:
    return await call_next(record)


OPTIONS: dict[str, dict[str, Any]] = {
    "in_order": {},
    "by_key": {"order": "key", "concurrency": 4},
    "without_order": {"order": "none", "concurrency": 4},
    "with_a_timeout": {"timeout": 5},
    "exactly_once": {"exactly_once": True},
    "one_transaction_each": {"exactly_once": True, "transaction_records": 1},
    "behind_middleware": {"middleware": [passing_on]},
    "committed_each": {"commit_every": 1},
    "in_turns": {"concurrency": 1},
}
for _name, _options in OPTIONS.items():
    WAYS[_name] = lambda bus, calls, options=_options: handled(bus, calls, options)


@way
def in_batches(bus: EventBus, calls: Invoker) -> None:
    @bus.consumer("t", group="g", batch=1)
    async def handle(values: list[int]) -> None:
        calls.compute()


@way
def acknowledged_by_hand(bus: EventBus, calls: Invoker) -> None:
    @bus.consumer("t", group="g", ack="manual")
    async def handle(record: ConsumerRecord) -> None:
        calls.compute()
        record.ack()


@way
def acknowledged_by_hand_in_any_order(bus: EventBus, calls: Invoker) -> None:
    @bus.consumer("t", group="g", ack="manual", order="none", concurrency=2)
    async def handle(record: ConsumerRecord) -> None:
        calls.compute()
        record.ack()


@way
def publishing(bus: EventBus, calls: Invoker) -> None:
    @bus.consumer("t", group="g")
    @bus.producer("out")
    async def handle(value: int) -> int:
        calls.compute()
        return value


@way
def in_a_filter(bus: EventBus, calls: Invoker) -> None:
    @bus.consumer("t", group="g", filter=lambda record: calls.compute())
    async def handle(value: int) -> None: ...


@BACKENDS
@pytest.mark.parametrize("declare", WAYS.values(), ids=WAYS.keys())
def test_a_handler_that_never_suspends_does_not_outlast_a_stop(declare: Declare, backend: str) -> None:
    calls = Invoker()
    stopped_at: list[int] = []

    async def main() -> None:
        bus = EventBus("memory://", clock=calls.clock)
        bus.topic("t", partitions=1)
        bus.topic("out", partitions=1)
        declare(bus, calls)

        def stop(begun: int) -> None:
            if begun == 50:
                bus.stop()
                stopped_at.append(begun)

        calls.on_begun = stop
        async with bus:
            await bus.send_many("t", range(RECORDS), key=lambda value: str(value % KEYS))
            await bus.run()

    anyio.run(main, backend=backend)
    workers = 4
    assert calls.most_between_turns <= 3 * workers
    gaps = 10 * KEYS  # a worker takes 8 records of a key, and those below the highest record begun are handled too
    assert calls.begun - stopped_at[0] <= (gaps if declare is WAYS["by_key"] else 5 * workers)


@BACKENDS
@pytest.mark.parametrize("retry", [Retry(immediate=LATER, delays=None), Retry(immediate=0, delays=["1s"])])
def test_later_tries_that_never_suspend(retry: Retry, backend: str) -> None:
    calls = Invoker()

    async def main() -> None:
        bus = EventBus("memory://", clock=calls.clock)
        bus.topic("t", partitions=1)

        @bus.consumer("t", group="g", retry=retry, on_error="skip")
        async def handle(value: int) -> None:
            calls.compute()
            raise ValueError("no")

        async with bus:
            await bus.send_many("t", range(1 if retry.immediate else LATER))
            await calls.clock.advance(seconds=10)
            await calls.clock.advance(seconds=10)

    anyio.run(main, backend=backend)
    assert calls.begun == (1 + LATER if retry.immediate else 2 * LATER)
    assert calls.most_between_turns <= 3


@BACKENDS
def test_functions_of_a_table_that_never_suspend(backend: str) -> None:
    calls = Invoker()

    async def main() -> None:
        bus = EventBus("memory://", clock=calls.clock)
        table = bus.table("prices", key=str, value=int)

        @table.on_change
        def changed(change: Any) -> None:
            calls.compute()

        async with bus:
            await bus.send_many("prices", range(RECORDS), key=str)
            await bus.drain()

    anyio.run(main, backend=backend)
    assert calls.begun == RECORDS
    assert calls.most_between_turns <= 3


@BACKENDS
@pytest.mark.parametrize("partitions", [1, 8])
def test_the_partitions_of_a_handler_share_the_time(partitions: int, backend: str) -> None:
    """Each of them has its turn between two turns of the event loop."""
    calls = Invoker()

    async def main() -> None:
        bus = EventBus("memory://", clock=calls.clock)
        bus.topic("t", partitions=partitions)

        @bus.consumer("t", group="g")
        async def handle(value: int) -> None:
            calls.compute(0.0011)

        async with bus:
            for partition in range(partitions):
                await bus.send_many("t", range(RECORDS), partition=partition)
            await bus.drain()

    anyio.run(main, backend=backend)
    assert calls.begun == partitions * RECORDS
    assert calls.most_between_turns <= 60  # without sharing 8 times 9, and on trio a turn is seen one turn later


@BACKENDS
def test_no_turn_is_added_to_calls_that_suspend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, done = Computing(), []

    async def turn(self: TimeSlice) -> int:
        raise AssertionError("the event loop has turned in each call")

    monkeypatch.setattr(TimeSlice, "turn", turn)

    async def main() -> None:
        @consumer("t")
        async def handle(value: bytes) -> None:
            clock.compute(0.009)
            await anyio.lowlevel.checkpoint()
            done.append(value)

        await run(dispatch_of(handle, None, {}, timers=clock), driver_of(), chunk_of(*[b"1"] * RECORDS))

    anyio.run(main, backend=backend)
    assert len(done) == RECORDS


def test_the_clock_is_seldom_looked_at_while_calls_are_quick() -> None:
    now: Iterator[float] = iter(number * 1e-5 for number in range(RECORDS))
    time_slice = TimeSlice(Slices(lambda: next(now)))
    looks = [time_slice.look() for _ in range(20)]
    assert looks == [2, 4, 8, 16] + [32] * 16


@BACKENDS
def test_no_call_is_in_flight_while_the_event_loop_turns(backend: str) -> None:
    """The time limit of a call does not count what other tasks do between two calls."""
    calls, found = Invoker(), []

    async def main() -> None:
        @consumer("t", timeout=5)
        async def handle(value: bytes) -> None:
            calls.compute()

        dispatch = dispatch_of(handle, None, {}, timers=calls.clock)
        watch = CallTimeouts(handle, calls.clock, lambda driver, error: None)

        async def look() -> None:
            while True:
                await anyio.lowlevel.checkpoint()
                found.append([one for one in watch._callers if one.marker is not None])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            driver = driver_of()
            driver.work.fetched(chunk_of(*[b"1"] * RECORDS))
            call = driver.work.next_call()
            assert call is not None
            await watch.run_in_order(dispatch, driver, call)
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert len(found) > RECORDS // 2
    assert not any(found)
