"""Rows that a database cannot hold are found in the task, so that they reach the quarantine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_sinks.shape import LEFT_IN_LOG, coordinate_fields, quarantine_schema
from spark_sinks.targets.sql import postgresql
from spark_sinks.targets.sql.dialect import Dialect
from spark_sinks.targets.sql.limits import SqlLimits
from spark_sinks.targets.sql.mysql import MySqlDialect
from spark_sinks.targets.sql.postgresql import PostgresDialect
from spark_sinks.targets.sql.sqlite import SqliteDialect
from spark_sinks.targets.target import Batch, NewTable
from tests.databases import Database
from tests.spark.targets.kit import NOW_MS
from tests.spark.targets.sql.conftest import make_target, write

pytestmark = pytest.mark.system

FAR = pa.array([0, 10**18], pa.timestamp("us", "UTC"))
TEXT = pa.array(["a", "b\0"])
NESTED = pa.array([{"a": "a"}, {"a": "b\0"}])
NESTED_FAR = pa.array([[0, None], [10**18]], pa.list_(pa.timestamp("us", "UTC")))
INFINITE = pa.array([1.5, float("inf")])


@pytest.mark.parametrize(
    ("dialect", "values", "upsert", "why"),
    [
        (SqliteDialect, FAR, (), "its 'x' is a time outside of the years 1 to 9999, which SQLite cannot hold"),
        (MySqlDialect, FAR, (), "which MySQL cannot hold"),
        (PostgresDialect, FAR, (), None),
        (PostgresDialect, pa.array([0, -(1 << 62)], FAR.type), (), "a time outside of the years 4714 BC to 5874897"),
        (PostgresDialect, pa.array([0, (1 << 31) - 1], pa.date32()), (), "a date outside of the years 4714 BC"),
        (SqliteDialect, NESTED_FAR, (), "a nested time outside of the years 1 to 9999, which SQLite cannot hold"),
        (MySqlDialect, NESTED_FAR, (), "a nested time outside"),
        (PostgresDialect, NESTED_FAR, (), "a nested time outside"),
        (MySqlDialect, INFINITE, (), "an infinite number"),
        (PostgresDialect, INFINITE, (), None),
        (PostgresDialect, TEXT, (), "the character U+0000, which PostgreSQL cannot hold"),
        (PostgresDialect, NESTED, (), "the character U+0000"),
        (SqliteDialect, TEXT, (), None),
        (MySqlDialect, pa.array(["é" * 384, "é" * 385]), ("x",), "a key of more than 384 characters"),
        (MySqlDialect, pa.array([b"k" * 1_536, b"k" * 1_537]), ("x",), "a key of more than 1,536 bytes"),
        (PostgresDialect, pa.array(["é" * 650, "é" * 651]), ("x",), "a key of more than 1,300 bytes"),
        (PostgresDialect, pa.array(["é" * 650, "é" * 651]), (), None),
        (SqliteDialect, pa.array(["k", "k" * 9_999]), ("x",), None),
    ],
)
def test_rows_that_a_database_cannot_hold(
    dialect: type[Dialect], values: Any, upsert: tuple[str, ...], why: str | None
) -> None:
    rows = pa.RecordBatch.from_pydict({"x": values, "_key": pa.array([b"k", b"k"])})
    found = [(mask.tolist(), reason) for mask, reason in SqlLimits(dialect, upsert)(rows)]
    assert [mask for mask, _ in found] == ([] if why is None else [[False, True]])
    assert all(why in reason for _, reason in found if why is not None)


def test_rows_that_are_too_long_for_a_statement_are_named_by_their_longest_column() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"a": ["x" * 40, "x" * 101, "x", None], "b": [b"y" * 60, b"", None, b"y"], "c": [[], [], ["z" * 99], None]}
    )
    limits = SqlLimits(MySqlDialect, (), longest_bytes=100)
    assert [(mask.tolist(), reason[:8]) for mask, reason in limits(rows)] == [
        ([False, True, False, False], "its 'a' "),
        ([True, False, False, False], "its 'b' "),
        ([False, False, True, False], "its 'c' "),
    ]
    assert next(limits(rows))[1].endswith("of more than 100 bytes, which MySQL cannot take in one statement")
    assert list(SqlLimits(MySqlDialect, ())(rows)) == []


def test_a_nested_value_that_jsonb_may_be_too_small_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digit takes two bytes as JSON and twelve in jsonb, which has 28 bits for the size of a container."""
    monkeypatch.setattr(postgresql, "_JSONB_BYTES", 3_000)
    rows = pa.RecordBatch.from_pydict({"x": pa.array([[1] * 100, [1] * 200, None, []])})
    found = [(mask.tolist(), reason) for mask, reason in SqlLimits(PostgresDialect, ())(rows)]
    why = "its 'x' is a nested value that may exceed 3,000 bytes of jsonb, which PostgreSQL cannot hold"
    assert found == [([False, True, False, False], why)]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_record_that_is_too_long_for_a_statement_waits_without_its_bytes(database: Database) -> None:
    """It would break the connection at each try, in the table and in the quarantine."""
    target = make_target(database.url, "orders", wait=lambda _: None, patience_s=0)
    longest = target.limits(()).longest_bytes
    with database.engine.connect() as connection:
        packet = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    assert packet // 4 <= longest < packet // 2
    target.open(NewTable("orders"), NOW_MS)
    columns = pa.schema([("x", pa.string()), *coordinate_fields()])
    fits = pa.Table.from_pylist([{"x": "\\" * (longest - 100), "_partition": 0, "_offset": 0}], columns)
    refused = [
        {"_partition": 0, "_offset": 1, "key": b"k", "value": b"\0" * (packet + 1), "error": "too long"},
        {"_partition": 0, "_offset": 2, "key": b"l", "value": b"?", "error": "no"},
    ]
    rejected = pa.Table.from_pylist(refused, quarantine_schema())
    target.commit(Batch({0: 3}, [write(target, fits)], [write(target, rejected)], columns), NOW_MS)
    assert [len(text) for batch in target.read(["x"]) for text in batch.column("x").to_pylist()] == [longest - 100]
    found = [row for batch in target.read_quarantine() for row in batch.to_pylist()]
    target.close()
    assert sorted((row["_offset"], row["key"], row["value"], row["error"]) for row in found) == [
        (1, b"k", b"", f"too long{LEFT_IN_LOG}"),
        (2, b"l", b"?", "no"),
    ]
