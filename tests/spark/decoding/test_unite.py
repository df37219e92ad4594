"""One set of columns for schemas that differ."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_sinks.decoding.unite import Columns, Conflict, conform, united

pytestmark = pytest.mark.system

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT, BYTES, US, MS = pa.string(), pa.binary(), pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")


def struct(**fields: Any) -> pa.DataType:
    return pa.struct([*fields.items()])


@pytest.mark.parametrize(
    ("column", "kind", "both"),
    [
        (INT, INT, INT),
        (INT, LONG, LONG),
        (LONG, INT, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (DOUBLE, FLOAT, DOUBLE),
        (DOUBLE, INT, DOUBLE),
        (INT, DOUBLE, None),
        (DOUBLE, LONG, None),
        (FLOAT, INT, None),
        (BYTES, TEXT, BYTES),
        (TEXT, BYTES, None),
        (INT, TEXT, None),
        (TEXT, INT, None),
        (pa.bool_(), INT, None),
        (INT, pa.bool_(), None),
        (LONG, US, None),
        (US, LONG, None),
        (INT, pa.date32(), None),
        (LONG, pa.time64("us"), LONG),
        (INT, pa.time64("us"), None),
        (pa.time64("us"), LONG, None),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(12, 2), pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.decimal128(12, 2), pa.decimal128(12, 3), None),
        (pa.decimal128(12, 2), INT, None),
        (MS, US, MS),
        (US, pa.timestamp("ns", "UTC"), US),
        (US, pa.timestamp("us"), None),
        (pa.timestamp("us", "+00:00"), US, pa.timestamp("us", "+00:00")),
        (pa.time32("ms"), pa.time64("us"), pa.time32("ms")),
        (pa.large_string(), TEXT, pa.large_string()),
        (pa.dictionary(INT, TEXT), TEXT, pa.dictionary(INT, TEXT)),
        (pa.binary(16), BYTES, BYTES),
        (struct(a=INT), struct(b=TEXT, a=LONG), struct(a=LONG, b=TEXT)),
        (struct(a=INT, b=TEXT), struct(a=INT), struct(a=INT, b=TEXT)),
        (struct(a=INT), struct(a=TEXT), None),
        (struct(a=INT), INT, None),
        (pa.list_(INT), pa.list_(pa.field("element", LONG)), pa.list_(pa.field("element", LONG))),
        (pa.list_(LONG), pa.list_(pa.field("element", INT)), pa.list_(LONG)),
        (pa.list_(INT), pa.list_(TEXT), None),
        (pa.map_(TEXT, INT), pa.map_(TEXT, LONG), pa.map_(TEXT, LONG)),
        (pa.map_(TEXT, INT), pa.map_(TEXT, TEXT), None),
        (pa.map_(TEXT, INT), pa.list_(INT), None),
    ],
)
def test_what_a_column_can_come_to_hold(column: pa.DataType, kind: pa.DataType, both: pa.DataType | None) -> None:
    assert united(column, kind) == both


@pytest.mark.parametrize(
    ("values", "kind", "target", "cells"),
    [
        ([1, None], INT, LONG, [1, None]),
        ([1, None], INT, DOUBLE, [1.0, None]),
        (["ä", None], TEXT, BYTES, ["ä".encode(), None]),
        (["ä", None], TEXT, pa.large_string(), ["ä", None]),
        (["ä", None], TEXT, pa.dictionary(INT, TEXT), ["ä", None]),
        ([{"a": 1}, None], struct(a=INT), struct(b=TEXT, a=LONG), [{"b": None, "a": 1}, None]),
        ([[1], None, []], pa.list_(INT), pa.list_(pa.field("element", LONG)), [[1], None, []]),
        ([[1], None, []], pa.list_(pa.field("element", INT)), pa.list_(LONG), [[1], None, []]),
        ([[("k", 1)], None], pa.map_(TEXT, INT), pa.map_(TEXT, LONG), [[("k", 1)], None]),
        ([1_999], pa.timestamp("us"), pa.timestamp("ms"), [1]),
        ([1_999], pa.time64("us"), LONG, [1_999]),
        (
            [[{"a": 1}, None]],
            pa.list_(pa.field("element", struct(a=INT))),
            pa.list_(pa.field("element", struct(a=LONG, b=TEXT))),
            [[{"a": 1, "b": None}, None]],
        ),
    ],
)
def test_values_are_brought_into_the_column(values: Any, kind: Any, target: Any, cells: Any) -> None:
    found = conform(pa.array(values, kind), target)
    found.validate(full=True)
    assert found.type == target
    if pa.types.is_timestamp(target):
        found = found.cast(LONG)
    assert found.to_pylist() == cells


def test_columns_are_in_the_order_in_which_they_were_met() -> None:
    columns = Columns([pa.field("z", INT)])
    assert columns.add([("a", INT), ("z", LONG)], new_column=False) == ("a", "z")
    assert columns.add([("b", TEXT), ("a", INT)], new_column=False) == ("b", "a")
    assert [(field.name, field.type) for field in columns.fields()] == [("z", LONG), ("a", INT), ("b", TEXT)]


def test_a_conflict_changes_nothing_and_says_what_differs() -> None:
    columns = Columns([pa.field("a", INT)])
    found = columns.add([("new", TEXT), ("a", TEXT)], new_column=False)
    assert isinstance(found, Conflict)
    assert str(found) == "field a: the column a is int32, and the schema says string"
    assert [field.name for field in columns.fields()] == ["a"]


def test_a_conflict_may_get_a_column_of_its_own_and_finds_it_again() -> None:
    columns = Columns([pa.field("a", INT)])
    kinds = [TEXT, DOUBLE, US, pa.timestamp("us"), pa.decimal128(5, 2), struct(x=INT), struct(x=TEXT), pa.list_(INT)]
    names = [columns.add([("a", kind)], new_column=True) for kind in kinds]
    assert names == [
        ("a__string",),
        ("a__double",),
        ("a__timestamp",),
        ("a__local_timestamp",),
        ("a__decimal_5_2",),
        ("a__struct",),
        ("a__struct__2",),
        ("a__list",),
    ]
    assert [columns.add([("a", kind)], new_column=True) for kind in kinds] == names
    assert columns.add([("a", LONG)], new_column=True) == ("a",)


def test_names_that_the_table_needs_itself_are_moved_aside() -> None:
    columns = Columns([])
    names = ("_topic", "_partition", "_offset", "_timestamp", "_key", "_tombstone", "dt", "DT", "value", "key")
    assert columns.add([(name, INT) for name in names], new_column=False) == (
        "_topic__value", "_partition__value", "_offset__value", "_timestamp__value", "_key__value",
        "_tombstone__value", "dt__value", "DT__value__2", "value", "key",
    )  # fmt: skip


def test_names_that_differ_by_case_alone_are_one_column_in_two_schemas_and_two_in_one() -> None:
    columns = Columns([])
    assert columns.add([("Id", INT)], new_column=False) == ("Id",)
    assert columns.add([("id", INT)], new_column=False) == ("Id",)
    assert columns.add([("id", INT), ("ID", TEXT)], new_column=False) == ("Id", "ID__2")
