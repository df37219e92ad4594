"""An event that its owner clears, for tasks that wait again and again."""

from __future__ import annotations

import math

from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.event_loop import EventLoop, Outcome

_REAL_TIMERS = RealTimers()


class Wake:
    """Wakes the tasks that wait for it. Unlike `anyio.Event` it can be cleared, and costs no look-up of the library.

    A `set` that comes before the wait counts, unless `clear` comes between the two.
    """

    __slots__ = ("_loop", "_rings_at", "_waiters", "is_set")

    def __init__(self, loop: EventLoop | None = None) -> None:
        self._loop = loop
        """None until the first wait, which looks it up."""
        self.is_set = False
        self._waiters: list[Outcome] = []
        self._rings_at = -math.inf
        """When the latest alarm rings."""

    def set(self) -> None:
        if not self.is_set:  # otherwise all who wait are woken already
            self.is_set = True
            self.ring()

    def clear(self) -> None:
        self.is_set = False

    async def wait(self, seconds: float = math.inf, timers: Timers = _REAL_TIMERS) -> bool:
        """Return True when it is set, False after ``seconds``. With a limit it may return True too early."""
        if self.is_set:
            return True
        loop = self._loop
        if loop is None:
            loop = self._loop = EventLoop.running()
        ends_at = math.inf
        if seconds < math.inf:
            call_later = loop.call_later
            if call_later is None or not isinstance(timers, RealTimers):
                with timers.move_on_after(seconds) as scope:
                    await self.wait()
                return not scope.cancelled_caught
            # An alarm is not cancelled when its wait ends early, as most waits do. It wakes a later wait too early,
            # once, and the next alarm follows. So many short waits share an alarm.
            now = timers.current_time()
            ends_at = now + seconds
            if not now < self._rings_at <= ends_at:
                self._rings_at = ends_at
                call_later(seconds, self.ring)
        outcome = loop.new_outcome()
        self._waiters.append(outcome)
        try:
            await outcome
        finally:
            self._waiters.remove(outcome)
        return self.is_set or timers.current_time() < ends_at

    def ring(self) -> None:
        """Wake the tasks that wait now, which may be too early: nothing is set."""
        for waiter in self._waiters:
            waiter(None)
