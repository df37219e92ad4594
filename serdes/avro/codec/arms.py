"""Which Python type holds which schema: one arm of ``A | B | None`` for each branch of a union."""

from __future__ import annotations

from typing import Any

from serdes.avro.codec.conversions import conversion_of
from serdes.avro.codec.errors import AvroTypeError
from serdes.avro.codec.shapes import Arms, Constants, Entries, Items, Members, Nothing, Object, Scalar, Shape, shape_of
from serdes.avro.schema import Enum, Record, Schema

BASES: dict[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "fixed": bytes,
    "enum": str,
}


def record_names(kind: Any) -> tuple[str, ...]:
    """Return the names under which a schema may contain a class."""
    mark = getattr(kind, "__avro__", None)  # `serdes.avro.marks.AvroType`
    return (kind.__name__, *(name.rpartition(".")[2] for name in (getattr(mark, "name", None) or "",) if name))


def arm_for(schema: Schema, arms: Arms) -> Any:
    """Return the annotation among ``arms`` that holds values of ``schema``. Raises AvroTypeError."""
    rated = [(_rating(schema, shape_of(one)), one) for one in arms.annotations]
    best, arm = max(rated, key=lambda one: one[0])
    if best == 0:
        names = " | ".join(getattr(one, "__name__", str(one)) for one in arms.annotations)
        raise AvroTypeError(f"no arm of {names} holds {schema.fullname}")
    return arm


def _rating(schema: Schema, shape: Shape) -> int:
    """How well it fits; 0: not at all."""
    if schema.type == "null":
        return 9 * isinstance(shape, Nothing) or 7 * (isinstance(shape, Constants) and None in shape.values)
    if isinstance(shape, Scalar):
        return _scalar_rating(schema, shape.kind)
    if isinstance(shape, Members):
        # Less than what holds every value of it: of ``Color | str`` texts are the second.
        holds = any(isinstance(one.value, BASES.get(schema.type, ())) for one in shape.kind)
        return 8 * isinstance(schema, Enum) or 5 * holds
    if isinstance(shape, Constants):
        holds = any(isinstance(one, BASES.get(schema.type, ())) for one in shape.values)
        return 7 * (holds and isinstance(schema, Enum)) or 5 * holds
    if isinstance(shape, Items):
        return 8 * (schema.type == "array")
    if isinstance(shape, Entries):
        return 8 * (schema.type == "map") or 2 * isinstance(schema, Record)
    if isinstance(shape, Object):
        return _object_rating(schema, shape)
    return int(type(shape) is Shape)


def _scalar_rating(schema: Schema, kind: type) -> int:
    logical = conversion_of(schema)
    if logical is not None and issubclass(kind, logical.kind):
        return 9
    base = BASES.get(schema.type)
    if base is None:
        return 0
    if issubclass(kind, base) and not (kind is bool and base is int):
        return 6
    return 2 * (kind is float and base is int) or 4 * (base is bytes and kind in (bytearray, memoryview))


def _object_rating(schema: Schema, shape: Object) -> int:
    if not isinstance(schema, Record):
        return 0
    if schema.name in record_names(shape.kind):
        return 9
    names = {name for field in schema.fields for name in (field.name, *field.aliases)}
    return 3 * all(one.name in names or one.data_name in names for one in shape.attributes if one.required)
