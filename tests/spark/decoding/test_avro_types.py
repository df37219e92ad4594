"""What each logical type becomes, at its bounds and beyond; in step and alone."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

from serdes.avro.codec.varint import long_bytes
from serdes.avro.parse import parse
from spark_sinks.decoding.avro.compile import compiled
from spark_sinks.decoding.avro.decoder import one
from spark_sinks.decoding.avro.nodes import BadValue
from spark_sinks.decoding.unite import united
from tests.spark.decoding.avro_records import decoder_of, framed
from tests.spark.decoding.batches import source_batch

pytestmark = pytest.mark.system

UTC = dt.UTC
US, NS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")
DAY_MS, FIRST_MS, LAST_MS = 86_400_000, -62_135_596_800_000, 253_402_300_799_999
UUID = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, "logicalType": name, **more}


def sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


def number(value: int, size: int | None = None) -> bytes:
    length = size or value.bit_length() // 8 + 1
    return value.to_bytes(length, "big", signed=True)


GOOD: list[tuple[Any, pa.DataType, list[tuple[bytes, Any]]]] = [
    (
        logical("int", "date"),
        pa.date32(),
        [
            (long_bytes(-719_162), dt.date.min),
            (long_bytes(0), dt.date(1970, 1, 1)),
            (long_bytes(2_932_896), dt.date.max),
        ],
    ),
    (
        logical("int", "time-millis"),
        pa.time64("us"),
        [(long_bytes(0), dt.time()), (long_bytes(DAY_MS - 1), dt.time(23, 59, 59, 999000))],
    ),
    (
        logical("long", "time-micros"),
        pa.time64("us"),
        [(long_bytes(DAY_MS * 1000 - 1), dt.time(23, 59, 59, 999999)), (long_bytes(1), dt.time(0, 0, 0, 1))],
    ),
    (
        logical("long", "timestamp-millis"),
        US,
        [
            (long_bytes(FIRST_MS), dt.datetime(1, 1, 1, tzinfo=UTC)),
            (long_bytes(-1), dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
            (long_bytes(LAST_MS), dt.datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)),
        ],
    ),
    (
        logical("long", "timestamp-micros"),
        US,
        [
            (long_bytes(LAST_MS * 1000 + 999), dt.datetime.max.replace(tzinfo=UTC)),
            (long_bytes(1), dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        ],
    ),
    (logical("long", "timestamp-nanos"), NS, [(long_bytes(1_000_001_000), dt.datetime(1970, 1, 1, 0, 0, 1, 1, UTC))]),
    (
        logical("long", "local-timestamp-millis"),
        pa.timestamp("us"),
        [(long_bytes(1500), dt.datetime(1970, 1, 1, 0, 0, 1, 500000))],
    ),
    (
        logical("long", "local-timestamp-micros"),
        pa.timestamp("us"),
        [(long_bytes(-1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999))],
    ),
    (
        logical("long", "local-timestamp-nanos"),
        pa.timestamp("ns"),
        [(long_bytes(2000), dt.datetime(1970, 1, 1, 0, 0, 0, 2))],
    ),
    (
        logical("bytes", "decimal", precision=5, scale=2),
        pa.decimal128(5, 2),
        [
            (sized(number(-99999)), decimal.Decimal("-999.99")),
            (sized(number(99999)), decimal.Decimal("999.99")),
            (sized(b""), decimal.Decimal("0.00")),
            (sized(b"\xff" * 40), decimal.Decimal("-0.01")),
            (sized(bytes(30) + b"\x01\x00"), decimal.Decimal("2.56")),
        ],
    ),
    (
        logical("bytes", "decimal", precision=38, scale=0),
        pa.decimal128(38, 0),
        [
            (sized(number(10**38 - 1)), decimal.Decimal(10**38 - 1)),
            (sized(number(1 - 10**38)), decimal.Decimal(1 - 10**38)),
            (sized(number(-(1 << 64))), decimal.Decimal(-(1 << 64))),
            (sized(number(1 << 63)), decimal.Decimal(1 << 63)),
        ],
    ),
    (fixed(9, "decimal", precision=20, scale=20), pa.decimal128(20, 20), [(number(-5, 9), decimal.Decimal("-5e-20"))]),
    (
        logical("bytes", "decimal", precision=50, scale=10),
        pa.string(),
        [(sized(number(123 * 10**30)), "12300000000000000000000.0000000000"), (sized(number(-1)), "-0.0000000001")],
    ),
    (logical("bytes", "big-decimal"), pa.string(), [(sized(sized(number(31415)) + long_bytes(4)), "3.1415")]),
    (logical("string", "uuid"), pa.string(), [(sized(str(UUID).encode()), str(UUID))]),
    (fixed(16, "uuid"), pa.string(), [(UUID.bytes, str(UUID)), (bytes(16), str(uuid.UUID(int=0)))]),
    (
        fixed(12, "duration"),
        pa.struct([("months", pa.int64()), ("days", pa.int64()), ("milliseconds", pa.int64())]),
        [(b"\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff", {"months": 1, "days": 2, "milliseconds": 2**32 - 1})],
    ),
    (logical("int", "no-such-type"), pa.int32(), [(long_bytes(-(1 << 31)), -(1 << 31))]),
]
BAD: list[tuple[Any, list[bytes]]] = [
    (logical("int", "date"), [long_bytes(-719_163), long_bytes(2_932_897), long_bytes(1 << 40)]),
    (logical("int", "time-millis"), [long_bytes(-1), long_bytes(DAY_MS)]),
    (logical("long", "time-micros"), [long_bytes(-1), long_bytes(DAY_MS * 1000)]),
    (logical("long", "timestamp-millis"), [long_bytes(FIRST_MS - 1), long_bytes(LAST_MS + 1), long_bytes(1 << 62)]),
    (logical("long", "timestamp-micros"), [long_bytes(FIRST_MS * 1000 - 1), long_bytes(LAST_MS * 1000 + 1000)]),
    (logical("long", "local-timestamp-millis"), [long_bytes(LAST_MS + 1)]),
    (
        logical("bytes", "decimal", precision=5, scale=2),
        [sized(number(100_000)), sized(number(-100_000)), sized(number(1 << 70)), sized(number(1 << 200))],
    ),
    (
        logical("bytes", "decimal", precision=38),
        [sized(number(10**38)), sized(number(-(10**38))), sized(number((1 << 127) - 1)), sized(number(1 << 128))],
    ),
    (logical("bytes", "decimal", precision=50), [sized(number(10**50))]),
    (logical("bytes", "big-decimal"), [sized(b""), sized(b"\x02"), sized(b"\x02\x01\x00\x00")]),
    (fixed(16, "uuid"), [bytes(15)]),
    (fixed(12, "duration"), [bytes(11)]),
]


def record(kind: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": kind}, {"name": "b", "type": ["null", kind]}],
    }


@pytest.mark.parametrize(("kind", "column", "values"), GOOD, ids=lambda each: str(each)[:40])
def test_logical_types_become_columns(kind: Any, column: pa.DataType, values: list[tuple[bytes, Any]]) -> None:
    schema = record(kind)
    root = compiled(parse(json.dumps(schema)))
    data = [each + b"\x02" + each for each, _ in values] + [each + b"\0" for each, _ in values]
    decoded = decoder_of({1: schema}).rows(source_batch(framed(1, data)))
    decoded.rows.validate(full=True)
    assert decoded.rejected is None
    assert [decoded.rows.schema.field(name).type for name in "ab"] == [column, column]
    expected = [{"a": each, "b": each} for _, each in values] + [{"a": each, "b": None} for _, each in values]
    assert decoded.rows.select(["a", "b"]).to_pylist() == expected
    alone = pa.RecordBatch.from_pylist([one(root, each) for each in data], schema=pa.schema(root.fields))
    assert alone.to_pylist() == expected


@pytest.mark.parametrize(("kind", "values"), BAD, ids=lambda each: str(each)[:40])
def test_values_that_no_column_holds_are_refused(kind: Any, values: list[bytes]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    root = compiled(parse(json.dumps(schema)))
    decoded = decoder_of({1: schema}).rows(source_batch(framed(1, values)))
    assert decoded.rows.num_rows == 0
    assert decoded.rejected is not None
    for value, error in zip(values, decoded.rejected.column("error").to_pylist(), strict=True):
        with pytest.raises(BadValue) as refused:
            one(root, value)
        assert error == f"schema id 1: {refused.value}"


@pytest.mark.parametrize(
    ("schema", "data", "column", "cell"),
    [
        ("long", long_bytes(5), pa.int64(), 5),
        (["null", "string"], b"\0", pa.string(), None),
        ({"type": "array", "items": "int"}, b"\x02\x04\0", pa.list_(pa.field("element", pa.int32())), [2]),
        ({"type": "map", "values": "int"}, b"\x02\x02k\x04\0", pa.map_(pa.string(), pa.int32()), [("k", 2)]),
    ],
)
def test_what_is_no_record_is_one_column(schema: Any, data: bytes, column: pa.DataType, cell: Any) -> None:
    decoded = decoder_of({1: schema}).rows(source_batch(framed(1, [data])))
    assert decoded.rows.schema.field("value").type == column
    assert decoded.rows.column("value").to_pylist() == [cell]


def test_a_record_without_fields_is_a_column_where_it_can_be_absent() -> None:
    failed = named("Failed", {"name": "why", "type": "string"})
    fields = [
        {"name": "always", "type": {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}},
        {"name": "gift", "type": ["null", "Empty"]},
        {"name": "gifts", "type": {"type": "map", "values": "Empty"}},
        {"name": "event", "type": [named("Started"), named("Stopped"), failed]},
        {"name": "id", "type": "int"},
    ]
    data = [b"\0\0\0\2", b"\2\2\2k\0\4\2x\4"]
    rows = decoder_of({1: named("R", *fields)}).rows(source_batch(framed(1, data))).rows.to_pylist()
    names = ("gift", "gifts", "event", "id")
    there, none = {"present": True}, {"Started": None, "Stopped": None, "Failed": None}
    assert [{name: row[name] for name in names} for row in rows] == [
        {"gift": None, "gifts": [], "event": {**none, "Started": there}, "id": 1},
        {"gift": there, "gifts": [("k", there)], "event": {**none, "Failed": {"why": "x"}}, "id": 2},
    ]
    assert "always" not in rows[0]


def test_a_record_that_gets_fields_keeps_its_column() -> None:
    versions = [named("Gift"), named("Gift", {"name": "from", "type": "string"})]
    roots = [compiled(parse(json.dumps(named("R", {"name": "gift", "type": ["null", each]})))) for each in versions]
    before, after = (root.fields[0].type for root in roots)
    assert united(before, after) == pa.struct([("present", pa.bool_()), ("from", pa.string())])


def test_branches_of_one_name_have_their_namespaces() -> None:
    union = [{**named("Sent"), "namespace": "mail"}, {**named("Sent"), "namespace": "post"}]
    rows = decoder_of({1: named("R", {"name": "e", "type": union})}).rows(source_batch(framed(1, [b"\2"]))).rows
    assert rows.column("e").to_pylist() == [{"mail_Sent": None, "post_Sent": {"present": True}}]


def named(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}
