"""JSON values to columns: types, refused rows, and plans that travel."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pickle
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.decoding.choose import open_values
from spark_sinks.decoding.schema import arrow_schema, pack_type, unpack_type
from spark_sinks.decoding.values import Decoded, ValueSettings
from spark_sinks.shape import quarantine_schema
from tests.spark.decoding.batches import DAY, source_batch

pytestmark = pytest.mark.system


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


def decoded(schema: Any, values: list[bytes | None], **settings: Any) -> Decoded:
    keys = settings.pop("keys", None)
    plan = open_values(ValueSettings("t", schema=schema, **settings), url="file:///nowhere").plan(None)
    result = pickle.loads(pickle.dumps(plan)).decoder().rows(source_batch(values, keys=keys))
    assert result.rows.schema == plan.columns
    assert result.unknown == frozenset()
    return result


def rows_of(schema: Any, values: list[bytes | None], **settings: Any) -> list[dict[str, Any]]:
    result = decoded(schema, values, **settings)
    assert result.rejected is None
    return result.rows.to_pylist()


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
    rows = rows_of(Trip, [None, msgspec.json.encode(TRIP), None], tombstones=True)
    assert [row["carrier"] for row in rows] == [None, "AA", None]
    assert [row["_offset"] for row in rows] == [0, 1, 2]
    assert [row["_tombstone"] for row in rows] == [True, False, True]
    assert rows[0]["stops"] is None


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
    ("schema", "values", "bad", "reason"),
    [
        (Stop, [b'{"name": "a"}', b'{"name": 1}', b"no"], [1, 2], "Expected `str`, got `int` - at `$.name`"),
        (Stop, [b""], [0], "Input data was truncated"),
        (Stop, [b"{}"], [0], "missing required field `name`"),
        (Stop, [b'{"name": "a"}', b'{"name": "\xff"}'], [1], "utf-8"),
        (Stop, [b'{"name": "a"}{"name": "b"}'], [0], "trailing characters"),
        (Trip, [b"[]"], [0], "Expected `object`, got `array`"),
        (pa.schema([("n", pa.int8())]), [b'{"n": 1}', b'{"n": 300}', b"no", b'{"n": 301}'], [1, 2, 3], " - at `$.n`"),
        (Stop, [b'{"name": "a", "minutes": 99999999999999999999}'], [0], "minutes"),
        (Stop, [b'\0\0\0\0\7{"name": "a"}', b'\0\0\0\0\7{"name": 1}', b"\0\0\0"], [1, 2], "$.name"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_the_others_stay(
    schema: Any, values: list[bytes | None], bad: list[int], reason: str
) -> None:
    result = decoded(schema, values)
    assert result.rows.column("_offset").to_pylist() == [row for row in range(len(values)) if row not in bad]
    assert result.rejected is not None
    assert result.rejected.schema == quarantine_schema()
    refused = result.rejected.to_pylist()
    assert [(row["_offset"], row["value"], row["key"]) for row in refused] == [(row, values[row], b"k") for row in bad]
    assert reason.lower() in refused[0]["error"].lower()


def test_the_frame_of_a_json_schema_serializer_is_taken_off_and_its_id_is_told() -> None:
    guid = b"\1" + bytes(16)
    rows = rows_of(Stop, [b'\0\0\0\0\7{"name": "a"}', b'{"name": "b"}', guid + b'{"name": "c"}'])
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    rejected = decoded(Stop, [b'\0\0\0\0\7{"name": 1}', b"[]"]).rejected
    assert rejected is not None
    assert rejected.column("schema_id").to_pylist() == [7, None]


def test_a_key_that_is_no_text_is_refused_only_where_text_was_asked_for() -> None:
    keys = [b"\xff", b"good", None]
    values: list[bytes | None] = [b'{"name": "a"}'] * 3
    assert [row["_key"] for row in rows_of(Stop, values, keys=keys)] == keys
    result = decoded(Stop, values, keys=keys, key="text")
    assert result.rows.column("_key").to_pylist() == ["good", None]
    assert result.rejected is not None
    assert result.rejected.column("error").to_pylist() == ["the key is no UTF-8: invalid start byte at its byte 0"]


@pytest.mark.parametrize("schema", [Stop, None])
def test_an_empty_batch_is_an_empty_batch(schema: Any) -> None:
    assert decoded(schema, []).rows.num_rows == 0


def test_sliced_and_large_columns_are_read_where_they_begin() -> None:
    values: list[bytes | None] = [b'{"name": "%d"}' % n for n in range(5)]
    batch = source_batch(values)
    decoder = open_values(ValueSettings("t", schema=Stop), url="x").plan(None).decoder()
    assert decoder.rows(batch.slice(2, 2)).rows.column("name").to_pylist() == ["2", "3"]
    large = batch.set_column(1, "value", batch.column("value").cast(pa.large_binary()))
    assert decoder.rows(large).rows.equals(decoder.rows(batch).rows)


def test_the_table_s_columns_stay_and_are_widened() -> None:
    class Now(msgspec.Struct):
        n: int
        more: str = ""

    table = pa.schema([("gone", pa.bool_()), ("n", pa.int32())])
    plan = open_values(ValueSettings("t", schema=Now), url="x").plan(table)
    assert plan.columns.names[:3] == ["gone", "n", "more"]
    assert plan.columns.field("n").type == pa.int64()
    (row,) = plan.decoder().rows(source_batch([b'{"n": 5, "more": "x"}'])).rows.to_pylist()
    assert (row["gone"], row["n"], row["more"]) == (None, 5, "x")
    again = open_values(ValueSettings("t", schema=Now), url="x").plan(plan.columns)
    assert again.columns == plan.columns


def test_a_type_that_the_table_cannot_hold_is_refused_or_gets_a_column_of_its_own() -> None:
    table = pa.schema([("name", pa.bool_())])
    with pytest.raises(SerializationError, match="field name: the column name is bool, and the schema says string"):
        open_values(ValueSettings("t", schema=Stop), url="x").plan(table)
    plan = open_values(ValueSettings("t", schema=Stop, on_incompatible="new_column"), url="x").plan(table)
    (row,) = plan.decoder().rows(source_batch([b'{"name": "x"}'])).rows.to_pylist()
    assert (row["name"], row["name__string"]) == (None, "x")


def test_schema_errors_name_the_field() -> None:
    class Odd(msgspec.Struct):
        what: Any

    class Clash(msgspec.Struct):
        offset: int = msgspec.field(name="_offset")

    class Mixed(msgspec.Struct):
        either: int | str

    for schema, message in (
        (Odd, r"Odd\.what has no column type"),
        (Mixed, r"Mixed\.either has no column type"),
        (Clash, "column name '_offset' is taken"),
        (pa.schema([("x", pa.duration("s"))]), r"column 'x' of type .*cannot be read from JSON"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_values(ValueSettings("t", schema=schema), url="x")


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


@pytest.mark.parametrize(
    "value", [b'{"x":' * 5_000 + b"1" + b"}" * 5_000, b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"]
)
def test_a_value_that_nests_too_deep_is_refused_alone(value: bytes) -> None:
    """Also in a field that is no column."""
    found = decoded(pa.schema([("a", pa.int64())]), [b'{"a":1}', value, b'{"a":2}'])
    assert found.rows.column("a").to_pylist() == [1, 2]
    assert found.rejected is not None
    assert found.rejected.column("error").to_pylist() == ["values nest too deep"]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.float32(), b"3e38", [b"4e38", b"-1e300"]),
        (pa.list_(pa.float32()), b"[1, 3e38]", [b"[1, 4e38]"]),
        (pa.struct([("x", pa.float32())]), b'{"x":1}', [b'{"x":4e38}']),
        (pa.map_(pa.string(), pa.float32()), b'{"x":1}', [b'{"x":4e38}']),
        (
            pa.timestamp("us", "UTC"),
            b'"0001-01-01T00:00:00Z"',
            [b'"0001-01-01T00:00:00+14:00"', b'"9999-12-31T23:59:59-00:01"'],
        ),
        (pa.timestamp("ms"), b'"9999-12-31T23:59:59.999Z"', [b'"9999-12-31T23:59:59-14:00"']),
    ],
)
def test_no_value_is_bent_to_fit_its_column(kind: pa.DataType, good: bytes, bad: list[bytes]) -> None:
    """A float becomes infinite, and a time that is put into UTC leaves the years that tables have."""
    found = decoded(pa.schema([("a", kind)]), [b'{"a":%s}' % each for each in (good, *bad, good, b"null")])
    assert found.rows.column("_offset").to_pylist() == [0, len(bad) + 1, len(bad) + 2]
    assert found.rejected is not None
    assert set(found.rejected.column("error").to_pylist()) == {f"out of the range of {kind} - at `$.a`"}
