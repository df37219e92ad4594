"""When a record is due: what is taken, and what is refused with the way to say it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import Scheduled
from eventbus.client.scheduling.times import LATEST_MS, due_at, moment
from eventbus.errors import ConfigError

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("deliver_at", "delay", "due_ms"),
    [
        (None, 5, NOW_MS + 5_000),
        (None, 0, NOW_MS),
        (None, 0.0001, NOW_MS + 1),
        (None, 0.1, NOW_MS + 100),
        (None, timedelta(days=1), NOW_MS + 86_400_000),
        (None, "3s", NOW_MS + 3_000),
        (None, "1h30m", NOW_MS + 5_400_000),
        (None, "250ms", NOW_MS + 250),
        (NOW_MS + 7, None, NOW_MS + 7),
        (NOW_MS - 7, None, NOW_MS - 7),
        (LATEST_MS, None, LATEST_MS),
        (datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), None, NOW_MS + 1),
        (datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1))), None, NOW_MS),
    ],
)
def test_times_are_milliseconds_rounded_up(deliver_at: Any, delay: Any, due_ms: int) -> None:
    assert due_at(NOW_MS, deliver_at, delay) == due_ms


@pytest.mark.parametrize(
    ("deliver_at", "delay", "says"),
    [
        (None, None, "one of the two"),
        (NOW_MS, 5, "one of the two"),
        (datetime(2030, 1, 1), None, r"no time zone.*datetime\.now\(UTC\)"),
        (1_700_000_000, None, "seconds are multiplied by 1000"),
        (float(NOW_MS), None, "whole milliseconds"),
        ("2030-01-01", None, "a datetime with a time zone"),
        (True, None, "a datetime with a time zone"),
        (LATEST_MS + 1, None, "beyond the year 9999"),
        (None, -1, "at least 0"),
        (None, timedelta(seconds=-1), "at least 0"),
        (None, float("nan"), "seconds, a text"),
        (None, float("inf"), "until the year 9999"),
        (None, 1e15, "until the year 9999"),
        (None, LATEST_MS / 1000, "beyond the year 9999"),
        (None, "5 seconds", 'seconds, a text such as "500ms"'),
        (None, "-3s", "seconds, a text such as"),
        (None, "99999999w", "until the year 9999"),
        (None, True, "seconds, a text such as"),
    ],
)
def test_what_is_no_time_is_refused(deliver_at: Any, delay: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        due_at(NOW_MS, deliver_at, delay)


@given(st.datetimes(min_value=datetime(1974, 1, 1), timezones=st.just(UTC)))
def test_no_time_is_rounded_to_an_earlier_one(when: datetime) -> None:
    due_ms = due_at(NOW_MS, when, None) if when <= moment(LATEST_MS) else LATEST_MS
    assert timedelta(0) <= moment(due_ms) - min(when, moment(LATEST_MS)) < timedelta(milliseconds=1)


def test_a_scheduled_record_tells_its_time() -> None:
    one = Scheduled(id="a", topic="t", due_ms=NOW_MS)
    assert one.deliver_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
