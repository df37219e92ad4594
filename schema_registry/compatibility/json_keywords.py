"""Compare a keyword of two JSON schemas of equal kind. The spellings of all drafts are recognized."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, cast

from schema_registry.compatibility.json_shapes import Json, Place, Shape, accepts_all


class Difference(NamedTuple):
    rule: str
    path: str
    """From where the comparison began: ``/properties/foo``; empty for the place itself."""
    old: Json
    new: Json


NUMERIC_LIMITS: Final = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")


def at(old: Shape, new: Shape, rule: str, step: str = "") -> Difference:
    return Difference(rule, step, fragment(old.place.schema, step), fragment(new.place.schema, step))


def fragment(schema: Json, step: str) -> Json:
    """Return the part of a schema that a step leads to."""
    for name in step.split("/")[1:]:
        if isinstance(schema, dict):
            schema = cast("dict[str, Json]", schema).get(name)
        elif isinstance(schema, list) and name.isdigit() and int(name) < len(cast("list[Json]", schema)):
            schema = cast("list[Json]", schema)[int(name)]
        else:
            return None
    return schema


def raw(place: Place | None) -> Json:
    return None if place is None else place.schema


def equal(one: Json, other: Json) -> bool:
    """Equality of JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def notes(old: Shape, new: Shape) -> Iterator[Difference]:
    for keyword, rule in (("$id", "ID"), ("title", "TITLE"), ("description", "DESCRIPTION"), ("default", "DEFAULT")):
        if old.get(keyword) != new.get(keyword):
            yield at(old, new, f"{rule}_CHANGED")


def numeric_kind(old: Shape, new: Shape) -> Iterator[Difference]:
    if old.kind != new.kind:
        yield at(old, new, "TYPE_NARROWED" if new.kind == "integer" else "TYPE_EXTENDED")


def limits(
    old: Shape, new: Shape, *keywords: str, value: Callable[[Shape, str], Json] = lambda shape, name: shape.get(name)
) -> Iterator[Difference]:
    for keyword in keywords:
        before, after = value(old, keyword), value(new, keyword)
        rule = re.sub("([A-Z])", r"_\1", keyword).upper()
        if before is None and after is not None:
            yield at(old, new, f"{rule}_ADDED", f"/{keyword}")
        elif before is not None and after is None:
            yield at(old, new, f"{rule}_REMOVED", f"/{keyword}")
        elif before is not None and before != after:
            yield at(old, new, f"{rule}_{'INCREASED' if after > before else 'DECREASED'}", f"/{keyword}")


def numeric_limit(shape: Shape, keyword: str) -> Json:
    """Draft 4 says ``"maximum": 3, "exclusiveMaximum": true`` for what later drafts call ``"exclusiveMaximum": 3``."""
    value = shape.get(keyword)
    if keyword.startswith("exclusive"):
        if isinstance(value, bool):
            return shape.get(keyword.removeprefix("exclusive").lower()) if value else None
        return value
    exclusive = shape.get("exclusive" + keyword.capitalize())
    return None if exclusive is True else value


def min_contains(shape: Shape, keyword: str) -> Json:
    value = shape.get(keyword)
    return 1 if value is None and shape.get("contains") is not None else value


def multiple_of(old: Shape, new: Shape) -> Iterator[Difference]:
    before, after = old.get("multipleOf"), new.get("multipleOf")
    if before == after:
        return
    if before is None or after is None:
        change = "ADDED" if before is None else "REMOVED"
    else:
        change = "EXPANDED" if after % before == 0 else "REDUCED" if before % after == 0 else "CHANGED"
    yield at(old, new, f"MULTIPLE_OF_{change}", "/multipleOf")


def pattern(old: Shape, new: Shape) -> Iterator[Difference]:
    before, after = old.get("pattern"), new.get("pattern")
    if before != after:
        change = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
        yield at(old, new, f"PATTERN_{change}", "/pattern")


def enums(old: Shape, new: Shape) -> Iterator[Difference]:
    change = set_change(old.get("enum"), new.get("enum"))
    if change:
        yield at(old, new, f"ENUM_ARRAY_{change}", "/enum")


def set_change(before: list[Json], after: list[Json]) -> str:
    lost = any(not any(equal(one, other) for other in after) for one in before)
    gained = any(not any(equal(one, other) for other in before) for one in after)
    return "CHANGED" if lost and gained else "NARROWED" if lost else "EXTENDED" if gained else ""


def required(old: Shape, new: Shape, common: list[str]) -> Iterator[Difference]:
    before, after = (cast("list[str]", shape.get("required") or []) for shape in (old, new))
    for name in after:
        if name not in before and name in common:
            defaulted = "_WITH_DEFAULT" if has_default(schemas(new, "properties").get(name)) else ""
            yield at(old, new, f"REQUIRED_ATTRIBUTE{defaulted}_ADDED", f"/required/{name}")
    for name in before:
        if name not in after:
            yield at(old, new, "REQUIRED_ATTRIBUTE_REMOVED", f"/required/{name}")


def has_default(schema: Json) -> bool:
    return isinstance(schema, dict) and "default" in schema


def schemas(shape: Shape, keyword: str) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", shape.get(keyword) or {})


def rest_for(shape: Shape, name: str) -> Json:
    """Return the rule for properties that an object schema does not name: True (any), False (none), or a schema."""
    for pattern, schema in schemas(shape, "patternProperties").items():
        if matches(pattern, name):
            return schema
    rest = shape.get("additionalProperties")
    if rest is None:
        rest = shape.get("unevaluatedProperties")
    return True if rest is None or accepts_all(rest) else rest


def matches(pattern: str, name: str) -> bool:
    # A pattern that Python cannot read, or that may take forever, covers nothing: the stricter answer.
    if len(pattern) > 200 or len(name) > 200 or re.search(r"[*+}]\)?[*+{]", pattern):
        return False
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def all_dependencies(shape: Shape) -> dict[str, Json]:
    keywords = ("dependencies", "dependentRequired", "dependentSchemas")
    return {name: value for keyword in keywords for name, value in schemas(shape, keyword).items()}


def inner(shape: Shape, keyword: str) -> Place | None:
    schema = shape.get(keyword)
    return None if schema is None else shape.place.inner(schema)


def items(shape: Shape) -> tuple[list[Json] | None, Json]:
    """Return the schemas by place (None: the list has none), and the schema of what follows (None: anything)."""
    prefix, items = shape.get("prefixItems"), shape.get("items")
    if prefix is not None:
        return cast("list[Json]", prefix), items
    if isinstance(items, list):
        return cast("list[Json]", items), shape.get("additionalItems")
    if items is None and shape.get("additionalItems") is not None:
        return [], shape.get("additionalItems")
    return None, items


def all_items(shape: Shape, items: Json) -> Place | None:
    return None if items is None or accepts_all(items) else shape.place.inner(items)


def rest_of_items(shape: Shape) -> Json:
    rest = items(shape)[1]
    if rest is None:
        rest = shape.get("unevaluatedItems")
    return True if rest is None or accepts_all(rest) else rest
