"""Which changes break a table."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.schema_registry.compatibility.schemas import column, parsed, record
from tests.schema_registry.compatibility.test_avro_java import RECORDED

ALL = ("spark", "delta", "iceberg", "parquet")


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def at(unit: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": f"timestamp-{unit}"}


def entries(key: str) -> dict[str, Any]:
    """A map as tables write it."""
    return {"type": "array", "items": record(column("key", key), column("value", "int"), name="Entry")}


A = column("a", "int")
B = column("b", ["null", "string"], default=None)


def breaks(new: Any, old: Any, targets: tuple[str, ...] = ALL) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.rule, one.where, one.breaks) for one in parsed(new).breaks_tables(parsed(old), targets)]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (record(A, B), record(A)),
        (record(column("a", "long")), record(A)),
        (record(column("a", "double")), record(column("a", "float"))),
        (record(column("a", decimal(12, 2))), record(column("a", decimal(9, 2)))),
        (record(column("a", ["null", "int"])), record(A)),
        (record(column("a", {"type": "enum", "name": "E", "symbols": ["X"]})), record(column("a", "string"))),
        (record(A, name="x.Other"), record(A)),
        (record(column("a", ["null", "int"])), record(column("a", ["int", "null"]))),
        (record(column("a", ["int", "string", "boolean"])), record(column("a", ["int", "string"]))),
    ],
)
def test_what_tables_follow(new: Any, old: Any) -> None:
    assert breaks(new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "rule", "where", "targets"),
    [
        (record(A, column("n", "int", default=0)), record(A), "REQUIRED_FIELD_ADDED", "R.n", ALL),
        (record(A), record(A, B), "FIELD_DELETED", "R.b", ALL),
        (record(B, A), record(A, B), "FIELDS_REORDERED", "R", ("spark", "parquet")),
        (
            record(column("z", "int", aliases=["a"])),
            record(A),
            "FIELD_RENAMED",
            "R.z",
            ("spark", "delta", "parquet"),
        ),
        (record(column("b", "string")), record(column("b", ["null", "string"])), "NULLABLE_TO_REQUIRED", "R.b", ALL),
        (
            record(column("a", "int")),
            record(column("a", "int", default=1)),
            "DEFAULT_REMOVED",
            "R.a",
            ("spark", "delta", "iceberg"),
        ),
        (record(column("m", entries("long"))), record(column("m", entries("string"))), "MAP_KEY_CHANGED", "R.m", ALL),
        (record(column("a", "double")), record(A), "TYPE_CHANGED", "R.a", ALL),
        (record(column("a", "bytes")), record(column("a", "string")), "TYPE_CHANGED", "R.a", ALL),
        (record(column("a", decimal(9, 4))), record(column("a", decimal(9, 2))), "DECIMAL_CHANGED", "R.a", ALL),
        (record(column("a", decimal(7, 2))), record(column("a", decimal(9, 2))), "DECIMAL_CHANGED", "R.a", ALL),
        (record(column("a", at("micros"))), record(column("a", at("millis"))), "LOGICAL_TYPE_CHANGED", "R.a", ALL),
        (
            record(column("a", {"type": "fixed", "name": "F", "size": 8})),
            record(column("a", {"type": "fixed", "name": "F", "size": 4})),
            "FIXED_SIZE_CHANGED",
            "R.a",
            ("iceberg", "parquet"),
        ),
        (record(column("a", ["string", "int"])), record(column("a", ["int", "string"])), "UNION_CHANGED", "R.a", ALL),
        (
            record(A, column("A", ["null", "int"])),
            record(A),
            "NAMES_DIFFER_BY_CASE",
            "R.A",
            ("spark", "delta", "iceberg"),
        ),
        (record(column("r", ["null", "R"])), record(column("r", ["null", "R"])), "RECURSIVE_TYPE", "R.r", ALL),
        (
            record(column("legs", {"type": "array", "items": record(A, column("n", "int"), name="Leg")})),
            record(column("legs", {"type": "array", "items": record(A, name="Leg")})),
            "REQUIRED_FIELD_ADDED",
            "R.legs[].n",
            ALL,
        ),
    ],
)
def test_what_breaks_them(new: Any, old: Any, rule: str, where: str, targets: tuple[str, ...]) -> None:
    assert breaks(new, old) == [(rule, where, targets)]
    found = parsed(new).breaks_tables(parsed(old))[0]
    assert found.explanation.startswith(f"{where}: ")
    assert found.fix


def test_only_the_tables_asked_for_are_named() -> None:
    assert breaks(record(B, A), record(A, B), ("iceberg", "delta")) == []
    assert breaks(record(A), record(A, B), ("delta",)) == [("FIELD_DELETED", "R.b", ("delta",))]
    with pytest.raises(ValueError, match="unknown tables hive: use some of spark, delta, iceberg, parquet"):
        breaks(record(A), record(A), ("hive",))


def test_a_key_that_holds_its_own_type_is_a_column_like_others() -> None:
    entry = record(column("key", ["null", {"type": "array", "items": "Entry"}]), column("value", "int"), name="Entry")
    table = record(column("m", {"type": "array", "items": entry}))
    assert breaks(table, table) == [("RECURSIVE_TYPE", "R.m[].key[]", ALL)]


def test_any_pair_of_schemas_can_be_judged() -> None:
    some = map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines()[:500])
    found = [parsed(json.loads(new)).breaks_tables(parsed(json.loads(old))) for new, old, _ in some]
    assert {one.rule for few in found for one in few} >= {"FIELD_DELETED", "TYPE_CHANGED", "UNION_CHANGED"}
    assert [] in found
