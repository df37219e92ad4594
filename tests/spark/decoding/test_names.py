"""One rule for the names of columns, at every depth. What each kind of table and its readers make of them is in the kit
of the targets: `test_each_field_has_a_column_whatever_its_name`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from eventbus.errors import ConfigError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.unite import Columns, conform, united
from spark_sinks.decoding.values import ValueSettings
from spark_sinks.names import IN_DATABASES, IN_FILES, NameRule, check_names, field_of, fields_of, fold

pytestmark = pytest.mark.system

INT, TEXT = pa.int64(), pa.string()
BOTH = pa.struct([("id", INT), ("ID", INT)])
WRAPS: list[Callable[[Any], Any]] = [lambda kind: kind, pa.list_, lambda kind: pa.map_(TEXT, kind)]


@pytest.mark.parametrize(
    ("rule", "name", "usable"),
    [
        (IN_FILES, 'a.b `c` "d" select', 'a.b `c` "d" select'),
        (IN_FILES, "nul\0", "nul_"),
        (IN_FILES, "", "_"),
        (IN_FILES, "x" * 255, "x" * 255),
        (IN_FILES, "x" * 256, "x" * 245 + "__1b5d1bd9"),
        (IN_DATABASES, "é" * 31, "é" * 31),
        (IN_DATABASES, "é" * 32, "é" * 26 + "__2aeb7e31"),
        (IN_DATABASES, "😀 end  ", "_ end__"),
        (IN_DATABASES, "xmin", "xmin__value"),
        (IN_FILES, "xmin", "xmin"),
    ],
)
def test_a_name_that_no_column_can_have_becomes_the_nearest_one(rule: NameRule, name: str, usable: str) -> None:
    found = rule.usable(name)
    assert len(found.encode()) <= rule.longest_bytes
    assert (found[:-8], len(found)) == (usable[:-8], len(usable)) if "__" in usable else found == usable
    assert rule.usable(found) == found
    others = {fold(found)}
    for number in range(2, 20):
        again = rule.free(name, others)
        assert again.endswith(f"__{number}")
        assert len(again.encode()) <= rule.longest_bytes
        others.add(fold(again))
    assert len(others) == 19


def test_fields_keep_their_columns_when_a_later_schema_has_them_in_another_order() -> None:
    columns = Columns([])
    assert columns.add([("id", INT), ("ID", INT), ("dt", INT)], new_column=False) == ("id", "ID__2", "dt__value")
    assert columns.add([("dt", INT), ("ID", INT), ("iD", INT), ("id", INT)], new_column=False) == (
        *("dt__value", "ID__2", "iD__3", "id"),
    )
    again = Columns(columns.fields())
    assert again.add([("ID", INT)], new_column=False) == ("ID__2",)
    assert again.add([("ID", TEXT)], new_column=True) == ("ID__string",)
    assert Columns(again.fields()).add([("ID", TEXT)], new_column=True) == ("ID__string",)
    assert [field_of(each) for each in again.fields()] == ["id", "ID", "dt", "iD", "ID"]


@pytest.mark.parametrize("wrap", WRAPS)
def test_fields_within_values_keep_theirs(wrap: Callable[[Any], Any]) -> None:
    columns = Columns([])
    columns.add([("s", wrap(BOTH))], new_column=False)
    columns.add([("s", wrap(pa.struct([("ID", INT), ("Id", INT), ("id", INT)])))], new_column=False)
    kind = columns.fields()[0].type
    assert fields_of(pa.schema(columns.fields())).field("s").type == wrap(pa.struct([*BOTH, ("Id", INT)]))

    def wrapped(value: dict[str, int]) -> Any:
        return value if wrap is WRAPS[0] else [value] if wrap is pa.list_ else [("k", value)]

    found = conform(pa.array([wrapped({"ID": 2, "id": 1})], wrap(pa.struct([("ID", INT), ("id", INT)]))), kind)
    found.validate(full=True)
    assert found.to_pylist() == [wrapped({"id": 1, "ID__2": 2, "Id__3": None})]


def test_a_field_that_only_changes_its_case_keeps_its_column() -> None:
    before, after = pa.struct([("id", pa.int32())]), pa.struct([("ID", INT)])
    assert united(before, after) == pa.struct([("id", INT)])
    assert conform(pa.array([{"ID": 7}], after), pa.struct([("id", INT)])).to_pylist() == [{"id": 7}]


@pytest.mark.parametrize("wrap", WRAPS)
def test_names_that_a_transform_makes_are_refused_with_a_better_one(wrap: Callable[[Any], Any]) -> None:
    for columns in (pa.schema([*BOTH]), pa.schema([("s", wrap(BOTH))])):
        with pytest.raises(ConfigError, match=r"Columns '.*id' and '.*ID' differ in case only"):
            check_names(columns, IN_DATABASES)
    with pytest.raises(ConfigError, match=r"cannot have the name 'ctid'.* for instance to 'ctid__value'"):
        check_names(pa.schema([("ctid", INT)]), IN_DATABASES)
    with pytest.raises(ConfigError, match=r"cannot have the name 's\..*nul"):
        check_names(pa.schema([("s", wrap(pa.struct([("nul\0", INT)])))]), IN_FILES)
    check_names(pa.schema([("ctid", INT), ("s", wrap(pa.struct([("n" * 255, INT)])))]), IN_FILES)


def test_a_name_that_json_cannot_be_read_by_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read from JSON\..*read the values as text"):
        open_values(ValueSettings("t", schema=pa.schema([('a"b', INT)])), url="file:///nowhere")
