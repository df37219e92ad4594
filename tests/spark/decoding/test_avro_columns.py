"""Avro in step, against what was written, fastavro and the same record read alone; sound and damaged."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from serdes.avro.codec.varint import long_bytes
from serdes.avro.parse import parse
from spark_sinks.decoding.avro.compile import compiled
from spark_sinks.decoding.avro.decoder import one
from spark_sinks.decoding.avro.nodes import BadValue
from tests.spark.decoding.avro_records import Maker, decoder_of, framed
from tests.spark.decoding.batches import source_batch

pytestmark = pytest.mark.system

COORDINATES = {"_key", "_topic", "_partition", "_offset", "_timestamp"}


def cells(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: cell for name, cell in row.items() if name not in COORDINATES} for row in batch.to_pylist()]


def seeds(quick: int, all: int) -> list[Any]:
    return [pytest.param(seed, marks=[pytest.mark.slow] if seed >= quick else []) for seed in range(all)]


@pytest.mark.parametrize("seed", seeds(16, 300))
def test_every_value_of_any_schema_comes_out_as_it_was_written(seed: int) -> None:
    maker = Maker(seed)
    schemas = {seed + 1: maker.record(), 70_000 + seed: maker.record(3)}
    decoder = decoder_of(schemas)
    names = [name for name in decoder.rows(source_batch([])).rows.schema.names if name not in COORDINATES]
    values: list[bytes | None] = []
    expected: list[dict[str, Any]] = []
    for _ in range(60):
        if maker.random.random() < 0.1:
            values.append(None)
            expected.append(dict.fromkeys(names))
            continue
        schema_id = maker.random.choice([*schemas])
        datum = maker.datum(schemas[schema_id])
        stream = io.BytesIO(datum.data)
        assert fastavro.schemaless_reader(stream, schemas[schema_id]) == datum.plain
        assert stream.tell() == len(datum.data)
        values += framed(schema_id, [datum.data])
        expected.append({**dict.fromkeys(names), **(datum.cell or {})})
    batch = source_batch(values)
    decoded = decoder.rows(batch)
    decoded.rows.validate(full=True)
    assert decoded.rejected is None
    assert cells(decoded.rows) == expected
    assert decoded.rows.column("_offset").to_pylist() == list(range(60))
    large = batch.set_column(1, "value", batch.column("value").cast(pa.large_binary()))
    assert decoder.rows(large).rows.equals(decoded.rows)
    for part in (batch.slice(7, 20), large.slice(59), batch.slice(60)):
        first = len(batch) - len(part) if part.num_rows < 20 else 7
        assert cells(decoder.rows(part).rows) == expected[first : first + len(part)]


@pytest.mark.parametrize("seed", seeds(12, 200))
def test_damage_anywhere_is_refused_or_is_another_sound_record(seed: int) -> None:
    """In step as alone; and what is accepted is what fastavro reads from the same bytes, to their end."""
    maker = Maker(1000 + seed)
    schema = maker.record(5, 2)
    datum = maker.datum(schema).data
    other = maker.datum(schema).data
    damaged = [datum[:at] for at in range(len(datum))] + [datum + b"\0", datum + other, b""]
    for at in range(len(datum)):
        others = {maker.random.randrange(256), 0, 1, 0x7F, 0x80, 0xFF, datum[at] ^ 1}
        damaged += [datum[:at] + bytes([byte]) + datum[at + 1 :] for byte in others]
        damaged.append(datum[:at] + datum[at + 1 :])
        damaged.append(datum[:at] + b"\xff" * 9 + b"\x01" + datum[at + 1 :])
    maker.random.shuffle(damaged)
    decoded = decoder_of({5: schema}).rows(source_batch(framed(5, damaged)))
    decoded.rows.validate(full=True)
    root = compiled(parse(json.dumps(schema)))
    accepted = dict(zip(decoded.rows.column("_offset").to_pylist(), cells(decoded.rows), strict=True))
    for row, data in enumerate(damaged):
        try:
            alone = pa.RecordBatch.from_pylist([one(root, data)], schema=pa.schema(root.fields)).to_pylist()[0]
        except BadValue:
            assert row not in accepted, data
            continue
        assert repr(accepted[row]) == repr(alone)  # as text: nan is not itself
        stream = io.BytesIO(data)
        fastavro.schemaless_reader(stream, schema)
        assert stream.tell() == len(data)
    if decoded.rejected is not None:
        assert decoded.rejected.num_rows == len(damaged) - len(accepted)
        assert set(decoded.rejected.column("schema_id").to_pylist()) == {5}
        assert None not in decoded.rejected.column("error").to_pylist()


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in zip("abc", types, strict=False)]
    return {"type": "record", "name": "R", "fields": fields}


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b"\x04", "field a: there is no such symbol among the 2"),
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b"\x01", "field a: there is no such symbol"),
        (["null", "int"], b"\x04", "field a: the branch does not exist in a union of 2"),
        (["null", "int", "string"], b"\x06", "field a: the branch does not exist in a union of 3"),
        ("boolean", b"\x02", "field a: a boolean is 0 or 1"),
        ("long", b"\xff" * 10, "field a: the number has more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "field a: the number has more than 64 bits"),
        ("int", long_bytes(1 << 31), "field a: the number has more than 32 bits"),
        ("string", b"\x01", "field a: the length is negative"),
        ("string", b"\x04a", "field a: the message ends before the value does"),
        ("bytes", long_bytes((1 << 63) - 1) + b"a", "field a: the message ends before the value does"),
        ("string", b"\x02\xff", "field a: the text is not UTF-8"),
        ("double", b"1234567", "the message ends before the value does"),
        ("int", b"\x02\x02", "bytes are left after the value"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "field a: the message ends before the value does"),
        ({"type": "array", "items": "int"}, b"\x06\x02\x02", "field a: the message ends before the value does"),
        ({"type": "array", "items": "int"}, long_bytes(-1) + long_bytes(99) + b"\x02\0", "field a: the message ends"),
        ({"type": "array", "items": "int"}, long_bytes(-1) + b"\x01\x02\0", "field a: the length is negative"),
        ({"type": "array", "items": "int"}, long_bytes(-(1 << 63)) + b"\x02\x02\0", "count is out of range"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\0", "field a: the text is not UTF-8"),
        (
            {"type": "array", "items": {**record("boolean"), "name": "Inner"}},
            b"\x02\x05\0",
            "field a[].a: a boolean is 0 or 1",
        ),
        ({"type": "array", "items": "null"}, long_bytes(1 << 40) + b"\0", "items that take no bytes"),
    ],
)
def test_what_is_wrong_is_told_and_the_rows_around_it_stay(kind: Any, data: bytes, reason: str) -> None:
    schema = record("int", kind)
    schema["fields"][0]["name"], schema["fields"][1]["name"] = "first", "a"
    sound = Maker(1)
    around = [sound.datum(schema).data for _ in range(2)]
    decoded = decoder_of({1: schema}).rows(source_batch(framed(1, [around[0], b"\x06" + data, around[1]])))
    assert decoded.rows.column("_offset").to_pylist() == [0, 2]
    assert decoded.rejected is not None
    (refused,) = decoded.rejected.to_pylist()
    assert reason in refused["error"]
    assert refused["error"].startswith("schema id 1: ")
    assert (refused["_offset"], refused["value"]) == (1, b"\0\0\0\0\x01\x06" + data)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the message is empty: it has no schema id"),
        (b"\0\0\0\0", "the message has 4 bytes: too short for a schema id"),
        (b"{}", "begins with the byte 0x7b"),
        (b"\x01" + bytes(16), "names its schema by GUID (00000000-0000-0000-0000-000000000000)"),
    ],
)
def test_what_has_no_frame_is_refused(value: bytes, reason: str) -> None:
    decoded = decoder_of({1: record("int")}).rows(source_batch([b"\0\0\0\0\1\2", value]))
    assert cells(decoded.rows) == [{"a": 1}]
    assert decoded.rejected is not None
    assert reason in decoded.rejected.column("error")[0].as_py()
    assert decoded.rejected.column("schema_id").to_pylist() == [None]


def test_ids_that_nobody_knows_yet_are_told_and_their_rows_left_out() -> None:
    values = [b"\0\0\0\0\1\2", b"\0\0\0\0\2\2", b"\0\xff\xff\xff\xff\2", b"", None]
    decoded = decoder_of({1: record("int")}).rows(source_batch(values))
    assert decoded.unknown == {2, 0xFFFFFFFF}
    assert decoded.rows.column("_offset").to_pylist() == [0, 4]
    assert decoded.rejected is not None
    assert decoded.rejected.column("_offset").to_pylist() == [3]


def test_one_long_array_among_short_ones_is_read_alone_and_stands_in_its_place() -> None:
    schema = record({"type": "array", "items": {"type": "map", "values": ["null", "string"]}}, "int")
    maker = Maker(3)
    data = [maker.datum(schema) for _ in range(30)]
    item = b"\x02\x02k\x02\x02v\0"
    data[11] = data[11]._replace(
        data=long_bytes(2000) + item * 2000 + b"\0\x02", cell={"a": [[("k", "v")]] * 2000, "b": 1}
    )
    torn = long_bytes(2000) + item * 1999 + b"\x02\x02\xff\x02\x02v\0\0\x02"
    values = framed(1, [*(each.data for each in data), torn])
    decoded = decoder_of({1: schema}).rows(source_batch(values))
    assert cells(decoded.rows) == [each.cell for each in data]
    assert decoded.rejected is not None
    assert "not UTF-8" in decoded.rejected.column("error")[0].as_py()


def test_a_record_inside_itself_is_json_from_there_on() -> None:
    schema = {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "next", "type": ["null", "Node"]},
            {"name": "labels", "type": {"type": "map", "values": "bytes"}},
        ],
    }
    leaf = b"\x04\0\0"
    data = [b"\x02\x02" + leaf + b"\x02\x02k\x02v\0", leaf, b"\x02\x02" * 3000 + leaf + b"\0" * 3000]
    decoded = decoder_of({1: schema}).rows(source_batch(framed(1, data)))
    first, second = cells(decoded.rows)
    assert (first["n"], json.loads(first["next"]), first["labels"]) == (
        1,
        {"n": 2, "next": None, "labels": {}},
        [("k", b"v")],
    )
    assert (second["n"], second["next"]) == (2, None)
    assert decoded.rejected is not None
    assert "nest too deep" in decoded.rejected.column("error")[0].as_py()


def test_what_lies_behind_a_record_is_no_reason_to_refuse_it() -> None:
    """In step, what a record lacks is read from its neighbour's frame: here what is no symbol, and no boolean."""
    symbols = {"type": "enum", "name": "E", "symbols": ["X"]}
    decoder = decoder_of({0x7F7F7F7F: record("int", symbols, "boolean")})
    decoded = decoder.rows(source_batch(framed(0x7F7F7F7F, [b"", b"\x02", b"\x02\0\0"])))
    assert decoded.rows.num_rows == 1
    assert decoded.rejected is not None
    for reason in decoded.rejected.column("error").to_pylist():
        assert reason.endswith("the message ends before the value does")
