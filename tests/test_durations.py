"""One parser for the durations that users give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eventbus import EventBus
from eventbus.durations import exact_ms, milliseconds, seconds, setting_ms, shown, texts_of
from eventbus.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        (5, 5_000), (0.25, 250), ("250ms", 250), ("5s", 5_000), ("1.5h", 5_400_000), ("1h30m", 5_400_000),
        ("5min", 300_000), ("2d", 172_800_000), ("1w", 604_800_000), ("PT1H30M", 5_400_000), ("P1DT2H", 93_600_000),
        ("PT0.5S", 500), (timedelta(seconds=2), 2_000), (0, 0),
    ],
)  # fmt: skip
def test_a_number_counts_seconds_and_a_text_has_its_unit(given: Any, ms: int) -> None:
    assert exact_ms(given) == ms
    assert milliseconds(given, "delay") == ms
    assert setting_ms(given) == (given if isinstance(given, (int, float)) else ms)


@pytest.mark.parametrize(
    "given",
    ["", "5", "s", "5 seconds", "5 s", "9" * 5000 + "s", "P", "PT", "P1H", "-5s", "5S", None, True, float("nan"), [5]],
)
def test_other_values_are_no_durations(given: Any) -> None:
    assert exact_ms(given) is None
    with pytest.raises(ConfigError, match=r'^delay: seconds, a text such as "500ms"'):
        milliseconds(given, "delay")
    assert setting_ms(given) is given  # the setting's own check refuses it


@pytest.mark.parametrize("given", [-1, float("inf"), "367d", 10**400])
def test_a_duration_ends_within_a_year(given: Any) -> None:
    with pytest.raises(ConfigError, match="from 0 to 366 days"):
        milliseconds(given, "delay")


def test_a_time_limit_is_exact_and_more_than_nothing() -> None:
    assert seconds(0.0001, "timeout") == 0.0001
    with pytest.raises(ConfigError, match="timeout: more than 0 seconds; None for no limit"):
        seconds("0s", "timeout", "; None for no limit")


def test_nothing_ends_earlier_than_requested() -> None:
    assert milliseconds(0.0011, "delay") == 2
    assert setting_ms(timedelta(microseconds=1)) == 1


def test_the_largest_unit_that_divides_it() -> None:
    assert [shown(ms) for ms in (0, 250, 90_000, 7_200_000, 86_400_000)] == ["0ms", "250ms", "90s", "2h", "1d"]


def test_a_topics_configs_are_durations_too() -> None:
    given = {"retention.ms": "7d", "segment.ms": timedelta(hours=1), "delete.retention.ms": -1, "cleanup.policy": "5s"}
    assert [*texts_of(given).values()] == ["604800000", "3600000", "-1", "5s"]


async def test_a_transaction_and_a_poll_take_them() -> None:
    async with EventBus("memory://", auto_create_topics=True) as bus:
        async with bus.transaction("importer", timeout_ms="10s") as tx:
            await tx.send("orders", b"1")
        async with bus.new_consumer("orders", fetch_max_wait_ms="10ms") as consumer:
            assert len(await consumer.poll(timeout_ms=timedelta(seconds=10))) == 1
