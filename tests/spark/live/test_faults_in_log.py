"""What may happen to a log while it is landed, and before: told with its place, and nothing is lost or doubled."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import ConfigError, CorruptRecord, OffsetOutOfRange, SerializationError
from spark_sinks import LandProgress, LandReport, land, verify
from spark_sinks.targets.choose import TargetOptions, open_target
from tests.spark.faults.audit import audit
from tests.spark.faults.given import TOPIC, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "log")


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "t")


Land = Callable[..., LandReport]


@pytest.fixture
def landed(shop: Shop, table: str, spark: SparkSession) -> Land:
    """`land` of all of the shop's topic, by default with all damaged records in the quarantine."""

    def run(**options: Any) -> LandReport:
        report = land(shop.path, TOPIC, table, **{"spark": spark, "quarantine_limit": 1.0, **options})
        assert isinstance(report, LandReport)
        return report

    return run


def test_transactions_compaction_damage_and_midnight(shop: Shop, table: str, landed: Land) -> None:
    shop.sell(500, damaged=0.05)
    report = landed(max_offsets_per_trigger=70)
    expected = shop.expected()
    assert (report.rows, report.rejected, report.lag) == (len(expected.rows), len(expected.rejected), 0)
    assert report.rejected > 10
    assert report.batches > 5
    assert audit(table, expected) == []
    assert {path.name for path in Path(table).glob("dt=*")} == {"dt=2024-02-29", "dt=2024-03-01"}


def test_batches_without_a_record_move_the_table_on(shop: Shop, table: str, landed: Land) -> None:
    shop.give_up(60)
    seen: list[LandProgress] = []
    report = landed(max_offsets_per_trigger=20, progress=seen.append)
    assert (seen[-1].offsets, seen[-1].total, seen[-1].lag) == (61, 61, 0)
    assert (report.rows, report.lag, report.files) == (0, 0, 0)
    assert sum(report.offsets.values()) == 61  # with the end of the transaction
    shop.sell(20)
    shop.give_up(5)
    assert landed().lag == 0
    assert audit(table, shop.expected()) == []


@pytest.mark.slow  # damage among good values is in the first test, the limit of the quarantine in test_landing
def test_nothing_but_damaged_values(shop: Shop, table: str, landed: Land) -> None:
    shop.sell(30, damaged=0)
    landed()
    shop.sell(150, damaged=1.0)
    with pytest.raises(
        SerializationError, match=r"150 records do not fit, the first in orders-\d at offset \d+: .*100"
    ):
        landed(quarantine_limit=0.01)
    assert audit(table, shop.expected(), complete=False) == []
    report = landed()
    assert (report.rows, report.rejected) == (0, 150)
    assert audit(table, shop.expected()) == []


def test_what_retention_took_is_missed_loudly_or_passed_over(shop: Shop, table: str, landed: Land) -> None:
    shop.sell(200, transactions=False)
    landed()
    before = shop.expected()
    shop.sell(200, transactions=False)
    there = open_target(table, options=TargetOptions()).state()
    assert there is not None
    shop.delete_before(there.offsets[0] + 10)
    told = (
        rf"orders-0 is to be landed in .* from offset {there.offsets[0]} on, but the log has {there.offsets[0] + 10} to"
    )
    with pytest.raises(OffsetOutOfRange, match=told):
        landed()
    assert audit(table, before) == []
    report = landed(fail_on_data_loss=False)
    assert report.lag == 0
    expected = shop.expected()
    for mine, now in zip(before, expected, strict=True):
        mine.update(now)  # what was landed stays, though the log has it no more
    assert audit(table, before) == []
    proof = verify(shop.path, TOPIC, table)
    assert proof.ok, proof.problems
    assert proof.partitions[0].log_start == there.offsets[0] + 10


def test_a_topic_made_anew_is_refused(shop: Shop, table: str, landed: Land) -> None:
    shop.sell(60)
    landed()
    before = shop.expected()
    shop.with_broker(lambda broker: broker.delete_topics([TOPIC], 0))
    shop.create()
    shop.sell(90)  # no offset tells
    for strict in (True, False):
        with pytest.raises(ConfigError, match=r"a topic 'orders' that was deleted\."):
            landed(fail_on_data_loss=strict)
    assert audit(table, before) == []


@pytest.mark.slow  # tests/spark/live/test_following has records in partitions new and old while it runs
def test_a_partition_is_added_while_it_runs(shop: Shop, table: str, landed: Land) -> None:
    shop.sell(40)
    stop = threading.Event()

    def progress(now: LandProgress) -> None:
        if now.batches == 1:
            shop.add_partition()
            shop.sell(100)
        elif now.lag == 0:
            stop.set()

    report = landed(every=0, stop=stop, progress=progress)
    assert set(report.offsets) == {0, 1, 2, 3}
    assert audit(table, shop.expected()) == []


def _segment(shop: Shop) -> Path:
    """That of a partition with some batches."""
    return max(Path(shop.path).glob(f"{TOPIC}-*/*.log"), key=lambda path: path.stat().st_size)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_flip, pytest.param(_cut, marks=pytest.mark.slow)])
def test_a_damaged_log_is_told_with_its_place(
    shop: Shop, table: str, landed: Land, damage: Callable[[Path], None]
) -> None:
    shop.sell(200)
    expected = shop.expected()
    segment = _segment(shop)
    whole = segment.with_suffix(".whole")
    shutil.copy(segment, whole)
    damage(segment)
    with pytest.raises(CorruptRecord, match=f"{segment.parent.name}.*{segment.name}"):
        landed()
    assert audit(table, expected, complete=False) == []
    shutil.copy(whole, segment)  # from a backup, say
    landed()
    assert audit(table, expected) == []
