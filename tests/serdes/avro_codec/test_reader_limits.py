"""Nothing is written that the reader of the same schema refuses: such a record would stop its partition."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serdes.avro import Duration
from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.parse import parse
from tests.serdes.avro_codec.generating import schemas, values
from tests.support import examples

pytestmark = pytest.mark.system  # fastavro

LONGS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-(10**6), 10**9)
INTS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-1, 90_000_000)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12)), None])
INSTANTS = st.sampled_from([datetime.min, datetime.max]) | st.datetimes()
MOMENTS = st.builds(lambda one, zone: one.replace(tzinfo=zone), INSTANTS, ZONES)
DECIMALS = st.decimals(allow_nan=True, places=None) | st.sampled_from(
    [Decimal("1E+2000000"), Decimal("1E-2000000"), Decimal("-0.00"), Decimal("1E+9000"), Decimal(10**3999)]
)


def logical(kind: str, base: str, more: st.SearchStrategy[Any], raw: st.SearchStrategy[Any], /, **props: Any) -> Any:
    return {"type": base, "logicalType": kind, **props}, more | raw


LOGICAL = [
    logical("date", "int", st.dates(), INTS),
    logical("time-millis", "int", st.times(), INTS),
    logical("time-micros", "long", st.times(), LONGS),
    *(
        logical(f"{kind}-{unit}", "long", MOMENTS, LONGS)
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
    ),
    logical("decimal", "bytes", DECIMALS, st.binary(max_size=9), precision=4, scale=2),
    logical("decimal", "fixed", DECIMALS, st.binary(min_size=3, max_size=3), name="D", size=3, precision=4, scale=1),
    logical("big-decimal", "bytes", DECIMALS, st.binary(max_size=9)),
    logical("uuid", "string", st.uuids(), st.text(max_size=5) | st.uuids().map(str)),
    logical("uuid", "fixed", st.uuids(), st.binary(min_size=16, max_size=16), name="U", size=16),
    logical("duration", "fixed", st.builds(Duration, INTS, INTS, INTS), st.binary(max_size=13), name="L", size=12),
]


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and a value that may be none of it, alone, in a list, in a map, in a union or in a record."""
    if draw(st.booleans()):
        schema = draw(schemas())
        return schema, draw(values(schema))
    schema, value = draw(st.sampled_from(LOGICAL))
    one = draw(value)
    return draw(
        st.sampled_from(
            [
                (schema, one),
                ({"type": "array", "items": schema}, [one]),
                ({"type": "map", "values": schema}, {"k": one}),
                (["null", schema], one),
                ({"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}, {"a": one}),
            ]
        )
    )


@settings(max_examples=examples(200, 2_000))
@given(written())
def test_what_is_written_can_be_read(case: tuple[Any, Any]) -> None:
    schema, value = case
    node = parse(json.dumps(schema))
    encoder, decoder = Encoder(node, Any), Decoder(node, node, Any)
    try:
        data = encoder.encode(value, b"")
    except Exception as error:
        assert encoder.explain(error).reason
    else:
        read = decoder.decode(data, 0)
        assert encoder.encode(read, b"") == data or "decimal" in str(schema)  # of fewer bytes
        if not any(name in str(schema) for name in ("big-decimal", "duration", "nanos")):  # fastavro has others
            fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


WEST = timezone(timedelta(hours=-12))
NULLS = [{"name": f"f{n}", "type": "null"} for n in range(50)]
NOTHING = {f"f{n}": None for n in range(50)}
TYPED: list[tuple[Any, Any, Any]] = [
    ({"type": "int", "logicalType": "date"}, int, 10**9),
    ({"type": "long", "logicalType": "time-micros"}, int, -1),
    ({"type": "string", "logicalType": "uuid"}, str, "abc"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 2}, bytes, b"\x7f\xff"),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime, datetime.max.replace(tzinfo=WEST)),
    ({"type": "bytes", "logicalType": "big-decimal"}, Decimal, Decimal("1E+2000000")),
    ("int", Annotated[int, msgspec.Meta(ge=0)], -1),
    ({"type": "array", "items": "string"}, list[Annotated[str, msgspec.Meta(max_length=2)]], ["xxx"]),
    ({"type": "map", "values": "int"}, Annotated[dict[str, int], msgspec.Meta(max_length=1)], {"a": 1, "b": 2}),
    (["null", "int"], Annotated[int, msgspec.Meta(lt=5)] | None, 7),
    ({"type": "array", "items": "int"}, list[int], [0] * 1_000_001),
    ({"type": "array", "items": "null"}, list[None], [None] * 10_001),
    ({"type": "array", "items": {"type": "array", "items": "null"}}, list[list[None]], [[None] * 101] * 100),
    ({"type": "array", "items": {"type": "record", "name": "R", "fields": NULLS}}, Any, [NOTHING] * 9_000),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "annotation", "value"), TYPED, ids=lambda one: f"{one!s:.50}")
def test_limits_and_rules_of_a_reader_are_those_of_a_writer(schema: Any, annotation: Any, value: Any) -> None:
    node = parse(json.dumps(schema))
    for kind in (annotation,) if "Meta" in str(annotation) else (annotation, Any):
        encoder = Encoder(node, kind)
        with pytest.raises(Exception) as caught:
            encoder.encode(value, b"")
        assert isinstance(encoder.explain(caught.value), AvroDataError)


def test_python_values_at_the_ends_of_their_types_are_kept() -> None:
    for name, base, value in (
        ("date", "int", date.max), ("date", "int", date.min), ("time-micros", "long", time.max),
        ("timestamp-micros", "long", datetime.max.replace(tzinfo=UTC)),
        ("timestamp-micros", "long", datetime.min.replace(tzinfo=UTC)),
        ("local-timestamp-micros", "long", datetime.max), ("uuid", "string", UUID(int=0)),
        ("big-decimal", "bytes", Decimal("1E+9000")),
    ):  # fmt: skip
        node = parse(json.dumps({"type": base, "logicalType": name}))
        assert Decoder(node, node, type(value)).decode(Encoder(node, type(value)).encode(value, b""), 0) == value
