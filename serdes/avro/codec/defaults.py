"""Encode a field's default as the bytes that Java reads if the writer's schema lacks the field."""

from __future__ import annotations

from typing import Any, cast

from serdes.avro.checks import fits
from serdes.avro.codec.errors import AvroTypeError
from serdes.avro.codec.varint import DOUBLE, FLOAT, int_bytes, long_bytes
from serdes.avro.schema import Array, Enum, Fixed, Map, Record, Schema, Union


def default_bytes(schema: Schema, value: Any) -> bytes:
    """Return a default (JSON) in Avro's binary form; fields that a nested record leaves out have their own defaults.

    Raises AvroTypeError for a value that is none of the schema's.
    """
    try:
        return _encoded(schema, value)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise AvroTypeError(f"the default {value!r:.80} is no {schema.fullname}: {error}") from None


def _encoded(schema: Schema, value: Any) -> bytes:
    if isinstance(schema, Union):
        index = next((at for at, branch in enumerate(schema.branches) if _fits(branch, value)), 0)
        return long_bytes(index) + _encoded(schema.branches[index], value)
    if isinstance(schema, Record):
        return b"".join(
            _encoded(field.schema, value[field.name] if field.name in value or not field.has_default else field.default)
            for field in schema.fields
        )
    if isinstance(schema, Array):
        return _block([_encoded(schema.items, one) for one in value])
    if isinstance(schema, Map):
        entries = cast("dict[str, Any]", value).items()
        return _block([_encoded_text(key) + _encoded(schema.values, one) for key, one in entries])
    if isinstance(schema, Enum):
        return long_bytes(schema.symbols.index(value))
    if isinstance(schema, Fixed):
        data = cast("str", value).encode("latin-1")
        if len(data) != schema.size:
            raise ValueError(f"it has {len(data)} bytes, not {schema.size}")
        return data
    return _encoded_primitive(schema.type, value)


def _encoded_primitive(kind: str, value: Any) -> bytes:
    if kind == "null":
        return b""
    if kind == "boolean":
        return b"\1" if value is True else b"\0"
    if kind in ("int", "long"):
        return (int_bytes if kind == "int" else long_bytes)(int(value))
    if kind in ("float", "double"):
        return (FLOAT if kind == "float" else DOUBLE).pack(float(value))
    if kind == "string":
        return _encoded_text(value)
    data = cast("str", value).encode("latin-1")
    return long_bytes(len(data)) + data


def _encoded_text(value: str) -> bytes:
    data = value.encode()
    return long_bytes(len(data)) + data


def _block(items: list[bytes]) -> bytes:
    return long_bytes(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _fits(branch: Schema, value: Any) -> bool:
    return fits(branch, value) and (not isinstance(branch, Enum) or value in branch.symbols)
