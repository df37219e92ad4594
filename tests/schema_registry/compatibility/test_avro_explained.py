"""Avro's oddities by hand, and what is said about them."""

from __future__ import annotations

from typing import Any

import pytest

from schema_registry.compatibility.findings import Finding
from tests.schema_registry.compatibility.schemas import checked, column, record

COLORS = {"type": "enum", "name": "x.Color", "symbols": ["RED", "GREEN"]}
FEWER = {"type": "enum", "name": "x.Color", "symbols": ["RED"]}


def only(level: str, new: Any, old: Any) -> Finding:
    verdict = checked(level, new, old)
    assert len(verdict.findings) == 1
    return verdict.findings[0]


@pytest.mark.parametrize(
    ("new", "old", "rule", "path", "where", "said", "fix"),
    [
        (
            record(column("a", "int"), column("b", "long")),
            record(column("a", "int")),
            "READER_FIELD_MISSING_DEFAULT_VALUE",
            "/fields/1",
            "R.b",
            "R.b: records written with the old schema have no field 'b', and the new schema (b: long) gives it no",
            "give 'b' a default",
        ),
        (
            record(column("a", "int")),
            record(column("a", "long")),
            "TYPE_MISMATCH",
            "/fields/0/type",
            "R.a",
            "R.a: long is written, and a reader of int cannot take it",
            "keep long (or widen it to float, double), or add a field with a new name and a default",
        ),
        (
            record(column("a", {"type": "array", "items": FEWER})),
            record(column("a", {"type": "array", "items": COLORS})),
            "MISSING_ENUM_SYMBOLS",
            "/fields/0/type/items/symbols",
            "R.a[]",
            "the old schema writes the symbols [GREEN] that the new enum does not have",
            "keep the symbols [GREEN], or give the enum a",
        ),
        (
            record(column("a", {"type": "map", "values": {"type": "fixed", "name": "F", "size": 4}})),
            record(column("a", {"type": "map", "values": {"type": "fixed", "name": "F", "size": 8}})),
            "FIXED_SIZE_MISMATCH",
            "/fields/0/type/values/size",
            "R.a{}",
            "R.a{}: fixed F(8) is written, fixed F(4) is expected",
            "keep the size",
        ),
        (
            record(column("a", "int"), name="y.New"),
            record(column("a", "int"), name="x.Old"),
            "NAME_MISMATCH",
            "/name",
            "New",
            "the old schema calls the type x.Old, the new one y.New",
            'name it x.Old again, or add "aliases": ["x.Old"]',
        ),
        (
            record(column("a", ["null", "string"])),
            record(column("a", ["null", "string", "int"])),
            "MISSING_UNION_BRANCH",
            "/fields/0/type/2",
            "R.a",
            "R.a: the old schema may write int, which fits no branch of [null, string]",
            "keep int in the union",
        ),
    ],
)
def test_each_rule_says_where_why_and_what_to_do(
    new: Any, old: Any, rule: str, path: str, where: str, said: str, fix: str
) -> None:
    found = only("BACKWARD", new, old)
    assert (found.rule, found.path, found.where) == (rule, path, where)
    assert said in found.explanation
    assert fix in found.fix


def test_a_union_explains_what_is_wrong_inside_it_where_java_does_not() -> None:
    def flight(*fields: Any) -> Any:
        return record(column("leg", ["null", record(*fields, name="Leg")]))

    found = only("BACKWARD", flight(column("from", "string"), column("to", "string")), flight(column("from", "string")))
    assert found.rule == "MISSING_UNION_BRANCH"
    assert "R.leg.to: records written with the old schema have no field 'to'" in found.explanation
    assert "give 'to' a default" in found.fix


def test_a_forward_finding_says_what_the_new_schema_must_keep() -> None:
    found = only("FORWARD", record(column("a", "int")), record(column("a", "int"), column("b", "long")))
    assert (found.old, found.new) == ("b: long", "")
    assert found.fix == "keep the field 'b': readers with the old schema need it"
    assert "keep int (or narrow" not in only("FORWARD", record(column("a", "long")), record(column("a", "int"))).fix


def test_a_changed_namespace_fits_because_the_short_name_counts() -> None:
    assert checked("FULL", record(column("a", "int"), name="x.R"), record(column("a", "int"), name="y.R"))


def test_logical_types_count_for_nothing() -> None:
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    assert checked("FULL", record(column("at", millis)), record(column("at", micros)))


def test_an_enum_with_a_default_does_not_stand_in_for_a_missing_field() -> None:
    new = record(column("a", "int"), column("color", {**COLORS, "default": "RED"}))
    found = only("BACKWARD", new, record(column("a", "int")))
    assert (found.rule, found.path) == ("TYPE_MISMATCH", "/fields/1/type")
    assert found.detail == "reader type: ENUM not compatible with writer type: RECORD"
    assert "give the field itself a default" in found.fix


def test_two_aliases_that_match_are_refused_with_javas_words() -> None:
    new = record(column("a", "int", aliases=["b"]))
    old = record(column("a", "int"), column("b", "int"))
    verdict = checked("BACKWARD", new, old)
    assert verdict.messages[0] == (
        "Unexpected exception during compatibility check: Reader record field a type:INT pos:0 matches multiple fields "
        'in writer record schema {"type":"record","name":"R","fields":[{"name":"a","type":"int"},'
        '{"name":"b","type":"int"}]}'
    )


def test_a_recursive_record_is_compared_once() -> None:
    tree = record(column("next", ["null", "R"]), column("n", "int"))
    grown = record(column("next", ["null", "R"]), column("n", "long"))
    assert checked("BACKWARD", grown, tree)
    assert not checked("FORWARD", grown, tree)
