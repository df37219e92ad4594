"""Two drivers, processes both, and the same tables: one of them loses, and says so."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import ProducerFenced
from spark_sinks import LandProgress, land
from tests.databases import NewDatabase
from tests.spark.faults.audit import audit
from tests.spark.faults.given import TOPIC, Shop
from tests.spark.faults.harness import PATIENCE_S, Lander

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(os.name == "nt", reason="the other process is found in /proc"),
]


@pytest.mark.slow  # a second Spark; the quick tier has two landings of each kind of table in tests/spark/targets
@pytest.mark.timeout(300)
def test_a_second_driver_is_refused_or_takes_over(
    tmp_path: Path, spark: SparkSession, new_database: NewDatabase
) -> None:
    """On one machine tables of files are locked. Elsewhere nobody sees the lock; a database has none."""
    of_files = [str(tmp_path / "t"), f"delta:{tmp_path / 'delta'}", f"iceberg:{tmp_path / 'iceberg'}"]
    tables = [*of_files, f"{new_database('psycopg').plain_url}#orders"]
    shop = Shop(tmp_path / "log")
    shop.sell(60)
    all_have_begun, go_on = threading.Barrier(len(tables) + 1), threading.Event()

    def progress(now: LandProgress) -> None:
        assert now.lag, "the first driver has more to land"
        all_have_begun.wait(PATIENCE_S)
        go_on.wait(PATIENCE_S * 2)

    def first_driver(to: str) -> Any:
        how: dict[str, Any] = {"max_offsets_per_trigger": 30, "quarantine_limit": 1.0, "progress": progress}
        return land(shop.path, TOPIC, to, spark=spark, **how)

    with ThreadPoolExecutor(len(tables)) as threads, Lander(shop.path, tables, quarantine_limit=1.0) as second:
        firsts = [threads.submit(first_driver, to) for to in tables]
        try:
            all_have_begun.wait(PATIENCE_S)
            second.land()
            ends = {each["table"]: each for each in second.until("done") if each["what"] in ("failed", "landed")}
            for number in range(len(of_files)):
                assert ends[number]["kind"] == "LogLocked"
                assert f"is being landed by process {os.getpid()} on " in ends[number]["text"]
            assert ends[len(of_files)]["what"] == "landed"
            for lock in tmp_path.glob("*/_eventbus/lock"):
                lock.unlink()
            second.finish()
        finally:
            go_on.set()
        for first in firsts:
            with pytest.raises(ProducerFenced, match=r"another landing took .* over"):
                first.result()
        second.finish()  # what the first staged goes when the table is opened again
    expected = shop.expected()
    assert [wrong for to in tables for wrong in audit(to, expected)] == []
