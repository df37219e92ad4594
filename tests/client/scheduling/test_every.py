"""Functions that are called at times: once per time in all instances, over restarts, whatever they raise."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, Depends, EventBus, Firing
from eventbus.client.scheduling.timetable import Missed
from eventbus.errors import ConfigError
from eventbus.testing import FakeClock, TestBus, in_memory
from serdes import Avro
from tests.client.conftest import MakeBus
from tests.client.fleets import life
from tests.client.trials import LOGS

START_MS = 1_700_000_000_000
"""This is 22:13:20 UTC."""


def since(ms: int) -> int:
    return (ms - START_MS) // 1000


@pytest.mark.system
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_functions_of_each_kind_are_called_at_their_times(backend: str) -> None:
    async def main() -> None:
        bus = TestBus()
        calls: dict[str, list[int]] = {"cron": [], "seconds": [], "plain": [], "depends": []}

        def limit() -> int:
            return 7

        @bus.every("*/5 * * * *")
        async def cron(firing: Firing) -> None:
            assert (firing.name, firing.next_ms - firing.scheduled_ms) == ("cron", 300_000)
            calls["cron"].append(since(firing.scheduled_ms))

        @bus.every("200s")
        async def nothing() -> None:
            calls["seconds"].append(since(bus.clock()))

        @bus.every("300s")
        def plain(firing: Firing) -> None:
            calls["plain"].append(since(firing.scheduled_ms))

        @bus.every("600s", name="other")
        async def depends(record: ConsumerRecord, most: int = Depends(limit)) -> None:
            assert record.topic == "_every.eventbus.other" and most == 7
            calls["depends"].append(since(bus.clock()))

        async with bus:
            for _ in range(7):
                await bus.clock.advance(seconds=100)
                await bus.drain()
        assert calls == {"cron": [100, 400, 700], "seconds": [200, 400, 600], "plain": [300, 600], "depends": [600]}

    anyio.run(main, backend=backend)


async def test_what_a_producer_function_returns_is_published_once_with_its_firing() -> None:
    bus = TestBus()

    @bus.every("10s", exactly_once=True)
    @bus.producer("heartbeats", key=lambda one: one["name"])
    async def beat(firing: Firing) -> dict[str, Any]:
        return {"name": firing.name, "at": since(firing.scheduled_ms)}

    async with bus:
        await bus.clock.advance(seconds=35)
        await bus.drain()
    assert bus.log.values("heartbeats") == [{"name": "beat", "at": at} for at in (10, 20, 30)]


@pytest.mark.parametrize("value", [b"\xff", None, b'{"name":"tick"}', b'{"name":"\xff","scheduled_ms":1,"next_ms":1}'])
async def test_a_record_that_is_no_time_of_the_function_does_not_stop_it(value: bytes | None) -> None:
    bus, got = TestBus(), list[int]()

    @bus.every("10s", on_error="stop")
    async def tick(firing: Firing) -> None:
        got.append(since(firing.scheduled_ms))

    async with bus:
        await bus.send("_every.eventbus.tick", value, partition=0)
        await bus.clock.advance(seconds=10)
        await bus.drain()
    assert got == [10]


async def test_on_a_bus_whose_types_are_avro() -> None:
    bus, got = TestBus(serde=Avro("log")), list[int]()

    @bus.every("10s")
    async def tick(firing: Firing) -> None:
        got.append(since(firing.scheduled_ms))

    async with bus:
        await bus.clock.advance(seconds=10)
        await bus.drain()
    assert got == [10]


async def test_one_firing_in_two_instances_and_whoever_is_left_goes_on() -> None:
    clock, url, calls = FakeClock(), f"memory://every-{next(LOGS)}", list[tuple[str, int]]()

    def service(name: str) -> EventBus:
        bus = EventBus(url, service="shop", clock=clock)

        @bus.every("1s")
        async def tick(firing: Firing) -> None:
            calls.append((name, since(firing.scheduled_ms)))

        return bus

    async with EventBus(url, service="keeper", clock=clock), life(service("one")) as one:
        async with life(service("two")):
            await clock.advance(seconds=20)
        await clock.advance(seconds=10)
        await one.bus.drain()
    assert [at for _, at in calls] == [*range(1, 31)]


@pytest.mark.parametrize(
    ("missed", "fired"), [("once", [10, 130, 140]), ("skip", [10, 130, 140]), ("all", [10, *range(20, 150, 10)])]
)
async def test_a_service_that_comes_back(file_url: str, missed: Missed, fired: list[int]) -> None:
    clock, calls = FakeClock(), list[int]()

    def service() -> EventBus:
        bus = EventBus(file_url, service="shop", clock=clock)

        @bus.every("10s", missed=missed)
        async def tick(firing: Firing) -> None:
            calls.append(since(firing.scheduled_ms))

        return bus

    async with service() as bus:
        await bus.drain()
        await clock.advance(seconds=15)
        await bus.drain()
    await clock.advance(seconds=120)
    async with service() as bus:
        await bus.drain()
        await clock.advance(seconds=5)
        await bus.drain()
    assert calls == fired


@pytest.mark.system
async def test_with_skip_what_is_late_by_more_than_a_minute_is_left_out() -> None:
    bus, calls = TestBus(), dict[str, list[int]]()

    def declare(name: str, missed: Missed) -> None:
        calls[name] = []

        @bus.every("3600s", name=name, missed=missed)
        async def tick(firing: Firing) -> None:
            calls[name].append(since(firing.scheduled_ms))

    for name, missed in {"once": "once", "skip": "skip"}.items():
        declare(name, missed)  # pyright: ignore[reportArgumentType]
    async with bus:
        await bus.drain()
    await bus.clock.advance(seconds=3600 + 120)
    async with bus:
        await bus.drain()
        await bus.clock.advance(seconds=3480)
        await bus.drain()
    assert calls == {"once": [3600, 7200], "skip": [7200]}


@pytest.mark.parametrize("error", [ZeroDivisionError("never mind"), ConnectionError("never mind")])
async def test_a_function_that_raises_is_logged_and_called_at_the_next_time(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bus, calls = TestBus(), list[int]()

    @bus.every("10s")
    async def tick(firing: Firing) -> None:
        calls.append(since(firing.scheduled_ms))
        if len(calls) == 1:
            raise error

    async with bus:
        with caplog.at_level(logging.WARNING):
            await bus.clock.advance(seconds=10)
            await bus.drain()
        assert "never mind" in caplog.text
        await bus.clock.advance(seconds=10)
        await bus.drain()
        assert bus.failure is None
    assert calls == [10, 20]


async def test_a_function_with_retries_is_called_again() -> None:
    bus, calls = TestBus(), list[int]()

    @bus.every("10s", retry=3)
    async def tick(firing: Firing) -> None:
        calls.append(since(firing.scheduled_ms))
        if len(calls) < 3:
            raise ZeroDivisionError

    async with bus:
        await bus.clock.advance(seconds=10)
        await bus.drain()
    assert calls == [10, 10, 10]


async def test_a_function_that_takes_longer_than_its_interval_does_not_fall_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventbus.testing.memory._LEAVE_SECONDS", 0.001)
    bus, began = TestBus(), list[int]()

    @bus.every("10s")
    async def slow(firing: Firing) -> None:
        began.append(since(firing.scheduled_ms))
        await bus.clock.sleep(35)

    async with bus:
        await bus.clock.advance(seconds=130)
    assert began == [10, 40, 80, 110] or began == [10, 40, 80, 120]


async def test_other_times_take_effect_as_the_service_starts() -> None:
    clock, url, calls = FakeClock(), f"memory://every-{next(LOGS)}", list[tuple[int, int]]()

    def service(seconds: int) -> EventBus:
        bus = EventBus(url, service="shop", clock=clock)

        @bus.every(seconds)
        async def tick(firing: Firing) -> None:
            calls.append((seconds, since(firing.scheduled_ms)))

        return bus

    async with EventBus(url, service="keeper", clock=clock):
        for seconds in (10, 10, 4):
            async with service(seconds) as bus:
                await bus.drain()
                await clock.advance(seconds=8)
                await bus.drain()
    assert calls == [(10, 10), (4, 20), (4, 24)]


async def test_cancelled_it_stays_away_until_the_next_start() -> None:
    bus, calls = TestBus(), list[int]()

    @bus.every("10s")
    async def tick(firing: Firing) -> None:
        calls.append(since(firing.scheduled_ms))

    async with bus:
        await bus.drain()
        assert await bus.cancel_scheduled("every:tick") is True
        await bus.clock.advance(seconds=30)
        await bus.drain()
        assert calls == [] and await bus.cancel_scheduled("every:tick") is False
    async with bus:
        await bus.drain()
        await bus.clock.advance(seconds=10)
        await bus.drain()
    assert calls == [40]


@pytest.mark.system
async def test_an_applications_functions_fire_under_a_clock_that_stands_still() -> None:
    app, calls, clock = EventBus("file://./nowhere", service="app"), list[int](), FakeClock()

    @app.every("0 3 * * *", timezone="Europe/Berlin")
    async def nightly(firing: Firing) -> None:
        calls.append(firing.scheduled_ms)

    async with in_memory(app, clock):
        await clock.advance(seconds=15_000)
        await app.drain()
    assert calls == [1_700_013_600_000], "2023-11-15 02:00 UTC"


async def test_each_storage(make_bus: MakeBus) -> None:
    clock, calls = FakeClock(), list[int]()
    bus = make_bus(clock=clock)

    @bus.every("1s")
    async def tick(firing: Firing) -> None:
        calls.append(since(firing.scheduled_ms))

    async with bus:
        await bus.drain()
        for _ in range(3):
            await clock.advance(seconds=1)
            await bus.drain()
    assert calls == [1, 2, 3]


def declare(function: Any, *when: Any, **options: Any) -> None:
    EventBus("memory://").every(*when, **options)(function)


async def of_an_order(order: int) -> None: ...


async def of_nothing() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (of_nothing, {"when": "* * * *"}, "is not a cron expression"),
        (of_order := of_an_order, {"when": 5}, r"takes nothing, or a Firing.*firing: Firing"),
        (of_nothing, {"when": 5, "batch": True}, "@bus.every has no option 'batch'"),
        (of_nothing, {"when": 5, "retries": 3}, "the option is retry"),
        (of_nothing, {"when": 5, "name": ""}, "1 to 200 printable"),
        (of_nothing, {"when": 5, "missed": "never"}, "'once', 'skip' or 'all'"),
    ],
)
def test_mistakes_are_told_at_decoration(function: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        declare(function, **options)


def test_two_of_one_name_are_refused() -> None:
    bus = EventBus("memory://")
    bus.every("5s")(of_nothing)
    with pytest.raises(ConfigError, match="two functions are named 'of_nothing'"):
        bus.every("6s")(of_nothing)
    bus.every("6s", name="other")(of_nothing)


def test_the_function_itself_can_be_called() -> None:
    bus = EventBus("memory://")

    @bus.every("5s")
    def double(firing: Firing) -> int:
        return firing.scheduled_ms * 2

    assert double(Firing(name="double", scheduled_ms=4, next_ms=9)) == 8


async def test_drain_does_not_wait_for_the_times_that_come_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, bus = START_MS, EventBus("memory://")

    def hasty() -> int:
        """Return a time at which the next firing is due, at every call."""
        nonlocal now_ms
        now_ms += 100
        return now_ms

    monkeypatch.setattr(bus.context, "now_ms", hasty)

    @bus.every("100ms")
    async def tick() -> None: ...

    async with bus:
        for _ in range(3):
            with anyio.fail_after(10):  # it went on for ever
                await bus.drain()
    assert now_ms > START_MS
