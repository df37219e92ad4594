"""Avro: schemas as objects, a codec compiled for each of them, and the serde that keeps them in a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serdes.avro.codec.conversions import Duration
    from serdes.avro.codec.errors import AvroDataError, AvroTypeError
    from serdes.avro.from_types import schema_of
    from serdes.avro.marks import (
        AvroField,
        AvroType,
        Float32,
        Int32,
        LocalTimestampMicros,
        LocalTimestampMillis,
        TimeMicros,
        TimeMillis,
        TimestampMicros,
        TimestampMillis,
    )
    from serdes.avro.schema import AvroSchemaError
    from serdes.avro.serde import Avro
    from serdes.avro.text import to_text

__all__ = [
    "Avro",
    "AvroDataError",
    "AvroField",
    "AvroSchemaError",
    "AvroType",
    "AvroTypeError",
    "Duration",
    "Float32",
    "Int32",
    "LocalTimestampMicros",
    "LocalTimestampMillis",
    "TimeMicros",
    "TimeMillis",
    "TimestampMicros",
    "TimestampMillis",
    "schema_of",
    "to_text",
]

_HOMES = {
    "Avro": "serde",
    "AvroDataError": "codec.errors",
    "AvroSchemaError": "schema",
    "AvroTypeError": "codec.errors",
    "Duration": "codec.conversions",
    "schema_of": "from_types",
    "to_text": "text",
}
"""The module of each exported name; every other name is in `marks`."""


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that a program that needs only schemas does not load the codec."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"serdes.avro.{_HOMES.get(name, 'marks')}"), name)
