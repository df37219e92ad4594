"""Marks for annotations, where Python's types are not specific enough for Avro.

class Payment(msgspec.Struct):
    __avro__ = AvroType(namespace="shop", aliases=("shop.Charge",))
    amount: Annotated[Decimal, AvroType(precision=10, scale=2)]
    items: Int32
    paid_at: TimestampMillis
    method: Annotated[str, AvroField(doc="card or cash", aliases=("kind",))]
"""

from __future__ import annotations

from datetime import datetime, time
from typing import Annotated, Any, Literal

import msgspec

from serdes.avro.schema import MISSING
from serdes.json_engine import INT32

__all__ = [
    "AvroField",
    "AvroType",
    "Float32",
    "Int32",
    "LocalTimestampMicros",
    "LocalTimestampMillis",
    "TimeMicros",
    "TimeMillis",
    "TimestampMicros",
    "TimestampMillis",
]


class _Mark(msgspec.Struct, frozen=True):
    """Compare marks by their attributes in order: Python merges equal annotations."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class AvroType(_Mark, frozen=True):
    """Says more of an annotation, ``Annotated[int, AvroType("int")]``, or of a class, ``__avro__ = AvroType(...)``."""

    type: Literal["int", "long", "float", "double", "error", "union"] | None = None
    """The kind, if there is a choice: a number's width, ``error`` for an error record, ``union`` for a union of one."""
    logical: str | None = None
    precision: int | None = None
    scale: int | None = None
    size: int | None = None
    """Bytes of a fixed."""
    name: str | None = None
    namespace: str | None = None
    """None: a class's parent's, else the schema's own; "" is none at all."""
    aliases: tuple[str, ...] = ()
    doc: str | None = None
    """None: a class's docstring."""
    default: str | None = None
    """The symbol that a reader uses for an enum symbol that it does not know."""
    props: dict[str, Any] = {}
    """Custom attributes of the schema. If they include ``logicalType``, no other logical type is added."""


class AvroField(_Mark, frozen=True):
    """Attributes of a field in addition to its type: ``Annotated[str, AvroField(aliases=("old_name",))]``."""

    aliases: tuple[str, ...] = ()
    doc: str | None = None
    order: Literal["ascending", "descending", "ignore"] = "ascending"
    default: Any = MISSING
    """A default in JSON's form, instead of Python's."""
    branches: tuple[str, ...] = ()
    """The order of a union's branches, by name (``null``, ``long``, ``shop.Order``). Then nothing is added: no default.

    Without it a default's branch comes first, and the others as they are written; Python itself does not keep an order
    for sure (``Annotated[A | B, ...]`` and ``Annotated[B | A, ...]`` are the same to it).
    """
    props: dict[str, Any] = {}


Int32 = Annotated[int, INT32, AvroType("int")]
"""Avro's int; a plain int is a long."""
Float32 = Annotated[float, AvroType("float")]
"""Avro's float; a plain float is a double."""
TimestampMillis = Annotated[datetime, AvroType(logical="timestamp-millis")]
TimestampMicros = Annotated[datetime, AvroType(logical="timestamp-micros")]
"""The logical type of a plain datetime."""
LocalTimestampMillis = Annotated[datetime, AvroType(logical="local-timestamp-millis")]
LocalTimestampMicros = Annotated[datetime, AvroType(logical="local-timestamp-micros")]
"""A datetime without a time zone."""
TimeMillis = Annotated[time, AvroType(logical="time-millis")]
TimeMicros = Annotated[time, AvroType(logical="time-micros")]
"""The logical type of a plain time."""
