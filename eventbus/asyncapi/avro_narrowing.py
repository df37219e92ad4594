"""Compare two Avro schemas by Avro's rules of resolution.

*Widens*: a reader with the old schema cannot read what is written with the new one. *Narrows*: a reader with the new
schema cannot read what was written with the old one. See https://avro.apache.org/docs/1.12.0/specification/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from eventbus.asyncapi.narrowing import Difference
from eventbus.asyncapi.reading import JsonObject
from serdes.avro.schema import PRIMITIVES, PROMOTIONS


def avro_differences(old: Any, new: Any) -> list[Difference]:
    """Return the differences between two Avro schemas, given as JSON data."""
    return list(_Comparison(_definitions(old), _definitions(new)).differences(old, new, ""))


class _Comparison:
    def __init__(self, old: JsonObject, new: JsonObject) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str]] = set()

    def differences(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        if isinstance(old, list) or isinstance(new, list):
            yield from self._unions(_branches(old), _branches(new), path)
            return
        before, after = _schema(old, self._old), _schema(new, self._new)
        kind_before, kind_after = before["type"], after["type"]
        if kind_before != kind_after:
            what = f"its type was {kind_before} and is {kind_after}"
            widens = kind_before not in PROMOTIONS.get(kind_after, ())
            yield Difference(path, what, widens=widens, narrows=kind_after not in PROMOTIONS.get(kind_before, ()))
            return
        if before.get("logicalType") != after.get("logicalType"):
            what = f"its logical type was {before.get('logicalType')} and is {after.get('logicalType')}"
            yield Difference(path, what, widens=True, narrows=True)
        elif before.get("logicalType") == "decimal":
            yield from _decimals(before, after, path)
        match kind_before:
            case "record" | "error":
                yield from self._records(before, after, path)
            case "enum":
                yield from _enums(before, after, path)
            case "array":
                yield from self.differences(before["items"], after["items"], f"{path}[]")
            case "map":
                yield from self.differences(before["values"], after["values"], f"{path}{{}}")
            case "fixed":
                yield from _names(before, after, path)
                if before.get("size") != after.get("size"):
                    what = f"its size was {before.get('size')} bytes and is {after.get('size')}"
                    yield Difference(path, what, widens=True, narrows=True)
            case _:
                pass

    def _records(self, old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
        pair = (old.get("name", ""), new.get("name", ""))
        if pair in self._seen:
            return
        self._seen.add(pair)
        yield from _names(old, new, path)
        before = {field["name"]: field for field in old.get("fields", ())}
        after = {field["name"]: field for field in new.get("fields", ())}
        renamed = {
            alias: name
            for name, field in after.items()
            for alias in field.get("aliases", ())
            if alias in before and alias not in after and name not in before
        }
        for name, field in before.items():
            place = f"{path}.{name}" if path else name
            if name in renamed:
                what = f"it is called {renamed[name]} now, with the old name as an alias"
                yield Difference(place, what, widens="default" not in field)
                yield from self.differences(field["type"], after[renamed[name]]["type"], place)
            elif name not in after:
                has = "default" in field
                what = f"the field is gone, and had {'a' if has else 'no'} default"
                yield Difference(place, what, widens=not has)
            else:
                other = after[name]
                if ("default" in field) != ("default" in other):
                    yield Difference(place, f"its default is {'new' if 'default' in other else 'gone'}")
                yield from self.differences(field["type"], other["type"], place)
        for name, field in after.items():
            if name not in before and name not in renamed.values():
                has = "default" in field
                place = f"{path}.{name}" if path else name
                yield Difference(place, f"a new field {'with a' if has else 'without a'} default", narrows=not has)

    def _unions(self, old: list[Any], new: list[Any], path: str) -> Iterator[Difference]:
        left = {_identity(one, self._new): one for one in new}
        gone: dict[str, Any] = {}
        for one in old:
            name = _identity(one, self._old)
            if name in left:
                yield from self.differences(one, left.pop(name), path)
            else:
                gone[name] = one
        for name in gone:  # a reader uses the first of its branches that can read the value
            is_read = any(_identity(one, self._new) in PROMOTIONS.get(name, ()) for one in new)
            yield Difference(path, f"{name} is no longer among its types", narrows=not is_read)
        for name in left:
            is_read = any(_identity(one, self._old) in PROMOTIONS.get(name, ()) for one in old)
            yield Difference(path, f"{name} is new among its types", widens=not is_read)


def _decimals(old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
    scales, digits = ([one.get(word, 0) for one in (old, new)] for word in ("scale", "precision"))
    if scales[0] != scales[1]:
        yield Difference(path, f"its scale was {scales[0]} and is {scales[1]}", widens=True, narrows=True)
    if digits[0] != digits[1]:
        what = f"its precision was {digits[0]} and is {digits[1]}"
        yield Difference(path, what, widens=digits[1] > digits[0], narrows=digits[1] < digits[0])


def _names(old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
    before, after = (str(one.get("name", "")).rpartition(".")[2] for one in (old, new))
    if before != after:
        has_alias = any(str(alias).rpartition(".")[2] == before for alias in new.get("aliases", ()))
        yield Difference(path, f"its name was {before} and is {after}", widens=True, narrows=not has_alias)


def _enums(old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
    yield from _names(old, new, path)
    for symbol in (one for one in old["symbols"] if one not in new["symbols"]):
        yield Difference(path, f"the symbol {symbol} is gone", narrows="default" not in new)
    for symbol in (one for one in new["symbols"] if one not in old["symbols"]):
        yield Difference(path, f"the symbol {symbol} is new", widens="default" not in old)


def _definitions(schema: Any) -> JsonObject:
    """Return the named types inside, by their names, with and without a namespace."""
    found: JsonObject = {}
    waiting: list[Any] = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting.extend(cast("list[Any]", one))
        elif isinstance(one, dict):
            node = cast(JsonObject, one)
            if isinstance(node.get("name"), str) and node.get("type") in ("record", "error", "enum", "fixed"):
                found.setdefault(node["name"].rpartition(".")[2], node)
            waiting.extend(node[name] for name in ("type", "items", "values", "fields") if name in node)
    return found


def _schema(node: Any, definitions: JsonObject) -> JsonObject:
    """Return the schema as an object with a type; a name is resolved to its definition."""
    if isinstance(node, str):
        return {"type": node} if node in PRIMITIVES else definitions.get(node.rpartition(".")[2], {"type": node})
    inner = node["type"]
    return _schema(inner, definitions) if isinstance(inner, dict) else node


def _branches(node: Any) -> list[Any]:
    return cast("list[Any]", node) if isinstance(node, list) else [node]


def _identity(node: Any, definitions: JsonObject) -> str:
    schema = _schema(node, definitions)
    return str(schema.get("name", schema["type"])).rpartition(".")[2]
