"""What time it is, for records and for timers, and how to wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, cast

import anyio

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock() -> int:
    """Milliseconds since the epoch by the machine's wall clock, which may jump."""
    return time.time_ns() // 1_000_000


def monotonic_clock(clock: Clock) -> Clock:
    """Return the clock for sessions and timeouts that goes with a wall clock, and reads the same now.

    Setting the wall clock must not expire a session or a transaction. A test's clock may be both.
    """
    if clock is system_clock:
        began_ms = system_clock() - time.monotonic_ns() // 1_000_000
        return lambda: began_ms + time.monotonic_ns() // 1_000_000
    return getattr(clock, "monotonic_ms", clock)


class Timers(Protocol):
    """Every wait of clients and backends goes through one of these: a test's clock can stand for them all."""

    def current_time(self) -> float:
        """Seconds on a steady clock; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def move_on_after(self, seconds: float, *, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        """A scope that is cancelled when the time is over; `anyio.CancelScope.cancelled_caught` says whether it was."""
        ...


class RealTimers:
    """The event loop's own."""

    def current_time(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds, shield=shield)


def stopwatch_of(timers: Timers) -> Callable[[], float]:
    """Seconds as the timers have them, as cheap as can be: for what is measured often. Only differences count."""
    return time.monotonic if isinstance(timers, RealTimers) else timers.current_time


def timers_of(clock: Clock) -> Timers:
    """A clock that one can also wait by is used for waiting too, as a test's is; else the event loop's timers are."""
    return cast("Timers", clock) if hasattr(clock, "move_on_after") else RealTimers()
