"""``eventbus perf``: the lines of Kafka's tools. Never how fast: that is another machine's business."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventbus.cli import perf
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


def test_lines_of_a_file_are_sent_in_turn(clicks: Cli, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    assert clicks("perf", "produce", "clicks", "--num-records", "4", "--payload-file", "lines").code == 0
    shown = clicks("consume", "clicks", "--from-beginning", "--timeout-ms", "50")
    assert sorted(shown.lines) == ["one", "one", "two", "two"]


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
        (("produce", "clicks", "--payload-file", "nowhere"), 2, "No such file"),
        (("produce", "clicks", "--num-records", "1", "--record-size", "2000000"), 1, "1,048,576"),
        (("consume", "clicks"), 1, "empty"),
        (("consume", "clicks", "--from-latest"), 2, "--messages"),
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


# every flag of Kafka's scripts ----------------------------------------------------------------------------------------


def test_payloads_from_a_file_with_a_delimiter_or_counted(clicks: Cli, tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_text("a;b;c;")
    script = ("kafka-producer-perf-test.sh", "--topic", "clicks", "--throughput", "-1")
    assert clicks(*script, "--num-records", "3", "--payload-file", str(file), "--payload-delimiter", ";").code == 0
    assert clicks(*script, "--num-records", "12", "--payload-monotonic").code == 0
    read = clicks("consume", "clicks", "--from-beginning", "--max-messages", "15")
    assert sorted(read.lines) == sorted(["a", "b", "c", *map(str, range(12))])
    refused = clicks(*script, "--num-records", "1", "--payload-monotonic", "--record-size", "5")
    assert refused.code == 2 and "give one of them" in refused.err
    assert clicks(*script, "--num-records", "1", "--payload-file", str(file), "--payload-delimiter", "").code == 2


def test_records_of_the_warm_up_are_left_out_of_a_second_line(clicks: Cli) -> None:
    flags = ("--num-records", "300", "--warmup-records", "250", "--record-size", "10")
    first, second = clicks("perf", "produce", "clicks", *flags).lines
    assert first.startswith("300 records sent, ")
    assert second.startswith("50 steady state records sent, ")


@pytest.mark.system
def test_transactions_of_a_producer(clicks: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "producer.properties"
    settings.write_text("transactional.id=from-file\nlinger.ms=1\n")
    script = ("kafka-producer-perf-test.sh", "--topic", "clicks", "--num-records", "250", "--record-size", "10")
    assert clicks(*script, "--producer.config", str(settings), "--transaction-duration-ms", "1").code == 0
    assert clicks(*script, "--transactional-id", "from-flag", "--command-property", "acks=all", "linger.ms=2").code == 0
    assert clicks(*script, "--transaction-duration-ms", "100000").code == 0
    listed = clicks("transactions", "list", "--json").json
    assert [one["state"] for one in listed] == ["CompleteCommit"] * 3
    names = sorted(one["transactional_id"] for one in listed)
    assert names[:2] == ["from-file", "from-flag"] and names[2].startswith("performance-producer-")
    read = clicks("kafka-consumer-perf-test.sh", "--topic", "clicks", "--messages", "750", "--hide-header")
    assert read.lines[0].split(", ")[4] == "750"


def test_the_consumers_settings_metrics_and_details(clicks: Cli, tmp_path: Path) -> None:
    clicks("perf", "produce", "clicks", "--num-records", "100", "--record-size", "10")
    settings = tmp_path / "consumer.properties"
    settings.write_text("group.id=from-file\n")
    script = ("kafka-consumer-perf-test.sh", "--messages", "100")
    shown = clicks(
        *script, "--topic", "clicks", "--consumer.config", str(settings), "--print-metrics", "--socket-buffer-size",
        "1000", "--date-format", "dd.MM.yyyy HH:mm:ss:SSS", "--command-property", "check.crcs=false",
    )  # fmt: skip
    assert re.match(r"\d\d\.\d\d\.\d{4} \d\d:\d\d:\d\d:\d{3}, ", shown.lines[1])
    assert re.search(r"consumer-metrics:records-consumed-total +100", shown.out)
    assert clicks("groups", "list").lines == ["from-file"]
    assert clicks(*script, "--include", "cl.*", "--show-detailed-stats").lines[0].startswith("time, threadId, ")
    assert clicks(*script, "--topic", "clicks", "--date-format", "QQ").code == 2
    assert clicks(*script).code == clicks(*script, "--topic", "clicks", "--include", "x").code == 2


def test_a_transaction_is_as_long_as_was_said(clicks: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()  # a second passes between two looks at it
    monkeypatch.setattr(perf, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    flags = ("--num-records", "4", "--record-size", "10", "--transactional-id", "shop")

    def commits() -> int:
        segments = [str(path) for path in Path("data").glob("clicks-*/*.log") if path.stat().st_size]
        return clicks("log", "dump", *segments, "--records").out.count("endTxnMarker: COMMIT")

    assert clicks("perf", "produce", "clicks", *flags, "--transaction-duration-ms", "1").code == 0
    short = commits()
    assert short == 4
    assert clicks("perf", "produce", "clicks", *flags, "--transaction-duration-ms", "60000").code == 0
    assert commits() - short <= 3  # one, in each partition that it wrote to
