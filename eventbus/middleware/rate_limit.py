"""Limit the number of records per second."""

from __future__ import annotations

import math
from typing import Any

import anyio

from eventbus.client.handling.current_record import timeout_paused
from eventbus.client.handling.middleware import CallNext
from eventbus.middleware.base import Timed, positive, records_of, whole


class RateLimit(Timed):
    """Lets ``per_second`` records pass, and ``burst`` at once after a pause; the others wait, in order.

    One object is one limit, for all handlers that use it, in this process. A batch counts its records. Waiting is not a
    failure: a ``timeout=`` of the handler does not count it. The group membership is kept, and the partition is fetched
    no further than usual; a call that is cancelled while it waits has used no capacity. (A token bucket, stored as the
    time at which it would be full.)
    """

    def __init__(self, per_second: float, *, burst: int = 1) -> None:
        """Check the arguments. Raises ConfigError."""
        super().__init__()
        self._per_second = positive("RateLimit(per_second", per_second)
        self._burst = whole("RateLimit(burst", burst)
        self._forget()

    def _forget(self) -> None:
        self._full_at = -math.inf
        self._turn = anyio.Lock()
        """Ensures that calls wait in order of arrival."""

    async def __call__(self, record: Any, call_next: CallNext) -> Any:
        with timeout_paused():
            await self._take(len(records_of(record)))
        return await call_next(record)

    async def _take(self, count: int) -> None:
        async with self._turn:
            now = self._timers.current_time()
            full_at = max(self._full_at, now) + count / self._per_second
            seconds = full_at - self._burst / self._per_second - now
            if seconds > 1e-9:
                await self._timers.sleep(seconds)
            # Set only after the wait: calls that are cancelled and come again would otherwise use up capacity for
            # nothing.
            self._full_at = full_at

    async def start(self, bus: Any) -> None:
        await super().start(bus)
        self._forget()  # another bus may have another clock, or another event loop
