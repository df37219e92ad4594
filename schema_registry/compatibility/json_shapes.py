"""Bring JSON schemas into a form that can be compared: each has a single kind, in the spelling common to all drafts.

A schema with several constraints (``type`` and ``enum``, two types, ``$ref`` with other keywords) becomes a combination
of schemas with one constraint each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

Json = Any

OBJECT: Final = frozenset(
    [
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "minProperties",
        "maxProperties",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "propertyNames",
        "unevaluatedProperties",
    ]
)
ARRAY: Final = frozenset(
    [
        "items",
        "additionalItems",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
    ]
)
STRING: Final = frozenset({"minLength", "maxLength", "pattern"})
NUMBER: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
KEYWORDS: Final = {"object": OBJECT, "array": ARRAY, "string": STRING, "number": NUMBER}
COMBINING: Final = ("allOf", "anyOf", "oneOf")
CONDITIONAL: Final = ("if", "then", "else")
REFERRING: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
MAPS_OF_SCHEMAS: Final = frozenset({"properties", "patternProperties", "dependencies", "dependentSchemas"})
HOLDING_SCHEMAS: Final = frozenset(
    {"items", "additionalItems", "prefixItems", "unevaluatedItems", "contains", "additionalProperties", "not", "if"}
    | {"unevaluatedProperties", "propertyNames", "then", "else", "allOf", "anyOf", "oneOf"}
)
MAX_SCHEMAS: Final = 20_000
CONSTRAINING: Final = OBJECT | ARRAY | STRING | NUMBER | {"type", "enum", "const", "not", *COMBINING, *CONDITIONAL}


class TooMuch(Exception):
    """The schemas are made to be slow to compare."""


class Place:
    """A schema, and where the references in its document lead: from the id of an object with ``$ref`` to a schema."""

    __slots__ = ("schema", "targets")

    def __init__(self, schema: Json, targets: Mapping[int, Json]) -> None:
        self.schema = schema
        self.targets = targets

    def inner(self, schema: Json) -> Place:
        return Place(schema, self.targets)

    def followed(self) -> Place:
        """Return the place that a ``$ref`` leads to, else this one."""
        schema = self.schema
        while isinstance(schema, dict) and id(cast(object, schema)) in self.targets:
            schema = self.targets[id(cast(object, schema))]
        return self if schema is self.schema else self.inner(schema)


class Shape:
    """One constraint: a ``kind``, its keywords, and the parts of a combination."""

    __slots__ = ("criterion", "kind", "parts", "place", "synthetic")

    def __init__(
        self, kind: str, place: Place, parts: tuple[Place, ...] = (), criterion: str = "", *, synthetic: bool = False
    ) -> None:
        self.kind = kind
        """any, never, object, array, string, number, integer, boolean, null, enum, const, not, if or combined."""
        self.place = place
        self.parts = parts
        self.criterion = criterion
        """allOf, anyOf or oneOf."""
        self.synthetic = synthetic
        """The combination is not written as one: its parts stand at the place itself."""

    def get(self, name: str) -> Json:
        schema = self.place.schema
        return cast("dict[str, Json]", schema).get(name) if isinstance(schema, dict) else None

    @property
    def is_numeric(self) -> bool:
        return self.kind in ("number", "integer")


def shape_of(place: Place) -> Shape:
    place = place.followed()
    schema = place.schema
    if schema is False:
        return Shape("never", place)
    if not isinstance(schema, dict):
        return Shape("any", place)
    members = cast("dict[str, Json]", schema)
    parts = _parts(members)
    if len(parts) > 1:
        return Shape("combined", place, tuple(place.inner(part) for part in parts), "allOf", synthetic=True)
    return _simple(place, members)


def _simple(place: Place, members: dict[str, Json]) -> Shape:
    for criterion in COMBINING:
        if criterion in members:
            branches = tuple(place.inner(branch) for branch in _distinct(members[criterion]))
            return Shape("combined", place, branches, criterion)
    for kind in ("enum", "const", "not"):
        if kind in members:
            return Shape(kind, place)
    if any(name in members for name in CONDITIONAL):
        return Shape("if", place)
    wanted = members.get("type")
    if isinstance(wanted, list):
        types = cast("list[str]", wanted)
        branches = tuple(place.inner(_of_type(members, one)) for one in types)
        return Shape("combined", place, branches, "anyOf", synthetic=True)
    if wanted is None:
        wanted = next((kind for kind, names in KEYWORDS.items() if not names.isdisjoint(members)), "any")
    return Shape(cast(str, wanted), place)


def _parts(members: dict[str, Json]) -> list[Json]:
    """Return the schema cut into schemas that say one thing each; notes (title, default, ...) stay with the first."""
    notes = {name: value for name, value in members.items() if name not in CONSTRAINING}
    found: list[dict[str, Json]] = [
        {name: members[name]} for name in ("enum", "const", "not", *COMBINING) if name in members
    ]
    if conditions := {name: members[name] for name in CONDITIONAL if name in members}:
        found.append(conditions)
    found += _typed_parts(members)
    if found and len(found) > 1:
        found[0] = {**notes, **found[0]}
    return list(found)


def _typed_parts(members: dict[str, Json]) -> list[dict[str, Json]]:
    if "type" in members:
        typed = {name: value for name, value in members.items() if name == "type" or _is_typed(name)}
        return [typed]
    return [
        {name: members[name] for name in members if name in names}
        for names in KEYWORDS.values()
        if not names.isdisjoint(members)
    ]


def _is_typed(name: str) -> bool:
    return any(name in names for names in KEYWORDS.values())


def _of_type(members: dict[str, Json], kind: str) -> dict[str, Json]:
    """Return one branch of a list of types, with the keywords that speak of it."""
    names = KEYWORDS.get("number" if kind == "integer" else kind, frozenset[str]())
    return {"type": kind, **{name: value for name, value in members.items() if name in names}}


def _distinct(branches: list[Json]) -> list[Json]:
    found: list[tuple[Json, Json]] = []
    for branch in branches:
        told = constraints(branch)
        if all(told != other for other, _ in found):
            found.append((told, branch))
    return [branch for _, branch in found]


def constraints(schema: Json, targets: Mapping[int, Json] | None = None) -> Json:
    """Return what is equal for two schemas that differ in annotations alone: titles, defaults, examples.

    ``targets``: where references lead, for schemas of two documents. Raises `TooMuch`.
    """
    return _Constraints(targets or {}).of(schema)


def accepts_all(schema: Json) -> bool:
    return schema is True or (isinstance(schema, dict) and CONSTRAINING.isdisjoint(cast("dict[str, Json]", schema))
                              and REFERRING.isdisjoint(cast("dict[str, Json]", schema)))  # fmt: skip


class _Constraints:
    def __init__(self, targets: Mapping[int, Json]) -> None:
        self.targets = targets
        self.open: set[int] = set()
        self.schemas = 0

    def of(self, schema: Json) -> Json:
        if not isinstance(schema, dict):
            return ("boolean", schema)  # True is not 1
        members = cast("dict[str, Json]", schema)
        self.schemas += 1
        if self.schemas > MAX_SCHEMAS:  # references that lead to references, many times each
            raise TooMuch(f"a condition has more than {MAX_SCHEMAS:,} schemas with those that it refers to")
        target = self.targets.get(id(members))
        if target is None or id(target) in self.open:
            names = CONSTRAINING | REFERRING
            return {name: self.inner(name, value) for name, value in members.items() if name in names}
        self.open.add(id(target))
        found = self.of(target)
        self.open.remove(id(target))
        return found

    def inner(self, name: str, value: Json) -> Json:
        if name in MAPS_OF_SCHEMAS and isinstance(value, dict):
            return {key: self.inner("items", one) for key, one in cast("dict[str, Json]", value).items()}
        if name in HOLDING_SCHEMAS:
            return [self.of(one) for one in cast("list[Json]", value)] if isinstance(value, list) else self.of(value)
        return json.dumps(value, sort_keys=True)
