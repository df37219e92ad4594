"""`land` for good: what comes while it runs, several topics at once, a stop between two batches."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus import EventBus
from eventbus.errors import SerializationError
from eventbus.types import Record
from spark_sinks import LandProgress, land, land_many, status, verify
from spark_sinks.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

T0 = 1_709_251_199_000


def records(count: int, value: bytes = b"x") -> list[Record]:
    return [Record(b"%d" % n, value, (), T0 + n) for n in range(count)]


def places(table: Path) -> list[tuple[int, int]]:
    import pyarrow.dataset as ds

    rows = ds.dataset(table, format="parquet", partitioning="hive").to_table(["_partition", "_offset"]).to_pylist()
    return sorted((row["_partition"], row["_offset"]) for row in rows)


def test_what_comes_while_it_runs_is_landed_in_partitions_new_and_old(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    log.write("orders", records(10), partitions=3)
    stop, seen = threading.Event(), list[LandProgress]()

    def progress(landed: LandProgress) -> None:
        seen.append(landed)
        if landed.rows == 10:
            log.write("orders", records(5))
            log.write("orders", records(7), partition=2)
        elif landed.rows == 22:
            stop.set()

    how: dict[str, Any] = {"every": 0, "stop": stop, "progress": progress, "spark": spark}
    report = land(log.path, "orders", str(tmp_path / "t"), **how)
    assert isinstance(report, tuple)
    assert (report.rows, report.offsets, report.lag) == (22, {0: 15, 1: 0, 2: 7}, 0)
    assert places(tmp_path / "t") == [(0, n) for n in range(15)] + [(2, n) for n in range(7)]
    assert not spark.streams.active


def test_a_topic_that_is_created_while_the_landing_waits_for_it(
    spark: SparkSession, log: TestLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write("payments", records(1))
    stop, exists = threading.Event(), Running.exists

    def create_afterwards(running: Running) -> bool:
        found = exists(running)
        if not found:
            log.write("orders", records(4), partitions=2)
        return found

    monkeypatch.setattr(Running, "exists", create_afterwards)
    how: dict[str, Any] = {"every": 0, "stop": stop, "progress": lambda landed: stop.set(), "spark": spark}
    report = land(log.path, "orders", str(tmp_path / "t"), **how)
    assert (report.rows, report.offsets) == (4, {0: 4, 1: 0})


def test_a_log_in_memory_is_followed_while_its_bus_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    bus = EventBus("memory://shop")
    bus.topic("orders", partitions=1)
    stop = threading.Event()

    def progress(landed: LandProgress) -> None:
        """In another thread than the bus's, which hears of more while the landing runs."""
        if landed.rows < 15:
            b.send_many("orders", [b"more"] * 5)
        else:
            stop.set()

    with bus.blocking() as b:
        b.send_many("orders", [b"x"] * 5)
        how: dict[str, Any] = {"every": 0, "stop": stop, "progress": progress, "spark": spark}
        report = land("memory://shop", "orders", str(tmp_path / "t"), **how)
        told, proof = (look("memory://shop", "orders", str(tmp_path / "t")) for look in (status, verify))
    assert isinstance(report, tuple)
    assert (report.rows, report.offsets, report.lag) == (15, {0: 15}, 0)
    assert places(tmp_path / "t") == [(0, n) for n in range(15)]
    assert (told.log, told.lag, proof.log, proof.ok) == ("memory://shop", 0, "memory://shop", True)


def test_several_topics_have_a_table_each(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", records(10))
    log.write("payments", records(4))
    log.write("_internal", records(1))
    reports = land_many(log.path, "/.*/", str(tmp_path / "w"), spark=spark)
    assert {topic: report.rows for topic, report in reports.items()} == {"orders": 10, "payments": 4}
    assert places(tmp_path / "w" / "payments") == [(0, n) for n in range(4)]
    assert len(places(tmp_path / "w" / "orders")) == 10


def test_a_landing_that_ends_badly_ends_those_beside_it(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", records(10, b"{}"))
    log.write("payments", records(4, b"{"))
    how: dict[str, Any] = {"schema": "a int", "quarantine": False, "spark": spark, "every": "50ms"}
    with pytest.raises(SerializationError, match="4 records do not fit, the first in payments-0 at offset 0"):
        land_many(log.path, ["orders", "payments"], str(tmp_path / "w"), **how)
    assert not spark.streams.active
