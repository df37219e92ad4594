"""``eventbus perf``: the lines of Kafka's tools. Never how fast: that is another machine's business."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from eventbus.cli.perf import percentile, summary

Cli = Callable[..., Any]

NUMBER = r"\d+\.\d+"


@pytest.fixture
def clicks(cli: Cli) -> Cli:
    assert cli("topics", "create", "clicks", "--partitions", "3").code == 0
    return cli


def test_produce_prints_the_line_of_kafkas_tool(clicks: Cli) -> None:
    result = clicks("perf", "produce", "--topic", "clicks", "--num-records", "500", "--record-size", "50")
    assert result.code == 0
    assert re.fullmatch(
        rf"500 records sent, {NUMBER} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg latency, {NUMBER} ms max "
        rf"latency, {NUMBER} ms 50th, {NUMBER} ms 95th, {NUMBER} ms 99th, {NUMBER} ms 99.9th\n",
        result.out,
    )
    assert sum(row["count"] for row in clicks("offsets", "clicks", "--json").json) == 500


def test_metrics_tell_of_the_batches(clicks: Cli) -> None:
    flags = ("--num-records", "300", "--print-metrics", "--producer-props", "linger.ms=5", "batch.size=1000")
    shown = clicks("perf", "produce", "clicks", *flags)
    assert re.search(r"producer-metrics:records-per-batch-avg +\d+\.\d\n", shown.out)
    answer = clicks("perf", "produce", "clicks", *flags, "--json").json
    assert answer["records"] == answer["metrics"]["record_send_total"] == 300
    assert 1 < answer["metrics"]["records_per_batch_avg"] < 15, "at most 1,000 bytes of records of 100"
    assert answer["latency_ms"]["p50"] <= answer["latency_ms"]["p99"] <= answer["latency_ms"]["max"]


def test_a_limit_is_kept(clicks: Cli) -> None:
    answer = clicks("perf", "produce", "clicks", "--num-records", "60", "--throughput", "1000", "--json").json
    assert answer["seconds"] >= 0.055, (
        "60 records at 1,000/s: the last one leaves 59 ms after the first at the earliest"
    )


def test_long_runs_tell_how_they_go(clicks: Cli) -> None:
    flags = ("--num-records", "60", "--throughput", "1000", "--reporting-interval", "10")
    assert re.search(r"^\d+ records sent, .* records/sec", clicks("perf", "produce", "clicks", *flags).err, re.M)


def test_consume_prints_the_columns_of_kafkas_tool(clicks: Cli) -> None:
    clicks("perf", "produce", "clicks", "--num-records", "200", "--record-size", "1024")
    header, line = clicks("perf", "consume", "clicks").lines
    values = dict(zip(header.split(", "), line.split(", "), strict=True))
    assert values["data.consumed.in.nMsg"] == "200"
    assert float(values["data.consumed.in.MB"]) == pytest.approx(200 / 1024, abs=1e-3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}", values["start.time"])
    assert len(clicks("perf", "consume", "clicks", "--hide-header", "--messages", "7").lines) == 1


def test_a_group_commits_what_was_read(clicks: Cli) -> None:
    clicks("perf", "produce", "clicks", "--num-records", "200")
    assert clicks("perf", "consume", "clicks", "--group", "g", "--json").json["records"] == 200
    assert all(row["lag"] == 0 for row in clicks("offsets", "clicks", "--group", "g", "--json").json)


def test_too_few_records_end_the_wait_with_exit_code_1(clicks: Cli) -> None:
    clicks("perf", "produce", "clicks", "--num-records", "20")
    result = clicks("perf", "consume", "clicks", "--messages", "30", "--timeout", "20")
    assert result.code == 1 and "gave up after 20 ms without a record, at 20 records" in result.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("produce", "cliks"), 1, "did you mean 'clicks'"),
        (("produce", "clicks", "--throughput", "0"), 2, "-1 for no limit"),
        (("produce", "clicks", "--producer-props", "aks=1"), 1, "did you mean 'acks'"),
        (("produce", "clicks", "--producer-props", "acks"), 2, "key=value"),
        (("produce", "clicks", "--num-records", "1", "--record-size", "2000000"), 1, "1,048,576"),
        (("consume", "clicks"), 1, "empty"),
    ],
)
def test_what_is_wrong_is_named(clicks: Cli, args: tuple[str, ...], code: int, message: str) -> None:
    result = clicks("perf", *args)
    assert (result.code, message in result.err) == (code, True), result.err
    assert result.out == ""


def test_memory_needs_no_topic(cli: Cli) -> None:
    assert cli("perf", "produce", "clicks", "--num-records", "10", "--url", "memory://", "--json").json["records"] == 10


def test_percentiles_are_records_at_their_place() -> None:
    assert percentile([3.0]) == [3.0] * 4
    assert percentile([float(number) for number in range(1000)]) == [500.0, 950.0, 990.0, 999.0]
    assert summary([], 1.0, 10, percentiles=True) == "0 records sent, 0.0 records/sec (0.00 MB/sec)"
