"""What time it is, for records and for timers."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock() -> int:
    """Milliseconds since the epoch, as the machine's clock has them now: it may jump."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Clock:
    """The time now, and from then on as it passes: a clock that is set does not expire a session or a transaction."""
    began_ms = system_clock() - time.monotonic_ns() // 1_000_000
    return lambda: began_ms + time.monotonic_ns() // 1_000_000
