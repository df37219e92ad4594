"""Values of every type go into a table and come back; what a database cannot hold is refused with its record."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.shape import coordinate_fields
from spark_sinks.targets.sql import postgresql
from spark_sinks.targets.sql.target import SqlTarget
from spark_sinks.targets.target import Batch, NewTable
from tests.databases import Database
from tests.spark.targets.kit import NOW_MS
from tests.spark.targets.sql.conftest import make_target, write
from tests.support import examples

pytestmark = pytest.mark.system

NAMES = itertools.count()


def pairs_of(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """A map as pyarrow has it; keys in their order, since databases may have one of their own."""
    return sorted(mapping.items())


UTC = dt.UTC
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TIMES = st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint16": (pa.uint16(), st.integers(0, 65_535)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float32": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "float64": (pa.float64(), FLOATS),
    "decimal": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "text": (pa.string(), TEXTS),
    "large": (pa.large_string(), TEXTS),
    "chosen": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=12)),
    "fixed": (pa.binary(4), st.binary(min_size=4, max_size=4)),
    "date": (pa.date32(), st.dates(dt.date(1000, 1, 1))),
    "time": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), TIMES),
    "instant": (pa.timestamp("us", "UTC"), TIMES.map(lambda each: each.replace(tzinfo=UTC))),
    "millis": (pa.timestamp("ms", "Europe/Berlin"), st.integers(0, 2**40)),
    "duration": (pa.duration("us"), st.integers(-(2**50), 2**50)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3)),
    "struct": (
        pa.struct([("at", pa.timestamp("us", "UTC")), ("data", pa.binary()), ("sum", pa.decimal128(10, 2))]),
        st.fixed_dictionaries(
            {
                "at": st.none() | TIMES.map(lambda each: each.replace(tzinfo=UTC)),
                "data": st.none() | st.binary(max_size=4),
                "sum": st.none() | st.decimals(-(10**7), 10**7, places=2),
            }
        ),
    ),
    "map": (pa.map_(pa.string(), pa.float64()), st.dictionaries(TEXTS, st.none() | FLOATS, max_size=3).map(pairs_of)),
    "deep": (
        pa.list_(pa.struct([("tags", pa.map_(pa.int32(), pa.list_(pa.string())))])),
        st.lists(
            st.none()
            | st.fixed_dictionaries(
                {"tags": st.dictionaries(st.integers(0, 9), st.lists(st.none() | TEXTS), max_size=2).map(pairs_of)}
            ),
            max_size=2,
        ),
    ),
}


def tables() -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in KINDS.items()}), min_size=1, max_size=4
    )


def schema_of(**columns: Any) -> pa.Schema:
    return pa.schema([*columns.items(), *coordinate_fields()])


def table_of(schema: pa.Schema, rows: list[dict[str, Any]], first: int = 0) -> pa.Table:
    """Rows with coordinates."""
    at = dt.datetime(2024, 2, 29, tzinfo=UTC)
    placed = [
        {**row, "_topic": "orders", "_partition": 0, "_offset": first + number, "_timestamp": at}
        for number, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(placed, schema)


def landed(database: Database, table: pa.Table, *, name: str = "") -> tuple[SqlTarget, pa.Table]:
    """A new table with these rows, and what is read of it."""
    target = make_target(database.url, name or f"t{next(NAMES)}")
    target.open(NewTable("orders", started={0: 0}), NOW_MS)
    target.commit(Batch({0: table.num_rows}, [write(target, table)], [], table.schema), NOW_MS)
    return target, read(target, table.schema.names)


def read(target: SqlTarget, names: list[str]) -> pa.Table:
    found = pa.Table.from_batches(target.read(names))
    return found.sort_by("_offset") if "_offset" in names else found


def same(found: pa.Table, expected: pa.Table) -> None:
    for name in expected.schema.names:
        assert _sorted_maps(found[name].to_pylist()) == _sorted_maps(expected[name].to_pylist()), name
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in expected.schema.types]
    assert found.schema.types == plain


def _sorted_maps(value: Any) -> Any:
    """PostgreSQL orders the keys of an object by itself."""
    if isinstance(value, list):
        inner = [_sorted_maps(each) for each in value]
        return sorted(inner) if inner and all(isinstance(each, tuple) for each in inner) else inner
    if isinstance(value, dict):
        return {name: _sorted_maps(each) for name, each in value.items()}
    return value


def test_values_of_all_types_come_back(database: Database) -> None:
    schema = schema_of(**{name: kind for name, (kind, _) in KINDS.items()})

    @settings(
        max_examples=examples(20, 40) if database.kind == "sqlite" else examples(6, 12),
        suppress_health_check=list(HealthCheck),
    )
    @given(tables())
    def check(rows: list[dict[str, Any]]) -> None:
        table = table_of(schema, rows)
        target, found = landed(database, table)
        target.close()
        same(found, table)

    check()


EDGES = {
    "timestamp": [dt.datetime(1000, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime.max],
    "time": [dt.time(0), dt.time(23, 59, 59, 999_999)],
    "date": [dt.date(1000, 1, 1), dt.date(1969, 12, 31), dt.date.max],
    "uint64": [2**63, 2**64 - 1],
    "float64": [5e-324, 1.7976931348623157e308, -0.0, 0.1],
    "decimal": [Decimal("-9999999999999999.9999"), Decimal("0.0001")],
    "text": ["", " ", "a ", "NULL", "\\N", '"', "\n", "\r\n", ",", "\t", "%s", "?", ":x", "\U0001f600", "\\"],
    "bytes": [b"", b"\0", b"\\x", b"\xff" * 300],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(database: Database, name: str) -> None:
    table = table_of(schema_of(x=KINDS[name][0]), [{"x": value} for value in [*EDGES[name], None]])
    target, found = landed(database, table)
    target.close()
    same(found, table)


def test_numbers_that_are_none(database: Database) -> None:
    table = table_of(schema_of(x=pa.float64()), [{"x": math.nan}, {"x": None}, {"x": 1.5}])
    target, found = landed(database, table)
    target.close()
    first, *rest = found["x"].to_pylist()
    assert rest == [None, 1.5]
    assert math.isnan(first) if database.kind == "psycopg" else first is None


def test_infinite_numbers(database: Database) -> None:
    table = table_of(schema_of(x=pa.float64()), [{"x": 1.0}, {"x": math.inf}, {"x": -math.inf}])
    if database.kind == "mariadb":
        with pytest.raises(SerializationError, match=r"column 'x' of orders-0 at offset 1: an infinite number"):
            landed(database, table)
        return
    target, found = landed(database, table)
    target.close()
    same(found, table)


FAR_US = {"after": 253_402_300_800_000_000, "long after": 9_000_000_000_000_000_000, "before": -70_000_000_000_000_000}


@pytest.mark.parametrize("name", FAR_US)
def test_far_times(database: Database, name: str) -> None:
    """What a producer that mistakes the unit makes."""
    schema = schema_of(x=pa.timestamp("us", "UTC"))
    table = table_of(schema, [{"x": 0}, {"x": FAR_US[name]}])
    if database.kind != "psycopg":
        with pytest.raises(
            SerializationError, match=r"'x' of orders-0 at offset 1: a time outside .*, which .* cannot"
        ):
            landed(database, table)
        return
    target, found = landed(database, table)
    target.close()
    assert found["x"].cast(pa.int64()).to_pylist() == [0, FAR_US[name]]


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
def test_the_first_and_last_day_of_postgresql(database: Database) -> None:
    days = pa.array([postgresql._YEARS.first_day, postgresql._YEARS.last_day], pa.int32())
    first = days[0].as_py() * 86_400_000_000
    times = pa.array([first, (1 << 63) - 2], pa.int64())
    kinds = {"d": (days, pa.date32()), "t": (times, pa.timestamp("us")), "z": (times, pa.timestamp("us", "UTC"))}
    table = table_of(schema_of(), [{}, {}])
    for name, (values, kind) in kinds.items():
        table = table.append_column(name, values.cast(kind))
    target, found = landed(database, table)
    target.close()
    for name, (values, _) in kinds.items():
        assert found[name].cast(values.type).to_pylist() == values.to_pylist()


@pytest.mark.parametrize(
    ("kind", "values", "bad"),
    [
        (pa.string(), ["a", "b\0c"], "'x' of orders-0 at offset 1: a text with the character U"),
        (pa.list_(pa.string()), [["a\\u0000"], ["\0"]], "'x' of orders-0 at offset 1: a text with the character U"),
    ],
)
def test_character_nul(database: Database, kind: Any, values: list[Any], bad: str) -> None:
    table = table_of(schema_of(x=kind), [{"x": value} for value in values])
    if database.kind == "psycopg":
        with pytest.raises(SerializationError, match=bad):
            landed(database, table)
        table = table.slice(0, 1)
    target, found = landed(database, table)
    target.close()
    same(found, table)


def test_nanoseconds_become_microseconds(database: Database) -> None:
    """And the account says so, since a column of it is what `verify` compares."""
    kinds = {"x": pa.timestamp("ns", "UTC"), "y": pa.timestamp("ns"), "z": pa.time64("ns")}
    columns = {name: pa.array([1_999, -1 if name != "z" else 5_000, None], kind) for name, kind in kinds.items()}
    table = table_of(schema_of(), [{}, {}, {}])
    for name, values in columns.items():
        table = table.append_column(name, values)
    target, found = landed(database, table)
    state = target.state()
    target.close()
    assert state is not None
    assert state.columns() == found.schema
    assert found["x"].cast(pa.int64()).to_pylist() == found["y"].cast(pa.int64()).to_pylist() == [1, 0, None]
    assert found["z"].cast(pa.int64()).to_pylist() == [1, 5, None]


def test_types_that_no_column_has(database: Database) -> None:
    table = table_of(schema_of(x=pa.month_day_nano_interval()), [{"x": None}])
    target = make_target(database.url, "orders")
    target.open(NewTable("orders"), NOW_MS)
    with pytest.raises(ConfigError, match="holds values of the type month_day_nano_interval"):
        target.commit(Batch({0: 1}, [], [], table.schema), NOW_MS)
    target.close()


ODD_NAMES = ["select", "ORDER", "a b", "per%cent", "percent%s", "q?", 'quote"d', "back`tick", "c:olon", "ü", "_", "1"]


def test_names_are_quoted(database: Database) -> None:
    schema = schema_of(**dict.fromkeys(ODD_NAMES, pa.int64()))
    table = table_of(schema, [{name: number for number, name in enumerate(ODD_NAMES)}])
    target, found = landed(database, table, name="table")
    target.close()
    same(found, table)


def test_tables_whose_quarantine_has_no_name(database: Database) -> None:
    if database.kind == "sqlite":
        return
    target = make_target(database.url, "x" * 60)
    with pytest.raises(ConfigError, match="x__quarantine' cannot be a name"):
        target.open(NewTable("orders"), NOW_MS)
    target.close()


WIDER: list[tuple[Any, Any, Any, Any]] = [
    (pa.int32(), pa.int64(), 5, 2**40),
    (pa.int16(), pa.int32(), 5, 70_000),
    (pa.float32(), pa.float64(), 0.5, 0.1),
    (pa.int32(), pa.float64(), 5, 0.25),
    (pa.decimal128(6, 2), pa.decimal128(12, 4), Decimal("1.50"), Decimal("12345678.1234")),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [1], [2**40]),
    (pa.int32(), pa.string(), 5, "007"),
]


@pytest.mark.parametrize(("before", "after", "old", "new"), WIDER, ids=[f"{one}-{two}" for one, two, *_ in WIDER])
def test_columns_widen(database: Database, before: Any, after: Any, old: Any, new: Any) -> None:
    target, _ = landed(database, table_of(schema_of(x=before), [{"x": old}, {"x": None}]))
    wide = schema_of(x=after, y=pa.string())
    table = table_of(wide, [{"x": new, "y": "late"}], first=2)

    def commit() -> None:
        target.commit(Batch({0: 3}, [write(target, table)], [], wide), NOW_MS)

    if database.kind == "sqlite" and after == pa.string():
        with pytest.raises(ConfigError, match=r"'x' of t.* is INTEGER and would have to be TEXT"):
            commit()
        return
    commit()
    was = str(old) if after == pa.string() else old
    assert read(target, ["x", "y", "_offset"])["x"].to_pylist() == [was, None, new]
    assert read(target, ["x", "y", "_offset"])["y"].to_pylist() == [None, None, "late"]
    target.close()


def test_keys_are_told_apart_by_every_byte(database: Database) -> None:
    keys = ["a", "A", "a ", "á", "a\u0301", "", " ", "ß", "ss"]
    columns: list[tuple[Any, Callable[[str], Any]]] = [(pa.string(), str), (pa.binary(), lambda each: each.encode())]
    for kind, make in columns:
        table = table_of(schema_of(x=kind), [{"x": make(key)} for key in keys + keys])
        target = make_target(database.url, f"k{next(NAMES)}")
        target.open(NewTable("orders", upsert=("x",), started={0: 0}), NOW_MS)
        target.commit(Batch({0: 18}, [write(target, table)], [], table.schema), NOW_MS)
        target.commit(Batch({0: 18}, [write(target, table)], [], table.schema), NOW_MS)
        found = read(target, ["x", "_offset"])
        target.close()
        assert found["x"].to_pylist() == [make(key) for key in keys]
        assert found["_offset"].to_pylist() == list(range(9, 18))
