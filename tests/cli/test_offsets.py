"""``eventbus offsets``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus.cli.offsets import parse_time

Cli = Callable[..., Any]


def test_first_and_next_offsets(orders: Cli) -> None:
    result = orders("offsets", "orders")
    assert result.lines[0].split() == ["TOPIC", "PARTITION", "EARLIEST", "LATEST", "COUNT"]
    rows = [line.split() for line in result.lines[1:]]
    assert [row[1] for row in rows] == ["0", "1", "2"]
    assert sum(int(row[4]) for row in rows) == 6
    assert orders("offsets", "orders", "--json").json == [
        {"topic": row[0], **dict(zip(("partition", "earliest", "latest", "count"), map(int, row[1:]), strict=True))}
        for row in rows
    ]


@pytest.mark.system
def test_by_time_in_the_lines_of_kafkas_tool(cli: Cli) -> None:
    cli("topics", "create", "orders", "--partitions", "2")
    cli("produce", "orders", "--partition", "1", stdin=b"a\nb\n")
    for latest in ("-1", "latest"):
        assert cli("offsets", "orders", "--time", latest).lines == ["orders:0:0", "orders:1:2"]
    for earliest in ("-2", "earliest"):
        assert cli("offsets", "--topic", "orders", "--time", earliest).lines == ["orders:0:0", "orders:1:0"]
    for time in ("0", "1970-01-01", "2013-01-01T05:00:00+02:00"):
        assert cli("offsets", "orders", "--time", time).lines == ["orders:0:", "orders:1:0"]
    assert cli("offsets", "orders", "--time", "2100-01-01").lines == ["orders:0:", "orders:1:"]
    [empty, largest] = cli("offsets", "orders", "--time", "-3", "--json").json
    assert empty == {"topic": "orders", "partition": 0, "offset": None, "timestamp_ms": None}
    assert largest["offset"] in (0, 1) and largest["timestamp_ms"] > 1_600_000_000_000
    assert cli("offsets", "orders", "--time", "-1", "--partitions", "1").lines == ["orders:1:2"]


def test_a_group_shows_what_it_has_committed_and_its_lag(orders: Cli) -> None:
    result = orders("offsets", "orders", "--group", "g")
    assert result.code == 0
    assert "'g' has committed nothing yet" in result.err
    orders("consume", "orders", "--from-beginning", "--group", "g", "--max-messages", "4")
    result = orders("offsets", "orders", "--group", "g")
    assert result.err == ""
    assert result.lines[0].split() == ["GROUP", "TOPIC", "PARTITION", "EARLIEST", "COMMITTED", "LATEST", "LAG"]
    rows = orders("offsets", "orders", "--group", "g", "--json").json
    assert sum(row["lag"] for row in rows) == 2
    assert sum(row["committed"] or 0 for row in rows) == 4


def test_a_partition_that_is_not_there(orders: Cli) -> None:
    result = orders("offsets", "orders", "--partitions", "0,7")
    assert result.code == 2
    assert "partitions 0 to 2, no 7" in result.err


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1357034400000", 1357034400000),
        ("2013-01-01T10:00:00", 1357034400000),
        ("2013-01-01T10:00:00Z", 1357034400000),
        ("2013-01-01T11:00:00+01:00", 1357034400000),
        ("2013-01-01", 1356998400000),
        ("max-timestamp", -3),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time(text) == ms


@pytest.mark.system
def test_topics_and_partitions_by_pattern(cli: Cli) -> None:
    for name in ("orders", "orders-old", "clicks"):
        cli("topics", "create", name, "--partitions", "3")
    script = "kafka-get-offsets.sh"
    assert cli(script, "--topic", "orders", "--partitions", "0,2").lines == ["orders:0:0", "orders:2:0"]
    assert len(cli(script, "--topic", "orders.*").lines) == 6
    assert len(cli(script, "--exclude-internal-topics").lines) == 9
    for text, expected in (
        ("clicks:1", ["clicks:1"]),
        ("clicks:1-,orders:-1", ["clicks:1", "clicks:2", "orders:0"]),
        ("orders.*:0-2", ["orders:0", "orders:1", "orders-old:0", "orders-old:1"]),
        (":2", ["clicks:2", "orders:2", "orders-old:2"]),
        ("nothing", []),
    ):
        assert cli(script, "--topic-partitions", text).lines == [f"{one}:0" for one in expected]
    assert cli(script, "--topic-partitions", "a:b").code == 2
    assert cli(script, "--topic-partitions", "a", "--topic", "b").code == 2
    assert cli(script, "--topic", "orders", "--time", "earliest-local").lines[0] == "orders:0:0"
    assert cli(script, "--topic", "orders", "--time", "-5").lines[0] == "orders:0:"
