"""How long a handler's calls take, for metrics, at hardly any cost.

Quick calls are timed by the fetch, and counted at their mean: a look at the clock before and after each would cost as
much as they do. Calls that take longer are timed one by one. Which of the two, the last fetch says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Any, cast

from eventbus.backends.clock import Timers, stopwatch_of
from eventbus.backends.histogram import SECONDS, Histogram
from eventbus.client.handling.calls import GENERATORS

_SLOW_SECONDS = 25e-6
"""From so long on, on average, a call is timed by itself: that costs 0.4 us."""


class CallTimes:
    """Of one handler."""

    def __init__(self, timers: Timers, *, by_batch: bool) -> None:
        """``by_batch``: a call takes many records, and is timed by itself however quick it is."""
        self.seconds = Histogram(SECONDS)
        self.now = stopwatch_of(timers)
        self.is_each = True
        """Calls are timed one by one, as long as nothing is known of them or they are slow."""
        self._by_batch = by_batch
        self._by_fetch = False
        """Its calls return generators, which run while they are read: a call tells nothing."""

    def ran(self, began: float, calls: int, was_each: bool) -> None:
        """So many calls were made one after the other since ``began``. ``was_each``: each was timed by itself."""
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
        """The same call, timed by itself if that is due: to where what it returned is awaited, if it is awaited."""
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
        """Await what a call that ``began`` then has returned."""
        try:
            return await result
        finally:
            self.seconds.add(self.now() - began)
