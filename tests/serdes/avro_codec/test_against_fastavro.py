"""The codec beside fastavro: the same bytes, the same values."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.parse import parse
from tests.serdes.avro_codec.generating import schemas, values
from tests.support import examples

pytestmark = pytest.mark.system


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


@settings(max_examples=examples(100, 300))
@given(st.data())
def test_plain_data_has_the_same_bytes_and_comes_back(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    value = data.draw(values(schema))
    node = parse(json.dumps(schema))
    encoded = Encoder(node, Any).encode(value, b"")
    assert encoded == written(schema, value)
    read = Decoder(node, node, Any).decode(b"prefix" + encoded, 6)
    assert read == fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(schema), None)
    assert read == value


_EVOLUTIONS: list[tuple[Any, Any, Any]] = [
    ("int", "long", 7),
    ("int", "double", -3),
    ("long", "float", 1 << 20),
    ("float", "double", 0.5),
    ("string", "bytes", "ü"),
    ("bytes", "string", b"abc"),
    ("int", ["null", "long"], 9),
    (["null", "int"], "int", 4),
    (["null", "string"], ["string", "null"], "x"),
    (["null", "int", "string"], ["string", "null", "double"], 5),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1, 2]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "long"]}, {"a": 1}),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        {"type": "enum", "name": "E", "symbols": ["B", "D"], "default": "D"},
        "C",
    ),
]


def test_promotions_unions_and_enums_resolve_alike() -> None:
    for writer, reader, value in _EVOLUTIONS:
        data = written(writer, value)
        ours = Decoder(parse(json.dumps(writer)), parse(json.dumps(reader)), Any).decode(data, 0)
        theirs = fastavro.schemaless_reader(
            io.BytesIO(data), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
        assert ours == theirs, (writer, reader)


_FIELDS = [
    {"name": "a", "type": "int"},
    {"name": "b", "type": ["null", "string"], "default": None},
    {"name": "c", "type": {"type": "array", "items": "long"}, "default": [1, 2]},
    {"name": "d", "type": "double", "default": 1.5},
    {"name": "e", "type": {"type": "map", "values": "string"}, "default": {}},
    {"name": "f", "type": "bytes", "default": "ÿ"},
]
_VALUE = {"a": 1, "b": "x", "c": [5], "d": 2.5, "e": {"k": "v"}, "f": b"\x01"}


@given(st.permutations(range(6)), st.permutations(range(6)), st.integers(1, 6), st.integers(0, 6))
def test_fields_that_come_go_and_move_resolve_alike(
    writer_order: list[int], reader_order: list[int], written_fields: int, read_fields: int
) -> None:
    writer_fields = [_FIELDS[at] for at in writer_order[:written_fields]]
    names = {field["name"] for field in writer_fields}
    reader_fields = [
        _FIELDS[at] for at in reader_order[:read_fields] if "default" in _FIELDS[at] or _FIELDS[at]["name"] in names
    ]
    writer = {"type": "record", "name": "R", "fields": writer_fields}
    reader = {"type": "record", "name": "R", "fields": reader_fields}
    data = written(writer, _VALUE)
    ours = Decoder(parse(json.dumps(writer)), parse(json.dumps(reader)), Any).decode(data, 0)
    expected = fastavro.schemaless_reader(
        io.BytesIO(data), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    if "f" in {field["name"] for field in reader_fields} - names:
        expected["f"] = b"\xff"  # fastavro gives the default's text
    assert ours == expected
