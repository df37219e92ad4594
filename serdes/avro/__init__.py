"""Avro: schemas as objects, a codec compiled for each of them, and the serde that keeps them in a registry.

- ``serde``, ``messages``, ``subjects``, ``catalog``: `Avro`, and schema ids of messages
- ``schema``, ``parse``, ``logical``, ``text``, ``normal``: the model; ``parse`` has Java's rules, also those for unions
- ``resolve``: schema resolution, for codec and registry
- ``from_types``, ``python_types``, ``marks``, ``codegen``: Python types to schemas, and back
- ``codec``: bytes to objects; ``codec/branches`` chooses the branch of a union
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from serdes.avro.codec.conversions import Duration as Duration
    from serdes.avro.codec.errors import AvroDataError as AvroDataError
    from serdes.avro.codec.errors import AvroTypeError as AvroTypeError
    from serdes.avro.from_types import schema_of as schema_of
    from serdes.avro.marks import AvroField as AvroField
    from serdes.avro.marks import AvroType as AvroType
    from serdes.avro.marks import Float32 as Float32
    from serdes.avro.marks import Int32 as Int32
    from serdes.avro.marks import LocalTimestampMicros as LocalTimestampMicros
    from serdes.avro.marks import LocalTimestampMillis as LocalTimestampMillis
    from serdes.avro.marks import TimeMicros as TimeMicros
    from serdes.avro.marks import TimeMillis as TimeMillis
    from serdes.avro.marks import TimestampMicros as TimestampMicros
    from serdes.avro.marks import TimestampMillis as TimestampMillis
    from serdes.avro.schema import AvroSchemaError as AvroSchemaError
    from serdes.avro.serde import Avro as Avro
    from serdes.avro.text import to_text as to_text

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
