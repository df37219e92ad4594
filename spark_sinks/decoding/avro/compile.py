"""Compile an Avro schema to nodes, and determine its columns."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from serdes.avro import schema as avro
from serdes.avro.codec.guards import least_bytes
from serdes.avro.logical import decimal_of
from spark_sinks.decoding.avro.logical import MAX_PRECISION, Decimal, DecimalText, Duration, UuidBytes
from spark_sinks.decoding.avro.nested import Choice, Marker, Optional, Record, Recursive, Repeated
from spark_sinks.decoding.avro.nodes import Binary, Boolean, Float, Node, Nothing, Number, Symbol

_DAY_MICROS = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, the first and last day that tables can represent."""


class _Kind(NamedTuple):
    """A logical type stored as a number. ``per_day`` is its units per day, from which the bounds are computed."""

    type: pa.DataType
    per_day: int
    factor: int = 1
    is_time: bool = False

    def node(self, path: str, bits: int) -> Number:
        if self.is_time:
            bounds = 0, self.per_day - 1
        elif pa.types.is_timestamp(self.type) and self.type.unit == "ns":
            bounds = None  # all that fit into 64 bits
        else:
            bounds = _FIRST_DAY * self.per_day, (_LAST_DAY + 1) * self.per_day - 1
        return Number(self.type, path, bits, bounds, self.factor)


_NUMBERS = {
    "date": _Kind(pa.date32(), 1),
    "time-millis": _Kind(pa.time64("us"), _DAY_MICROS // 1000, 1000, is_time=True),
    "time-micros": _Kind(pa.time64("us"), _DAY_MICROS, is_time=True),
    "timestamp-millis": _Kind(pa.timestamp("us", "UTC"), _DAY_MICROS // 1000, 1000),
    "timestamp-micros": _Kind(pa.timestamp("us", "UTC"), _DAY_MICROS),
    "timestamp-nanos": _Kind(pa.timestamp("ns", "UTC"), _DAY_MICROS * 1000),
    "local-timestamp-millis": _Kind(pa.timestamp("us"), _DAY_MICROS // 1000, 1000),
    "local-timestamp-micros": _Kind(pa.timestamp("us"), _DAY_MICROS),
    "local-timestamp-nanos": _Kind(pa.timestamp("ns"), _DAY_MICROS * 1000),
}

VALUE = "value"
"""The column of a schema that is not a record."""


def compiled(schema: avro.Schema) -> Record:
    """Compile a schema: a column for each field of a record, or the single column `VALUE`."""
    if isinstance(schema, avro.Record):
        return _record(schema, "", {})
    root = Record("")
    root.complete([(VALUE, _node(schema, VALUE, {}))])
    return root


def _record(schema: avro.Record, path: str, inside: dict[int, Record]) -> Record:
    record = Record(path)
    inside = {**inside, id(schema): record}
    dot = f"{path}." if path else ""
    record.complete([(field.name, _node(field.schema, dot + field.name, inside)) for field in schema.fields])
    return record


def _node(schema: avro.Schema, path: str, inside: dict[int, Record]) -> Node:
    match schema:
        case avro.Record():
            outer = inside.get(id(schema))
            return _record(schema, path, inside) if outer is None else Recursive(path, outer)
        case avro.Union():
            return _union(schema, path, inside)
        case avro.Array():
            item = _marked(_node(schema.items, f"{path}[]", inside))
            return Repeated(path, item, has_keys=False, least_bytes=least_bytes(schema.items))
        case avro.Map():
            item = _marked(_node(schema.values, f"{path}{{}}", inside))
            return Repeated(path, item, has_keys=True, least_bytes=1)
        case avro.Enum():
            return Symbol(path, schema.symbols)
        case _:
            return _scalar(schema, path)


def _union(schema: avro.Union, path: str, inside: dict[int, Record]) -> Node:
    branches = [None if each.type == "null" else _marked(_node(each, path, inside)) for each in schema.branches]
    there = [(index, each) for index, each in enumerate(branches) if each is not None]
    if len(there) > 1:
        return Choice(path, branches, _branch_names(schema))
    index, inner = there[0] if there else (0, Nothing(path))
    return Optional(path, inner, index, len(branches))


def _branch_names(union: avro.Union) -> list[str]:
    """Return the names of the branches except null, without the namespace if they are unique without it."""
    branches = [each for each in union.branches if each.type != "null"]
    short = [each.name if isinstance(each, avro.Named) else each.type for each in branches]
    if len({name.lower() for name in short}) == len(short):
        return short
    return [each.fullname.replace(".", "_") for each in branches]


def _marked(node: Node) -> Node:
    return Marker(node) if isinstance(node, Record) and node.is_empty else node


def _scalar(schema: avro.Schema, path: str) -> Node:
    size = schema.size if isinstance(schema, avro.Fixed) else None
    logical = schema.logical_type
    if logical == "decimal":
        precision, scale = decimal_of(schema)
        if precision <= MAX_PRECISION:
            return Decimal(path, precision, scale, size)
        return DecimalText(path, schema, size)
    if logical == "big-decimal":
        return DecimalText(path, schema, size)
    if size is not None:
        if logical == "duration":
            return Duration(path)
        return UuidBytes(path) if logical == "uuid" else Binary(path, size=size)
    bits = 32 if schema.type == "int" else 64
    if logical in _NUMBERS:
        return _NUMBERS[logical].node(path, bits)
    match schema.type:
        case "null":
            return Nothing(path)
        case "boolean":
            return Boolean(path)
        case "int" | "long":
            return Number(pa.int32() if bits == 32 else pa.int64(), path, bits)
        case "float" | "double":
            return Float(path, double=schema.type == "double")
        case _:
            return Binary(path, is_text=schema.type == "string")
