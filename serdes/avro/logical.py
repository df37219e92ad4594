"""Logical types: which of them fit which schema, by Java's rules. One that does not fit is ignored."""

from __future__ import annotations

import math
from typing import Final, cast

from serdes.avro.schema import Fixed, Schema

ON_TYPE: Final = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "big-decimal": "bytes",
}
"""Logical types that ask for nothing but their underlying type."""
JAVA_CLASS_PROPS: Final = ("avro.java.string", "java-class", "java-key-class", "java-element-class")
"""Properties that give a Java class to a schema; a logical type would give it another one."""


def valid_logical_type(schema: Schema) -> str | None:
    """Return the schema's logical type, None when it has none that is known and fits."""
    name = schema.props.get("logicalType")
    if not isinstance(name, str) or any(isinstance(schema.props.get(prop), str) for prop in JAVA_CLASS_PROPS):
        return None
    if name in ON_TYPE:
        fits = schema.type == ON_TYPE[name]
    elif name == "decimal":
        fits = _fits_decimal(schema)
    elif name == "uuid":
        fits = schema.type == "string" or (isinstance(schema, Fixed) and schema.size == 16)
    elif name == "duration":
        fits = isinstance(schema, Fixed) and schema.size == 12
    else:
        fits = False
    return name if fits else None


def decimal_of(schema: Schema) -> tuple[int, int]:
    """Return the precision and the scale of a schema with the logical type ``decimal``."""
    return cast("int", schema.props["precision"]), cast("int", schema.props.get("scale", 0))


def max_precision(size: int) -> int:
    """Digits that a decimal of ``size`` bytes holds for sure."""
    return math.floor(math.log10(2) * (8 * size - 1))


def _fits_decimal(schema: Schema) -> bool:
    precision, scale = schema.props.get("precision"), schema.props.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return False
    most = max_precision(schema.size) if isinstance(schema, Fixed) else (1 << 31) - 1 if schema.type == "bytes" else 0
    return 0 < precision <= most
