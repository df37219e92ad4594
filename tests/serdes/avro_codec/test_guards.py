"""Hostile and damaged messages: an error that says where, never a dead process, a hang or a flood of objects."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.varint import long_bytes
from serdes.avro.codec.writer import Encoder
from serdes.avro.parse import parse

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "value", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "children", "type": {"type": "array", "items": "Tree"}}]}
SKIPPED = {"type": "record", "name": "Holder", "fields": [{"name": "node", "type": NODE}]}
EMPTY = {"type": "record", "name": "Holder", "fields": []}


def decoder(schema: Any, reader: Any = None) -> Decoder:
    node = parse(json.dumps(schema))
    return Decoder(node, node if reader is None else parse(json.dumps(reader)), Any)


def refusal(schema: Any, data: bytes, reader: Any = None) -> AvroDataError:
    """What the codec says of ``data``."""
    one = decoder(schema, reader)
    with pytest.raises(Exception) as raised:  # whatever it is, it can be explained
        one.decode(data, 0)
    assert isinstance(raised.value, Exception)
    return one.explain(raised.value)


@pytest.mark.parametrize(
    ("schema", "data", "reader"),
    [
        (NODE, b"\x02\x02" * 4_700 + b"\x02\x00", None),
        (NODE, b"\x02\x02" * 2_000_000, None),
        (TREE, b"\x02" * 5_000 + b"\x00" * 5_001, None),
        (SKIPPED, b"\x02\x02" * 4_700 + b"\x02\x00", EMPTY),
    ],
    ids=["list of 4,700", "list of 2,000,000", "tree", "skipped"],
)
def test_recursion_ends_at_a_hundred(schema: Any, data: bytes, reader: Any) -> None:
    assert "nest deeper than 100" in refusal(schema, data, reader).reason


def test_a_hundred_levels_are_read() -> None:
    data = b"\x02\x02" * 99 + b"\x04\x00"
    value = decoder(NODE).decode(data, 0)
    depth = 0
    while value["next"] is not None:
        value, depth = value["next"], depth + 1
    assert (depth, value["value"]) == (99, 2)


def test_writing_ends_at_a_hundred_too() -> None:
    value: dict[str, Any] = {"value": 0, "next": None}
    for _ in range(5_000):
        value = {"value": 0, "next": value}
    encoder = Encoder(parse(json.dumps(NODE)), Any)
    with pytest.raises(AvroDataError, match="nest deeper than 100"):
        encoder.encode(value, b"")


NULLS = {"type": "array", "items": "null"}
EMPTIES = {"type": "array", "items": EMPTY}
WIDE = {
    "type": "array",
    "items": {"type": "record", "name": "W", "fields": [{"name": f"n{at}", "type": "null"} for at in range(1_000)]},
}
WIDE_MAP = {"type": "map", "values": WIDE["items"]}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (NULLS, long_bytes(20_000_000) + b"\0"),
        (NULLS, (long_bytes(5_000) + b"") * 3 + b"\0"),
        (EMPTIES, long_bytes(3_000_000) + b"\0"),
        ({"type": "array", "items": NULLS}, long_bytes(100) + (long_bytes(9_000) + b"\0") * 100 + b"\0"),
        (WIDE, long_bytes(9_000) + b"\0"),
        (WIDE_MAP, long_bytes(5_000) + b"\0" * 5_001),
        ({"type": "array", "items": "int"}, long_bytes(1_000_001) + b"\0" * 1_000_002),
        ({"type": "array", "items": "int"}, long_bytes(500) + b"\0" * 10),
        ({"type": "map", "values": "int"}, long_bytes(1 << 60)),
        ({"type": "array", "items": "string"}, long_bytes(-(1 << 63)) + b"\0"),
        ({"type": "array", "items": "string"}, long_bytes(-2) + long_bytes(1 << 40) + b"\0\0\0"),
    ],
    ids=["nulls", "nulls in blocks", "empty records", "nested nulls", "wide", "wide map", "a million", "too few bytes",
         "map", "least count", "size of a block"],
)  # fmt: skip
def test_bombs_are_refused_before_they_are_built(schema: Any, data: bytes) -> None:
    assert "block" in refusal(schema, data).reason


def test_what_is_allowed_is_read() -> None:
    assert len(decoder(NULLS).decode(long_bytes(10_000) + b"\0", 0)) == 10_000
    numbers = long_bytes(1_000_000) + b"\2" * 1_000_000 + b"\0"
    assert sum(decoder({"type": "array", "items": "int"}).decode(numbers, 0)) == 1_000_000
    assert decoder({"type": "array", "items": "int"}).decode(long_bytes(-2) + long_bytes(2) + b"\2\4\0", 0) == [1, 2]


def test_ten_thousand_lists_of_optional_things_are_read() -> None:
    """The bound of decoded bytes looks at what is there, not at what might be."""
    inner = {"type": "record", "name": "I", "fields": [{"name": f"n{at}", "type": "null"} for at in range(10)]}
    schema = {"type": "array", "items": ["null", inner]}
    assert decoder(schema).decode(long_bytes(100_000) + b"\0" * 100_001, 0) == [None] * 100_000


RECORD = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "number", "type": "string"},
        {"name": "legs", "type": {"type": "array", "items": {
            "type": "record", "name": "Leg", "fields": [
                {"name": "price", "type": "double"},
                {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["on", "off"]}},
                {"name": "ok", "type": "boolean"},
            ]}}},
        {"name": "extra", "type": {"type": "map", "values": ["null", "int"]}},
    ],
}  # fmt: skip
LEG = b"\0" * 8 + b"\0\1"


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"", "number", "ends before"),
        (b"\x06ab", "number", "ends before"),
        (b"\x01", "number", "negative"),
        (b"\x04\xff\xff", "number", "not UTF-8"),
        (b"\xff" * 10 + b"\x01", "number", "64 bits"),
        (b"\0\x04" + LEG + b"\0" * 3, "legs", "a block of 2 items, but"),
        (b"\0\x04" + LEG + b"\0" * 8 + b"\0", "legs", "a block of 2 items, but"),
        (b"\0\x04" + LEG + b"\0" * 8 + b"\4\1", "legs[1].state", "no symbol 2"),
        (b"\0\x04" + LEG + b"\0" * 8 + b"\0\2", "legs[1].ok", "a boolean is 0 or 1, not 2"),
        (b"\0\0\x02\x02k\x06\0", "extra['k']", "no branch 3 in a union of 2"),
        (b"\0\0\x02\x02k\x02\xff\xff\xff\xff\x7f\0", "extra['k']", "more than 32 bits"),
        (b"\0\0\0\0", "", "1 bytes are left"),
    ],
)
def test_an_error_names_the_field(data: bytes, path: str, reason: str) -> None:
    error = refusal(RECORD, data)
    assert (error.path, reason in error.reason) == (path, True), error


@pytest.mark.system
def test_ten_thousand_damaged_messages() -> None:
    """Each is read or refused; the random numbers are the same each time."""
    chance = random.Random(7)
    record = decoder(RECORD)
    schemas = [record, decoder(NODE), decoder(TREE), decoder(WIDE_MAP), decoder(RECORD, {**RECORD, "fields": []})]
    value = {"number": "BA1", "legs": [{"price": 1.0, "state": "on", "ok": True}] * 3, "extra": {"a": 1, "b": None}}
    good = Encoder(parse(json.dumps(RECORD)), Any).encode(value, b"")
    assert record.decode(good, 0) == value
    refused = 0
    for _ in range(10_000):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            kind, at = chance.randrange(4), chance.randrange(len(data) or 1)
            if kind == 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            elif kind == 1:
                del data[at : at + chance.randint(1, 8)]
            elif kind == 2:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            else:
                data[at:at] = long_bytes(chance.choice((-1, 1 << 31, 1 << 62, 20_000_000, -(1 << 63))))
        one = chance.choice(schemas)
        try:
            one.decode(bytes(data), 0)
        except Exception as error:  # any kind, and all are explained
            assert one.explain(error).reason
            refused += 1
    assert refused > 5_000
