"""JSON Schema: drafts 4, 6, 7, 2019-09 and 2020-12, validated by the library `jsonschema` against their metaschemas.

Nothing is fetched: a ``$ref`` leads into the schema itself, into one of its references (by the reference's name), or
to a metaschema of the drafts; any other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isinf
from typing import Any, Final, Literal, cast
from urllib.parse import urljoin

from eventbus.errors import ConfigError

try:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing import Registry, Resource
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT7
except ModuleNotFoundError as error:
    raise ConfigError(
        f'JSON schemas need a library that is not installed ({error.name}): pip install "eventbus-log[registry]"'
    ) from error

from schema_registry.compatibility import json_explained as explained
from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.json_schema import TooMuch, differences
from schema_registry.compatibility.json_shapes import CONSTRAINING, Json, Place, Shape
from schema_registry.compatibility.warehouse import TARGETS, TableFinding
from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.references import Resolve, closure, in_order
from serdes.avro.text import json_text
from serdes.nesting import is_too_deep
from serdes.registry import Reference, SchemaText

MAX_DEPTH: Final = 128
"""The maximum nesting of objects and lists. A schema within a schema takes two levels."""
MAX_NODES: Final = 10_000
"""Objects and lists of a schema together."""
DEFAULT_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""The draft of a schema without ``$schema``, as in Confluent's registry."""

REF_WITH_SIBLINGS: Final = frozenset(
    {"https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema"}
)
"""Drafts in which keywords next to a ``$ref`` apply as well."""

ONE_SCHEMA: Final = frozenset(
    [
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "contentSchema",
    ]
)
MANY_SCHEMAS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
NAMED_SCHEMAS: Final = frozenset(
    ["properties", "patternProperties", "dependencies", "dependentSchemas", "definitions", "$defs"]
)


def parse_json_schema(text: SchemaText, resolve: Resolve, *, is_new: bool = True) -> JsonSchema:
    needed = closure(text, resolve)
    schema = _load(text.schema, "")
    referred = [(reference.name, _load(found.schema, reference.name)) for reference, found in needed]
    if is_new:
        _validate(schema)
    return JsonSchema(schema, text, _Targets(schema, referred).targets)


