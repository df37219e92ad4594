"""``concurrency=`` where partitions keep their order: so many of them are at work at once, and all have their turns."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from functools import partial

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.handling.lane import Lane

_TURN_SECONDS = 0.05
"""A lane works so long while others wait; then it ends the record at work, and goes to the end of the line."""


class _Waiter:
    __slots__ = ("has_turn", "wake")

    def __init__(self) -> None:
        self.wake = anyio.Event()
        self.has_turn = False


class Turns:
    """Of the lanes of one handler."""

    def __init__(self, count: int, timers: Timers) -> None:
        self._free = count
        self._timers = timers
        self._line: deque[_Waiter] = deque()
        self._at_work: dict[Lane, float] = {}
        """Since when; the longest first."""

    @asynccontextmanager
    async def of(self, lane: Lane) -> AsyncGenerator[None]:
        """A lane's turn. Its call is ended when the turn is over."""
        await self._take(lane)
        lane.step_aside = partial(self._stepped_aside, lane)
        try:
            yield
        finally:
            lane.step_aside = nullcontext
            if self._at_work.pop(lane, None) is not None:  # else it has stepped aside and did not come back
                self._pass_on()

    @asynccontextmanager
    async def _stepped_aside(self, lane: Lane) -> AsyncGenerator[None]:
        """The lane's record waits in its place, maybe for hours: others have the turn, and it takes another one."""
        del self._at_work[lane]
        self._pass_on()
        yield
        if not lane.closing and lane.error is None:
            await self._take(lane)

    async def _take(self, lane: Lane) -> None:
        if self._free and not self._line:
            self._free -= 1
        else:
            await self._wait(lane)
        self._at_work[lane] = self._timers.current_time()

    async def _wait(self, lane: Lane) -> None:
        waiter = _Waiter()
        self._line.append(waiter)
        try:
            while not waiter.has_turn:
                if self._line[0] is waiter:
                    with self._timers.move_on_after(_TURN_SECONDS):
                        await waiter.wake.wait()
                    self._end_longest()
                else:
                    await waiter.wake.wait()
                    if not waiter.has_turn:  # it is the first in line now
                        waiter.wake = anyio.Event()
        except BaseException:
            if waiter.has_turn:
                self._pass_on()
            else:
                was_first = self._line[0] is waiter
                self._line.remove(waiter)
                if was_first and self._line:
                    self._line[0].wake.set()
            raise

    def _end_longest(self) -> None:
        latest = self._timers.current_time() - _TURN_SECONDS
        for lane, since in self._at_work.items():
            if since <= latest:
                self._at_work[lane] = math.inf  # once
                lane.work.end_slice()
                return

    def _pass_on(self) -> None:
        if not self._line:
            self._free += 1
            return
        waiter = self._line.popleft()
        waiter.has_turn = True
        waiter.wake.set()
        if self._line:
            self._line[0].wake.set()
