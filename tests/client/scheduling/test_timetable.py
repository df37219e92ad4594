"""Cron expressions and intervals: the next time, the last one, and what was missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.client.scheduling.timetable import Missed, Timetable, Turn, timetable
from eventbus.errors import ConfigError

MINUTE = 60_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def table(when: Any = None, timezone: Any = None, missed: Any = "once") -> Timetable:
    return timetable(when, timezone, missed)


def local(table: Timetable, start: str, count: int) -> list[str]:
    """The times after ``start``, as a clock in Berlin has them."""
    from zoneinfo import ZoneInfo

    times = [table.after(ms(start))]
    while len(times) < count:
        times.append(table.after(times[-1]))
    return [f"{datetime.fromtimestamp(one / 1000, ZoneInfo('Europe/Berlin')):%d.%m. %H:%M %z}" for one in times]


def test_times_of_a_cron_expression() -> None:
    five = table("*/5 * * * *")
    assert five.after(ms("2026-01-01T12:00:00+00:00")) == ms("2026-01-01T12:05:00+00:00")
    assert five.after(ms("2026-01-01T12:04:59.999+00:00")) == ms("2026-01-01T12:05:00+00:00")
    working = table("0 9 * * MON-FRI", timezone="Europe/Berlin")
    assert local(working, "2026-01-02T12:00:00+01:00", 2) == ["05.01. 09:00 +0100", "06.01. 09:00 +0100"]


def test_clocks_that_are_set_forward() -> None:
    """02:30 does not exist on 29 March, so it fires right after the gap."""
    daily = table("30 2 * * *", timezone="Europe/Berlin")
    assert local(daily, "2026-03-28T12:00:00+01:00", 2) == ["29.03. 03:00 +0200", "30.03. 02:30 +0200"]


def test_clocks_that_are_set_back() -> None:
    """02:30 exists twice on 25 October: a daily time comes once, each half hour comes each half hour."""
    daily = table("30 2 * * *", timezone="Europe/Berlin")
    assert local(daily, "2026-10-24T12:00:00+02:00", 2) == ["25.10. 02:30 +0200", "26.10. 02:30 +0100"]
    half = table("*/30 * * * *", timezone="Europe/Berlin")
    times = [half.after(ms("2026-10-25T00:00:00+00:00"))]
    for _ in range(4):
        times.append(half.after(times[-1]))
    assert [b - a for a, b in pairwise(times)] == [30 * MINUTE] * 4


TABLES = st.one_of(
    st.sampled_from(
        [
            table("*/5 * * * *"),
            table("30 2 * * *", timezone="Europe/Berlin"),
            table("0 0 1 * *", timezone="America/New_York"),
            table("15,45 8-18 * * MON-FRI", timezone="Asia/Kolkata"),
        ]
    ),
    st.integers(100, 86_400_000).map(lambda one: Timetable(interval_ms=one)),
)
TIMES = st.integers(ms("2025-01-01T00:00:00+00:00"), ms("2027-01-01T00:00:00+00:00"))


@given(TABLES, TIMES, st.integers(0, 7 * 86_400_000))
def test_the_last_time_and_the_next_one_enclose_now(one: Timetable, start_ms: int, passed_ms: int) -> None:
    due_ms = one.after(start_ms)
    now_ms = due_ms + passed_ms
    latest, following = one.latest(due_ms, now_ms), one.next(due_ms, now_ms)
    assert due_ms <= latest <= now_ms < following
    assert one.after(latest) == following


@pytest.mark.parametrize(
    ("missed", "late_ms", "turn"),
    [
        ("once", 0, Turn([0], 60)),
        ("once", 59, Turn([0], 60)),
        ("once", 150, Turn([120], 180)),
        ("skip", 30, Turn([], 60)),
        ("skip", 61 + 60, Turn([120], 180)),
        ("all", 0, Turn([0], 60)),
        ("all", 150, Turn([0, 60, 120], 180)),
    ],
)
def test_what_fires_behind_a_gap(missed: Missed, late_ms: int, turn: Turn) -> None:
    """Times in minutes, for a function that fires each hour."""
    hourly = table(3600, missed=missed)
    assert hourly.turn(0, late_ms * MINUTE) == Turn([one * MINUTE for one in turn.firings_ms], turn.next_ms * MINUTE)


def test_missed_is_late_by_more_than_a_minute() -> None:
    assert table(3600, missed="skip").turn(0, 60_000).firings_ms == [0]
    assert table(3600, missed="skip").turn(0, 60_001).firings_ms == []


def test_all_that_was_missed_comes_in_pieces() -> None:
    each = table(1, missed="all")
    due_ms, now_ms, fired = 0, 86_400_000, list[int]()
    while due_ms <= now_ms:
        turn = each.turn(due_ms, now_ms)
        fired += turn.firings_ms
        due_ms = turn.next_ms
    assert fired == [*range(0, now_ms + 1, 1000)]


@pytest.mark.parametrize(
    ("missed", "now_ms", "is_over"),
    [("once", 99, False), ("once", 100, True), ("skip", 100, True), ("all", 10**9, False)],
)
def test_a_firing_that_is_overtaken_is_over(missed: Missed, now_ms: int, is_over: bool) -> None:
    assert table(0.1, missed=missed).is_over(0, 100, now_ms) == is_over


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"when": "*/5 * * *"}, r"it has 4 fields; it is five fields, .*@bus\.every\(\"\*/5 \* \* \* \*\"\)"),
        ({"when": "61 * * * *"}, "Bad minute"),
        ({"when": "0 0 30 2 *"}, r"never fires\. No date matches .*\. Change one of them\."),
        ({"when": "0 0 31 2,4,6 *"}, "never fires"),
        ({"when": "0 0 */31 * MON#2"}, "never fires"),
        ({"when": "61 0 31 2 *"}, "Bad minute"),
        ({"when": "hourly"}, "1 fields; did you mean @hourly"),
        ({"when": "@dayly"}, r"not a known nickname\. Use one of @yearly, .*@daily"),
        ({"when": "@reboot"}, r"use @bus\.on_startup"),
        ({"when": "* * * * *", "timezone": "Europe/Berlim"}, "the name of a time zone"),
        ({"when": "* * * * *", "timezone": 5}, "the name of a time zone"),
        ({"when": "* * * * *", "timezone": "../../etc/passwd"}, "the name of a time zone"),
        ({"when": 5, "timezone": "UTC"}, "only applies to a cron expression"),
        ({}, "a cron expression, or an interval"),
        ({"when": 0}, r"0\.1 s to 366 days"),
        ({"when": -1}, r"0\.1 s to 366 days"),
        ({"when": float("nan")}, r"@bus\.every\(nan\)"),
        ({"when": "5"}, "1 fields"),
        ({"when": True}, "@bus.every"),
        ({"when": "99ms"}, r"0\.1 s to 366 days"),
        ({"when": timedelta(days=400)}, r"0\.1 s to 366 days"),
        ({"when": 5, "missed": "twice"}, "'once', 'skip' or 'all'"),
    ],
)
def test_what_is_no_timetable_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        table(**options)


def test_a_nickname_is_the_expression_that_it_stands_for() -> None:
    assert table("@daily", timezone="Europe/Berlin") == table("0 0 * * *", timezone="Europe/Berlin")
    assert [table(name).after(0) for name in ("@Hourly", "@weekly", "@monthly", "@yearly")] == [
        ms(f"1970-{at}:00+00:00") for at in ("01-01T01:00", "01-04T00:00", "02-01T00:00")
    ] + [ms("1971-01-01T00:00:00+00:00")]


def test_a_timetable_says_what_it_is() -> None:
    assert str(table("0  9 * * *", timezone="Europe/Berlin")) == "0 9 * * * Europe/Berlin"
    assert str(table(timedelta(minutes=1))) == "every 60 s"
    assert datetime.fromtimestamp(table("0 0 * * *").after(0) / 1000, UTC).hour == 0


def test_the_last_time_in_the_hour_that_comes_again_is_of_its_second_turn() -> None:
    times = table("*/5 * * * *", timezone="Europe/Berlin", missed="skip")
    due, now = ms("2025-10-26T02:10:00+01:00"), ms("2025-10-26T02:42:32+01:00")
    assert times.latest(due, now) == ms("2025-10-26T02:40:00+01:00")
    assert times.turn(due, ms("2025-10-26T02:40:01+01:00")).firings_ms == [ms("2025-10-26T02:40:00+01:00")], (
        "it is late by 1 s"
    )
