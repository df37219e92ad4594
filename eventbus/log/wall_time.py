"""Wall time next to the monotonic clock: for timestamps that are stored, and for the age of what is stored. Pure."""

from __future__ import annotations

import logging

TOLERANCE_MS = 60_000
"""Clocks that are corrected gradually differ by less; so may a stored timestamp that lies in the future."""

_logger = logging.getLogger("eventbus.broker")


class WallTime:
    """Derive wall time from the monotonic ``now_ms`` of a call.

    Calls on the broker carry the monotonic clock, because sessions and timeouts must not move when the system clock is
    set. Data that outlives the process cannot be dated by it: the monotonic clock means nothing after a restart, and
    stops while the machine sleeps. So stored timestamps are wall time. `compare` measures the difference between the
    two clocks at opening and at every tick; a timestamp follows a clock that was set at most one tick later.
    """

    __slots__ = ("_ahead_ms", "_expected_ms", "_set_back_at_ms")

    def __init__(self, now_ms: int = 0, wall_now_ms: int | None = None) -> None:
        self._ahead_ms = self._expected_ms = 0 if wall_now_ms is None else wall_now_ms - now_ms
        self._set_back_at_ms = now_ms

    def compare(self, now_ms: int, wall_now_ms: int) -> None:
        """Measure the difference between the clocks again, and warn if it changed by more than a minute."""
        self._ahead_ms = wall_now_ms - now_ms
        moved_ms = self._ahead_ms - self._expected_ms
        if abs(moved_ms) <= TOLERANCE_MS:
            return
        self._expected_ms = self._ahead_ms
        if moved_ms < 0:
            self._set_back_at_ms = now_ms
        _logger.warning(
            "The system clock was set %s by %d s, or the machine slept. Ages of stored data (retention, compaction, "
            "committed offsets, transactional ids, producers) follow the system clock, sessions and timeouts do not. "
            "Check the clock if this was not intended.",
            "back" if moved_ms < 0 else "forward",
            abs(moved_ms) // 1_000,
        )

    def at(self, now_ms: int) -> int:
        """Return the wall time at a monotonic time."""
        return now_ms + self._ahead_ms

    @property
    def set_back_ms(self) -> int:
        """The wall time, by the present clock, at which the system clock was last set back, or else of the opening."""
        return self.at(self._set_back_at_ms)

    def believed(self, timestamp_ms: int, wall_now_ms: int) -> int:
        """The stored timestamp, or for one that lies in the future the latest time at which it can have been stored.

        A future timestamp was stored by a clock that was ahead, so before the clock was set back or before the
        opening. Without this, data stored while the clock was ten years ahead would be kept for ten years.
        """
        return timestamp_ms if timestamp_ms <= wall_now_ms + TOLERANCE_MS else min(self.set_back_ms, wall_now_ms)
