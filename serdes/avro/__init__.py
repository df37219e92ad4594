"""Avro: schemas as objects, a codec compiled for each of them, and the serde that keeps them in a registry.

- ``serde``, ``messages``, ``subjects``, ``catalog``: `Avro`, and schema ids of messages
- ``schema``, ``parse``, ``logical``, ``text``, ``normal``: the model; ``parse`` has Java's rules, also those for unions
- ``resolve``: schema resolution, for codec, registry and AsyncAPI
- ``from_types``, ``python_types``, ``marks``, ``codegen``: Python types to schemas, and back
- ``codec``: bytes to objects; ``codec/branches`` chooses the branch of a union
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

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
    "codec.conversions": ("Duration",),
    "from_types": ("schema_of",),
    "marks": (
        "AvroField", "AvroType", "Float32", "Int32", "LocalTimestampMicros", "LocalTimestampMillis", "TimeMicros",
        "TimeMillis", "TimestampMicros", "TimestampMillis",
    ),
    "schema": ("AvroSchemaError",),
    "codec.errors": ("AvroDataError", "AvroTypeError"),
    "serde": ("Avro",),
    "text": ("to_text",),
}  # fmt: skip
__getattr__, __dir__ = lazy_names(globals(), _HOMES)  # a program that needs only schemas does not load the codec
