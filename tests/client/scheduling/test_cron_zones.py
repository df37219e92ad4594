"""Cron in time zones, against a brute force that looks at each minute around each change of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

from eventbus.client.scheduling.timetable import Timetable

DAY = 86_400
MINUTE = 60
FIRST = round(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
ALL_HOURS = frozenset(range(24))
EXPRESSIONS = {  # follows the wall clock, minutes, hours
    "*/15 * * * *": (True, frozenset({0, 15, 30, 45}), ALL_HOURS),
    "5 * * * *": (True, frozenset({5}), ALL_HOURS),
    "*/20 1,2 * * *": (True, frozenset({0, 20, 40}), frozenset({1, 2})),
    "*/30 0,23 * * *": (True, frozenset({0, 30}), frozenset({0, 23})),
    "30 2 * * *": (False, frozenset({30}), frozenset({2})),
    "0,45 0-2,23 * * *": (False, frozenset({0, 45}), frozenset({0, 1, 2, 23})),
}


def changes_of(zone: ZoneInfo, days: int) -> list[int]:
    """The days, in seconds since the epoch, during which clocks are changed."""
    offsets = [datetime.fromtimestamp(FIRST + day * DAY, zone).utcoffset() for day in range(days + 1)]
    return [FIRST + day * DAY for day in range(days) if offsets[day] != offsets[day + 1]]


def brute_force(local: list[tuple[datetime, int]], expression: str) -> list[int]:
    """The times, from what clocks show at each minute; the first and the last minute are far from a change."""
    follows_wall_clock, minutes, hours = EXPRESSIONS[expression]
    if follows_wall_clock:
        return [second for shown, second in local if shown.minute in minutes and shown.hour in hours]
    first_shown: dict[datetime, int] = {}
    for shown, second in local:
        first_shown.setdefault(shown, second)
    times = set[int]()
    wanted, last = min(first_shown), max(first_shown)
    while wanted <= last:
        if wanted.minute in minutes and wanted.hour in hours:
            later = wanted
            while later not in first_shown:  # left out: the end of the gap
                later += timedelta(minutes=1)
            times.add(first_shown[later])
        wanted += timedelta(minutes=1)
    return sorted(times)


def check(name: str, days: int, seen: set[tuple[datetime, ...]]) -> int:
    """Compare all times around the changes of a zone, but for those that another zone had, too."""
    zone, checked = ZoneInfo(name), 0
    for change in changes_of(zone, days):
        start, end = change - DAY // 2, change + 3 * DAY // 2
        minutes = range(start, end, MINUTE)
        local = [(datetime.fromtimestamp(second, zone).replace(tzinfo=None, fold=0), second) for second in minutes]
        shown = tuple(shown for shown, _ in local)
        if shown in seen:
            continue
        seen.add(shown)
        checked += 1
        for expression in EXPRESSIONS:
            table = Timetable(expression, name)
            expected = brute_force(local, expression)
            times, at = list[int](), (start - 1) * 1000
            while (at := table.after(at)) < end * 1000:
                times.append(at // 1000)
            assert times == expected, (name, expression, datetime.fromtimestamp(change, UTC))
            at = end - 3600
            assert table.latest(start * 1000, at * 1000) == max(one for one in expected if one <= at) * 1000
    return checked


@pytest.mark.parametrize("name", ["Australia/Lord_Howe", "America/Havana", "Europe/Berlin"])
def test_cron_fires_at_the_times_that_clocks_show(name: str) -> None:
    """Lord Howe changes by half an hour; Havana changes at midnight."""
    assert check(name, 365, set()) == 2


@pytest.mark.slow
def test_cron_fires_at_the_times_that_clocks_show_in_all_zones() -> None:
    seen = set[tuple[datetime, ...]]()
    assert sum(check(name, 2 * 365, seen) for name in sorted(available_timezones())) > 50


def test_latest_in_the_half_hour_that_comes_twice() -> None:
    """On Lord Howe 01:30 to 02:00 comes twice on 6 April 2025, at 14:30 and at 15:00 UTC."""
    table = Timetable("*/10 * * * *", "Australia/Lord_Howe")
    due, *times = (
        round(datetime(2025, 4, 5, *at, tzinfo=UTC).timestamp()) * 1000 for at in [(14, 30), (14, 55), (15, 5)]
    )
    assert [one - table.latest(due, one) for one in times] == [5 * 60_000] * 2
