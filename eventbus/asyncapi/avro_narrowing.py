"""Compare two Avro schemas by Avro's rules of resolution.

*Widens*: a reader with the old schema cannot read what is written with the new one. *Narrows*: a reader with the new
schema cannot read what was written with the old one. See https://avro.apache.org/docs/1.12.0/specification/.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from eventbus.asyncapi.narrowing import Difference
from serdes.avro.parse import parse
from serdes.avro.resolve import fields_for, is_promoted, kind_of, same_name
from serdes.avro.schema import Array, Enum, Field, Fixed, Map, Named, Record, Schema, Union


def avro_differences(old: Any, new: Any) -> list[Difference]:
    """Return the differences between two Avro schemas, given as JSON data. Raises ValueError for invalid data."""
    before, after = (parse(json.dumps(schema), validate_defaults=False, names="any") for schema in (old, new))
    return list(_Comparison().differences(before, after, ""))


class _Comparison:
    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def differences(self, old: Schema, new: Schema, path: str) -> Iterator[Difference]:
        if isinstance(old, Union) or isinstance(new, Union):
            yield from self._unions(_branches(old), _branches(new), path)
            return
        if kind_of(old) != kind_of(new):
            what = f"its type was {kind_of(old)} and is {kind_of(new)}"
            yield Difference(path, what, widens=not is_promoted(new, old), narrows=not is_promoted(old, new))
            return
        logical = [schema.props.get("logicalType") for schema in (old, new)]
        if logical[0] != logical[1]:
            what = f"its logical type was {logical[0]} and is {logical[1]}"
            yield Difference(path, what, widens=True, narrows=True)
        elif logical[0] == "decimal":
            yield from _decimals(old, new, path)
        if isinstance(old, Named) and isinstance(new, Named):
            yield from self._named(old, new, path)
        elif isinstance(old, Array) and isinstance(new, Array):
            yield from self.differences(old.items, new.items, f"{path}[]")
        elif isinstance(old, Map) and isinstance(new, Map):
            yield from self.differences(old.values, new.values, f"{path}{{}}")

    def _named(self, old: Named, new: Named, path: str) -> Iterator[Difference]:
        if (id(old), id(new)) in self._seen:
            return
        self._seen.add((id(old), id(new)))
        if old.name != new.name:
            what = f"its name was {old.name} and is {new.name}"
            yield Difference(path, what, widens=not same_name(new, old), narrows=not same_name(old, new))
        if isinstance(old, Record) and isinstance(new, Record):
            yield from self._records(old, new, f"{path}." if path else "")
        elif isinstance(old, Enum) and isinstance(new, Enum):
            for symbol in (one for one in old.symbols if one not in new.symbols):
                yield Difference(path, f"the symbol {symbol} is gone", narrows=new.default is None)
            for symbol in (one for one in new.symbols if one not in old.symbols):
                yield Difference(path, f"the symbol {symbol} is new", widens=old.default is None)
        elif isinstance(old, Fixed) and isinstance(new, Fixed) and old.size != new.size:
            what = f"its size was {old.size} bytes and is {new.size}"
            yield Difference(path, what, widens=True, narrows=True)

    def _records(self, old: Record, new: Record, dot: str) -> Iterator[Difference]:
        read: dict[str, Field] = {}
        for field in new.fields:
            found = [one for one in fields_for(field, old) if one.name == field.name or new.field(one.name) is None]
            if found and found[0].name not in read:
                read[found[0].name] = field
            else:
                has = "with" if field.has_default else "without"
                yield Difference(dot + field.name, f"a new field {has} a default", narrows=not field.has_default)
        for field in old.fields:
            place, other = dot + field.name, read.get(field.name)
            if other is None:
                what = f"the field is gone, and had {'a' if field.has_default else 'no'} default"
                yield Difference(place, what, widens=not field.has_default)
                continue
            if other.name != field.name:
                what = f"it is called {other.name} now, with the old name as an alias"
                yield Difference(place, what, widens=not field.has_default)
            elif field.has_default != other.has_default:
                yield Difference(place, f"its default is {'new' if other.has_default else 'gone'}")
            yield from self.differences(field.schema, other.schema, place)

    def _unions(self, old: tuple[Schema, ...], new: tuple[Schema, ...], path: str) -> Iterator[Difference]:
        """Compare unions. A reader uses the first of its branches that can read the value."""
        left = {_identity(branch): branch for branch in new}
        for branch in old:
            if (other := left.pop(_identity(branch), None)) is not None:
                yield from self.differences(branch, other, path)
            else:
                is_read = any(is_promoted(branch, one) for one in new)
                yield Difference(path, f"{_identity(branch)} is no longer among its types", narrows=not is_read)
        for name, branch in left.items():
            is_read = any(is_promoted(branch, one) for one in old)
            yield Difference(path, f"{name} is new among its types", widens=not is_read)


def _decimals(old: Schema, new: Schema, path: str) -> Iterator[Difference]:
    scales, digits = ([one.props.get(word, 0) for one in (old, new)] for word in ("scale", "precision"))
    if scales[0] != scales[1]:
        yield Difference(path, f"its scale was {scales[0]} and is {scales[1]}", widens=True, narrows=True)
    if digits[0] != digits[1]:
        what = f"its precision was {digits[0]} and is {digits[1]}"
        yield Difference(path, what, widens=digits[1] > digits[0], narrows=digits[1] < digits[0])


def _branches(schema: Schema) -> tuple[Schema, ...]:
    return schema.branches if isinstance(schema, Union) else (schema,)


def _identity(schema: Schema) -> str:
    """The name of a branch without its namespace."""
    return schema.name if isinstance(schema, Named) else schema.type
