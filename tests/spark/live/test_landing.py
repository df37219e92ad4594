"""`land`: every record in the table once, whatever happens on the way."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from eventbus.errors import ConfigError, LogLocked, OffsetOutOfRange, SerializationError, StorageFull
from eventbus.types import Compression, Record
from spark_sinks import LandProgress, land
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.files import DirectoryLock, LocalFiles
from spark_sinks.targets.target import SinkState
from tests.tiers import quick

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

T0 = 1_709_251_199_000  # 2024-02-29T23:59:59Z
PARTITIONS = 3


class Order(msgspec.Struct):
    number: int
    month: int
    amount: float | None = None


def orders(count: int, first: int = 0) -> list[Record]:
    return [
        Record(b"k%d" % n, msgspec.json.encode(Order(n, n % 4 + 1, None if n % 5 == 0 else n / 2)), (), T0 + n)
        for n in range(first, first + count)
    ]


def fill(log: TestLog, per_partition: int, first: int = 0) -> None:
    for partition in range(PARTITIONS):
        compression = list(Compression)[partition * 2]
        log.write(
            "orders", orders(per_partition, first), partition=partition, partitions=PARTITIONS, compression=compression
        )


def rows_of(directory: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """What a reader of plain directories finds in a table, by partition and offset."""
    import pyarrow.dataset as ds

    rows = ds.dataset(directory, format="parquet", partitioning="hive").to_table(columns).to_pylist()
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def check(table: Path, per_partition: int) -> None:
    """Each record once, with its values; and no other file is there."""
    rows = rows_of(table)
    assert [(row["_partition"], row["_offset"]) for row in rows] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(per_partition)
    ]
    for row in rows:
        n = row["_offset"]
        assert (row["number"], row["month"], row["_key"]) == (n, n % 4 + 1, b"k%d" % n)
        assert row["amount"] == (None if n % 5 == 0 else n / 2)
        assert row["_timestamp"] == dt.datetime.fromtimestamp((T0 + n) / 1000, dt.UTC)
    counted = open_target(str(table), options=TargetOptions()).files()
    assert counted is not None and counted.files == len(LocalFiles(table).files_below(""))


def state_of(table: Path) -> SinkState:
    state = open_target(str(table), options=TargetOptions()).state()
    assert state is not None
    return state


def land_orders(log: TestLog, table: Path, spark: SparkSession, **more: Any) -> Any:
    return land(log.path, "orders", str(table), schema=Order, partition_by="month", spark=spark, **more)


def test_lands_all_then_nothing_then_what_is_new(
    spark: SparkSession, log: TestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "warehouse" / "orders"
    fill(log, 200)
    seen: list[LandProgress] = []
    report = land_orders(log, table, spark, max_offsets_per_trigger=360, progress=seen.append)
    assert (report.rows, report.batches, report.offsets) == (600, 2, {0: 200, 1: 200, 2: 200})
    assert [(each.rows, each.total, each.batches) for each in seen] == [(360, 600, 1), (600, 600, 2)]
    check(table, 200)
    with monkeypatch.context() as patch:
        patch.setattr("spark_sinks.landing._Session.__enter__", lambda _: pytest.fail("Spark was started for nothing"))
        again = land_orders(log, table, spark)
    assert (again.rows, again.files, again.batches, again.offsets) == (0, 0, 0, report.offsets)
    fill(log, 30, first=200)
    assert land_orders(log, table, spark).rows == 90
    check(table, 230)
    assert {path.name for path in table.iterdir()} == {"_eventbus", "month=1", "month=2", "month=3", "month=4"}


def test_progress_of_spark_shows_where_a_landing_is_and_what_is_behind(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    fill(log, 40)
    seen: list[Any] = []

    def progress(landed: LandProgress) -> None:
        seen.extend(query.lastProgress for query in spark.streams.active if query.lastProgress)

    assert land_orders(log, tmp_path / "t", spark, max_offsets_per_trigger=60, progress=progress).batches == 2
    [first] = seen  # while the second batch runs
    source = first.sources[0]
    ends = [msgspec.json.decode(text)["orders"] for text in (source.endOffset, source.latestOffset)]
    assert ends == [dict.fromkeys("012", offset) for offset in (20, 40)]


@pytest.mark.parametrize("fails_at", quick(["rename", "create"], 1))
def test_disk_that_fills_up_in_the_commit(
    spark: SparkSession, log: TestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    table = tmp_path / "t"
    fill(log, 50)
    left = 2 if fails_at == "rename" else 1  # the table is founded by one file
    real = getattr(LocalFiles, fails_at)

    def full(self: LocalFiles, *arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StorageFull(f"cannot {fails_at}: No space left on device")
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, fails_at, full)
        with pytest.raises(StorageFull, match="No space left"):
            land_orders(log, table, spark)
    assert state_of(table).rows == 0
    assert land_orders(log, table, spark).rows == 150
    check(table, 50)


def test_without_a_schema_bytes_land_by_day(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    written = [
        Record(None, b"null key", (), T0),
        Record(b"", b"empty key", (), T0),
        Record(b"null value", None, (), T0 + 1000),
        Record(b"empty value", b"", (), T0 + 1000),
    ]
    log.write("raw", written, compression=Compression.ZSTD)
    report = land(log.path, "raw", str(tmp_path / "t"), spark=spark)
    assert (report.rows, report.files) == (4, 2)
    rows = rows_of(tmp_path / "t")
    assert [(row["key"], row["value"]) for row in rows] == [(each.key, each.value) for each in written]
    assert [row["dt"] for row in rows] == ["2024-02-29"] * 2 + ["2024-03-01"] * 2
    assert {row["_topic"] for row in rows} == {"raw"}


def test_transform_and_expression_run_in_spark(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    def large(frame: DataFrame) -> DataFrame:
        return frame.where("number >= 10").selectExpr("number * 2 as double", "month", "_partition", "_offset")

    fill(log, 20)
    arguments: dict[str, Any] = {
        "schema": "number bigint, month int",
        "transform": large,
        "partition_by": {"quarter": "concat('q', cast(ceil(month / 3) as int))"},
        "spark": spark,
    }
    assert land(log.path, "orders", str(tmp_path / "t"), **arguments).rows == 30
    rows = rows_of(tmp_path / "t")
    assert [(row["double"], row["_partition"]) for row in rows] == [
        (2 * n, partition) for partition in range(PARTITIONS) for n in range(10, 20)
    ]
    assert {(row["month"], row["quarter"]) for row in rows} == {(1, "q1"), (2, "q1"), (3, "q1"), (4, "q2")}
    fill(log, 5, first=20)
    assert land(log.path, "orders", str(tmp_path / "t"), **arguments).rows == 15


@pytest.mark.parametrize("transform", [None, pytest.param(lambda frame: frame, marks=pytest.mark.slow)])
def test_undecodable_records_go_to_the_quarantine_or_stop_the_landing(
    spark: SparkSession, log: TestLog, tmp_path: Path, transform: Any
) -> None:
    table = tmp_path / "t"
    fill(log, 10)
    bad = [Record(b"k", b'{"number": "x"}', (), T0), Record(b"k", b"", (), T0)]
    log.write("orders", [*orders(3, 10), *bad], partition=1)
    text = (
        r"2 records do not fit, the first in orders-1 at offset 13: .*`\$\.number`.* Nothing of this batch was landed"
    )
    with pytest.raises(SerializationError, match=text):
        land_orders(log, table, spark, transform=transform, quarantine=False)
    assert LocalFiles(table).files_below("") == []
    report = land_orders(log, table, spark, transform=transform)
    assert (report.rows, report.rejected) == (33, 2)
    assert (report.offsets, report.lag) == ({0: 10, 1: 15, 2: 10}, 0)
    rejected = rows_of(tmp_path / "t__quarantine")
    assert [(row["_partition"], row["_offset"], row["key"], row["value"]) for row in rejected] == [
        (1, 13 + n, each.key, each.value) for n, each in enumerate(bad)
    ]
    assert "$.number" in rejected[0]["error"]


def test_more_bad_records_than_allowed_stop_the_landing(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    table = tmp_path / "t"
    fill(log, 200)
    log.write("orders", [Record(b"k", b"{", (), T0)] * 101, partition=2)
    with pytest.raises(SerializationError, match=r"That is 14\.4% of the batch, and at most 1\.0% may go"):
        land_orders(log, table, spark)
    assert state_of(table).offsets == {0: 0, 1: 0, 2: 0}
    report = land_orders(log, table, spark, quarantine_limit=0.15)
    assert (report.rows, report.rejected) == (600, 101)


def test_a_start_at_the_latest_offset_is_kept(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    fill(log, 20)
    arguments: dict[str, Any] = {"starting_offsets": "latest"}
    report = land_orders(log, tmp_path / "t", spark, **arguments)
    assert (report.rows, report.offsets) == (0, {0: 20, 1: 20, 2: 20})
    fill(log, 5, first=20)
    assert land_orders(log, tmp_path / "t", spark, **arguments).rows == 15
    assert {row["_offset"] for row in rows_of(tmp_path / "t")} == set(range(20, 25))


def test_wrong_arguments_are_told_before_spark_starts(log: TestLog, tmp_path: Path) -> None:
    fill(log, 1)
    for arguments, text in (
        ({"partition_by": "monht"}, "partition_by='monht': there is no such column; there are number, month, amount"),
        ({"partition_by": "_offset"}, "this column stays in the files"),
        ({"compression": "zip"}, "compression='zip': choose one of zstd"),
        ({"starting_offsets": "first"}, "starting_offsets='first'"),
        ({"upsert": "nubmer"}, "upsert='nubmer': there is no such column; there are number"),
        ({"event_time": "when"}, "event_time='when': there is no such column; there are number"),
        ({"every": "often"}, "every='often': write seconds, or '500ms'"),
        ({"quarantine_limit": 5}, "quarantine_limit=5 is a share of a batch"),
        ({"max_offsets_per_trigger": 0}, "max_offsets_per_trigger=0"),
        ({"starting_offsets": '{"orders": {"7": 5}}'}, "names what is not there: orders has the partitions 0 from"),
    ):
        with pytest.raises(ConfigError, match=text):
            land(log.path, "orders", str(tmp_path / "t"), **{"schema": Order, **arguments})
    assert not (tmp_path / "t").exists()


def test_one_landing_at_a_time(log: TestLog, tmp_path: Path) -> None:
    fill(log, 1)
    (tmp_path / "t" / "_eventbus").mkdir(parents=True)
    with DirectoryLock(tmp_path / "t" / "_eventbus" / "lock"), pytest.raises(LogLocked, match=f"process {os.getpid()}"):
        land(log.path, "orders", str(tmp_path / "t"))


def test_log_restored_from_an_older_copy_is_told(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    fill(log, 10)
    shutil.copytree(log.path, tmp_path / "copy")
    fill(log, 40)
    land_orders(log, tmp_path / "t", spark)
    shutil.rmtree(log.path)
    shutil.copytree(tmp_path / "copy", log.path)
    with pytest.raises(
        OffsetOutOfRange, match=r"orders-0 is to be landed in .* from offset 50 on, but the log has 0 to 10"
    ):
        land_orders(log, tmp_path / "t", spark)


_KILLED = """
import os, signal, sys
from spark_sinks import land, spark_session
from spark_sinks.targets.files import LocalFiles
from tests_order import Order

