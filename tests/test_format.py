"""Durations, sizes, times and counts as every command writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.format import format_age, format_count, format_duration, format_setting, format_size, format_time


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 s"), (999, "0 s"), (1_000, "1 s"), (1_990, "1 s"), (59_999, "59 s"), (119_999, "119 s"),
        (120_000, "2 min"), (7_199_999, "119 min"), (9_000_000, "2 h"), (400 * 86_400_000, "400 days"),
    ],
)  # fmt: skip
def test_a_duration_has_the_unit_that_needs_two_or_three_digits(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_a_setting_is_not_rounded() -> None:
    assert [format_setting(ms) for ms in (5, 999, 1_000, 1_500, 60_000, 90_000, 7_200_000)] == [
        "5 ms", "999 ms", "1 s", "1.5 s", "1 min", "90 s", "2 h",
    ]  # fmt: skip


@given(st.integers())
def test_any_number_is_a_time(time_ms: int) -> None:
    assert format_time(time_ms) and format_age(time_ms, 0) and format_duration(time_ms)


def test_times_counts_and_sizes() -> None:
    assert format_time(0) == "1970-01-01 00:00:00.000 UTC"
    assert (format_time(None), format_time(10**18), format_age(None, 5)) == ("?", f"{10**18} ms", "-")
    assert (format_count(1, "letter"), format_count(1_234, "letter")) == ("1 letter", "1,234 letters")
    assert [format_size(size) for size in (0, 512, 1_500_000, 3 << 40)] == ["0 B", "512 B", "1.4 MiB", "3.0 TiB"]
