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
"""How long a partition runs while others wait. It then finishes its current record and goes to the end of the queue."""


class _Waiter:
    __slots__ = ("has_slot", "wake")

    def __init__(self) -> None:
        self.wake = anyio.Event()
        self.has_slot = False


class ConcurrencyLimiter:
    """Slots for the partitions of one handler, granted in the order of their requests."""

    def __init__(self, count: int, timers: Timers) -> None:
        self._free = count
        self._timers = timers
        self._queue: deque[_Waiter] = deque()
        self._running: dict[PartitionDriver, float] = {}
        """Partitions that have a slot, and since when. The partition that has run longest comes first."""

    @asynccontextmanager
    async def slot(self, driver: PartitionDriver) -> AsyncGenerator[None]:
        """Hold a slot for a partition. Its call ends early if other partitions have waited for a turn."""
        await self._take(driver)
        driver.release_slot = partial(self._released_slot, driver)
        try:
            yield
        finally:
            driver.release_slot = nullcontext
            if (
                self._running.pop(driver, None) is not None
            ):  # None: the slot was released for a wait, and not taken again
                self._pass_on()

    @asynccontextmanager
    async def _released_slot(self, driver: PartitionDriver) -> AsyncGenerator[None]:
        """Release the slot while a record waits in place, maybe for hours, and take a slot again after that."""
        del self._running[driver]
        self._pass_on()
        yield
        if not driver.closing and driver.error is None:
            await self._take(driver)

    async def _take(self, driver: PartitionDriver) -> None:
        if self._free and not self._queue:
            self._free -= 1
        else:
            await self._wait(driver)
        self._running[driver] = self._timers.current_time()

    async def _wait(self, driver: PartitionDriver) -> None:
        waiter = _Waiter()
        self._queue.append(waiter)
        try:
            while not waiter.has_slot:
                if self._queue[0] is waiter:
                    with self._timers.move_on_after(_TURN_SECONDS):
                        await waiter.wake.wait()
                    self._preempt_longest()
                else:
                    await waiter.wake.wait()
                    if not waiter.has_slot:  # it is the first in the queue now
                        waiter.wake = anyio.Event()
        except BaseException:
            if waiter.has_slot:
                self._pass_on()
            else:
                was_first = self._queue[0] is waiter
                self._queue.remove(waiter)
                if was_first and self._queue:
                    self._queue[0].wake.set()
            raise

    def _preempt_longest(self) -> None:
        latest = self._timers.current_time() - _TURN_SECONDS
        for driver, since in self._running.items():
            if since <= latest:
                self._running[driver] = math.inf  # once
                driver.work.end_slice()
                return

    def _pass_on(self) -> None:
        if not self._queue:
            self._free += 1
            return
        waiter = self._queue.popleft()
        waiter.has_slot = True
        waiter.wake.set()
        if self._queue:
            self._queue[0].wake.set()
