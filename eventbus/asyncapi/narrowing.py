"""Compare two schemas: each difference *widens* the set of values, *narrows* it, or does neither.

Whether a difference breaks a client depends on the direction, see `changes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from eventbus.asyncapi.reading import JsonObject, resolved

ALL_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_OTHER = ("format", "pattern", "multipleOf", "uniqueItems", "contentEncoding")
_UNJUDGED = (
    "additionalItems", "contains", "contentMediaType", "dependencies", "dependentRequired", "dependentSchemas", "else",
    "if", "not", "patternProperties", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
"""Keywords that restrict values in ways that are not analysed here: a change may both widen and narrow."""
_WORDS = (*_LOWER, *_UPPER, *_OTHER, *_UNJUDGED, "type", "enum", "const", "properties", "required",
          "additionalProperties", "items", "allOf")  # fmt: skip


class Difference(msgspec.Struct, frozen=True):
    """A difference at a place within a value."""

    path: str
    """A path like "amount" or "items[].price"; "" for the value itself."""
    what: str
    widens: bool = False
    """True if new values are possible."""
    narrows: bool = False
    """True if some values are no longer possible."""


def json_differences(old_document: JsonObject, old: Any, new_document: JsonObject, new: Any) -> list[Difference]:
    """Return the differences between two JSON Schemas, each within its document."""
    return list(_Comparison(old_document, new_document).differences(old, new, ""))


class _Comparison:
    def __init__(self, old: JsonObject, new: JsonObject) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str | int, str | int]] = set()
        """References that are already compared: schemas may contain themselves, also as alternatives."""
        self._compared: dict[tuple[int, int], tuple[JsonObject, JsonObject]] = {}
        """Alternatives that are already compared. They are kept, so that their identities are not reused."""

    def differences(self, old: Any, new: Any, path: str) -> Iterator[Difference]:
        pair = (_reference(old) or id(old), _reference(new) or id(new))  # parts of documents, which stay in memory
        if pair in self._seen:
            return
        self._seen.add(pair)
        old_arms, new_arms = _arms(self._old, old), _arms(self._new, new)
        if all(map(_takes_all, (*old_arms, *new_arms))):
            return
        if len(old_arms) == len(new_arms) == 1:
            yield from self._one(old_arms[0], new_arms[0], path)
            return
        pairs, gone, left = _paired(old_arms, new_arms)
        for arm, partner in pairs:
            yield from self._one(arm, partner, path)
        for arm in gone:
            took_all = any(_takes_all(one) for one in new_arms)
            yield Difference(path, f"{_named(arm)} is no longer among its types", narrows=not took_all)
        for arm in left:
            took_all = any(_takes_all(one) for one in old_arms)
            yield Difference(path, f"{_named(arm)} is new among its types", widens=not took_all)

    def _one(self, old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
        if (id(old), id(new)) in self._compared:
            return
        self._compared[id(old), id(new)] = old, new
        before, after = _types(old), _types(new)
        if before != after:
            gained = after - before - ({"integer"} if "number" in before else set())
            lost = before - after - ({"integer"} if "number" in after else set())
            what = f"its type was {_listed(before)} and is {_listed(after)}"
            yield Difference(path, what, widens=bool(gained), narrows=bool(lost))
            if not before & after:
                return
        yield from _values(old, new, path)
        yield from _bounds(old, new, path)
        if "object" in before & after:
            yield from self._fields(old, new, path)
        if "array" in before & after:
            yield from self._items(old, new, path)
        yield from self._parts(old, new, path)

    def _fields(self, old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
        before, after = _object(old, "properties"), _object(new, "properties")
        required_before, required_after = set(old.get("required", ())), set(new.get("required", ()))
        was_closed, is_closed = old.get("additionalProperties") is False, new.get("additionalProperties") is False
        for name in [*before, *(name for name in after if name not in before)]:
            place = f"{path}.{name}" if path else name
            if name not in after:
                needed = name in required_before
                what = f"the {'required' if needed else 'optional'} field is gone"
                yield Difference(place, what, widens=needed, narrows=is_closed)
            elif name not in before:
                needed = name in required_after
                what = f"a new {'required' if needed else 'optional'} field"
                yield Difference(place, what, widens=was_closed, narrows=needed)
            else:
                if (name in required_before) != (name in required_after):
                    needed = name in required_after
                    what = "it was optional and is required" if needed else "it was required and is optional"
                    yield Difference(place, what, widens=not needed, narrows=needed)
                yield from self.differences(before[name], after[name], place)
        if was_closed != is_closed:
            what = "unknown fields are refused now" if is_closed else "unknown fields are possible now"
            yield Difference(path, what, widens=was_closed, narrows=is_closed)
        elif not is_closed:
            others = old.get("additionalProperties", True), new.get("additionalProperties", True)
            yield from self.differences(*others, f"{path}{{}}")

    def _items(self, old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
        before, after = old.get("items", True), new.get("items", True)
        if isinstance(before, list) and isinstance(after, list):
            one, other = cast("list[Any]", before), cast("list[Any]", after)
            for number in range(max(len(one), len(other))):
                place = f"{path}[{number}]"
                if number < min(len(one), len(other)):
                    yield from self.differences(one[number], other[number], place)
                else:  # minItems decides whether it must exist, maxItems whether there may be more
                    yield Difference(place, "the item is gone" if number < len(one) else "a new item")
        elif isinstance(before, list) or isinstance(after, list):
            yield Difference(path, "its items are described in another way", widens=True, narrows=True)
        else:
            yield from self.differences(before, after, f"{path}[]")

    def _parts(self, old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
        """Yield differences in the other conditions for a value."""
        before, after = old.get("allOf", []), new.get("allOf", [])
        for one, other in zip(before, after, strict=False):
            yield from self.differences(one, other, path)
        if len(before) != len(after):
            is_more = len(after) > len(before)
            yield Difference(path, f"{'more' if is_more else 'less'} has to hold of it (allOf)", not is_more, is_more)
        for word in _UNJUDGED:
            if old.get(word) != new.get(word):
                yield Difference(path, f"{word} is another", widens=True, narrows=True)


def _paired(
    old: Sequence[JsonObject], new: Sequence[JsonObject]
) -> tuple[list[tuple[JsonObject, JsonObject]], list[JsonObject], list[JsonObject]]:
    """Match old and new alternatives: return pairs, removed ones, and new ones."""
    pairs: list[tuple[JsonObject, JsonObject]] = []
    gone, left = list(old), list(new)
    for is_same in (_is_equal, _is_alike, _promotes):
        for arm in list(gone):
            partner = next((one for one in left if is_same(arm, one)), None)
            if partner is not None:
                pairs.append((arm, partner))
                gone.remove(arm)
                left.remove(partner)
    if len(gone) == len(left) == 1 and _types(gone[0]) & _types(left[0]):
        return [*pairs, (gone[0], left[0])], [], []  # for instance a renamed class
    return pairs, gone, left


def _is_equal(one: JsonObject, other: JsonObject) -> bool:
    return one == other


def _is_alike(one: JsonObject, other: JsonObject) -> bool:
    return _identity(one) == _identity(other)


def _promotes(one: JsonObject, other: JsonObject) -> bool:
    """True if integers became numbers, or numbers became integers."""
    return {*_types(one), *_types(other)} == {"integer", "number"}


def _takes_all(arm: JsonObject) -> bool:
    return not any(word in arm for word in _WORDS)


def _arms(document: JsonObject, node: Any) -> list[JsonObject]:
    """Return the alternatives of a schema, with references resolved; without alternatives, the schema itself."""
    found = resolved(document, node)
    if not isinstance(found, dict):
        return [{"enum": []}] if found is False else [{}]
    schema = cast(JsonObject, found)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return [arm for one in schema[word] for arm in _arms(document, one)]
    # Pydantic writes this next to a description.
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
        siblings = {word: value for word, value in schema.items() if word in _WORDS and word != "allOf"}
        arms = _arms(document, schema["allOf"][0])
        if all(arm.get(word, value) == value for arm in arms for word, value in siblings.items()):
            return [{**arm, **siblings} if siblings else arm for arm in arms]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": one} for one in schema["type"]]
    return [schema]


def _identity(arm: JsonObject) -> str:
    """Return what identifies an alternative: a class name, otherwise a type."""
    return str(arm.get("title") or sorted(_types(arm)))


def _named(arm: JsonObject) -> str:
    return str(arm.get("title") or _listed(_types(arm)))


def _types(schema: JsonObject) -> frozenset[str]:
    """Return the JSON types that its values may have."""
    type_names: Any = schema.get("type")
    if isinstance(type_names, str):
        return frozenset({type_names})
    if isinstance(type_names, list):
        return frozenset(map(str, cast("list[Any]", type_names)))
    values = _enum(schema)
    return ALL_TYPES if values is None else frozenset(_type_of(value) for value in values)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {type(None): "null", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def _listed(types: frozenset[str]) -> str:
    return "anything" if types == ALL_TYPES else " or ".join(sorted(types)) or "nothing"


def _enum(schema: JsonObject) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _values(old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
    before, after = _enum(old), _enum(new)
    if before is None and after is not None:
        yield Difference(path, f"only these values are left: {_shown(after)}", narrows=True)
    elif before is not None and after is None:
        yield Difference(path, "its values were listed, and any is possible now", widens=True)
    elif before is not None and after is not None:
        # as texts, since True == 1
        texts, other = ([json.dumps(one, sort_keys=True) for one in values] for values in (before, after))
        for text in (one for one in texts if one not in other):
            yield Difference(path, f"the value {text} is gone", narrows=True)
        for text in (one for one in other if one not in texts):
            yield Difference(path, f"the value {text} is new", widens=True)
    if old.get("default") != new.get("default") and "default" in old and "default" in new:
        yield Difference(path, f"its default was {json.dumps(old['default'])} and is {json.dumps(new['default'])}")


def _shown(values: Sequence[Any]) -> str:
    return ", ".join(json.dumps(value) for value in values)


def _bounds(old: JsonObject, new: JsonObject, path: str) -> Iterator[Difference]:
    for word in (*_LOWER, *_UPPER, *_OTHER):
        before, after = old.get(word), new.get(word)
        if before == after:
            continue
        what = f"{word} was {before} and is {after}"
        if before is None:
            yield Difference(path, f"{word} is {after} now", narrows=True)
        elif after is None:
            yield Difference(path, f"{word} was {before} and is no more", widens=True)
        elif word in _OTHER:
            yield Difference(path, what, widens=True, narrows=True)
        else:
            is_tighter = (after > before) == (word in _LOWER)
            yield Difference(path, what, widens=not is_tighter, narrows=is_tighter)


def _object(schema: JsonObject, name: str) -> JsonObject:
    found: Any = schema.get(name, {})
    return cast(JsonObject, found) if isinstance(found, dict) else {}


def _reference(node: Any) -> str:
    found: Any = cast(JsonObject, node).get("$ref") if isinstance(node, dict) else None
    return found if isinstance(found, str) else ""
