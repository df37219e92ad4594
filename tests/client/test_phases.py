"""The phases of a bus, and the work that its close cut off."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.testing import FakeClock


async def test_a_bus_goes_through_its_phases() -> None:
    bus = EventBus("memory://")
    seen = [bus.context.phase]

    @bus.on_startup
    def starting() -> None:
        seen.append(bus.context.phase)

    @bus.on_shutdown
    def closing() -> None:
        seen.append(bus.context.phase)

    async with bus:
        seen.append(bus.context.phase)
    assert [*seen, bus.context.phase] == ["stopped", "starting", "running", "closing", "stopped"]


async def closed_amid_a_record(bus: EventBus, clock: FakeClock, *, seconds: float) -> None:
    begun, end = anyio.Event(), anyio.Event()
    bus.topic("t")

    @bus.consumer("t")
    async def slow(value: str) -> None:
        begun.set()
        await end.wait()

    async def pass_time() -> None:
        await clock.advance(seconds=seconds)
        end.set()

    async with anyio.create_task_group() as tasks, bus:
        await bus.send("t", "x")
        await begun.wait()
        tasks.start_soon(pass_time)


@pytest.mark.parametrize(("seconds", "cut_off"), [(1, False), (3, True)])
async def test_a_close_that_cuts_work_off_is_remembered(seconds: float, cut_off: bool) -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.context.drain_timeout_ms = 2_000
    assert bus.context.drain_timeout_ms == 2_000
    await closed_amid_a_record(bus, clock, seconds=seconds)
    assert bus.context.outcome.cut_off is cut_off
    async with bus:
        assert not bus.context.outcome.cut_off, "forgotten at the next start"


async def test_a_bus_starts_without_its_handlers() -> None:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t")
    async def never(value: str) -> None:
        raise AssertionError("it does not run")

    with bus.context.without_handlers():
        await bus.start()
    await bus.send("t", "x")
    assert (bus.context.runners, bus.context.handlers) == ((), [never])
    await bus.close()
