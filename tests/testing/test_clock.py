"""The clock that stands still: deadlines in order, nothing fires that was left, and nobody waits in reality."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from eventbus.errors import ConfigError
from eventbus.testing import FakeClock

Test = Callable[[FakeClock], Awaitable[None]]


@pytest.fixture(params=["asyncio", "asyncio-another-loop", "trio"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Test], None]:
    if request.param == "asyncio-another-loop":
        monkeypatch.setattr("eventbus.testing.clock._READY", "uvloop has nothing of that kind")

    def run(test: Test) -> None:
        clock = FakeClock()

        async def in_time() -> None:
            with anyio.fail_after(30):
                await test(clock)

        anyio.run(in_time, backend=request.param.partition("-")[0])
        assert clock._settling == []

    return run


def test_time_is_a_number(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        assert clock() == 1_700_000_000_000
        began = clock.current_time()
        await clock.advance(ms=250)
        await clock.advance(seconds=2, ms=0.5)
        assert clock() == 1_700_000_002_250
        assert clock.current_time() - began == pytest.approx(2.2505, abs=1e-9)
        assert repr(clock) == "<FakeClock 2023-11-14T22:13:22.250+00:00, 0 waiting>"

    run(test)
    assert FakeClock(7)() == 7


def test_deadlines_come_in_their_order_and_ties_in_the_order_of_waiting(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        woken: list[tuple[str, int]] = []
        began_ms = clock()

        async def wait(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append((name, clock() - began_ms))

        async with anyio.create_task_group() as tasks:
            for name, seconds in (("a", 0.3), ("b", 0.1), ("c", 0.2), ("never", 9)):
                tasks.start_soon(wait, name, seconds)
                await clock.settle()
            tasks.start_soon(wait, "d", 0.2)
            await clock.advance(ms=99)
            assert woken == []
            await clock.advance(ms=201)
            assert woken == [("b", 100), ("c", 200), ("d", 200), ("a", 300)]
            assert clock() - began_ms == 300
            tasks.cancel_scope.cancel()
        assert clock._next_deadline_us() is None

    run(test)


def test_a_deadline_is_met_to_the_microsecond(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 1.001)  # in binary a little less than what is meant
            assert await clock.advance_to_next()
            assert clock() == 1_700_000_001_001

    run(test)


def test_what_the_loop_is_about_to_call_is_waited_for() -> None:
    """As for cancellations, which anyio delivers in a callback: all tasks look blocked, and one of them is not."""

    async def test() -> None:
        clock = FakeClock()
        woken = anyio.Event()
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(woken.wait)
            await clock.settle()
            loop.call_soon(loop.call_soon, woken.set)
            await clock.settle()
            assert woken.is_set()

    with pytest.MonkeyPatch.context() as patch:
        anyio.run(test)
        patch.setattr("eventbus.testing.clock._READY", "none of that")
        anyio.run(test)


def test_who_is_woken_may_wait_again_on_the_way(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                await clock.sleep(0.1)
                ticks.append(clock() - 1_700_000_000_000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await clock.advance(seconds=1)
            tasks.cancel_scope.cancel()
        assert ticks == [100 * n for n in range(1, 11)]

    run(test)


def test_advance_lets_a_chain_of_tasks_run_to_its_end(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        done: list[int] = []

        async def link(n: int, woken: anyio.Event) -> None:
            await woken.wait()
            for _ in range(n % 3):
                await anyio.lowlevel.checkpoint()
            done.append(n)
            if n < 50:
                event = anyio.Event()
                tasks.start_soon(link, n + 1, event)
                event.set()

        async with anyio.create_task_group() as tasks:
            first = anyio.Event()
            tasks.start_soon(link, 0, first)
            await clock.settle()
            assert done == []
            first.set()
            await clock.advance()
            assert done == list(range(51))

    run(test)


def test_a_scope_is_left_in_time_or_cancelled(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        outcomes: list[bool] = []

        async def wait(event: anyio.Event) -> None:
            with clock.move_on_after(1) as scope:
                await event.wait()
            outcomes.append(scope.cancelled_caught)

        async with anyio.create_task_group() as tasks:
            in_time = anyio.Event()
            tasks.start_soon(wait, in_time)
            await clock.advance(ms=999)
            in_time.set()
            await clock.settle()
            assert outcomes == [False]
            await clock.advance(seconds=5)  # it has been left: nothing happens
            tasks.start_soon(wait, anyio.Event())
            await clock.advance(ms=1_000)
            assert outcomes == [False, True]

    run(test)


def test_a_scope_of_no_time_or_of_all_time(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        for seconds in (0, -1):
            with clock.move_on_after(seconds) as scope:
                await anyio.sleep_forever()
            assert scope.cancelled_caught
        with clock.move_on_after(float("inf")) as scope:
            await clock.advance(seconds=1e6)
        assert not scope.cancelled_caught
        await clock.sleep(0)
        await clock.sleep(-1)

    run(test)


def test_a_shielded_scope_ends_by_its_own_time_alone(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        ended: list[str] = []

        async def shielded() -> None:
            with clock.move_on_after(2, shield=True) as scope:
                await anyio.sleep_forever()
            ended.append(f"by its time: {scope.cancelled_caught}")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shielded)
            await clock.settle()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await clock.advance(seconds=1)
                assert ended == []
                await clock.advance(seconds=1)
                assert ended == ["by its time: True"]

    run(test)


def test_a_cancelled_sleeper_is_gone(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(clock.sleep, 5)
            await clock.settle()
            assert "200 waiting" in repr(clock)
            tasks.cancel_scope.cancel()
        assert "0 waiting" in repr(clock)
        assert len(clock._timers) <= 64
        await clock.advance(seconds=10)

    run(test)


def test_scopes_that_come_and_go_leave_nothing_behind(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        for _ in range(1_000):
            with clock.move_on_after(60):
                pass
        assert len(clock._timers) <= 65

    run(test)


def test_a_task_that_is_woken_may_advance_the_clock_itself(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        story: list[tuple[str, int]] = []

        def tell(name: str) -> None:
            story.append((name, clock() - 1_700_000_000_000))

        async def nested() -> None:
            await clock.sleep(1)
            tell("nested begins")
            await clock.advance(seconds=10)
            tell("nested ends")

        async def sleeper() -> None:
            await clock.sleep(5)
            tell("sleeper")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(nested)
            tasks.start_soon(sleeper)
            await clock.advance(seconds=2)
            tell("outer ends")
        assert story == [("nested begins", 1_000), ("sleeper", 5_000), ("nested ends", 11_000), ("outer ends", 11_000)]

    run(test)


def test_an_advance_that_is_cancelled_stays_where_it_is(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        with anyio.CancelScope() as scope:

            async def stop() -> None:
                await clock.sleep(3)
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                await clock.advance(seconds=10)
        assert scope.cancelled_caught
        assert clock() == 1_700_000_003_000
        await clock.advance(seconds=1)
        assert clock() == 1_700_000_004_000

    run(test)


def test_time_does_not_go_back(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        with pytest.raises(ConfigError, match=r"by -1\.0 ms: time does not go back"):
            await clock.advance(ms=-1)
        with pytest.raises(ConfigError, match="does not go back"):
            await clock.advance(seconds=-0.001)
        assert clock() == 1_700_000_000_000

    run(test)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_clock_serves_one_event_loop_after_the_other(backend: str) -> None:
    clock = FakeClock()

    async def first() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 1)
            await clock.advance(seconds=1)
        # As a task leaves it that its event loop did not wait for: an event nobody can be woken by any more.
        clock._at(1, lambda: pytest.fail("it belongs to a loop that has ended"))

    async def second() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 1)
            await clock.advance(seconds=1)

    anyio.run(first, backend=backend)
    anyio.run(second, backend="asyncio")
    anyio.run(second, backend="trio")
    assert clock() == 1_700_000_003_000
    assert clock._timers == []


def test_who_waits_in_another_loop_is_not_forgotten() -> None:
    """A fixture's loop of the session, and a test's own."""
    clock, woken = FakeClock(), list[float]()

    async def wait() -> None:
        await clock.sleep(1)
        woken.append(clock.current_time())

    async def advance() -> None:
        await clock.advance(seconds=1)

    session = asyncio.new_event_loop()
    task = session.create_task(wait())
    session.run_until_complete(asyncio.sleep(0))
    with pytest.raises(ConfigError, match=r"another event loop .* loop_scope"):
        asyncio.run(advance())
    session.run_until_complete(advance())
    session.run_until_complete(task)
    session.close()
    assert woken == [1]


def test_nothing_waits_in_reality(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(clock.sleep, 60 * n)
            began = time.monotonic()
            await clock.advance(seconds=3_600)
            assert time.monotonic() - began < 10  # an hour would be more

    run(test)


def test_a_jump_passes_everything_and_wakes_once(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        woken: list[tuple[str, int]] = []

        async def every_second() -> None:
            while True:
                await clock.sleep(1)
                woken.append(("tick", clock() - 1_700_000_000_000))

        async def once() -> None:
            await clock.sleep(0.5)
            woken.append(("once", clock() - 1_700_000_000_000))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(every_second)
            tasks.start_soon(once)
            await clock.jump(seconds=86_400)
            assert woken == [("once", 86_400_000), ("tick", 86_400_000)]
            with pytest.raises(ConfigError, match="does not go back"):
                await clock.jump(ms=-1)
            tasks.cancel_scope.cancel()

    run(test)


def test_from_deadline_to_deadline(run: Callable[[Test], None]) -> None:
    async def test(clock: FakeClock) -> None:
        async with anyio.create_task_group() as tasks:
            for seconds in (7, 3):
                tasks.start_soon(clock.sleep, seconds)
            assert await clock.advance_to_next()
            assert clock() == 1_700_000_003_000
            assert await clock.advance_to_next()
            assert clock() == 1_700_000_007_000
            assert not await clock.advance_to_next()

    run(test)


def test_a_task_that_never_waits_does_not_hang_the_clock(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On trio it would: its own look at the tasks is used there, which knows no such limit."""
    monkeypatch.setattr("eventbus.testing.clock._MOST_TURNS", 50)

    async def spin() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    async def test() -> None:
        clock = FakeClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(spin)
            await clock.advance(ms=1)
            tasks.cancel_scope.cancel()

    anyio.run(test, backend="asyncio")
    assert "which is never blocked" in caplog.text
