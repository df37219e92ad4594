"""Two drivers, processes both, and the same tables: one of them loses, and says so."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import ProducerFenced
from spark_sinks import land
from tests.databases import NewDatabase
from tests.spark.faults.audit import audit
from tests.spark.faults.given import TOPIC, Shop
from tests.spark.faults.harness import PATIENCE_S, Lander

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.skipif(os.name == "nt", reason="the other process is found in /proc")]


@pytest.mark.timeout(300)
def test_a_second_driver_is_refused_or_takes_over(
    tmp_path: Path, spark: SparkSession, new_database: NewDatabase
) -> None:
    """On one machine tables of files are locked. Elsewhere nobody sees the lock; a database has none."""
    of_files = [str(tmp_path / "t"), f"delta:{tmp_path / 'delta'}", f"iceberg:{tmp_path / 'iceberg'}"]
    databases = [f"{new_database(kind).plain_url}#orders" for kind in ("sqlite", "psycopg", "mariadb")]
    tables = [*of_files, *databases]
    shop = Shop(tmp_path / "log")
    shop.sell(60)
    stop, batches = threading.Event(), threading.Semaphore(0)

    def follow(to: str) -> Any:
        how: dict[str, Any] = {"every": 0.2, "stop": stop, "progress": lambda _: batches.release()}
        return land(shop.path, TOPIC, to, spark=spark, quarantine_limit=1.0, **how)

    with ThreadPoolExecutor(len(tables)) as threads, Lander(shop.path, tables, quarantine_limit=1.0) as second:
        firsts = [threads.submit(follow, to) for to in tables]
        try:
            assert all(batches.acquire(timeout=PATIENCE_S) for _ in tables)
            second.land()
            told = {each["table"]: each for each in second.until("done") if "table" in each and each["what"] != "batch"}
            for number in range(len(of_files)):
                assert told[number]["kind"] == "LogLocked"
                assert f"is being landed by process {os.getpid()} on " in told[number]["text"]
            assert {told[number]["what"] for number in range(len(of_files), len(tables))} == {"landed"}
            for lock in tmp_path.glob("*/_eventbus/lock"):
                lock.unlink()
            second.finish()
            shop.sell(60)
            wait(firsts, PATIENCE_S)  # they have something to commit
        finally:
            stop.set()
        for first in firsts:
            with pytest.raises(ProducerFenced, match=r"another landing took .* over"):
                first.result()
        second.finish()
    expected = shop.expected()
    assert [wrong for to in tables for wrong in audit(to, expected)] == []
