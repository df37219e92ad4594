"""Limit the number of partitions that run at once (``concurrency=`` with ordered partitions), and take turns fairly."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from functools import partial

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.handling.partition_driver import PartitionDriver

_TURN_SECONDS = 0.05
"""How long a partition runs while others wait. It then finishes its record, and goes to the end of the queue."""


class _Waiter:
    __slots__ = ("has_turn", "wake")

    def __init__(self) -> None:
        self.wake = anyio.Event()
        self.has_turn = False


class Turns:
    """The turns of one handler's partitions, in the order in which they asked."""

    def __init__(self, count: int, timers: Timers) -> None:
        self._free = count
        self._timers = timers
        self._line: deque[_Waiter] = deque()
        self._at_work: dict[PartitionDriver, float] = {}
        """Since when; the longest first."""

    @asynccontextmanager
    async def of(self, driver: PartitionDriver) -> AsyncGenerator[None]:
        """A partition's turn. Its call is ended when the turn is over."""
        await self._take(driver)
        driver.step_aside = partial(self._stepped_aside, driver)
        try:
            yield
        finally:
            driver.step_aside = nullcontext
            if self._at_work.pop(driver, None) is not None:  # else it has stepped aside and did not come back
                self._pass_on()

    @asynccontextmanager
    async def _stepped_aside(self, driver: PartitionDriver) -> AsyncGenerator[None]:
        """A record waits in its place, maybe for hours: other partitions have the turn, and it takes another one."""
        del self._at_work[driver]
        self._pass_on()
        yield
        if not driver.closing and driver.error is None:
            await self._take(driver)

    async def _take(self, driver: PartitionDriver) -> None:
        if self._free and not self._line:
            self._free -= 1
        else:
            await self._wait(driver)
        self._at_work[driver] = self._timers.current_time()

    async def _wait(self, driver: PartitionDriver) -> None:
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
        for driver, since in self._at_work.items():
            if since <= latest:
                self._at_work[driver] = math.inf  # once
                driver.work.end_slice()
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
