"""Does a JSON value fit a type, and are two definitions the same: Java's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from serdes.avro.schema import MISSING, Array, Enum, Field, Fixed, Map, Named, Record, Schema, Union

Look = Callable[[Schema], Schema]
"""Maps a schema to the schema that is checked instead of it, before the fields of a record are read."""

_INT: Final = (-(1 << 31), (1 << 31) - 1)
_LONG: Final = (-(1 << 63), (1 << 63) - 1)


def _itself(schema: Schema) -> Schema:
    return schema


def fits(schema: Schema, value: Any, look: Look = _itself) -> bool:
    """May ``value`` be a default of this type? Of a union any branch will do, of an enum or bytes any string."""
    return _Check(look).fits(schema, value)


class _Check:
    """Check a value against a type."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._known: dict[tuple[int, int], bool] = {}
        """Cached results for parts of the type, because unions of recursive records repeat the same checks."""

    def fits(self, schema: Schema, value: Any) -> bool:
        kind = cast("type[Any]", type(value))
        match schema.type:
            case "null":
                return value is None
            case "boolean":
                return kind is bool
            case "int":
                return kind is int and _INT[0] <= value <= _INT[1]
            case "long":
                return kind is int and _LONG[0] <= value <= _LONG[1]
            case "float" | "double":
                return kind is int or kind is float
            case "string" | "bytes" | "enum" | "fixed":
                return kind is str
            case "union":
                return any(self.fits(branch, value) for branch in cast("Union", schema).branches)
            case _:
                key = (id(schema), id(value))
                if key not in self._known:
                    self._known[key] = self._fits_container(schema, value)
                return self._known[key]

    def _fits_container(self, schema: Schema, value: Any) -> bool:
        if isinstance(schema, Array):
            return isinstance(value, list) and all(self.fits(schema.items, item) for item in cast("list[Any]", value))
        if not isinstance(value, dict):
            return False
        members = cast("dict[str, Any]", value)
        if isinstance(schema, Map):
            return all(self.fits(schema.values, item) for item in members.values())
        record = self._look(schema)
        if not isinstance(record, Record):  # a name: not known yet, or of an enum or a fixed
            return record is schema
        for field in record.fields:
            if field.name in members:
                if not self.fits(field.schema, members[field.name]):
                    return False
            elif field.default is MISSING:  # a default has been checked where it stands
                return False
        return True


def same_json(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1, 1.0 and true differ, the order of members does not matter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        mine, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        return mine.keys() == theirs.keys() and all(same_json(value, theirs[name]) for name, value in mine.items())
    if isinstance(one, list):
        items, others = cast("list[Any]", one), cast("list[Any]", other)
        return len(items) == len(others) and all(map(same_json, items, others))
    return repr(one) == repr(other) if isinstance(one, float) else one == other  # NaN is NaN; -0.0 is not 0.0


def same_schema(one: Schema, other: Schema, seen: set[tuple[int, int]] | None = None) -> bool:
    """Equal as Java's ``Schema.equals`` has it: doc, aliases and an enum's default do not count."""
    if one is other:
        return True
    if type(one) is not type(other) or not same_json(one.props, other.props):
        return False
    if isinstance(one, Named) and one.fullname != other.fullname:
        return False
    seen = seen if seen is not None else set()
    match one, other:
        case Record(), Record():
            pair = (id(one), id(other))
            if pair in seen:
                return True
            seen.add(pair)
            return len(one.fields) == len(other.fields) and all(
                _same_field(mine, theirs, seen) for mine, theirs in zip(one.fields, other.fields, strict=True)
            )
        case Enum(), Enum():
            return one.symbols == other.symbols
        case Fixed(), Fixed():
            return one.size == other.size
        case Array(), Array():
            return same_schema(one.items, other.items, seen)
        case Map(), Map():
            return same_schema(one.values, other.values, seen)
        case Union(), Union():
            return len(one.branches) == len(other.branches) and all(
                same_schema(mine, theirs, seen) for mine, theirs in zip(one.branches, other.branches, strict=True)
            )
        case _:
            return one.type == other.type and one.fullname == other.fullname


def _same_field(one: Field, other: Field, seen: set[tuple[int, int]]) -> bool:
    return (
        one.name == other.name
        and one.order == other.order
        and same_json(one.default, other.default)
        and same_json(one.props, other.props)
        and same_schema(one.schema, other.schema, seen)
    )
