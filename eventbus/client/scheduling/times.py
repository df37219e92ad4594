"""Compute when a record is due."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from eventbus.durations import FORMS, Duration, exact_ms
from eventbus.errors import ConfigError

DeliverAt = datetime | int
"""A datetime with a time zone, or milliseconds since the epoch."""
Delay = Duration

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, where datetime ends."""
_EARLIEST_MS = 100_000_000_000
"""A time in March 1973. A smaller number was probably meant as seconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is scheduled for later."""

    id: str
    """The id for `EventBus.cancel_scheduled`."""
    topic: str
    """The topic that it is sent to."""
    due_ms: int
    """Due time in milliseconds since the epoch."""

    @property
    def deliver_at(self) -> datetime:
        """The due time as a datetime in UTC."""
        return moment(self.due_ms)


def moment(ms: int) -> datetime:
    """Convert milliseconds since the epoch to a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def due_at(now_ms: int, deliver_at: Any, delay: Any) -> int:
    """Return the due time in milliseconds since the epoch, rounded up. Raises ConfigError for invalid arguments."""
    if (deliver_at is None) == (delay is None):
        raise ConfigError("a scheduled record takes one of the two: deliver_at=datetime, or delay=seconds")
    due_ms = _at(deliver_at) if delay is None else now_ms + _after(delay)
    if due_ms > LATEST_MS:
        raise ConfigError(f"deliver_at={deliver_at!r}, delay={delay!r}: that is beyond the year 9999")
    return due_ms


def _at(deliver_at: Any) -> int:
    if isinstance(deliver_at, datetime):
        if deliver_at.utcoffset() is None:
            raise ConfigError(
                f"deliver_at={deliver_at!r} has no time zone, so it is ambiguous: datetime.now(UTC) + ..., or "
                "deliver_at.astimezone() for the zone of this machine"
            )
        return -(-(deliver_at - _EPOCH) // _MS)
    if isinstance(deliver_at, bool) or not isinstance(deliver_at, int):
        raise ConfigError(
            f"deliver_at={deliver_at!r}: a datetime with a time zone, or whole milliseconds since the epoch"
        )
    if deliver_at < _EARLIEST_MS:
        raise ConfigError(
            f"deliver_at={deliver_at!r} is in milliseconds since the epoch, and that is before 1973-03-03: seconds are "
            "multiplied by 1000"
        )
    return deliver_at


def _after(delay: Any) -> int:
    exact = exact_ms(delay)
    if exact is None:
        raise ConfigError(f"delay={delay!r}: {FORMS}")
    if not 0 <= exact <= LATEST_MS:
        raise ConfigError(f"delay={delay!r}: seconds from now on, at least 0 and at most until the year 9999")
    return math.ceil(round(exact, 3))
