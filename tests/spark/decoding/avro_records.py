"""Random Avro schemas, and records of them with what their rows must be."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from serdes.avro.codec.varint import long_bytes
from serdes.avro.parse import parse
from serdes.framing import id_prefix
from spark_sinks.decoding.avro.compile import compiled
from spark_sinks.decoding.avro.decoder import AvroDecoder, Known
from spark_sinks.decoding.framing import Frame

SIMPLE = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")


class Datum(NamedTuple):
    """A value in Avro's bytes, as fastavro reads it, and as it stands in a column."""

    data: bytes
    plain: Any
    cell: Any


def _branch_name(schema: Any) -> str:
    return schema["type"] if isinstance(schema, dict) else schema


class Maker:
    """Makes schemas and values, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def record(self, fields: int = 6, depth: int = 3) -> dict[str, Any]:
        self._names += 1
        name = f"R{self._names}"
        members = [{"name": f"{name.lower()}_{number}", "type": self.schema(depth)} for number in range(fields)]
        return {"type": "record", "name": name, "fields": members}

    def schema(self, depth: int) -> Any:
        choice = self.random.random()
        if depth == 0 or choice < 0.45:
            return self.random.choice(SIMPLE)
        if choice < 0.55:
            self._names += 1
            count = self.random.choice([1, 3, 70])
            return {"type": "enum", "name": f"E{self._names}", "symbols": [f"S{n}" for n in range(count)]}
        if choice < 0.62:
            self._names += 1
            return {"type": "fixed", "name": f"F{self._names}", "size": self.random.choice([0, 3, 16])}
        if choice < 0.72:
            return {"type": "array", "items": self.schema(depth - 1)}
        if choice < 0.78:
            return {"type": "map", "values": self.schema(depth - 1)}
        if choice < 0.85:
            return self.record(self.random.randrange(4), depth - 1)
        if choice < 0.95:
            inner = self.schema(0)
            both = ["null"] if inner == "null" else ["null", inner]
            self.random.shuffle(both)
            return both
        kinds = self.random.sample(SIMPLE, self.random.randrange(2, 5))
        return [*kinds, {"type": "array", "items": self.schema(depth - 1)}]

    def datum(self, schema: Any) -> Datum:
        if isinstance(schema, list):
            return self._of_union(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                return self._of_record(schema)
            case "array":
                items = [self._item(schema["items"]) for _ in range(self._size())]
                return Datum(
                    self._blocks([each.data for each in items]), [each.plain for each in items],
                    [each.cell for each in items],
                )  # fmt: skip
            case "map":
                entries = {self._text(): self._item(schema["values"]) for _ in range(self._size())}
                data = [_sized(key.encode()) + each.data for key, each in entries.items()]
                plain = {key: each.plain for key, each in entries.items()}
                return Datum(self._blocks(data), plain, [(key, each.cell) for key, each in entries.items()])
            case "enum":
                index = self.random.randrange(len(schema["symbols"]))
                return Datum(long_bytes(index), schema["symbols"][index], schema["symbols"][index])
            case "fixed":
                data = self.random.randbytes(schema["size"])
                return Datum(data, data, data)
            case _:
                return self._simple(kind)

    def _of_union(self, schema: list[Any]) -> Datum:
        index = self.random.randrange(len(schema))
        found = self.datum(schema[index])
        data = long_bytes(index) + found.data
        others = [branch for branch in schema if branch != "null"]
        if len(others) < 2 or schema[index] == "null":
            return Datum(data, found.plain, found.cell)
        members = {_branch_name(branch): None for branch in others}
        return Datum(data, found.plain, {**members, _branch_name(schema[index]): found.cell})

    def _item(self, schema: Any) -> Datum:
        """Return an item of an array or map; a record without columns is marked as present."""
        found = self.datum(schema)
        is_marked = isinstance(schema, dict) and schema["type"] == "record" and says_nothing(schema)
        return found._replace(cell={"present": True}) if is_marked else found

    def _of_record(self, schema: dict[str, Any]) -> Datum:
        parts = {field["name"]: self.datum(field["type"]) for field in schema["fields"]}
        data = b"".join(each.data for each in parts.values())
        shown = {
            field["name"]: parts[field["name"]].cell for field in schema["fields"] if not says_nothing(field["type"])
        }
        return Datum(data, {name: each.plain for name, each in parts.items()}, shown or None)

    def _simple(self, kind: str) -> Datum:
        match kind:
            case "null":
                return Datum(b"", None, None)
            case "boolean":
                value: Any = self.random.random() < 0.5
                return Datum(bytes([value]), value, value)
            case "int" | "long":
                bits = self.random.choice([3, 7, 14, 31 if kind == "int" else 63])
                value = self.random.randrange(-(1 << bits), 1 << bits)
                return Datum(long_bytes(value), value, value)
            case "float" | "double":
                code = "<f" if kind == "float" else "<d"
                data = struct.pack(code, self.random.uniform(-1e6, 1e6))
                value = struct.unpack(code, data)[0]
                return Datum(data, value, value)
            case "string":
                value = self._text()
                return Datum(_sized(value.encode()), value, value)
            case _:
                value = self.random.randbytes(self.random.randrange(9))
                return Datum(_sized(value), value, value)

    def _size(self) -> int:
        return self.random.choice([0, 1, 2, 3, 5])

    def _text(self) -> str:
        return "".join(self.random.choice("abcxyzäö€𝄞") for _ in range(self.random.randrange(12)))

    def _blocks(self, items: list[bytes]) -> bytes:
        """As one block or several, some of which say their size."""
        found = b""
        while items:
            count = self.random.randrange(1, len(items) + 1)
            block, items = b"".join(items[:count]), items[count:]
            sized = self.random.random() < 0.4
            found += (long_bytes(-count) + long_bytes(len(block)) if sized else long_bytes(count)) + block
        return found + b"\0"


def says_nothing(schema: Any) -> bool:
    if isinstance(schema, dict) and schema["type"] == "record":
        return all(says_nothing(field["type"]) for field in schema["fields"])
    return schema in ("null", ["null"])


def _sized(data: bytes) -> bytes:
    return long_bytes(len(data)) + data


def decoder_of(schemas: dict[int, Any]) -> AvroDecoder:
    """A decoder of schemas that share no column names, or all of their columns."""
    fields: dict[str, pa.Field] = {}
    known: dict[int, Known | str] = {}
    for schema_id, schema in schemas.items():
        root = compiled(parse(json.dumps(schema)))
        known[schema_id] = Known(json.dumps(schema), tuple(name for name, _ in root.shown))
        fields |= {name: pa.field(name, node.type) for name, node in root.shown}
    frame = Frame("bytes", tombstones=False)
    return AvroDecoder(frame.columns([*fields.values()]), len(fields), known, frame)


def framed(schema_id: int, data: Sequence[bytes | None]) -> list[bytes | None]:
    return [None if each is None else id_prefix(schema_id) + each for each in data]