log, table, when = sys.argv[1:]
real = LocalFiles.create

def create(self, path, data):
    if when == "before" and "ledger/" in path and b'"rows":120' in data.replace(b" ", b""):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, path, data)

def progress(landed):
    if when != "before" and landed.batches == 2:
        os.kill(os.getpid(), signal.SIGKILL if when == "after" else signal.SIGINT)

LocalFiles.create = create
try:
    how = {"schema": Order, "partition_by": "month", "max_offsets_per_trigger": 60}
    spark = None if when == "interrupted" else spark_session()
    land(log, "orders", table, progress=progress, spark=spark, **how)
except KeyboardInterrupt:
    print("interrupted")
"""
_ORDER = """
import msgspec

class Order(msgspec.Struct):
    number: int
    month: int
    amount: float | None = None
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a signal of POSIX")
@pytest.mark.slow  # the quick tier: at random in tests/spark/faults, at every step in tests/spark/targets
@pytest.mark.parametrize("when", ["before", "after", "interrupted"])
def test_kill_minus_nine_and_start_again(spark: SparkSession, log: TestLog, tmp_path: Path, when: str) -> None:
    """Killed between the files and their ledger entry, or after the entry; or Ctrl-C."""
    table = tmp_path / "t"
    fill(log, 100)
    (tmp_path / "killed.py").write_text(_KILLED)
    (tmp_path / "tests_order.py").write_text(_ORDER)
    done = subprocess.run(
        # This waits for the end of all that write to standard error, so of the JVM and the workers too.
        [sys.executable, "killed.py", log.path, str(table), when],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if when == "interrupted":
        assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
    landed = state_of(table).rows // 60
    assert landed == 1 if when == "before" else landed >= 2
    assert len(rows_of(table)) >= 120  # a batch can be seen, entered or not
    report = land_orders(log, table, spark)
    assert report.rows == 300 - 60 * landed
    check(table, 100)
