"""A log that does not answer: closing ends nevertheless, and reports what was not stored."""

from __future__ import annotations

import logging
import signal
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.client.handling import runner
from eventbus.client.producing import shutdown_work
from eventbus.errors import RequestTimedOut, StoppedBySignal
from eventbus.testing import TestBus, memory
from tests.client.fakes import on_both, others_run

WAYS = [{}, {"exactly_once": True}, {"order": "key", "concurrency": 2}, {"delivery": "at-most-once"}]
BUDGET_MS = 500


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LAST_WORDS_SECONDS", 0.001)
    monkeypatch.setattr(runner, "_LAST_COMMIT_SECONDS", 0.001)
    monkeypatch.setattr(shutdown_work, "_AT_ONCE_SECONDS", 0.001)
    monkeypatch.setattr(shutdown_work, "_LEAST_SECONDS", 0.001)
    monkeypatch.setattr(memory, "_LEAVE_SECONDS", 0.001)


def piped(way: dict[str, Any]) -> TestBus:
    bus = TestBus(auto_create_topics=True, drain_timeout_ms=BUDGET_MS)

    @bus.consumer("t", group="g", drain_timeout_ms=BUDGET_MS, **way)
    @bus.producer("o")
    async def handle(value: bytes) -> bytes:
        return value

    return bus


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_closing_takes_little_longer_than_a_drain(way: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    bus = piped(way)
    await bus.start()
    with bus.log.faults.outage(hang=True):
        sent = bus.send_nowait("t", b"1")
        await others_run()
        began = bus.clock.current_time()
        await bus.close()
        assert bus.clock.current_time() - began <= 1.1 * BUDGET_MS / 1000, "one time for all that closing does"
    assert isinstance(sent.exception(), RequestTimedOut)
    assert "1 record(s) were not acknowledged in time" in warnings(caplog)
    async with bus:  # late is not stored after all: it was said that it is given up
        await bus.drain()
        assert bus.log.values("t", bytes) == []


@pytest.mark.parametrize("late", [False, True], ids=["before", "while closing"])
@pytest.mark.parametrize("way", WAYS, ids=str)
@on_both
async def test_a_second_signal_ends_it_at_once(way: dict[str, Any], late: bool) -> None:
    bus = piped(way)
    await bus.start()
    await bus.send("t", b"0")
    with bus.log.faults.outage(hang=True):
        bus.send_nowait("t", b"1")
        await others_run()
        began = bus.clock.current_time()
        life: Any = bus.context.bus_run  # pyright: ignore[reportPrivateUsage]
        if not late:
            life.stop_at_once(signal.SIGTERM)

        async def second() -> None:
            await others_run()
            life.stop_at_once(signal.SIGTERM)

        if late:
            life.tasks.start_soon(second)
        with pytest.raises(StoppedBySignal):
            await EventBus.close(bus)  # no time passes by itself
        assert bus.clock.current_time() == began
    async with bus:  # what was not committed is handled again
        await bus.drain()
        assert b"0" in bus.log.values("o", bytes) or way == {"delivery": "at-most-once"}


@on_both
async def test_cancelled_from_outside_it_closes_though_no_clock_moves() -> None:
    with anyio.CancelScope() as scope:
        async with TestBus(auto_create_topics=True, drain_timeout_ms=1) as bus:
            with bus.log.faults.outage(hang=True):
                bus.send_nowait("t", b"1")
                scope.cancel()
                await EventBus.close(bus)
    assert scope.cancelled_caught


@pytest.mark.system
@on_both
async def test_a_log_that_is_only_slow_gets_its_time(caplog: pytest.LogCaptureFixture) -> None:
    bus = TestBus(auto_create_topics=True, drain_timeout_ms=BUDGET_MS)
    await bus.start()
    with bus.log.faults.slow("send", ms=BUDGET_MS - 1):
        sent = [bus.send_nowait(topic, b"1") for topic in "ab"]
        await bus.close()
    assert [one.result().offset for one in sent] == [0, 0]
    assert warnings(caplog) == ""


@on_both
async def test_a_producer_that_hangs_takes_no_time_from_the_others() -> None:
    bus = TestBus(auto_create_topics=True, drain_timeout_ms=BUDGET_MS)
    await bus.start()
    first, second = bus.new_producer(), bus.new_producer()
    with bus.log.faults.outage("send", topic="a", hang=True), bus.log.faults.slow("send", ms=BUDGET_MS - 1, topic="b"):
        lost, stored = first.send_nowait("a", b"1"), second.send_nowait("b", b"1")
        await bus.close()
    assert isinstance(lost.exception(), RequestTimedOut)
    assert stored.result().offset == 0


@on_both
async def test_an_explicit_producer_closes_in_a_bus_that_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with TestBus(auto_create_topics=True, drain_timeout_ms=BUDGET_MS) as bus:
        producer = bus.new_producer()
        with bus.log.faults.outage(hang=True):
            sent = [producer.send_nowait("t", b"1") for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.aclose)
                await bus.clock.advance(ms=BUDGET_MS)
        assert all(isinstance(one.exception(), RequestTimedOut) for one in sent)
        assert "3 record(s) were not acknowledged in time" in warnings(caplog)
        await bus.send("t", b"2")
        assert bus.log.values("t", bytes) == [b"2"]


@on_both
async def test_a_cancelled_transaction_waits_no_longer_for_its_abort(caplog: pytest.LogCaptureFixture) -> None:
    async with TestBus(auto_create_topics=True, drain_timeout_ms=BUDGET_MS) as bus:

        async def imports() -> None:
            async with bus.transaction("import") as tx:
                tx.send_nowait("t", b"1")
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(imports)
            await others_run()
            with bus.log.faults.outage(hang=True):
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await bus.clock.advance(ms=2 * BUDGET_MS)
                    await others_run()
        assert "the abort of a transaction of 'import' was not answered in time" in warnings(caplog)
        async with bus.transaction("import") as tx:
            await tx.send("t", b"2")
        assert bus.log.values("t", bytes) == [b"2"]
