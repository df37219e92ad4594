"""Clocks for records and for timers, and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, cast

import anyio

Clock = Callable[[], int]
"""Returns milliseconds since the epoch."""


def system_clock() -> int:
    """Return milliseconds since the epoch by the machine's wall clock, which may jump."""
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
    """All waits of clients and backends use this interface, so that a test's clock can replace them."""

    def current_time(self) -> float:
        """Return seconds of a monotonic clock; only differences are meaningful."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def move_on_after(self, seconds: float, *, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        """Return a scope that is cancelled after ``seconds``; `anyio.CancelScope.cancelled_caught` is True if it
        was."""
        ...


class RealTimers:
    """The event loop's timers."""

    current_time = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def move_on_after(self, seconds: float, *, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds, shield=shield)


def deadline_after(seconds: float) -> float:
    """Return the real time in ``seconds``, as the deadline of a cancel scope. Its clock is that of the library."""
    return anyio.current_time() + seconds


def timers_of(clock: Clock) -> Timers:
    """Return the clock itself if it can also be waited for, as a test's clock can; otherwise the event loop's
    timers."""
    return cast("Timers", clock) if hasattr(clock, "move_on_after") else RealTimers()
