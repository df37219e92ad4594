"""Decide how many rows a relay takes at once, and how long it waits when idle or after a failure.

Pure: the caller reports events and gets the next size or wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable

_FIRST_ROWS = 128
"""Rows of unknown size are not taken by the thousand."""
_MOST_BYTES = 8 * 1_048_576
"""Maximum total size of the values in a batch."""
_AFTER_ROWS = 0.4
"""Factor on the shortest wait after a batch, because more rows are likely to follow soon."""
_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
"""Longest pause between attempts while a database or the log does not answer."""


class Pace:
    """The pace of one relay."""

    def __init__(
        self, poll_ms: tuple[int, int], batch_size: int, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        """``poll_ms`` is the shortest and the longest wait for new rows, ``batch_size`` the maximum number of rows at
        once.
        """
        self._shortest, self._longest = poll_ms[0] / 1000, poll_ms[1] / 1000
        self._batch_size = batch_size
        self._uniform = uniform
        self._poll = self._shortest
        self._back_off = 0.0
        self.rows = min(batch_size, _FIRST_ROWS)
        """Number of rows to take next."""

    # rows ------------------------------------------------------------------------------------------------------------

    def published(self, rows: int, size_bytes: int) -> None:
        """Record a published batch. The next one may be twice as large, as far as memory permits."""
        self._back_off = 0.0
        self._poll = self._shortest * _AFTER_ROWS
        most = max(_MOST_BYTES * rows // max(size_bytes, 1), 1)
        wanted = self.rows * 2 if rows >= self.rows else self.rows
        self.rows = max(min(wanted, most, self._batch_size), 1)

    def refused(self, rows: int) -> None:
        """Halve the next batch after a refusal, until the row at fault is alone in a batch."""
        self.rows = max(rows // 2, 1)

    # waits -----------------------------------------------------------------------------------------------------------

    def woken(self) -> None:
        """Reset the wait after a notification of new rows."""
        self._poll = self._shortest

    def idle(self) -> float:
        """Return the seconds until the next check for rows, doubled each time."""
        self._back_off = 0.0
        seconds, self._poll = self._poll, min(2 * self._poll, self._longest)
        return seconds

    def failed(self) -> float:
        """Return the seconds until the next attempt after a failure, doubled each time, with jitter."""
        self._back_off = min(2 * self._back_off, _LONGEST_SECONDS) or _FIRST_SECONDS
        return self._uniform(self._back_off / 2, self._back_off)
