"""Two versions of a schema side by side, a row for each field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Named, Record, Schema, Union


class Row(NamedTuple):
    """A field in both versions; empty where it is in one only."""

    field: str
    old: str
    new: str
    change: str
    """``added``, ``removed``, ``changed``, or empty."""


def compare(old: Schema, new: Schema) -> list[Row]:
    """All fields, in the order of the new version, those that are gone at their old place."""
    before, after = dict(_fields(old, _name(old), ())), dict(_fields(new, _name(new), ()))
    names = list(after)
    place = 0
    for name in before:
        if name in after:
            place = names.index(name) + 1
        else:
            names.insert(place, name)
            place += 1
    return [_row(name, before.get(name, ""), after.get(name, "")) for name in names]


def _row(name: str, old: str, new: str) -> Row:
    change = "" if old == new else "added" if not old else "removed" if not new else "changed"
    return Row(name, old, new, change)


def _fields(schema: Schema, where: str, inside: tuple[Schema, ...]) -> Iterator[tuple[str, str]]:
    """Every field below, with what it holds; a record within itself once."""
    match schema:
        case Record() if schema not in inside:
            if not inside:
                yield where, _head(schema)
            for field in schema.fields:
                name = f"{where}.{field.name}"
                yield name, _described(field)
                yield from _fields(field.schema, name, (*inside, schema))
        case Record():
            return
        case Array():
            yield from _fields(schema.items, f"{where}[]", inside or (schema,))
        case Map():
            yield from _fields(schema.values, f"{where}{{}}", inside or (schema,))
        case Union():
            records = [branch for branch in schema.branches if isinstance(branch, Record | Array | Map)]
            for branch in records:
                inner = where if len(records) == 1 else f"{where}<{branch.fullname}>"
                yield from _fields(branch, inner, inside or (schema,))
        case _:
            if not inside:
                yield where, type_text(schema)


def _name(schema: Schema) -> str:
    return schema.name if isinstance(schema, Named) else schema.type


def _head(schema: Record) -> str:
    return " ".join([f"{schema.type} {schema.fullname}", *_beside(schema.doc, schema.aliases)])


def _described(field: Field) -> str:
    text = type_text(field.schema)
    if field.has_default:
        text += f" = {msgspec.json.encode(field.default).decode()}"
    return " ".join([text, *_beside(field.doc, field.aliases)])


def _beside(doc: str | None, aliases: tuple[str, ...]) -> Iterator[str]:
    if aliases:
        yield f"(alias {', '.join(aliases)})"
    if doc:
        yield f"# {doc}"


def type_text(schema: Schema) -> str:
    """Return a type in a few words: ``null | long (timestamp-micros)``."""
    text = _plain(schema)
    if schema.logical_type is None:
        return text
    details = [str(schema.props[name]) for name in ("precision", "scale") if name in schema.props]
    return f"{text} ({' '.join([schema.logical_type, ', '.join(details)]).rstrip()})"


def _plain(schema: Schema) -> str:
    match schema:
        case Union():
            return " | ".join(map(type_text, schema.branches))
        case Array():
            return f"array of {type_text(schema.items)}"
        case Map():
            return f"map of {type_text(schema.values)}"
        case Enum():
            default = f" = {schema.default}" if schema.default is not None else ""
            return f"enum {schema.name} {{{', '.join(schema.symbols)}}}{default}"
        case Fixed():
            return f"fixed {schema.name} {schema.size}"
        case Named():
            return schema.name
        case _:
            return schema.type
