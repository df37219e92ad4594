"""What may happen to a landing itself: its tasks, its disk, its scratch paper, another landing. Its table is right."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import LogLocked, ProducerFenced, StorageError, StorageFull
from spark_sinks import LandProgress, LandReport, land
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.target import Founding, SinkState
from tests.spark.faults.audit import audit, leftovers
from tests.spark.faults.broken import FULL, KILLED, STAGED, breaking
from tests.spark.faults.given import TOPIC, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PLACES = {
    "parquet": "{}/t",
    "delta": "delta:{}/t",
    "iceberg": "iceberg:{}/t",
    "sqlite": "sqlite:///{}/shop.db#orders",
}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "log")
    shop.sell(120, damaged=0.05)
    return shop


@pytest.fixture(params=PLACES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return PLACES[request.param].format(tmp_path)


def landed(shop: Shop, table: str, spark: SparkSession, **options: Any) -> LandReport:
    report = land(shop.path, TOPIC, table, **{"spark": spark, "quarantine_limit": 1.0, **options})
    assert isinstance(report, LandReport)
    return report


def state_of(table: str) -> SinkState:
    state = open_target(table, options=TargetOptions()).state()
    assert state is not None
    return state


@pytest.mark.parametrize(("how", "times"), [(KILLED, 1), (STAGED, 3), (FULL, 1)])
def test_a_task_that_fails_is_done_again(
    shop: Shop, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, how: str, times: int
) -> None:
    table = str(tmp_path / "t")
    monkeypatch.setattr("spark_sinks.running.FusedTask", breaking(tmp_path / "mark", how, times))
    assert landed(shop, table, spark).lag == 0
    assert len([*tmp_path.glob("mark-*")]) == times
    assert audit(table, shop.expected()) == []


def test_tasks_on_a_full_disk(
    shop: Shop, table: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed(shop, table, spark)
    before = shop.expected()
    shop.sell(60)
    with monkeypatch.context() as patch:
        patch.setattr("spark_sinks.running.FusedTask", breaking(tmp_path / "mark", FULL, 1_000))
        with pytest.raises(StorageFull, match=r"cannot write .*: No space left on device"):
            landed(shop, table, spark)
    assert audit(table, before, complete=False) == []
    landed(shop, table, spark)
    assert audit(table, shop.expected()) == []


@pytest.mark.parametrize("table", ["parquet", "delta", "sqlite"], indirect=True)  # Iceberg's paths are absolute
def test_nothing_but_the_table_is_needed_to_go_on(shop: Shop, table: str, tmp_path: Path, spark: SparkSession) -> None:
    """No checkpoint, no consumer group: log and table are landed on, wherever they were moved."""
    landed(shop, table, spark)
    there = tmp_path / "elsewhere"
    there.mkdir()
    for path in [*tmp_path.iterdir()]:
        if path != there:
            shutil.move(path, there)
    moved, of_there = table.replace(str(tmp_path), str(there)), Shop(there / "log", seed=5, found=False)
    of_there.sell(60)
    assert landed(of_there, moved, spark).lag == 0
    assert audit(moved, of_there.expected()) == []


def test_scratch_paper_that_vanishes_is_no_loss(
    shop: Shop, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, scratch = str(tmp_path / "t"), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    removed: list[Path] = []

    def progress(now: LandProgress) -> None:
        if not removed:
            removed.extend(scratch.glob("eventbus-land-*"))
            for path in removed:
                shutil.rmtree(path)

    with pytest.raises(StorageError, match=r"eventbus-land-.*was removed meanwhile: land again"):
        landed(shop, table, spark, max_offsets_per_trigger=30, progress=progress)
    assert removed
    assert audit(table, shop.expected(), complete=False) == []
    landed(shop, table, spark)
    assert audit(table, shop.expected()) == []
    assert not [*scratch.glob("eventbus-land-*")]


def test_nowhere_to_put_scratch_paper(
    shop: Shop, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match=r"cannot make a directory in .*nowhere: No such file"):
        landed(shop, str(tmp_path / "t"), spark)


def test_a_second_landing_takes_over_or_is_refused(shop: Shop, table: str, tmp_path: Path, spark: SparkSession) -> None:
    """On one machine files are locked. Elsewhere nobody sees the lock, so the second takes over, and the first ends."""
    founding = Founding(TOPIC, () if "sqlite" in table else ("dt",))
    second = open_target(table, options=TargetOptions())
    stop = threading.Event()

    def progress(now: LandProgress) -> None:
        if now.batches > 1:
            return
        shop.sell(60)
        if "sqlite" not in table:
            with pytest.raises(LogLocked, match="is being landed by process"):
                second.open(founding, 0)
            (tmp_path / "t" / "_eventbus" / "lock").unlink()
        second.open(founding, 0)

    try:
        with pytest.raises(ProducerFenced, match=r"another landing took .* over"):
            landed(shop, table, spark, every=0, stop=stop, progress=progress)
    finally:
        second.close()
    assert state_of(table).epoch == 2
    landed(shop, table, spark)
    assert audit(table, shop.expected()) == []
    assert "sqlite" in table or leftovers(table) == []
