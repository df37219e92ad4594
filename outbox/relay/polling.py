"""How many rows a relay takes at once, and how long it waits when there is nothing, or when something does not answer.

Pure: told what happened, it says what next.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_FIRST_ROWS = 128
"""Rows of unknown size are not taken by the thousand."""
_MOST_BYTES = 8 * 1_048_576
"""Of values, in a batch."""
_AFTER_ROWS = 0.4
"""Of the shortest wait: where there were rows just now, there are more soon."""
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
"""Between tries, where a database or a log is away."""


class Pace:
    """One relay's."""

    def __init__(
        self, poll_ms: tuple[int, int], batch_size: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        """``poll_ms``: the shortest and the longest wait for new rows; ``batch_size``: rows at once, at most."""
        self._shortest, self._longest = poll_ms[0] / 1000, poll_ms[1] / 1000
        self._batch_size = batch_size
        self._uniform = uniform
        self._poll = self._shortest
        self._back_off = 0.0
        self.rows = min(batch_size, _FIRST_ROWS)
        """How many to take."""

    # rows ------------------------------------------------------------------------------------------------------------

    def published(self, rows: int, size_bytes: int) -> None:
        """A batch of this size is through: the next one may be twice as large, as far as memory goes."""
        self._back_off = 0.0
        self._poll = self._shortest * _AFTER_ROWS
        most = max(_MOST_BYTES * rows // max(size_bytes, 1), 1)
        wanted = self.rows * 2 if rows >= self.rows else self.rows
        self.rows = max(min(wanted, most, self._batch_size), 1)

    def refused(self, rows: int) -> None:
        """The log refuses something in a batch: half of it next, so that the row at fault comes to stand alone."""
        self.rows = max(rows // 2, 1)

    # waits -----------------------------------------------------------------------------------------------------------

    def woken(self) -> None:
        """Somebody says that there are rows."""
        self._poll = self._shortest

    def idle(self) -> float:
        """Nothing was there: seconds until the next look, twice as many each time."""
        self._back_off = 0.0
        seconds, self._poll = self._poll, min(2 * self._poll, self._longest)
        return seconds

    def failed(self) -> float:
        """A database or a log did not answer: seconds until the next try, with jitter, twice as many each time."""
        self._back_off = min(2 * self._back_off, _LONGEST_SECONDS) or _FIRST_SECONDS
        return self._uniform(self._back_off / 2, self._back_off)
