"""The normalized form of a schema: what a Confluent registry stores when asked to ``normalize``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from serdes.avro.java_numbers import as_float32, float_text
from serdes.avro.logical import decimal_of
from serdes.avro.schema import MISSING, Array, Enum, Field, Fixed, Map, Named, Primitive, Props, Record, Schema, Union
from serdes.avro.text import java_sorted, to_text


def normalized(schema: Schema, references: Iterable[Schema] = ()) -> str:
    """The text of the schema with its properties and aliases in order, empty docs gone, defaults in their type's form.

    Two peculiarities are kept, because identities hang on them: an error becomes a record, and a union's default that
    is none of its first branch is lost.
    """
    return to_text(_Copy().of(schema), references)


class _Copy:
    def __init__(self) -> None:
        self._done: dict[int, Schema] = {}

    def of(self, schema: Schema) -> Schema:
        found = self._done.get(id(schema))
        if found is not None:
            return found
        match schema:
            case Union():
                return Union(tuple(map(self.of, schema.branches)))
            case Array():
                return Array(self.of(schema.items), _props(schema))
            case Map():
                return Map(self.of(schema.values), _props(schema))
            case Named():
                return self._named(schema)
            case _:
                return Primitive(schema.type, _props(schema))

    def _named(self, schema: Named) -> Named:
        doc, aliases = schema.doc or None, _sorted_aliases(schema)
        name, space, props = schema.name, schema.namespace, _props(schema)
        copy: Named
        match schema:
            case Enum():
                copy = Enum(name, schema.symbols, space, doc, aliases, props, default=schema.default)
            case Fixed():
                copy = Fixed(name, schema.size, space, doc, aliases, props)
            case _:
                record = copy = Record(name, space, doc, aliases, props)
                self._done[id(schema)] = record
                record.set_fields(tuple(map(self._field, cast("Record", schema).fields)))
        self._done[id(schema)] = copy
        return copy

    def _field(self, field: Field) -> Field:
        default = MISSING if field.default is MISSING else _in_form(field.default, field.schema)
        return Field(
            field.name,
            self.of(field.schema),
            default,
            doc=field.doc,
            order=field.order,
            aliases=tuple(java_sorted(field.aliases)),
            props=_sorted(field.props),
        )


def _sorted_aliases(schema: Named) -> tuple[str, ...]:
    """By full name; one without a namespace, on a type that has one, is sorted as if it began with a dot."""
    dotted = {f".{alias}" if schema.namespace and "." not in alias else alias: alias for alias in schema.aliases}
    return tuple(dotted[key] for key in java_sorted(dotted))


def _props(schema: Schema) -> Props:
    """Sorted, those of a valid logical type in front."""
    props = _sorted(schema.props)
    front: Props = {}
    if schema.logical_type is not None:
        front["logicalType"] = schema.logical_type
        if schema.logical_type == "decimal":
            precision, scale = decimal_of(schema)
            front["precision"] = precision
            if scale:
                front["scale"] = scale
    return front | props


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        return {name: _sorted(members[name]) for name in java_sorted(members)}
    if isinstance(value, list):
        return [_sorted(item) for item in cast("list[Any]", value)]
    return value


def _in_form(value: Any, schema: Schema | None) -> Any:
    """A default read as its type and written again; MISSING when Java loses it on that way."""
    if isinstance(schema, Union):
        schema = schema.branches[0] if schema.branches else None
    kind = schema.type if schema is not None else None
    match value:
        case None | bool():
            return value
        case int():
            return _number(value, kind)
        case float():
            return value if kind in ("double", None) else _single(value) if kind == "float" else MISSING
        case str():
            return value if kind in ("string", "enum", "bytes", "fixed", None) else MISSING
        case list():
            items = schema.items if isinstance(schema, Array) else None
            return [_in_form(item, items) for item in cast("list[Any]", value)]
        case dict():
            members = cast("dict[str, Any]", value)
            return {name: _in_form(members[name], _inside(schema, name)) for name in java_sorted(members)}
        case _:
            return MISSING


def _inside(schema: Schema | None, name: str) -> Schema | None:
    if isinstance(schema, Map):
        return schema.values
    field = schema.field(name) if isinstance(schema, Record) else None
    return field.schema if field is not None else None


def _number(value: int, kind: str | None) -> Any:
    if not -(1 << 63) <= value < 1 << 63 or kind not in ("int", "long", "float", "double", None):
        return MISSING
    if kind == "double":
        return float(value)
    return _single(float(value)) if kind == "float" else value


def _single(value: float) -> float:
    """A 32-bit float as the double that prints alike."""
    single = as_float32(value)
    text = float_text(single)
    return float(text) if not text.startswith('"') else single
