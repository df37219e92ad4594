"""A plain function that never returns: closing ends nevertheless, and reports the record that was left."""

from __future__ import annotations

import itertools
import signal
import threading
from typing import Any

import anyio
import pytest

from eventbus import EventBus, TopicPartition, consumer
from eventbus.client.handling import runner
from eventbus.errors import HandlerError, RebalanceInProgress, StoppedBySignal
from eventbus.testing import FakeClock
from tests.client.fakes import T0, on_both, others_run, records, running
from tests.support import until

_numbers = itertools.count()
LEFT = "t-0 offset 1 in time: abandoned in its thread, which cannot be cancelled"


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LAST_WORDS_SECONDS", 0.001)


async def passing(record: Any, call_next: Any) -> Any:
    return await call_next(record)


class Hangs:
    """A handler that hangs from the second record on, and a separate bus."""

    def __init__(self, way: dict[str, Any], **config: Any) -> None:
        self.at_work, self.go_on = threading.Event(), threading.Event()
        url = f"memory://hangs-{next(_numbers)}"
        self.keeper = EventBus(url, auto_create_topics=True)
        self.bus = EventBus(url, auto_create_topics=True, **config)

        if way.get("batch"):

            @self.bus.consumer("t", group="g", **way)
            def handle_batch(values: list[bytes]) -> None:
                self.call(values[0])
        else:

            @self.bus.consumer("t", group="g", **way)
            def handle(value: bytes) -> None:
                self.call(value)

    def call(self, value: bytes) -> None:
        if value == b"1":
            self.at_work.set()
            self.go_on.wait(30)

    async def begin(self) -> None:
        await self.bus.send_many("t", [b"0", b"1", b"2"], key=lambda value: b"k")
        while not self.at_work.is_set():
            await anyio.lowlevel.checkpoint()

    async def check(self, caplog: pytest.LogCaptureFixture, committed: int | None) -> None:
        found = (await self.keeper.admin.group_offsets("g")).get(TopicPartition("t", 0))
        assert (None if found is None else found.offset) == committed
        # All that an open transaction holds is handled again.
        left = LEFT if committed is not None else LEFT.replace("offset 1", "offsets 0 to 1 (2 records)")
        assert sum(left in record.getMessage() for record in caplog.records) == 1, caplog.text


WAYS = [
    {},
    {"batch": 1},
    {"middleware": [passing]},
    {"concurrency": 1},
    {"order": "key", "concurrency": 2},
    {"order": "none", "concurrency": 1, "middleware": [passing]},
    {"delivery": "at-most-once"},
    {"exactly_once": True},
]
ENDS = ["deadline", "second signal", "crash", "cancelled"]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way) or "plain")
@pytest.mark.parametrize("end", ENDS)
@on_both
async def test_closing_ends(end: str, way: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs({"drain_timeout_ms": 1, **way}, drain_timeout_ms=1 if end == "deadline" else 30_000)

    @hangs.bus.consumer("c", group="c", on_error="crash")
    async def crash(value: bytes) -> None:
        raise ValueError("no")

    try:
        with anyio.fail_after(20):
            async with hangs.keeper:
                with anyio.CancelScope() as scope:
                    try:
                        async with hangs.bus:
                            await hangs.begin()
                            if end == "second signal":
                                hangs.bus.context.bus_run.stop_at_once(signal.SIGTERM)
                            elif end == "crash":
                                await hangs.bus.send("c", b"")
                                await anyio.sleep_forever()
                            elif end == "cancelled":
                                scope.cancel()
                    except StoppedBySignal:
                        assert end == "second signal"
                    except HandlerError:
                        assert end == "crash"
                delivery = way.get("delivery", "exactly-once" if "exactly_once" in way else "")
                await hangs.check(caplog, {"at-most-once": 2, "exactly-once": None}.get(delivery, 1))
                told = "not handled again" if delivery == "at-most-once" else "handled again by the partition's"
                assert told in caplog.text
    finally:
        hangs.go_on.set()


@pytest.mark.parametrize("end", ["second signal", "crash", "cancelled"])
@on_both
async def test_closing_ends_by_a_clock_that_stands_still(end: str, caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs({"drain_timeout_ms": 1}, clock=FakeClock())

    @hangs.bus.consumer("c", group="c", on_error="crash")
    async def crash(value: bytes) -> None:
        raise ValueError("no")

    try:
        with anyio.fail_after(20), anyio.CancelScope() as scope:
            async with hangs.keeper:
                with pytest.raises((StoppedBySignal, HandlerError, anyio.get_cancelled_exc_class())):
                    async with hangs.bus:
                        await hangs.begin()
                        if end == "second signal":
                            hangs.bus.context.bus_run.stop_at_once(signal.SIGTERM)
                        elif end == "crash":
                            await hangs.bus.send("c", b"")
                            await anyio.sleep_forever()
                        else:
                            scope.cancel()
                            await anyio.lowlevel.checkpoint()
                with anyio.CancelScope(shield=True):
                    await hangs.check(caplog, 1)
    finally:
        hangs.go_on.set()


@on_both
async def test_a_thread_that_returns_in_time_is_waited_for_when_another_handler_crashes() -> None:
    hangs = Hangs({})

    @hangs.bus.consumer("c", group="c", on_error="crash")
    async def crash(value: bytes) -> None:
        hangs.go_on.set()
        raise ValueError("no")

    with anyio.fail_after(20):
        async with hangs.keeper:
            with pytest.raises(HandlerError):
                async with hangs.bus:
                    await hangs.begin()
                    await hangs.bus.send("c", b"")
                    await anyio.sleep_forever()
            offsets = await hangs.keeper.admin.group_offsets("g")
            assert offsets[TopicPartition("t", 0)].offset >= 2


@on_both
async def test_a_second_signal_ends_the_wait_for_the_last_commit() -> None:
    """A group that is being rebalanced takes no commit: the member polled for up to ``drain_timeout_ms``."""
    handled: list[bytes] = []

    @consumer("t", group="g", commit_interval_ms=60_000)
    async def handle(value: bytes) -> None:
        handled.append(value)

    clock = FakeClock()
    async with running(handle, clock) as run:
        run.consumer.commit_error = RebalanceInProgress("the group is joining")
        run.consumer.deliver(records(T0, range(3)))
        await run.idle()
        run.runner.stop(30)
        await until(lambda: run.consumer.paused)  # it polls until it knows its partitions
        assert not run.runner.has_left
        run.runner.cancel()
        await others_run()
        has_left = run.runner.has_left
        await clock.advance(seconds=60)  # or it would wait for ever
        assert has_left and len(handled) == 3 and T0 not in run.consumer.offsets
