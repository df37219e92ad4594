"""A loop over the calls of a handler: which context variables a call sees, and when other tasks run between calls.

**Context variables.** Each call sees the variables of the loop's task as they were when the loop began. A tenant, a
user or a session that a call sets is gone before the next call. The coroutine of the loop runs in a copy of its task's
context, and `fresh_context` replaces that copy between two calls. A loop does that only if a call has changed the
context, because a new copy costs 0.2 us and the comparison 0.01 us.

**Time slice.** Calls that never suspend would keep the event loop from turning for the whole fetch: no commit, no
timer, no heartbeat, no `stop`. After `SLICE_SECONDS` of such calls `TimeSlice` lets the event loop turn once.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

import anyio.lowlevel

from eventbus.client.handling.current_record import current_caller, inside_handler
from eventbus.client.producing.joining import sending_call

T = TypeVar("T")

SLICE_SECONDS = 0.01
"""How long the loops of one handler call it before the event loop turns."""
_SHORTEST_SECONDS = 0.001
"""The share of one loop, however many there are: a turn of the event loop costs about 1 % of it."""
_MOST_CALLS = 32
"""Calls between two looks at the clock, at most. If quick calls become slow, so many pass unnoticed, once."""
_SLOW_SECONDS = 0.001
"""If the calls since the last look took so long, the next look follows the next call."""

_OF_THE_BUS: frozenset[ContextVar[Any]] = frozenset((current_caller, inside_handler, sending_call))
_OF_ANYIO = "current_async_library_cvar"
"""The name of sniffio's variable. The package is optional, so its variable cannot be imported."""
_FRESH = object()
_EMPTY = Context()


class Slices:
    """The time that the loops of one handler share."""

    __slots__ = ("loops", "now")

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.loops = 0
        """How many loops run now. Between two turns of the event loop each of them may run once."""

    @property
    def share_seconds(self) -> float:
        """The time slice of one of the loops."""
        return max(SLICE_SECONDS / max(self.loops, 1), _SHORTEST_SECONDS)


class TimeSlice:
    """Calls without a turn of the event loop, and when they began."""

    __slots__ = ("_calls", "_ends_at", "_looked_at", "is_over", "slices")

    def __init__(self, slices: Slices, ends_at: float | None = None) -> None:
        """``ends_at``: when the first slice ends; None: its full time after the first look."""
        self.slices = slices
        self.is_over = False
        """True while the event loop turns: no call is in flight."""
        self._ends_at = ends_at
        """None if the event loop has turned since the last look."""
        self._looked_at = 0.0
        self._calls = 1

    def look(self) -> int:
        """Look at the clock. Return how many calls may follow before the next look; 0 if `turn` must come first."""
        now = self.slices.now()
        if self._ends_at is None:
            self._ends_at = now + self.slices.share_seconds
        elif now >= self._ends_at:
            return 0
        if now - self._looked_at >= _SLOW_SECONDS:
            self._calls = 1
        elif self._calls < _MOST_CALLS:
            self._calls *= 2
        self._looked_at = now
        return self._calls

    async def turn(self) -> int:
        """Let the event loop turn, and begin another time slice. Return 1: the next look follows the next call."""
        self.is_over = True
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            self.is_over = False
        self._looked_at = now = self.slices.now()
        self._ends_at = now + self.slices.share_seconds
        self._calls = 1
        return 1

    def has_turned(self) -> None:
        """The event loop turns: whatever follows is a new time slice."""
        self._ends_at = None


class CallLoop(TimeSlice):
    """The calls of one partition, or of one worker, in sequence.

    Before each call: ``if copy_context() != loop.clean: await fresh_context()``.
    """

    __slots__ = ("_base", "clean")

    def __init__(self) -> None:
        super().__init__(Slices(time.monotonic))
        self._base: Context | None = None
        self.clean = _EMPTY
        """The context before each call; empty, so that it differs from the current one, if a comparison could miss a
        change."""

    @types.coroutine
    def run(self, slices: Slices, calls: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run the coroutine of a loop, one of those that share ``slices``.

        Contexts compare equal where a variable was set to another object that equals the one before. So the comparison
        counts only if nothing but the bus's own variables was set when the loop began.
        """
        self.slices, base = slices, copy_context()
        if base != self._base:
            self._base = base
            self.clean = base if all(map(_is_set_by_no_handler, base)) else _EMPTY
        run, step = base.copy().run, calls.send
        value: Any = None
        slices.loops += 1
        try:
            while True:
                try:
                    wait = run(step, value)
                except StopIteration as returned:
                    return returned.value
                step, value = calls.send, None
                if wait is _FRESH:
                    run = base.copy().run
                    continue
                self._ends_at = None  # `has_turned`, without a call
                try:
                    value = yield wait
                except BaseException as error:  # a cancellation, or the loop is closed: thrown where the call waits
                    step, value = calls.throw, error
        finally:
            slices.loops -= 1

    @contextmanager
    def paused(self) -> Generator[None]:
        """The loop waits for something to do: it takes no time from the others."""
        self.slices.loops -= 1
        try:
            yield
        finally:
            self.slices.loops += 1


def _is_set_by_no_handler(variable: ContextVar[Any]) -> bool:
    return variable in _OF_THE_BUS or variable.name == _OF_ANYIO


@types.coroutine
def fresh_context() -> Generator[Any, Any, None]:
    """Continue in a fresh copy of the context in which the loop began. Only inside `CallLoop.run`."""
    yield _FRESH
