"""Readers that are no part of this project read each value of a partition column, if they are given its type.

Spark does the same in tests/spark/live/test_partition_values.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from eventbus import EventBus
from serdes import Avro
from spark_sinks.targets.choose import open_target
from tests.spark.targets.kit import PARTITIONS, land_values
from tests.spark.upkeep.conftest import land_here

pytestmark = pytest.mark.system

_SQL = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "boolean": "BOOLEAN",
    "decimal": "DECIMAL(38, 0)",
    "fraction": "DECIMAL(12, 10)",
    "date": "DATE",
    "instant": "TIMESTAMPTZ",
    "local time": "TIMESTAMP",
}


def _duckdb(directory: Path, name: str) -> Any:
    files = f"'{directory}/**/*.parquet', hive_partitioning = true, hive_types = {{'p': '{_SQL[name]}'}}"
    return duckdb.sql(f"SELECT p FROM read_parquet({files})").to_arrow_table()


def _pandas(directory: Path, name: str) -> Any:
    kind = PARTITIONS[name][0]
    if pa.types.is_decimal(kind):  # pyarrow makes none of the name of a directory
        kind = pa.string()
    partitioning = ds.partitioning(pa.schema([("p", kind)]), flavor="hive")
    frame = pandas.read_parquet(directory, partitioning=partitioning, dtype_backend="pyarrow")
    return pa.Table.from_pandas(frame[["p"]], preserve_index=False)


def _polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed; the extra dev has it")


def _polars_parquet(directory: Path, name: str) -> Any:
    kind, values = PARTITIONS[name]
    types = {"p": _polars().Series(pa.array(values, kind)).dtype}
    files = f"{directory}/**/*.parquet"
    return _polars().read_parquet(files, hive_schema=types, try_parse_hive_dates=False).to_arrow()


def _deltalake(directory: Path, name: str) -> Any:
    return DeltaTable(directory).to_pyarrow_table()


def _polars_delta(directory: Path, name: str) -> Any:
    return _polars().read_delta(str(directory)).to_arrow()


def _table(directory: Path) -> Any:
    catalog = SqlCatalog("default", uri=f"sqlite:///{directory.parent}/catalog.db")
    return catalog.load_table(f"default.{directory.name}")


def _pyiceberg(directory: Path, name: str) -> Any:
    return _table(directory).scan().to_arrow()


def _polars_iceberg(directory: Path, name: str) -> Any:
    return _polars().scan_iceberg(_table(directory)).collect().to_arrow()


READERS = {
    "": (_duckdb, _pandas, _polars_parquet),
    "delta:": (_deltalake, _polars_delta),
    "iceberg:": (_pyiceberg, _polars_iceberg),
}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(("to", "read"), [(to, read) for to, readers in READERS.items() for read in readers])
def test_readers_read_each_value_of_a_partition_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, read: Any, name: str
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else polars warns that another planner is faster
    if (to, name) == ("delta:", "fraction"):
        pytest.skip("such a partition column is refused")
    kind, values = PARTITIONS[name]
    target = open_target(f"{to}{tmp_path}/t")
    land_values(target, kind, values, 0)
    target.close()
    found = read(tmp_path / "t", name)["p"].cast(kind).to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, pa.array(values, kind).to_pylist()))


def test_readers_read_a_column_that_was_int_before_it_was_long(tmp_path: Path) -> None:
    log, to = tmp_path / "log", str(tmp_path / "t")
    for number, kind in enumerate(("int", "long")):
        fields = [{"name": "n", "type": kind}, {"name": "x", "type": "float" if number == 0 else "double"}]
        bus = EventBus(f"file://{log}", serde=Avro("log", schema={"type": "record", "name": "R", "fields": fields}))
        bus.topic("orders", partitions=1)
        with bus.blocking() as blocking:
            blocking.send("orders", {"n": 1 << (30 * number + 1), "x": 0.5})
        assert land_here(str(log), to, registry="log").rows == number + 1
    files = f"{to}/**/*.parquet"
    readers: list[Any] = [
        lambda: duckdb.sql(f"SELECT n, x FROM read_parquet('{files}')").to_arrow_table(),
        lambda: pa.Table.from_pandas(pandas.read_parquet(to)[["n", "x"]], preserve_index=False),
        lambda: ds.dataset(to, partitioning="hive").to_table(["n", "x"]),
        lambda: _polars().read_parquet(files).select("n", "x").to_arrow(),
    ]
    for read in readers:
        assert read().sort_by("n").to_pylist() == [{"n": 2, "x": 0.5}, {"n": 1 << 31, "x": 0.5}]
