"""Measure how long a handler's calls take, for metrics, at hardly any cost.

Quick calls are timed per fetch and counted at their mean, because reading the clock before and after each call would
cost as much as the call. Slower calls are timed separately. The mean of the last fetch decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Any, cast

from eventbus.backends.clock import Timers
from eventbus.backends.histogram import SECONDS, Histogram
from eventbus.client.handling.invocation import GENERATORS

_SLOW_SECONDS = 25e-6
"""Calls that take longer than this on average are timed separately, which costs 0.4 us per call."""


class CallTimes:
    """The call durations of one handler."""

    def __init__(self, timers: Timers, *, by_batch: bool) -> None:
        """``by_batch``: each call takes many records, so each is timed, however quick it is."""
        self.seconds = Histogram(SECONDS)
        self.now = timers.current_time
        self.is_each = True
        """Each call is timed, because calls are slow or none has been made yet."""
        self._by_batch = by_batch
        self._by_fetch = False
        """The handler returns generators, which run while they are read, so the time of a call means nothing."""

    def ran(self, began: float, calls: int, was_each: bool) -> None:
        """Count ``calls`` calls, made in sequence since ``began``. ``was_each``: each call was timed already."""
        if calls <= 0 or self._by_batch:
            return
        seconds = self.now() - began
        mean = seconds / calls
        if self._by_fetch or not was_each:
            histogram = self.seconds  # as `Histogram.add`, in place: a fetch may be of one record
            histogram.counts[bisect_left(histogram.bounds, mean)] += calls
            histogram.total += seconds
        self.is_each = mean >= _SLOW_SECONDS and not self._by_fetch

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, or a function that also times it, including the awaitable that it returns."""
        if not self.is_each or self._by_batch:
            return call
        now, add = self.now, self.seconds.add

        def begin(*arguments: Any) -> Any:
            began = now()
            try:
                result = call(*arguments)
            except BaseException:
                add(now() - began)
                raise
            if hasattr(result, "__await__"):
                return self.ended(result, began)
            if not (is_generator := isinstance(result, GENERATORS)):
                add(now() - began)
            self._by_fetch |= is_generator
            return cast("object", result)

        return begin

    async def ended(self, result: Awaitable[Any], began: float) -> Any:
        """Await the result of a call that started at ``began``, and add its duration."""
        try:
            return await result
        finally:
            self.seconds.add(self.now() - began)
