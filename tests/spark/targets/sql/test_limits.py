"""Rows that a database cannot hold are found in the task, so that they reach the quarantine. No database."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_sinks.targets.sql.dialect import Dialect
from spark_sinks.targets.sql.limits import SqlLimits
from spark_sinks.targets.sql.mysql import MySqlDialect
from spark_sinks.targets.sql.postgresql import PostgresDialect
from spark_sinks.targets.sql.sqlite import SqliteDialect

pytestmark = pytest.mark.system

FAR = pa.array([0, 10**18], pa.timestamp("us", "UTC"))
TEXT = pa.array(["a", "b\0"])
NESTED = pa.array([{"a": "a"}, {"a": "b\0"}])
INFINITE = pa.array([1.5, float("inf")])


@pytest.mark.parametrize(
    ("dialect", "values", "upsert", "why"),
    [
        (SqliteDialect, FAR, (), "its 'x' is a time outside of the years 1 to 9999, which SQLite cannot hold"),
        (MySqlDialect, FAR, (), "which MySQL cannot hold"),
        (PostgresDialect, FAR, (), None),
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
