"""Schedules continue from the right time after a clock that was wrong, before the run or during it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from eventbus import EventBus, Firing
from eventbus.client.scheduling.timetable import Timetable, timetable
from eventbus.testing import FakeClock
from tests.client.scheduling.test_agenda import Partition, entry, every, scheduled
from tests.client.trials import LOGS

START_MS = 1_700_000_000_000
YEARS_MS = 315_360_000_000
"""Ten years."""


def service(url: str, clock: FakeClock, calls: list[Any]) -> EventBus:
    bus = EventBus(url, client_id="shop", clock=clock)
    bus.topic("t")

    @bus.every("10s")
    async def tick(firing: Firing) -> None:
        calls.append(("tick", (clock.monotonic_ms() - START_MS) // 1000))

    @bus.every("*/5 * * * *")
    async def cron(firing: Firing) -> None:
        calls.append(("cron", (clock.monotonic_ms() - START_MS) // 1000))

    @bus.consumer("t", group="g")
    async def handle(value: str) -> None:
        calls.append((value, (clock.monotonic_ms() - START_MS) // 1000))

    return bus


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and one.name == "eventbus.delays"
    ]


@pytest.mark.parametrize("ahead_ms", [3_600_000, YEARS_MS])
async def test_after_a_restart_with_the_right_clock(ahead_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    clock, calls, url = FakeClock(), list[Any](), f"memory://wrong-clock-{next(LOGS)}"
    clock.set_wall(ms=ahead_ms)
    async with EventBus(url, client_id="keeper", clock=clock):
        async with service(url, clock, calls) as bus:
            await bus.send("t", "later", delay=30)
            await bus.drain()
            await clock.advance(seconds=12)
            await bus.drain()
        clock.set_wall(ms=-ahead_ms)
        caplog.clear()
        async with service(url, clock, calls) as bus:
            await bus.drain()
            await clock.advance(seconds=320)
            await bus.drain()
    assert [at for what, at in calls if what == "tick"][:4] == [10, 22, 32, 42]
    assert ("later", 42) in calls and ("cron", 100) in calls  # 22:15 UTC
    warnings = warnings_of(caplog)
    assert (
        len(warnings) == 1
        and "3 times at which records of _scheduled.shop-0 are due were computed by a clock" in warnings[0]
    )


async def test_while_it_runs_and_health_shows_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    clock, calls = FakeClock(), list[Any]()
    async with service("memory://", clock, calls) as bus:
        await bus.drain()
        await clock.advance(seconds=10)
        clock.set_wall(seconds=-3_600)
        await clock.advance(seconds=50)
        await bus.drain()
        part = next(part for part in (await bus.health()).parts if part.part.startswith("scheduled records"))
        assert part.reason == "2 wait, the next one until 2023-11-14T21:14:30+00:00"
    assert [one for one in calls if one[0] == "tick"] == [("tick", at) for at in (10, 30, 40, 50, 60)]
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("table", [timetable(60, None, "once"), timetable("* * * * *", None, "once")])
def test_a_corrected_time_is_written_and_survives_a_takeover(table: Timetable) -> None:
    """Each restart within the interval would put it off by another interval otherwise."""
    partition = Partition()
    partition.put("every:f", every(START_MS + YEARS_MS, table))
    for ahead_ms in (0, 20_000):
        partition.read()
        corrections = partition.schedule.correct(START_MS + ahead_ms)
        assert len(corrections) == (ahead_ms == 0)
        partition.step(START_MS + ahead_ms)
        partition.take_over()
    while partition.step(table.after(START_MS)):
        pass
    assert scheduled(partition) == [table.after(START_MS)]


def test_a_corrected_time_that_has_fired_before_it_was_read_back_does_not_fire_again() -> None:
    partition = Partition()
    partition.put("every:f", every(START_MS + YEARS_MS, Timetable(interval_ms=60_000)))
    partition.read()
    partition.schedule.correct(START_MS)
    for now_ms in (START_MS, START_MS + 60_000):
        writes = partition.begin(now_ms)
        partition.commit(writes, now_ms)
        partition.schedule.stored(writes)
    partition.schedule.read(*partition.records[1][:2], 1)
    partition.schedule.settle()
    partition.read_to = 2
    while partition.step(START_MS + 60_001):
        pass
    assert scheduled(partition) == [START_MS + 60_000]


def test_times_that_may_be_right_stay() -> None:
    """A time that the caller gave, and those of a machine whose clock is a little ahead."""
    partition, hour = Partition(), 3_600_000
    partition.put("a", entry(START_MS + YEARS_MS, "a"))
    partition.put("every:f", every(START_MS + hour + 200, Timetable(interval_ms=hour)))
    partition.put("every:g", every(START_MS + 100_000, Timetable(cron="* * * * *")))  # the next minute but one
    partition.read()
    assert partition.schedule.correct(START_MS + 39_800) == []  # the minute ends in 200 ms


def test_a_machine_that_did_not_know_the_time_yet_does_not_fire_since_1970() -> None:
    partition = Partition()
    partition.put("every:f", every(61_000, Timetable(interval_ms=1_000, missed="all")))
    partition.read()
    partition.schedule.correct(START_MS)
    partition.step(START_MS + 1_000)
    assert scheduled(partition) == [START_MS + 1_000]
