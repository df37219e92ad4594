"""References are followed through the function given; circles and floods are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schema_registry.formats import InvalidSchema, UnknownSchemaType, parse
from serdes.registry import Reference, SchemaText
from tests.schema_registry.compatibility.schemas import column, parsed, record


def reference(name: str, version: int = 1) -> Reference:
    return Reference(name, f"{name}-value", version)


def never(_: Reference) -> SchemaText:
    raise AssertionError("nothing is referred to")


def test_a_referenced_type_stays_a_name_in_what_is_stored() -> None:
    leg = record(column("from", "string"), name="air.Leg")
    flight = record(column("leg", "air.Leg"), column("back", "air.Leg"), name="air.Flight")
    schema = parsed(flight, references=(reference("air.Leg"),), texts={"air.Leg-value": leg})

    assert schema.canonical == (
        '{"type":"record","name":"Flight","namespace":"air","fields":[{"name":"leg","type":"Leg"},'
        '{"name":"back","type":"Leg"}]}'
    )
    assert '"name":"from"' in schema.formatted("resolved")
    assert schema.names == ("air.Flight",)


def test_normalize_sorts_references_and_keeps_each_once() -> None:
    a, b = reference("x.A"), reference("x.B")
    texts = {f"x.{name}-value": record(name=f"x.{name}") for name in "AB"}
    both = record(column("a", "x.A"), column("b", "x.B"), name="x.R")
    schema = parsed(both, references=(b, a), texts=texts)
    assert schema.normalized().references == (a, b)
    assert schema.references == (b, a)


def linked(length: int, width: int = 1) -> tuple[SchemaText, dict[str, SchemaText]]:
    """A schema that refers to another, and so on."""

    def named(depth: int) -> SchemaText:
        inner = [reference(f"T{depth + 1}x{n}") for n in range(width)] if depth < length else []
        fields = [column(f"f{n}", one.name) for n, one in enumerate(inner)]
        return SchemaText(json.dumps(record(*fields, name=f"T{depth}x0")), references=tuple(inner))

    texts = {f"T{depth}x{n}-value": named(depth) for depth in range(1, length + 1) for n in range(width)}
    return named(0), texts


def test_sixteen_levels_of_references_are_enough() -> None:
    text, texts = linked(16)
    assert parse(text, lambda one: texts[one.subject]).names == ("T0x0",)
    text, texts = linked(17)
    with pytest.raises(InvalidSchema, match="references are more than 16 deep"):
        parse(text, lambda one: texts[one.subject])


def test_a_thousand_references_are_enough() -> None:
    many = tuple(reference(f"T{n}") for n in range(1_001))
    text = SchemaText(json.dumps(record()), references=many)
    with pytest.raises(InvalidSchema, match="more than 1,000 schemas are referred to"):
        parse(text, lambda one: SchemaText(json.dumps(record(name=one.name))))


def test_a_circle_of_references_is_refused() -> None:
    around = {
        "A-value": SchemaText(json.dumps(record(name="A")), references=(reference("B"),)),
        "B-value": SchemaText(json.dumps(record(name="B")), references=(reference("A"),)),
    }
    with pytest.raises(InvalidSchema, match="refers back to itself") as caught:
        parse(around["A-value"], lambda one: around[one.subject])
    assert "'B-value' version 1" in caught.value.path


def test_one_name_means_one_schema() -> None:
    twice = (reference("A"), Reference("A", "other", 2))
    with pytest.raises(InvalidSchema, match="'A' is given twice"):
        parse(SchemaText(json.dumps(record()), references=twice), lambda _: SchemaText(json.dumps(record(name="A"))))

    texts = {
        "A-value": SchemaText(json.dumps(record(name="A"))),
        "B-value": SchemaText(json.dumps(record(name="B")), references=(reference("A", 2),)),
    }
    both = SchemaText(json.dumps(record()), references=(reference("A"), reference("B")))
    with pytest.raises(InvalidSchema, match="'A' already means version 1 of 'A-value'"):
        parse(both, lambda one: texts[one.subject])


def test_a_reference_of_another_type_is_refused() -> None:
    text = SchemaText(json.dumps(record()), references=(reference("A"),))
    with pytest.raises(InvalidSchema, match="of type JSON, not AVRO"):
        parse(text, lambda _: SchemaText("{}", "JSON"))


def test_what_resolving_raises_passes_through() -> None:
    text = SchemaText(json.dumps(record()), references=(reference("A"),))
    with pytest.raises(LookupError, match="no such version"):
        parse(text, lambda _: (_ for _ in ()).throw(LookupError("no such version")))


@pytest.mark.system
@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
def test_a_schema_over_a_megabyte_is_not_read(schema_type: str) -> None:
    with pytest.raises(InvalidSchema, match=r"1,048,577 characters; at most 1,048,576 are taken"):
        parse(SchemaText(" " * (1024 * 1024 + 1), schema_type), never)


def test_a_megabyte_each_is_still_too_much_together() -> None:
    text = SchemaText(json.dumps(record()), references=tuple(reference(f"T{n}") for n in range(9)))
    with pytest.raises(InvalidSchema, match="are over 8,388,608 characters"):
        parse(text, lambda one: SchemaText(json.dumps(record(name=one.name)) + " " * 1_000_000))


def test_unknown_types_of_schemas_are_named() -> None:
    with pytest.raises(UnknownSchemaType, match="unknown schema type 'THRIFT': use AVRO, JSON or PROTOBUF"):
        parse(SchemaText("{}", "THRIFT"), never)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "JSON"),
        ({"type": "record", "name": "R"}, "fields"),
        (record(column("a", "int", default="x")), "default"),
        (record(column("a", "int"), column("a", "int")), "a"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "A"),
        (record(column("a", "Missing")), "not defined"),
    ],
)
def test_an_invalid_avro_schema_says_why(schema: Any, reason: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parse(SchemaText(text), never)
    assert caught.value.schema_type == "AVRO"


def test_schemas_of_former_registries_stay_readable() -> None:
    old = SchemaText(json.dumps(record(column("a", "int", default="x"))))
    with pytest.raises(InvalidSchema):
        parse(old, never)
    assert parse(old, never, is_new=False).names == ("R",)
