"""What a transformation may do with rows, and what a landing does not let it do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from eventbus.errors import ConfigError, OffsetOutOfRange, SerializationError
from eventbus.types import Record
from spark_sinks import land, verify
from spark_sinks.targets.choose import open_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

T0 = 1_709_251_199_000
PLACE = ("_topic", "_partition", "_offset", "_timestamp")


def orders(count: int, bad: int = 0) -> list[Record]:
    good = [Record(b"k%d" % n, b'{"id": %d, "note": "n"}' % n, (), T0 + n) for n in range(count)]
    return good + [Record(b"bad", b"{", (), T0)] * bad


@pytest.fixture
def landed(spark: SparkSession, log: TestLog, tmp_path: Path) -> Callable[..., Any]:
    def run(transform: Callable[[DataFrame], DataFrame] | None, to: str = "t", **more: Any) -> Any:
        to = to if ":" in to else str(tmp_path / to)
        return land(log.path, "orders", to, schema="id long, note string", transform=transform, spark=spark, **more)

    return run


def selected(*columns: str) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.selectExpr(*columns, *PLACE)


def test_a_column_holds_what_it_held(landed: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", orders(2))
    with pytest.raises(ConfigError, match="column 'note' of transform= has no type: cast it"):
        landed(selected("id", "null AS note"))
    landed(selected("id", "note"))
    log.write("orders", orders(2))
    with pytest.raises(ConfigError, match="column 'id' of transform= is string now, and the table has int64"):
        landed(selected("cast(id AS string) AS id", "note"))
    assert landed(selected("cast(id AS int) AS id", "true AS is_new")).rows == 2
    columns = {field.name: str(field.type) for field in ds.dataset(tmp_path / "t", format="parquet").schema}
    assert columns["id"] == "int64"  # of all files: an int of now is written as what the table has
    for file in (tmp_path / "t").rglob("part-*.parquet"):
        assert str(ds.dataset(file).schema.field("id").type) == "int64"
    assert verify(log.path, "orders", str(tmp_path / "t")).ok


def test_what_upsert_needs_stays_in(landed: Any, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", [*orders(2), Record(b"k0", None, (), T0)])
    to = f"sqlite:///{tmp_path}/shop.db#orders"
    with pytest.raises(ConfigError, match="transform= leaves out _tombstone: upsert= needs"):
        landed(selected("_key", "id"), to, upsert=True)
    landed(lambda rows: rows.drop("note"), to, upsert=True)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        assert database.execute("SELECT id FROM orders").fetchall() == [(1,)]
    database.close()


def test_the_share_of_refused_records_is_one_of_records(landed: Any, log: TestLog) -> None:
    log.write("orders", orders(400, bad=101))
    with pytest.raises(SerializationError, match=r"That is 20\.2% of the batch"):
        landed(lambda rows: rows.selectExpr("*", "explode(sequence(1, 100)) AS n"))
    assert landed(lambda rows: rows.where("id < 5"), quarantine_limit=0.25).rejected == 101


def test_directories_are_not_called_after_bytes(landed: Any, log: TestLog) -> None:
    log.write("orders", orders(2))
    with pytest.raises(ConfigError, match=r"partition_by='_key' cannot be used\."):
        landed(None, partition_by="_key")


def test_a_partition_that_is_gone_is_a_loss(landed: Any, log: TestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_sinks.source.origins import FileOrigin

    for partition in (0, 1):
        log.write("orders", orders(5), partition=partition, partitions=2)
    landed(None)
    log.write("orders", orders(5))
    bounds = FileOrigin.bounds
    monkeypatch.setattr(FileOrigin, "bounds", lambda self: {0: bounds(self)[0]})
    with pytest.raises(OffsetOutOfRange, match=r"orders-1 is to be landed .* from offset 5 on, but the log has 0 to 0"):
        landed(None)
    assert landed(None, fail_on_data_loss=False).rows == 5


def test_a_loss_in_the_midst_is_told_in_our_words(landed: Any, log: TestLog) -> None:
    """The source finds it first, and speaks of checkpoints and options that nobody has set."""
    log.write("orders", orders(30))

    def forget(progress: Any) -> None:
        log.delete_before("orders", 20)

    with pytest.raises(OffsetOutOfRange, match=r"orders-0 is to be landed in .* from offset 10 on.*fail_on_data_loss"):
        landed(None, max_offsets_per_trigger=10, progress=forget)


@pytest.mark.parametrize("to", ["parquet", "delta:", "iceberg:", "sqlite:///"])
def test_a_record_of_which_a_transform_makes_an_unfit_row_goes_to_the_quarantine(
    landed: Any, log: TestLog, tmp_path: Path, to: str
) -> None:
    """Each row of such a record stays out of the table, also those that another task writes; the topic goes on."""
    log.write("orders", orders(4))
    url = f"{to}{tmp_path}/shop.db#orders" if "sqlite" in to else f"{to.removeprefix('parquet')}{tmp_path}/lake/t"

    def transform(rows: DataFrame) -> DataFrame:
        note = "CASE WHEN id = 2 AND n = 3 THEN CAST(X'FF' AS STRING) ELSE note END AS note"
        return (
            rows.selectExpr("*", "explode(sequence(1, 3)) AS n").repartition(3, "n").selectExpr("id", "n", note, *PLACE)
        )

    report = landed(transform, url)
    assert (report.rows, report.rejected, report.lag) == (9, 1, 0)
    target = open_target(url)
    found = [row for batch in target.read(["id"]) for row in batch.column("id").to_pylist()]
    assert sorted(found) == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    (refused,) = (row for batch in target.read_quarantine() for row in batch.to_pylist())
    assert (refused["_offset"], refused["value"]) == (2, b'{"id": 2, "note": "n"}')
    assert refused["error"] == "its 'note' is a text that is not UTF-8"
    assert verify(log.path, "orders", url).ok


def test_a_row_that_a_transform_makes_again_without_its_record_stops_the_landing(landed: Any, log: TestLog) -> None:
    log.write("orders", orders(4))
    with pytest.raises(SerializationError, match=r"orders-0 at offset 2 cannot be landed: .* transform= made the row"):
        landed(lambda rows: rows.selectExpr("CAST(X'FF' AS STRING) AS note", *PLACE[:2], "2L AS _offset", "_timestamp"))


@pytest.mark.parametrize(
    ("keys", "key"), [(b"1212", "_key"), (b"kkkk", "CAST(row.id AS STRING) AS _key")], ids=["keyed by row", "otherwise"]
)
def test_changes_of_rows_are_applied_by_the_key_of_the_row(
    spark: SparkSession, log: TestLog, tmp_path: Path, keys: bytes, key: str
) -> None:
    """The envelope of change data capture: the row before and after a change, and the kind of the change.

    A deletion deletes the rows of its `_key`, so a transform replaces the key of records that have another one.
    """
    values = [
        b'{"op": "c", "after": {"id": 1, "city": "London"}}',
        b'{"op": "c", "after": {"id": 2, "city": "Paris"}}',
        b'{"op": "u", "before": {"id": 1, "city": "London"}, "after": {"id": 1, "city": "Turin"}}',
        b'{"op": "d", "before": {"id": 2, "city": "Paris"}}',
    ]
    log.write("addresses", [Record(keys[n : n + 1], value, (), T0 + n) for n, value in enumerate(values)])

    def unwrap(changes: DataFrame) -> DataFrame:
        rows = changes.selectExpr("*", "coalesce(after, before) AS row")
        return rows.selectExpr("row.id", "row.city", "op = 'd' AS _tombstone", key, *PLACE)

    to = f"sqlite:///{tmp_path}/cdc.db#addresses"
    row = "struct<id: long, city: string>"
    how: Any = {"schema": f"op string, before {row}, after {row}", "key": "text", "upsert": "id", "transform": unwrap}
    landed = land(log.path, "addresses", to, spark=spark, **how)
    assert (landed.rejected, landed.lag) == (0, 0)
    with sqlite3.connect(tmp_path / "cdc.db") as database:
        assert database.execute("SELECT id, city FROM addresses").fetchall() == [(1, "Turin")]
    database.close()
    report = verify(log.path, "addresses", to)
    assert report.ok
    assert "not checked" in report.remarks[0]  # only the transform knows which records have the same key
