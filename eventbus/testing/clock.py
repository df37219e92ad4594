"""A clock that only a test moves: what waits for it takes no real time."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Generator, Sized
from contextlib import contextmanager
from datetime import UTC, datetime

import anyio
import anyio.lowlevel

from eventbus.errors import ConfigError

logger = logging.getLogger("eventbus.testing")

_MOST_TURNS = 100_000
"""The limit of turns to wait for a task that is never blocked."""
_READY = "_ready"
"""The attribute of asyncio's own event loop with the calls of the next turn; other loops do not have it."""
_FEW_TIMERS = 64
"""Below this number, timers that are over are not removed."""


class _Timer:
    """A function to call once, at a time."""

    __slots__ = ("deadline_us", "fire", "loop", "number")

    def __init__(self, deadline_us: int, number: int, fire: Callable[[], object]) -> None:
        self.deadline_us = deadline_us
        self.number = number
        self.fire: Callable[[], object] | None = fire
        self.loop = anyio.lowlevel.current_token()

    def __lt__(self, other: _Timer) -> bool:
        return (self.deadline_us, self.number) < (other.deadline_us, other.number)


class FakeClock:
    """The time of a bus under test: ``EventBus("memory://", clock=FakeClock())``.

    Calling it returns milliseconds since the epoch. `set_wall` sets only this wall clock, as a user or NTP does;
    `monotonic_ms`, the clock of sessions and timeouts, does not follow. Time passes only in `advance`: everything that
    waits for this clock (polls, commit intervals, sessions, transactions, retention, and a test that calls `sleep`)
    continues when its deadline is reached, in the order of the deadlines. A clock may serve several event loops in
    turn.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._wall_ahead_ms = 0
        """The difference between the wall clock and the monotonic clock, set by `set_wall`."""
        self._elapsed_us = 0
        """In microseconds, so that the sum of fractions is exactly the time that a test advances to."""
        self._timers: list[_Timer] = []
        """A heap; timers that are over stay until their time, unless there are too many."""
        self._over = 0
        self._count = 0
        self.moved = 0
        """The number of times that a task began to wait for the clock, or moved it."""
        self._settling: list[int] = []
        """The tasks inside `settle`, the innermost last: each waits for the later ones, never for the earlier ones."""

    def __repr__(self) -> str:
        now = datetime.fromtimestamp(self() / 1000, UTC).isoformat(timespec="milliseconds")
        return f"<FakeClock {now}, {len(self._timers) - self._over} waiting>"

    def __call__(self) -> int:
        """Milliseconds since the epoch by the wall clock."""
        return self.monotonic_ms() + self._wall_ahead_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds by the clock that `set_wall` does not move."""
        return self._start_ms + self._elapsed_us // 1_000

    # waiting (`eventbus.backends.clock.Timers`)
    # ---------------------------------------------------------------------------

    def current_time(self) -> float:
        """Return the seconds since the clock was created."""
        return self._elapsed_us / 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Return when the clock has advanced by ``seconds``."""
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        timer = self._at(seconds, event.set)
        try:
            await event.wait()
        finally:
            self._end(timer)

    @contextmanager
    def move_on_after(self, seconds: float, *, shield: bool = False) -> Generator[anyio.CancelScope]:
        """Do what `anyio.move_on_after` does, by this clock."""
        with anyio.CancelScope(shield=shield) as scope:
            if seconds <= 0:
                scope.cancel()
            timer = self._at(seconds, scope.cancel)
            try:
                yield scope
            finally:
                self._end(timer)

    def _at(self, seconds: float, fire: Callable[[], object]) -> _Timer | None:
        if seconds <= 0 or seconds == math.inf:
            return None
        self._count += 1
        self.moved += 1
        timer = _Timer(self._elapsed_us + max(round(seconds * 1_000_000), 1), self._count, fire)
        heapq.heappush(self._timers, timer)
        return timer

    def _end(self, timer: _Timer | None) -> None:
        if timer is None or timer.fire is None:
            return
        timer.fire = None
        self._over += 1
        if self._over > _FEW_TIMERS and self._over > len(self._timers) // 2:
            self._timers = [timer for timer in self._timers if timer.fire is not None]
            heapq.heapify(self._timers)
            self._over = 0

    # moving
    # ---------------------------------------------------------------------------------------------------------------

    async def advance(self, *, ms: float = 0, seconds: float = 0) -> None:
        """Let time pass: stop at every deadline on the way, wake its waiters, and let all tasks `settle`.

        ``advance()`` without arguments only settles. Raises ConfigError for a negative time: this clock never goes
        back.
        """
        target_us = self._after(ms, seconds)
        await self.settle()
        while await self._wake_next(target_us):
            pass
        # A handler may have advanced it further meanwhile.
        self._elapsed_us = max(self._elapsed_us, target_us)

    async def jump(self, *, ms: float = 0, seconds: float = 0) -> None:
        """Let time pass in one step, as on a machine that was suspended: everything due happens now, late, and once.

        Use it for days and weeks (retention, expiry), for which `advance` would stop some hundred thousand times.
        """
        target_us = self._after(ms, seconds)
        await self.settle()
        self._elapsed_us = max(self._elapsed_us, target_us)
        while await self._wake_next(self._elapsed_us):
            pass

    def set_wall(self, *, ms: int = 0, seconds: float = 0) -> None:
        """Set the wall clock forward, or back if negative. No time passes, and no waiting task is woken.

        The log notices at its next housekeeping, as with a real clock: use `advance` to reach it.
        """
        self._wall_ahead_ms += ms + round(seconds * 1_000)

    def _after(self, ms: float, seconds: float) -> int:
        distance_us = round((ms + seconds * 1_000) * 1_000)
        if distance_us < 0:
            raise ConfigError(f"the clock cannot be advanced by {distance_us / 1000:,} ms: time does not go back")
        return self._elapsed_us + distance_us

    async def advance_to_next(self) -> bool:
        """Let time pass up to the next deadline, however far; return False if nothing waits for this clock."""
        await self.settle()
        return await self._wake_next(math.inf)

    async def _wake_next(self, latest_us: float) -> bool:
        deadline_us = self._next_deadline_us()
        if deadline_us is None or deadline_us > latest_us:
            return False
        self._elapsed_us = max(self._elapsed_us, deadline_us)
        self._fire_next()
        await self.settle()  # before the next timer with the same deadline: trio wakes tasks in random order
        return True

    def _next_deadline_us(self) -> int | None:
        loop = anyio.lowlevel.current_token()
        while self._timers and (self._timers[0].fire is None or self._timers[0].loop != loop):
            if self._timers[0].fire is not None and not _has_ended(self._timers[0].loop):
                raise ConfigError(
                    "tasks of another event loop wait by this clock, and cannot be woken from here: a bus, its clock "
                    "and its tests share one loop (pytest-asyncio: the same loop_scope for the fixture and the tests)"
                )
            self._over -= heapq.heappop(self._timers).fire is None  # its event loop has ended
        return self._timers[0].deadline_us if self._timers else None

    def _fire_next(self) -> None:
        timer = heapq.heappop(self._timers)
        fire, timer.fire = timer.fire, None
        self.moved += 1
        assert fire is not None
        fire()

    async def settle(self) -> None:
        """Return when every other task of this event loop waits for something: an event, a deadline, a thread.

        Running threads (plain functions as handlers, flushes of a log on disk) are not waited for: use `bus.drain()`
        and `bus.log.drain()`.
        """
        me = anyio.get_current_task().id
        self._settling.append(me)
        try:
            try:
                this_task = asyncio.current_task()
            except RuntimeError:
                this_task = None
            if this_task is None:  # trio
                await anyio.wait_all_tasks_blocked()
                while self._settling[-1] != me:
                    await anyio.wait_all_tasks_blocked()
            else:
                await self._settle_asyncio(this_task)
        finally:
            self._settling.remove(me)

    async def _settle_asyncio(self, this_task: asyncio.Task[object]) -> None:
        """Wait until all tasks are blocked, by anyio's criterion, but without anyio's sleeps of 0.1 s between checks.

        The condition must hold twice in a row: callbacks that were due when all tasks were blocked may have woken a
        task. If the loop has no callbacks, a single check is enough.
        """
        ready: Sized | None = getattr(asyncio.get_running_loop(), _READY, None)
        calm = 0
        busy: asyncio.Task[object] | None = None
        for _ in range(_MOST_TURNS):
            await anyio.lowlevel.checkpoint()
            if ready is not None and not ready:
                return
            if busy is None or not _is_at_work(busy):
                busy = self._one_at_work(this_task)
            calm = 0 if busy is not None else calm + 1
            if calm == 2:
                return
        logger.warning("the clock does not wait any longer for %r, which is never blocked", busy)

    def _one_at_work(self, this_task: asyncio.Task[object]) -> asyncio.Task[object] | None:
        outer = self._settling[: self._settling.index(id(this_task))]
        for task in asyncio.all_tasks():
            if task is not this_task and _is_at_work(task) and id(task) not in outer:
                return task
        return None


def _has_ended(loop: anyio.lowlevel.EventLoopToken) -> bool:
    """True if the loop has ended. asyncio's loops record that; trio's end with the function they run."""
    native = loop.native_token
    return not isinstance(native, asyncio.AbstractEventLoop) or native.is_closed()


def _is_at_work(task: asyncio.Task[object]) -> bool:
    """True if the task is running or about to run: nothing that it waits for is still to come."""
    if task.done():
        return False
    waiter: asyncio.Future[object] | None = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()
