"""JSON Schema: what is refused, and the names of what differs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schema_registry.formats import InvalidSchema, parse
from serdes.registry import Reference, SchemaText
from tests.schema_registry.compatibility.schemas import checked, parsed

pytestmark = pytest.mark.system

STRING, NUMBER, NULL = {"type": "string"}, {"type": "number"}, {"type": "null"}
DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


def rules(new: Any, old: Any, policy: str = "STRICT") -> set[str]:
    """What makes ``new`` refuse documents of ``old``: "RULE path"."""
    verdict = checked("BACKWARD", new, old, schema_type="JSON", policy=policy)
    assert verdict.is_compatible == (not verdict.findings)
    return {f"{finding.rule} {finding.path}" for finding in verdict.findings}


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (True, STRING),
        ({}, closed(a=STRING)),
        ({"type": "number"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, STRING),
        ({"anyOf": [STRING, NULL]}, STRING),
        (closed(a=STRING, b=NUMBER), closed(a=STRING)),
        (opened(a=STRING), opened(a=STRING, b=NUMBER)),
        (opened(a=STRING), {**opened(a=STRING), "required": ["a"]}),
        (opened(a=STRING, b={}), opened(a=STRING)),
        (closed(a=STRING), {**closed(a=STRING), "maxProperties": 1}),
        ({"enum": [1, 2, 3]}, {"enum": [1, 2]}),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 5, "pattern": "x"}),
        ({"type": "number", "multipleOf": 5}, {"type": "number", "multipleOf": 10}),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        ({"not": {"type": "integer"}}, {"not": NUMBER}),
        ({"oneOf": [NULL, STRING, NUMBER]}, {"oneOf": [NULL, STRING]}),
        ({"allOf": [STRING]}, {"allOf": [STRING, {"maxLength": 3}]}),
        ({"title": "new", "type": "string"}, {"title": "old", "type": "string", "default": ""}),
    ],
)
def test_what_does_no_harm(new: Any, old: Any) -> None:
    assert rules(new, old) == set()


@pytest.mark.parametrize(
    ("new", "old", "rule"),
    [
        (NUMBER, STRING, "TYPE_CHANGED #/"),
        ({"type": "integer"}, NUMBER, "TYPE_NARROWED #/"),
        (opened(a=NUMBER), opened(a=STRING), "TYPE_CHANGED #/properties/a"),
        (opened(a=STRING, b=NUMBER), opened(a=STRING), "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"),
        (
            {**closed(a=STRING, b=NUMBER), "required": ["b"]},
            closed(a=STRING),
            "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b",
        ),
        (closed(a=STRING), closed(a=STRING, b=NUMBER), "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/b"),
        ({**opened(a=STRING), "required": ["a"]}, opened(a=STRING), "REQUIRED_ATTRIBUTE_ADDED #/required/a"),
        (closed(a=STRING), opened(a=STRING), "ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"),
        (
            {**opened(), "additionalProperties": STRING},
            opened(),
            "ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties",
        ),
        (
            {"type": "object", "dependencies": {"a": ["b", "c"]}},
            {"type": "object", "dependencies": {"a": ["b"]}},
            "DEPENDENCY_ARRAY_EXTENDED #/dependencies/a",
        ),
        ({"enum": [1]}, {"enum": [1, 2]}, "ENUM_ARRAY_NARROWED #/enum"),
        ({"enum": [1, True]}, {"enum": [1, 2]}, "ENUM_ARRAY_CHANGED #/enum"),
        ({"const": 1}, {"const": True}, "ENUM_ARRAY_CHANGED #/const"),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 9}, "MAX_LENGTH_DECREASED #/maxLength"),
        ({"type": "string", "minLength": 1}, STRING, "MIN_LENGTH_ADDED #/minLength"),
        ({"type": "string", "pattern": "b"}, {"type": "string", "pattern": "a"}, "PATTERN_CHANGED #/pattern"),
        (
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "number"},
            "EXCLUSIVE_MINIMUM_ADDED #/exclusiveMinimum",
        ),
        (
            {"type": "number", "multipleOf": 10},
            {"type": "number", "multipleOf": 5},
            "MULTIPLE_OF_EXPANDED #/multipleOf",
        ),
        ({"type": "array", "items": STRING}, {"type": "array"}, "SCHEMA_ADDED #/items"),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, "UNIQUE_ITEMS_ADDED #/uniqueItems"),
        (
            {"type": "array", "items": [STRING], "additionalItems": False},
            {"type": "array", "items": [STRING, NUMBER], "additionalItems": False},
            "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1",
        ),
        (
            {"type": "array", "items": [STRING, NUMBER]},
            {"type": "array", "items": [STRING]},
            "ITEM_ADDED_TO_OPEN_CONTENT_MODEL #/items/1",
        ),
        ({"oneOf": [STRING]}, {"oneOf": [STRING, NULL]}, "SUM_TYPE_NARROWED #/"),
        ({"allOf": [STRING, {"maxLength": 3}]}, {"allOf": [STRING]}, "PRODUCT_TYPE_EXTENDED #/"),
        ({"allOf": [STRING, NULL]}, {"anyOf": [STRING, NULL]}, "COMBINED_TYPE_CHANGED #/"),
        ({"oneOf": [NULL, NUMBER]}, {"oneOf": [NULL, STRING]}, "COMBINED_TYPE_SUBSCHEMAS_CHANGED #/"),
        ({"not": NUMBER}, {"not": {"type": "integer"}}, "NOT_TYPE_EXTENDED #/not"),
    ],
)
def test_what_refuses_old_documents(new: Any, old: Any, rule: str) -> None:
    assert rule in rules(new, old)
    finding = checked("BACKWARD", new, old, schema_type="JSON").findings[0]
    assert finding.explanation
    assert finding.fix
    assert finding.message.startswith('{errorType:"')


def test_the_lenient_policy_takes_it_that_unnamed_properties_do_not_occur() -> None:
    more, fewer = opened(a=STRING, b=NUMBER), opened(a=STRING)
    assert rules(more, fewer)
    assert rules(more, fewer, "LENIENT") == set()
    assert rules(closed(a=STRING), closed(a=STRING, b=NUMBER), "LENIENT") == set()
    assert rules(opened(a=NUMBER), opened(a=STRING), "LENIENT")


def test_a_partially_open_object_judges_names_by_its_schema() -> None:
    def partly(**properties: Any) -> Any:
        return {**closed(**properties), "patternProperties": {"^n_": NUMBER}}

    assert rules(partly(n_a={"type": "number"}), partly()) == set()
    assert "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/n_a" in rules(
        partly(n_a=STRING), partly()
    )
    assert "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/n_a" in rules(
        partly(), partly(n_a=STRING)
    )


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_draft_is_validated_and_compared(draft: str) -> None:
    words = "$defs" if "2019" in draft or "2020" in draft else "definitions"
    new, old = (
        {
            "$schema": draft,
            words: {"leg": closed(a=kind)},
            "type": "object",
            "properties": {"leg": {"$ref": f"#/{words}/leg"}},
        }
        for kind in (NUMBER, STRING)
    )
    assert rules(new, old) == {"TYPE_CHANGED #/properties/leg/properties/a"}
    with pytest.raises(InvalidSchema, match="is not valid under any of the given schemas") as caught:
        parsed({"$schema": draft, "properties": {"a": {"type": "text"}}}, "JSON")
    assert caught.value.path == "#/properties/a/type"


def test_the_spellings_of_drafts_mean_the_same() -> None:
    new = {"$schema": DRAFTS[4], "type": "array", "prefixItems": [STRING], "items": False}
    old = {"$schema": DRAFTS[2], "type": "array", "items": [STRING], "additionalItems": False}
    assert rules(new, old) == rules(old, new) == set()
    limit = {"$schema": DRAFTS[0], "type": "number", "maximum": 3, "exclusiveMaximum": True}
    assert rules({"type": "number", "exclusiveMaximum": 3}, limit) == set()
    assert rules({"type": "number", "exclusiveMaximum": 2}, limit) == {"EXCLUSIVE_MAXIMUM_DECREASED #/exclusiveMaximum"}


def test_a_recursive_schema_is_compared_once() -> None:
    def tree(value: Any) -> Any:
        node = closed(value=value, next={"anyOf": [{"$ref": "#/definitions/node"}, NULL]})
        return {"definitions": {"node": node}, "$ref": "#/definitions/node"}

    assert rules(tree(NUMBER), tree({"type": "integer"})) == set()
    assert rules(tree(STRING), tree(NUMBER))


@pytest.mark.parametrize("draft", DRAFTS)
def test_what_stands_beside_a_ref_counts_since_2019(draft: str) -> None:
    def limited(length: int) -> Any:
        return {
            "$schema": draft,
            "definitions": {"name": STRING},
            "properties": {"a": {"$ref": "#/definitions/name", "type": "string", "maxLength": length}},
        }

    counts = "2019" in draft or "2020" in draft
    found = rules(limited(3), limited(5))
    assert found == ({"COMBINED_TYPE_SUBSCHEMAS_CHANGED #/properties/a"} if counts else set())


def test_a_recursive_ref_leads_to_the_root() -> None:
    def tree(value: Any) -> Any:
        return {"$schema": DRAFTS[3], **closed(value=value, next={"$recursiveRef": "#"})}

    assert rules(tree(NUMBER), tree(NUMBER)) == set()
    assert rules(tree(STRING), tree(NUMBER)) == {"TYPE_CHANGED #/properties/value"}


def test_references_are_found_by_their_name() -> None:
    leg = Reference("leg.json", "leg-value", 1)
    flight = {"type": "object", "properties": {"leg": {"$ref": "leg.json#/definitions/leg"}}}

    def of(kind: Any) -> Any:
        return parsed(flight, "JSON", (leg,), {"leg-value": {"definitions": {"leg": closed(a=kind)}}})

    assert [one.path for one in of(NUMBER).unreadable(of(STRING))] == ["#/properties/leg/properties/a"]
    assert of(NUMBER).unreadable(of(NUMBER)) == []


@pytest.mark.parametrize(
    "ref",
    [
        "http://169.254.169.254/latest",
        "https://example.com/schema.json",
        "file:///etc/passwd",
        "#/definitions/none",
        "x",
    ],
)
def test_nothing_is_fetched(ref: str) -> None:
    with pytest.raises(InvalidSchema, match=r"leads nowhere.*nothing is fetched") as caught:
        parsed({"properties": {"a": {"$ref": ref}}}, "JSON")
    assert caught.value.path == "#/properties/a/$ref"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("NaN", "NaN is no JSON number"),
        ("[]", "an object, true or false"),
        ('"string"', "an object, true or false"),
        ('{"$ref": "#"}', "leads to itself"),
        ('{"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}}}', "leads to itself"),
        ('{"items":' * 200 + "{}" + "}" * 200, "more than 128 levels"),
        ('{"items":' * 100_000 + "{}" + "}" * 100_000, "128 levels"),
        (json.dumps({"enum": [[] for _ in range(10_001)]}), "more than 10,000 objects and lists"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        parse(SchemaText(text, "JSON"), lambda _: SchemaText("{}", "JSON"))


def test_schemas_made_to_be_slow_are_refused() -> None:
    each = {"anyOf": [{"const": n} for n in range(100)]}
    bomb = {"anyOf": [opened(**{f"p{n}": each}) for n in range(40)]}
    verdict = checked("BACKWARD", bomb, bomb, schema_type="JSON")
    assert not verdict
    assert "too large or too deep to be compared" in verdict.messages[0]


def test_what_is_stored_is_compact_and_normalize_sorts_names() -> None:
    schema = parse(
        SchemaText('{ "type" : "object",\n "title": "é/\\u0001", "minProperties": 1.0 }', "JSON"),
        lambda _: SchemaText(""),
    )
    assert schema.canonical == '{"type":"object","title":"é/\\u0001","minProperties":1.0}'
    assert schema.normalized().schema == '{"minProperties":1.0,"title":"é/\\u0001","type":"object"}'
    assert schema.names == ("é/\x01",)


CONDITIONAL = {
    "type": "object",
    "properties": {"kind": {"type": "string"}},
    "if": {"properties": {"kind": {"const": "a"}}},
    "then": {"required": ["y"], "properties": {"y": {"anyOf": [{"type": "string"}, {"type": "string"}]}}},
    "else": {"not": {"required": ["z"]}},
    "allOf": [{"if": {"$ref": "#/definitions/d"}, "then": False}],
    "definitions": {"d": {"required": ["d"]}},
    "additionalProperties": {},
    "patternProperties": {"^x": {"type": "integer"}},
}
CHAIN = {"oneOf": [{"type": "array", "items": [{"type": "null"}], "additionalItems": {}}, {"type": ["string", "null"]}]}
NESTED = {"items": {"anyOf": [{"$ref": "#/definitions/d"}, {"type": "object", "dependencies": {"a": {"not": {}}}}]}}


def annotated(schema: Any, text: str) -> Any:
    """Add annotations to each schema within ``schema``."""
    if isinstance(schema, list):
        return [annotated(one, text) for one in schema]
    if not isinstance(schema, dict):
        return schema
    maps = ("properties", "definitions", "dependencies", "patternProperties")
    inner = {
        name: {key: annotated(one, text) for key, one in value.items()} if name in maps
        else value if name in ("required", "type", "const") else annotated(value, text)
        for name, value in schema.items()
    }  # fmt: skip
    if "$ref" in schema:  # draft 7 ignores what is next to it
        return inner
    return {**inner, "title": text, "description": text, "$comment": text, "examples": [text], "default": text}


@pytest.mark.parametrize("schema", [CONDITIONAL, CHAIN, {**NESTED, "definitions": {"d": CONDITIONAL["if"]}}], ids=str)
def test_annotations_never_decide(schema: Any) -> None:
    for before, after in ((schema, annotated(schema, "v1")), (annotated(schema, "v1"), annotated(schema, "v2"))):
        assert checked("FULL", after, before, schema_type="JSON").is_compatible


def test_of_a_conditional_the_consequences_are_compared() -> None:
    def change(**members: Any) -> Any:
        return checked("BACKWARD", {**CONDITIONAL, **members}, CONDITIONAL, schema_type="JSON")

    assert change(then={}).is_compatible
    assert not change(then={"properties": {"y": False}}).is_compatible
    assert [one.path for one in change(**{"if": {"required": ["x"]}}).findings] == ["#/if"]
    assert not change(definitions={"d": {"required": ["e"], "type": "object"}}).is_compatible


def test_a_number_beyond_a_double_is_refused_and_not_stored_as_text() -> None:
    with pytest.raises(InvalidSchema, match="the number 1e400 is beyond a double"):
        parse(SchemaText('{"type":"number","maximum":1e400}', "JSON"), print)
