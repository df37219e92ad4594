"""Rows to columns to staged files: the part of a landing that runs in tasks, without Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventbus.errors import ConfigError
from spark_sinks.decoding.columns import RowSchema
from spark_sinks.decoding.schema import arrow_schema, pack_type, unpack_type
from spark_sinks.tasks import (
    NULL_DIRECTORY,
    Report,
    StageWriter,
    WriteTask,
    above,
    directory_value,
    split_by_directory,
)

DAY = dt.datetime(2024, 2, 29, 23, 59, 59, 999000, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"


class Stop(msgspec.Struct):
    name: str
    minutes: int | None = None


class Trip(msgspec.Struct, rename="camel"):
    trip_id: uuid.UUID
    carrier: str
    delay: float | None
    at: dt.datetime
    day: dt.date
    price: decimal.Decimal
    colour: Colour
    level: Literal[1, 2]
    stops: list[Stop]
    labels: dict[str, int]
    late: bool = False
    seats: Annotated[int, msgspec.Meta(ge=0)] = 0


TRIP = Trip(
    uuid.UUID(int=7),
    "AA",
    None,
    DAY,
    dt.date(2024, 1, 2),
    decimal.Decimal("1.50"),
    Colour.RED,
    2,
    [Stop("x")],
    {"a": 1},
)


def source_batch(
    values: list[bytes | None], *, partition: int = 0, first: int = 0, day: dt.datetime = DAY
) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * count,
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array([day] * count, pa.timestamp("us", "UTC")),
        }
    )


def rows_of(schema: Any, values: list[bytes | None]) -> list[dict[str, Any]]:
    rows, bad = RowSchema(schema).decoder().rows(source_batch(values))
    assert bad is None
    assert rows is not None
    return rows.to_pylist()


def test_struct_fields_become_columns_with_their_types() -> None:
    (row,) = rows_of(Trip, [msgspec.json.encode(TRIP)])
    assert row == {
        "tripId": str(TRIP.trip_id),
        "carrier": "AA",
        "delay": None,
        "at": DAY,
        "day": TRIP.day,
        "price": TRIP.price,
        "colour": "red",
        "level": 2,
        "stops": [{"name": "x", "minutes": None}],
        "labels": [("a", 1)],
        "late": False,
        "seats": 0,
        "_key": b"k",
        "_topic": "t",
        "_partition": 0,
        "_offset": 0,
        "_timestamp": DAY,
    }


def test_tombstones_are_rows_of_nulls_and_the_others_keep_their_place() -> None:
    rows = rows_of(Trip, [None, msgspec.json.encode(TRIP), None])
    assert [row["carrier"] for row in rows] == [None, "AA", None]
    assert [row["_offset"] for row in rows] == [0, 1, 2]
    assert rows[0]["stops"] is None


def test_without_a_schema_bytes_stay_bytes_and_null_is_not_empty() -> None:
    rows = rows_of(None, [None, b"", b"\x00\xff"])
    assert [row["value"] for row in rows] == [None, b"", b"\x00\xff"]
    assert rows[0].keys() == {"key", "value", "_topic", "_partition", "_offset", "_timestamp"}


def test_arrow_schema_reads_nullable_columns_as_optional() -> None:
    schema = pa.schema(
        [pa.field("a b", pa.int16()), pa.field("t", pa.timestamp("ms")), pa.field("must", pa.string(), nullable=False)]
    )
    rows = rows_of(schema, [b'{"must": "x", "other": 1}', b'{"must": "y", "a b": 3, "t": "2024-01-01T00:00:00"}'])
    assert [(row["a b"], row["t"], row["must"]) for row in rows] == [
        (None, None, "x"),
        (3, dt.datetime(2024, 1, 1), "y"),
    ]


@pytest.mark.parametrize(
    ("schema", "values", "count", "index", "reason"),
    [
        (Stop, [b'{"name": "a"}', b'{"name": 1}', b"no"], 2, 1, "Expected `str`, got `int` - at `$.name`"),
        (Stop, [b""], 1, 0, "Input data was truncated"),
        (Stop, [b"{}"], 1, 0, "missing required field `name`"),
        (Stop, [b'{"name": "a"}', b'{"name": "\xff"}'], 1, 1, "utf-8"),
        (Stop, [b'{"name": "a"}{"name": "b"}'], 1, 0, "trailing characters"),
        (Trip, [b"[]"], 1, 0, "Expected `object`, got `array`"),
        (pa.schema([("n", pa.int8())]), [b'{"n": 1}', b'{"n": 300}', b'{"n": 301}'], 2, 1, " - at `$.n`"),
        (Stop, [b'{"name": "a", "minutes": 99999999999999999999}'], 1, 0, "minutes"),
    ],
)
def test_rows_that_do_not_fit_are_counted_and_the_first_is_told(
    schema: Any, values: list[bytes | None], count: int, index: int, reason: str
) -> None:
    rows, bad = RowSchema(schema).decoder().rows(source_batch(values))
    assert rows is None
    assert bad is not None
    assert (bad.failed, bad.first) == (count, index)
    assert reason.lower() in bad.reason.lower()


def test_schema_errors_name_the_field() -> None:
    class Odd(msgspec.Struct):
        what: Any

    class Clash(msgspec.Struct):
        offset: int = msgspec.field(name="_offset")

    class Mixed(msgspec.Struct):
        either: int | str

    with pytest.raises(ConfigError, match=r"Odd\.what has no column type"):
        RowSchema(Odd)
    with pytest.raises(ConfigError, match=r"Mixed\.either has no column type"):
        RowSchema(Mixed)
    with pytest.raises(ConfigError, match="column name '_offset' is taken"):
        RowSchema(Clash)
    with pytest.raises(ConfigError, match=r"column 'x' of type .*cannot be read from JSON"):
        RowSchema(pa.schema([("x", pa.duration("s"))]))


def test_struct_types_travel_whole_even_if_nobody_can_import_them() -> None:
    class Local(msgspec.Struct, forbid_unknown_fields=True, rename="upper"):
        a: int
        inner: Stop
        b: list[int] = msgspec.field(default_factory=lambda: [1])

        def __post_init__(self) -> None:
            if self.a > 9:
                raise ValueError("too much")

    again = unpack_type(pack_type(Local))
    assert again is not Local
    assert arrow_schema(again) == arrow_schema(Local)
    assert msgspec.json.decode(b'{"A": 1, "INNER": {"name": "n"}}', type=again).b == [1]
    for wrong in (b'{"A": 1}', b'{"A": 1, "INNER": {"name": "n"}, "C": 2}', b'{"A": 10, "INNER": {"name": "n"}}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=again)


def test_rows_below_the_ledger_are_dropped() -> None:
    batch = source_batch([b"a", b"b", b"c", b"d"], partition=3, first=10)
    assert above(batch, {3: 12, 0: 99}).column("offset").to_pylist() == [12, 13]
    assert above(batch, {5: 99}).num_rows == 4
    assert above(batch, {3: 10}) is batch
    assert above(batch, {3: 14}).num_rows == 0
    assert above(batch, {}) is batch


def test_rows_are_split_by_directory_in_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"m": pa.array([2, 1, None, 2], pa.int64()), "o": ["a/b", "x", "x", "a/b"], "v": [1, 2, 3, 4]}
    )
    parts = {directory: rows.to_pydict() for directory, rows in split_by_directory(batch, ["m", "o"])}
    assert parts == {
        "m=2/o=a%2Fb": {"v": [1, 4]},
        "m=1/o=x": {"v": [2]},
        f"m={NULL_DIRECTORY}/o=x": {"v": [3]},
    }
    assert split_by_directory(batch.slice(0, 0), ["m"]) == []
    assert split_by_directory(batch, []) == [("", batch)]


@pytest.mark.parametrize(
    ("when", "directory"),
    [(DAY, "dt=2024-02-29"), (dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC), "dt=1969-12-31")],
)
def test_default_directory_is_the_day_in_utc(when: dt.datetime, directory: str) -> None:
    rows, _ = RowSchema(None).decoder().rows(source_batch([b"x"], day=when))
    assert rows is not None
    assert [name for name, _ in split_by_directory(rows, ["dt"])] == [directory]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, NULL_DIRECTORY), ("", NULL_DIRECTORY), (True, "true"), (3, "3"), ("a=b", "a%3Db"), ("é x", "%C3%A9 x")],
)
def test_directory_values_are_hives(value: Any, text: str) -> None:
    assert directory_value(value) == text


def test_staged_files_hold_each_row_once_and_have_no_parquet_name(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), RowSchema(Stop), {0: 2}, ["minutes"], "zstd")
    batches = [
        source_batch([b'{"name": "%d", "minutes": %d}' % (n, n % 2) for n in range(low, low + 5)], first=low)
        for low in (0, 5)
    ]
    (answer,) = task(iter(batches))
    reports = [Report(*row.values()) for row in answer.to_pylist()]
    assert [(each.directory, each.rows, each.failed) for each in reports] == [("minutes=0", 4, 0), ("minutes=1", 4, 0)]
    rows = [
        row
        for each in reports
        for row in pq.read_table(pa.BufferReader((tmp_path / each.path).read_bytes())).to_pylist()
    ]
    assert sorted(row["_offset"] for row in rows) == list(range(2, 10))
    assert sorted(row["name"] for row in rows) == [str(n) for n in range(2, 10)]
    assert "minutes" not in rows[0]
    assert {path.suffix for path in tmp_path.iterdir()} == {".staged"}
    assert [each.size_bytes for each in reports] == [(tmp_path / each.path).stat().st_size for each in reports]


def test_a_task_counts_all_rows_that_do_not_fit(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), RowSchema(Stop), {}, [], "zstd")
    bad, good = b'{"name": 0}', b'{"name": "x"}'
    (answer,) = task(
        iter([source_batch([good]), source_batch([good, bad, bad], first=1), source_batch([bad], first=4)])
    )
    reports = [Report(*row.values()) for row in answer.to_pylist()]
    assert [(each.directory, each.failed, each.failed_partition, each.failed_offset) for each in reports] == [
        ("t", 2, 0, 2),
        ("t", 1, 0, 4),
    ]


def test_a_task_without_rows_reports_nothing(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), RowSchema(None), {0: 5}, ["dt"], "zstd")
    assert list(task(iter([source_batch([b"x"])]))) == []
    assert list(tmp_path.iterdir()) == []


def test_too_many_directories_are_a_clear_error(tmp_path: Path) -> None:
    writer = StageWriter(tmp_path, ["n"], "zstd")
    with pytest.raises(ConfigError, match=r"partition_by=\['n'\] makes more than 4000 directories"):
        writer.write(pa.RecordBatch.from_pydict({"n": list(range(4001)), "v": list(range(4001))}))
