"""The times of a cron expression in a time zone, also across changes of the zone's offset from UTC.

As in Debian's cron, two kinds of expressions differ where clocks are changed. An expression whose minute or hour begins
with ``*`` follows the wall clock: it fires at each moment whose local time matches, so it fires twice in an hour that
comes twice, and not in an hour that is left out. Every other expression means fixed times of a day: a time that comes
twice fires the first time, and one that is left out fires right after the gap.

`cronsim` computes the ticks of local times without a zone, where time is uniform. Its own arithmetic with zones loses
times where offsets change by less than an hour (Australia/Lord_Howe) or at midnight.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1)
_DAY_SECONDS = 86_400
_SECOND_MS = 1_000
_NO_OFFSET = timedelta()


def after(expression: str, zone_name: str, ms: int) -> int:
    """Return the first time after ``ms``. Raise CronSimError for a wrong expression, and for one that never fires."""
    zone, second = zone_of(zone_name), ms // _SECOND_MS
    find = _next_of_wall_clock if _follows_wall_clock(expression) else _next_of_fixed_times
    return find(expression, zone, second) * _SECOND_MS


def latest(expression: str, zone_name: str, due_ms: int, now_ms: int) -> int:
    """Return the last time up to ``now_ms``, or ``due_ms`` if the expression has no time between the two."""
    zone, now = zone_of(zone_name), now_ms // _SECOND_MS
    tick_ms = due_ms
    for local in _ticks(expression, _local(now + _offset(zone, now) + 1), reverse=True):
        start_ms = max(due_ms, (_first_utc(zone, local) - 1) * _SECOND_MS)
        # In an hour that comes twice, later times follow the one that was found backwards in local time.
        while (start_ms := after(expression, zone_name, start_ms)) <= now_ms:
            tick_ms = start_ms
        if tick_ms > due_ms or _first_utc(zone, local) * _SECOND_MS <= due_ms:
            break  # else clocks left this time out: the one before it
    return tick_ms


def never_fires(expression: str) -> bool:
    """True if each of the five fields of ``expression`` is right, although no date matches all of them."""
    from cronsim import CronSim, CronSimError

    minute, hour, day, month, weekday = expression.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", _EPOCH)
        CronSim(f"{minute} {hour} 1 {month} {weekday}", _EPOCH)
    except CronSimError:
        return False
    return True


@lru_cache(64)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone. Raise KeyError, ValueError, OSError or TypeError if ``name`` is not a zone's name."""
    from zoneinfo import ZoneInfo  # it loads six modules, sysconfig among them, which few programs need

    return ZoneInfo(name)


def _follows_wall_clock(expression: str) -> bool:
    minute, hour = expression.split()[:2]
    return minute.startswith("*") or hour.startswith("*")


def _next_of_wall_clock(expression: str, zone: ZoneInfo, second: int) -> int:
    """Search each stretch of constant offset in turn; inside one, local time is uniform."""
    offset, start = _offset(zone, second + 1), second
    while True:
        tick = _seconds(next(_ticks(expression, _local(start + offset)))) - offset
        change = _next_change(zone, start, tick)
        if change is None:
            return tick
        # The first second with the new offset may match as well, so the search begins one second before it.
        offset, start = _offset(zone, change), change - 1


def _next_of_fixed_times(expression: str, zone: ZoneInfo, second: int) -> int:
    for local in _ticks(expression, _local(second + _offset(zone, second))):
        # After the first pass of an hour that comes twice, its times lie in the past although local time is earlier.
        if (tick := _first_utc(zone, local)) > second:
            return tick
    raise AssertionError("unreachable: ticks do not end")


def _ticks(expression: str, local: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Yield local times that match, from ``local`` on, without it."""
    from cronsim import CronSim, CronSimError  # most programs have no timetable

    yield from CronSim(expression, local, reverse)
    raise CronSimError("it never fires")


def _next_change(zone: ZoneInfo, start: int, end: int) -> int | None:
    """Return the first second in (start, end] with another offset than the second after ``start``."""
    low = start + 1
    offset = _offset(zone, low)
    while low < end:
        high = min(low + _DAY_SECONDS, end)
        if _offset(zone, high) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return high
        low = high
    return None


def _first_utc(zone: ZoneInfo, local: datetime) -> int:
    """Return the second at which clocks first show ``local``; the end of the gap for a time that is left out."""
    before = local.replace(tzinfo=zone, fold=0).utcoffset() or _NO_OFFSET
    second = _seconds(local - before)
    shown = second + _offset(zone, second)
    if shown == _seconds(local):
        return second
    # In a gap the old offset leads to a second after it: go back by how far it is from the gap's end.
    return _next_change(zone, second - (shown - _seconds(local)) - 1, second) or second


def _offset(zone: ZoneInfo, second: int) -> int:
    return round((datetime.fromtimestamp(second, zone).utcoffset() or _NO_OFFSET).total_seconds())


def _local(second: int) -> datetime:
    return _EPOCH + timedelta(seconds=second)


def _seconds(local: datetime) -> int:
    return round((local - _EPOCH).total_seconds())
