"""Random JSON schemas, changed at random: where the engine says yes, no document of the old one is refused by the new.

Left out is what registries let pass all the same: a property that becomes required and is named by one schema alone, or
has a default; ``patternProperties``; a branch more in ``oneOf``; keywords of a type without the type.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from jsonschema import Draft7Validator

from schema_registry.formats import InvalidSchema
from tests.schema_registry.compatibility.schemas import checked

pytestmark = pytest.mark.system

NAMES = ("a", "b", "c")
LIMITS = {
    "string": ("minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "multipleOf"),
    "integer": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
VALUES: list[Any] = [None, True, 0, 1, 2, 3, 1.5, "", "x", "xyz", [], [1], ["x", 1], [1, 2, 3], {}, {"a": 1}]


def schema(chance: random.Random, depth: int = 0) -> Any:
    kinds = ["string", "number", "integer", "boolean", "null", "enum", "const", "any"]
    if depth < 3:
        kinds += ["object"] * 5 + ["array", "tuple", "anyOf", "allOf", "types", "not"]
    kind = chance.choice(kinds)
    match kind:
        case "any":
            return chance.choice((True, {}))
        case "enum":
            return {"enum": chance.sample(VALUES, chance.randrange(1, 5))}
        case "const":
            return {"const": chance.choice(VALUES)}
        case "types":
            return {"type": chance.sample(("string", "number", "null", "object"), 2), **limits(chance, "string")}
        case "not":
            return {"not": schema(chance, 3)}
        case "anyOf" | "allOf":
            return {kind: [schema(chance, depth + 1) for _ in range(chance.randrange(1, 4))]}
        case "array":
            return {"type": "array", "items": schema(chance, depth + 1), **limits(chance, "array")}
        case "tuple":
            items = [schema(chance, depth + 1) for _ in range(chance.randrange(1, 3))]
            return {"type": "array", "items": items, **rest(chance, depth, "additionalItems")}
        case "object":
            properties = {name: schema(chance, depth + 1) for name in NAMES if chance.random() < 0.5}
            required = [name for name in properties if chance.random() < 0.3]
            more = {"required": required} if required else {}
            return {
                "type": "object",
                "properties": properties,
                **more,
                **rest(chance, depth, "additionalProperties"),
                **limits(chance, "object"),
            }
        case _:
            return {"type": kind, **limits(chance, kind)}


def rest(chance: random.Random, depth: int, keyword: str) -> dict[str, Any]:
    kind = chance.randrange(4)
    return {keyword: (False, True, schema(chance, depth + 1))[kind]} if kind < 3 else {}


def limits(chance: random.Random, kind: str) -> dict[str, Any]:
    return {name: chance.randrange(1, 4) for name in LIMITS.get(kind, ()) if chance.random() < 0.2}


def changed(chance: random.Random, old: Any) -> Any:
    """The same with one place changed: another schema there, a keyword less, a keyword of another schema more."""
    new = copy.deepcopy(old)
    places: list[dict[str, Any]] = []
    waiting = [] if isinstance(new, bool) else [new]
    while waiting:
        here = waiting.pop()
        if isinstance(here, dict):
            places.append(here)
        waiting += [one for one in (here.values() if isinstance(here, dict) else here) if isinstance(one, dict | list)]
    if not places:
        return schema(chance)
    place = chance.choice(places)
    match chance.randrange(4):
        case 0 if place:
            name = chance.choice(list(place))
            if name != "type":
                place.pop(name)
        case 1 if place:
            name = chance.choice(list(place))
            if isinstance(place[name], dict | bool) and name != "const":
                place[name] = schema(chance, 2)
        case 2 if isinstance(place.get("properties"), dict):
            place["properties"][chance.choice(NAMES)] = schema(chance, 2)
        case _:
            place.update(limits(chance, place["type"]) if isinstance(place.get("type"), str) else {})
    return new


def documents(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(4) if depth < 3 else 0
    match kind:
        case 1 | 2:
            return {name: documents(chance, depth + 1) for name in (*NAMES, "d") if chance.random() < 0.5}
        case 3:
            return [documents(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return chance.choice(VALUES)


@pytest.mark.parametrize("seed", range(3))
def test_a_compatible_schema_refuses_no_old_document(seed: int) -> None:
    refuses_nothing(seed, 150)


@pytest.mark.slow  # the same with many more schemas
@pytest.mark.parametrize("seed", range(100, 110))
def test_no_schema_of_many_does(seed: int) -> None:
    refuses_nothing(seed, 1_500)


def refuses_nothing(seed: int, count: int) -> None:
    chance = random.Random(seed)
    some = [documents(chance) for _ in range(60)]
    compatible = 0
    for _ in range(count):
        old = schema(chance)
        new = changed(chance, old)
        try:
            if not checked("BACKWARD", new, old, schema_type="JSON"):
                continue
        except InvalidSchema:  # the change made no schema
            continue
        compatible += 1
        before, after = Draft7Validator(old), Draft7Validator(new)
        refused = [one for one in some if before.is_valid(one) and not after.is_valid(one)]
        assert refused == [], (new, old)
    assert compatible > count // 4