class JsonSchema:
    """A parsed JSON schema; ``schema`` is the document."""

    __slots__ = ("canonical", "place", "schema", "text")

    schema_type: Literal["JSON"] = "JSON"

    def __init__(self, schema: Json, text: SchemaText, targets: dict[int, Json]) -> None:
        self.schema = schema
        self.text = text
        self.canonical = json_text(schema)
        self.place = Place(schema, targets)

    @property
    def references(self) -> tuple[Reference, ...]:
        return self.text.references

    @property
    def names(self) -> tuple[str, ...]:
        """The title, by which record name strategies know a JSON schema."""
        title = Shape("any", self.place).get("title")
        return (title,) if isinstance(title, str) else ()

    def formatted(self, format: str) -> str:
        return self.canonical

    def normalized(self) -> SchemaText:
        return in_order(self.text, json_text(_sorted(self.schema)))

    def unreadable(self, writer: object, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        harmless = explained.LENIENT if policy == "LENIENT" else explained.COMPATIBLE
        try:
            found = differences(self.place, cast(JsonSchema, writer).place, harmless)
        except TooMuch as error:
            return [explained.too_much(str(error), reader)]
        return [explained.finding(one, reader) for one in found if one.rule not in harmless]

    def breaks_tables(self, old: object, targets: tuple[str, ...] = TARGETS) -> list[TableFinding]:
        return []


def _load(text: str, name: str) -> Json:
    if is_too_deep(text.encode(errors="replace"), MAX_DEPTH):
        raise InvalidSchema(f"it has more than {MAX_DEPTH} levels", name, "JSON")
    try:
        schema: Json = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        raise InvalidSchema(f"it is no JSON: {error}", name, "JSON") from None
    if not isinstance(schema, dict | bool):
        raise InvalidSchema("a schema is an object, true or false", name, "JSON")
    nodes = 0
    waiting: list[Json] = [cast(Json, schema)]
    while waiting:
        node = waiting.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise InvalidSchema(f"it has more than {MAX_NODES:,} objects and lists", name, "JSON")
        inner = cast("list[Json]", list(cast("dict[str, Json]", node).values()) if isinstance(node, dict) else node)
        if not isinstance(node, bool):
            waiting += [one for one in inner if isinstance(one, dict | list)]
    return cast(Json, schema)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if isinf(value):
        raise ValueError(f"the number {digits:.40} is beyond a double, in which JSON schemas are kept")
    return value


def _validate(schema: Json) -> None:
    draft = validator_for(schema, default=validator_for({"$schema": DEFAULT_DRAFT}))
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        path = "#/" + "/".join(str(step) for step in error.absolute_path)
        raise InvalidSchema(error.message[:500], path, "JSON") from None


class _Targets:
    """Follows every ``$ref`` once, so that comparing needs no resolver: from the object's id to the schema it means."""

    def __init__(self, schema: Json, referred: list[tuple[str, Json]]) -> None:
        self.targets: dict[int, Json] = {}
        self.siblings_count = _draft(schema) in REF_WITH_SIBLINGS
        root = Resource.from_contents(schema, default_specification=DRAFT7)
        base = root.id() or ""
        registry: Registry[Json] = REGISTRY
        for name, contents in referred:
            resource = Resource.from_contents(contents, default_specification=DRAFT7)
            registry = registry.with_resources([(name, resource), (urljoin(base, name), resource)])
        self.waiting: list[tuple[Json, Any, str]] = [(schema, registry.resolver_with_root(root), "#")]
        visited: set[int] = set()
        while self.waiting:
            found, resolver, path = self.waiting.pop()
            if isinstance(found, dict) and id(cast(object, found)) not in visited:
                visited.add(id(cast(object, found)))
                self.visit(cast("dict[str, Json]", found), resolver, path)

    def visit(self, members: dict[str, Json], resolver: Any, path: str) -> None:
        for keyword in ("$ref", "$recursiveRef", "$dynamicRef"):
            if isinstance(members.get(keyword), str):
                self.follow(members, members[keyword], resolver, f"{path}/{keyword}")
        for step, inner in _inner_schemas(members):
            if isinstance(inner, dict):
                resource = Resource.from_contents(inner, default_specification=DRAFT7)
                self.waiting.append((cast(Json, inner), resolver.in_subresource(resource), f"{path}/{step}"))

    def follow(self, members: dict[str, Json], ref: str, resolver: Any, path: str) -> None:
        try:
            found = resolver.lookup(ref)
        except (Unresolvable, ValueError) as error:
            raise InvalidSchema(
                f"$ref {ref!r} leads nowhere: it is neither in the schema nor the name of one of its references "
                "(nothing is fetched)",
                path,
                "JSON",
            ) from error
        beside = {name: value for name, value in members.items() if name in CONSTRAINING}
        if self.siblings_count and beside:
            # Since 2019-09 a $ref is one demand among others.
            alone = {"$ref": ref}
            self.targets[id(alone)] = found.contents
            self.targets[id(members)] = {"allOf": [alone, beside]}
        else:
            self.targets[id(members)] = found.contents
            self.refuse_circle(members, ref, path)
        self.waiting.append((found.contents, found.resolver, ref))

    def refuse_circle(self, members: dict[str, Json], ref: str, path: str) -> None:
        seen = {id(members)}
        here = self.targets[id(members)]
        while isinstance(here, dict) and id(cast(object, here)) in self.targets:
            if id(cast(object, here)) in seen:
                raise InvalidSchema(f"$ref {ref!r} leads to itself", path, "JSON")
            seen.add(id(cast(object, here)))
            here = self.targets[id(cast(object, here))]


def _draft(schema: Json) -> str:
    draft = Shape("any", Place(schema, {})).get("$schema")
    return draft.rstrip("#") if isinstance(draft, str) else ""


def _inner_schemas(members: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    for keyword, value in members.items():
        if isinstance(value, dict) and keyword in ONE_SCHEMA:
            yield keyword, value
        elif isinstance(value, list) and keyword in MANY_SCHEMAS:
            for index, one in enumerate(cast("list[Json]", value)):
                yield f"{keyword}/{index}", one
        elif isinstance(value, dict) and keyword in NAMED_SCHEMAS:
            for name, one in cast("dict[str, Json]", value).items():
                yield f"{keyword}/{name}", one


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        members = cast("dict[str, Json]", value)
        return {name: _sorted(members[name]) for name in sorted(members)}
    if isinstance(value, list):
        return [_sorted(one) for one in cast("list[Json]", value)]
    return value
