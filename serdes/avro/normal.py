"""The normalized form of a schema: what a Confluent registry stores when asked to ``normalize``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from serdes.avro.java_numbers import as_float32, double_text, float_text
from serdes.avro.limits import inner
from serdes.avro.logical import decimal_of
from serdes.avro.parse import Parser
from serdes.avro.schema import MISSING, Array, Enum, Field, Fixed, Map, Named, Props, Record, Schema, Union
from serdes.avro.text import java_sorted, to_text

Json = dict[str, Any]


def normalized(schema: Schema, references: Iterable[Schema] = ()) -> str:
    """The text of the schema with its properties and aliases in order, empty docs gone, defaults in their type's form.

    The registry writes the schema with full names only and parses that again. Three peculiarities come of it, and are
    kept, because identities hang on them: an error becomes a record, a type without a namespace gets that of the type
    around it, and a union's default that is none of its first branch is lost.
    """
    references = tuple(references)
    parser = Parser(validate_defaults=False, names="any")
    for reference in references:
        _collect(reference, parser.named)
    written = json.dumps(_Writer(reference.fullname for reference in references).write(schema))
    return to_text(parser.parse(written), references)


def _collect(schema: Schema, named: dict[str, Named]) -> None:
    if isinstance(schema, Named):
        if schema.fullname in named:
            return
        named[schema.fullname] = schema
    for child in inner(schema):
        _collect(child, named)


class _Writer:
    """A schema as JSON, full names only."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)

    def write(self, schema: Schema) -> Any:
        match schema:
            case Union():
                return [self.write(branch) for branch in schema.branches]
            case Array():
                return {"type": "array", "items": self.write(schema.items)} | _props(schema)
            case Map():
                return {"type": "map", "values": self.write(schema.values)} | _props(schema)
            case Named():
                return self._named(schema)
            case _:
                return {"type": schema.type} | _props(schema)

    def _named(self, schema: Named) -> Any:
        if schema.fullname in self._known:
            return schema.fullname
        self._known.add(schema.fullname)
        members: Json = {"type": schema.type.replace("error", "record"), "name": schema.fullname}
        if schema.doc:
            members["doc"] = schema.doc
        if schema.aliases:
            members["aliases"] = _sorted_aliases(schema)
        match schema:
            case Record():
                members["fields"] = list(map(self._field, schema.fields))
            case Enum():
                members["symbols"] = schema.symbols
                members |= {} if schema.default is None else {"default": schema.default}
            case _:
                members["size"] = cast("Fixed", schema).size
        return members | _props(schema)

    def _field(self, field: Field) -> Json:
        members: Json = {"name": field.name, "type": self.write(field.schema), "order": field.order}
        if field.doc is not None:
            members["doc"] = field.doc
        if field.aliases:
            members["aliases"] = java_sorted(field.aliases)
        default = MISSING if field.default is MISSING else _in_form(field.default, field.schema)
        if default is not MISSING:
            members["default"] = default
        return members | _sorted(field.props)


def _sorted_aliases(schema: Named) -> list[str]:
    """Full names of aliases. An alias without a namespace, on a type with a namespace, begins with a dot."""
    return java_sorted(f".{alias}" if schema.namespace and "." not in alias else alias for alias in schema.aliases)


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
    match value:
        case dict():
            members = cast("Json", value)
            return {name: _sorted(members[name]) for name in java_sorted(members)}
        case list():
            return [_sorted(item) for item in cast("list[Any]", value)]
        case float():
            return _double(value)
        case _:
            return value


def _in_form(value: Any, schema: Schema | None) -> Any:
    """Return a default read as its type and written again; MISSING when it is lost on that way."""
    if isinstance(schema, Union):
        schema = schema.branches[0] if schema.branches else None
    kind = schema.type if schema is not None else None
    match value:
        case None | bool():
            return value
        case int():
            return _number(value, kind)
        case float():
            return _double(value) if kind in ("double", None) else _single(value) if kind == "float" else MISSING
        case str():
            if kind in ("bytes", "fixed"):
                return value.encode("latin-1", "replace").decode("latin-1")
            return value if kind in ("string", "enum", None) else MISSING
        case list():
            items = schema.items if isinstance(schema, Array) else None
            return [_inside(item, items) for item in cast("list[Any]", value)]
        case _:
            members = cast("Json", value)
            return {name: _inside(members[name], _member(schema, name)) for name in java_sorted(members)}


def _inside(value: Any, schema: Schema | None) -> Any:
    """Return part of a default. Confluent's registry fails if a part is lost; it is kept unchanged here."""
    found = _in_form(value, schema)
    return _sorted(value) if found is MISSING else found


def _member(schema: Schema | None, name: str) -> Schema | None:
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


def _double(value: float) -> Any:
    """JSON has no infinity: as a string it is one again when it is read as a double."""
    return json.loads(double_text(value))


def _single(value: float) -> Any:
    """Return a 32-bit float as the double that prints alike."""
    return json.loads(float_text(as_float32(value)))
