"""How much of its work a handler may spend on trying again. Pure: told the time."""

from __future__ import annotations

from collections import deque

from dlq import checks
from eventbus.durations import Duration, positive, shown

_SLICES = 12
"""The window moves on in so many steps."""


class Budget:
    """Retries may be ``share`` of the calls made ``over`` the last while, or ``least`` retries where that is more.

    Over budget, failing records are no longer tried again at once, and delays are doubled: a dependency that is down is
    not also flooded with retries. No record becomes a dead letter because of it.
    """

    def __init__(self, share: float = 0.2, *, over: Duration = "60s", least: int = 10) -> None:
        self.share = checks.share("Budget(", share, "the share of calls that may be retries, from 0 to 1, say 0.2")
        self.over_ms = positive(over, f"Budget(over={over!r})")
        self.least = checks.whole("Budget(least", least, 0)

    def __repr__(self) -> str:
        return f"Budget({self.share:g}, over={shown(self.over_ms)!r}, least={self.least})"


class Spending:
    """A `Budget` at work for one handler: calls and retries of the last while, in slices of time."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._slice_ms = max(budget.over_ms // _SLICES, 1)
        self._slices: deque[tuple[int, list[int]]] = deque()
        """By number of the slice: calls, and retries among them."""
        self._calls = 0
        self._retries = 0

    def called(self, count: int, now_ms: int) -> None:
        """So many calls were made, retries or not."""
        self._slice(now_ms)[0] += count
        self._calls += count

    def retried(self, now_ms: int) -> None:
        """A retry is made, now or later."""
        self._slice(now_ms)[1] += 1
        self._retries += 1

    def left(self, now_ms: int) -> int:
        """Retries that may be made now."""
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
        """What is too old; also what is of a later time, when the clock was set back by more than the window."""
        while self._slices and abs(number - self._slices[0][0]) >= _SLICES:
            _, (calls, retries) = self._slices.popleft()
            self._calls -= calls
            self._retries -= retries
