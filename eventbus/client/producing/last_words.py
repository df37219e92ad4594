"""What is seen through although all is cancelled: a producer's last flush, an abort. It has a time of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio

from eventbus.backends.clock import RealTimers, Timers

_AT_ONCE_SECONDS = 1.0
"""After a second signal. A log that answers needs a fraction of it."""
_LEAST_SECONDS = 0.25
"""For what only begins when the time is over."""


class LastWords:
    """Of one bus. A log that does not answer must not keep it from closing."""

    def __init__(self, timers: Timers, seconds: float) -> None:
        """``seconds``: what each of them has, by the backend's timers."""
        self._timers = timers
        self._seconds = seconds or _AT_ONCE_SECONDS
        self._ends_at: float | None = None
        """In real time, once all is to end: nobody may be left to move a test's clock."""
        self._scopes: set[anyio.CancelScope] = set()

    @contextmanager
    def shield(self) -> Generator[anyio.CancelScope]:
        """A scope that nobody cancels but the time; `anyio.CancelScope.cancelled_caught` says whether it did."""
        timers, seconds = self._timers, self._seconds
        if self._ends_at is not None:
            timers, seconds = RealTimers(), max(self._ends_at - RealTimers().current_time(), _LEAST_SECONDS)
        with timers.move_on_after(seconds, shield=True) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def within(self, seconds: float) -> None:
        """Each of those that begin from now on has no more than so long, and a moment at least."""
        self._seconds = min(self._seconds, max(seconds, _AT_ONCE_SECONDS))

    def end(self, seconds: float | None = None) -> None:
        """All of them together have so long from now, in real time; None: a moment."""
        ends_at = RealTimers().current_time() + (_AT_ONCE_SECONDS if seconds is None else seconds)
        self._ends_at = ends_at if self._ends_at is None else min(self._ends_at, ends_at)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._ends_at)
