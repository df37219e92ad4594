"""What may happen to a landing itself: its tasks, its disk, its scratch paper, another landing. Its table is right."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import StorageError, StorageFull
from spark_sinks import LandProgress, LandReport, land
from tests.spark.faults.audit import audit
from tests.spark.faults.broken import FULL, KILLED, STAGED, breaking
from tests.spark.faults.given import TOPIC, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

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


@pytest.mark.parametrize(
    ("how", "times"),
    [(KILLED, 1), pytest.param(STAGED, 3, marks=pytest.mark.slow), pytest.param(FULL, 1, marks=pytest.mark.slow)],
)
def test_a_task_that_fails_is_done_again(
    shop: Shop, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, how: str, times: int
) -> None:
    table = str(tmp_path / "t")
    monkeypatch.setattr("spark_sinks.running.FusedTask", breaking(tmp_path / "mark", how, times))
    assert landed(shop, table, spark).lag == 0
    assert len([*tmp_path.glob("mark-*")]) == times
    assert audit(table, shop.expected()) == []


@pytest.mark.slow  # the commit's own full disk is in the quick tier
@pytest.mark.parametrize("table", ["parquet"], indirect=True)  # staging is the same for all
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


@pytest.mark.parametrize(
    "table", ["parquet", *(pytest.param(one, marks=pytest.mark.slow) for one in ("sqlite", "delta"))], indirect=True
)  # Iceberg's paths are absolute
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


@pytest.mark.slow  # that it holds nothing is what the next one shows
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


def test_an_old_copy_of_the_scratch_paper_changes_nothing(
    shop: Shop, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither under a landing that runs, nor for the next one: no row comes again, none is left out."""
    table, scratch, copies = str(tmp_path / "t"), tmp_path / "scratch", tmp_path / "copies"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def restore() -> None:
        for copy in copies.iterdir():
            shutil.rmtree(scratch / copy.name, ignore_errors=True)
            shutil.copytree(copy, scratch / copy.name)

    def progress(now: LandProgress) -> None:
        if now.batches == 1:
            shutil.copytree(scratch, copies)
        elif now.batches == 3:
            restore()

    report = landed(shop, table, spark, max_offsets_per_trigger=30, progress=progress)
    assert report.batches > 3
    assert audit(table, shop.expected()) == []
    restore()
    assert [*scratch.glob("eventbus-land-*/offsets/0")]
    assert landed(shop, table, spark).batches == 0
    shop.sell(60)
    assert landed(shop, table, spark).lag == 0
    assert audit(table, shop.expected()) == []
