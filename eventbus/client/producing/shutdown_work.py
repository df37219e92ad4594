"""Run shutdown work (the final flush, an abort) even when the surrounding task is cancelled, under its own deadline."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from eventbus.backends.clock import RealTimers, Timers, deadline_after

_AT_ONCE_SECONDS = 1.0
"""Time for shutdown work after a second signal. A log that answers needs a fraction of it."""
_LEAST_SECONDS = 0.25
"""Minimum time for work that begins only after the deadline."""


class ShutdownWork:
    """The shutdown deadlines of one bus, so that a log that does not answer cannot keep it from closing."""

    def __init__(self, timers: Timers, seconds: float) -> None:
        """Give each piece of work ``seconds``, measured by the backend's timers."""
        self._timers = timers
        self._seconds = seconds or _AT_ONCE_SECONDS
        self._ends_at: float | None = None
        """The common deadline once everything must end. In real time, because a test's clock may no longer move.
        """
        self._scopes: set[anyio.CancelScope] = set()

    @contextmanager
    def shield(self) -> Generator[anyio.CancelScope]:
        """Return a scope that only its deadline cancels, as `anyio.CancelScope.cancelled_caught` shows."""
        timers, seconds = self._timers, self._seconds
        if self._ends_at is not None:
            timers, seconds = RealTimers(), max(self._ends_at - deadline_after(0), _LEAST_SECONDS)
        with timers.move_on_after(seconds, shield=True) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def within(self, seconds: float) -> None:
        """Limit the time of work that begins from now on, but allow it a moment."""
        self._seconds = min(self._seconds, max(seconds, _AT_ONCE_SECONDS))

    def end(self, seconds: float | None = None) -> None:
        """Set a common deadline for all work: ``seconds`` from now in real time, or a moment."""
        ends_at = deadline_after(_AT_ONCE_SECONDS if seconds is None else seconds)
        self._ends_at = ends_at if self._ends_at is None else min(self._ends_at, ends_at)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._ends_at)
