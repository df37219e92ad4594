"""Limit the share of a handler's calls that may be retries. Pure: times are arguments."""

from __future__ import annotations

from collections import deque

from dlq import checks
from eventbus.durations import Duration, positive, shown

_SLICES = 12
"""Number of slices in the sliding window."""


class Budget:
    """Retries may be ``share`` of the calls made within the last ``over``, or ``least`` retries if that is more.

    Over budget, failing records are not retried at once and delays are doubled, so that retries do not flood a
    dependency that is down. No record becomes a dead letter because of it.
    """

    def __init__(self, share: float = 0.2, *, over: Duration = "60s", least: int = 10) -> None:
        self.share = checks.share("Budget(", share, "the share of calls that may be retries, from 0 to 1, say 0.2")
        self.over_ms = positive(over, f"Budget(over={over!r})")
        self.least = checks.whole("Budget(least", least, 0)

    def __repr__(self) -> str:
        return f"Budget({self.share:g}, over={shown(self.over_ms)!r}, least={self.least})"


class Spending:
    """Counts one handler's calls and retries in the sliding window of a `Budget`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._slice_ms = max(budget.over_ms // _SLICES, 1)
        self._slices: deque[tuple[int, list[int]]] = deque()
        """Pairs of slice number and ``[calls, retries]``."""
        self._calls = 0
        self._retries = 0

    def called(self, count: int, now_ms: int) -> None:
        """Record calls, whether they are retries or not."""
        self._slice(now_ms)[0] += count
        self._calls += count

    def retried(self, now_ms: int) -> None:
        """Record a retry, made now or later."""
        self._slice(now_ms)[1] += 1
        self._retries += 1

    def left(self, now_ms: int) -> int:
        """Return how many retries may be made now."""
        self._forget(now_ms // self._slice_ms)
        return max(int(self._allowed) - self._retries, 0)

    @property
    def _allowed(self) -> float:
        return max(self._budget.least, self._budget.share * self._calls)

    def _slice(self, now_ms: int) -> list[int]:
        number = now_ms // self._slice_ms
        self._forget(number)
        if not self._slices or number > self._slices[-1][0]:
            self._slices.append((number, [0, 0]))
        return self._slices[-1][1]

    def _forget(self, number: int) -> None:
        """Drop slices that have left the window, or lie in the future because the clock was set back."""
        while self._slices and abs(number - self._slices[0][0]) >= _SLICES:
            _, (calls, retries) = self._slices.popleft()
            self._calls -= calls
            self._retries -= retries
