"""Errors name the place, the reason and what to change; a hostile text costs nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest

from serdes.avro import limits
from serdes.avro.parse import Parser, parse
from serdes.avro.schema import MISSING, Array, AvroSchemaError, Enum, Record, Union
from serdes.avro.text import to_text
from tests.serdes.avro_model.cases import FIELD_LOGICAL_TYPE, LIBRARY_CHECKOUT, enum, field, fixed, record


def refused(schema: object, references: Sequence[str] = ()) -> AvroSchemaError:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(AvroSchemaError) as caught:
        parse(text, references=references)
    return caught.value


def test_a_number_s_default_written_as_a_string_is_refused() -> None:
    error = refused(LIBRARY_CHECKOUT)
    assert error.path == "$.fields[1].default"
    assert error.reason == (
        'the default "14" of field days of library.Checkout is no int; change the default or the type'
    )


def test_a_logical_type_beside_the_type_has_no_effect() -> None:
    schema = parse(FIELD_LOGICAL_TYPE)
    assert isinstance(schema, Record)
    due = schema.fields[1]
    assert due.schema.logical_type is None
    assert due.props == {"logicalType": "date"}
    corrected = parse(
        FIELD_LOGICAL_TYPE.replace('"int", "logicalType": "date"', '{"type": "int", "logicalType": "date"}')
    )
    assert isinstance(corrected, Record)
    assert corrected.fields[1].schema.logical_type == "date"


UNDEFINED = " is not defined; define it in this text, or pass its text as a reference"
ABOVE = " is not defined; define it in this text above this field, or pass its text as a reference"
NO_TYPE = "`type` is missing or no string"
SPELLING = "letters, digits and _ only, no digit in front"
NO_FIT = "change the default or the type"


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ("", "$", "the text is empty"),
        ("{", "$", "not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        ("Foo", "$", "not JSON: Expecting value at line 1, column 1"),
        ('"int" "long"', "$", "there is more after the end of the schema: '\"long\"'"),
        ('{"type":"int","x":NaN}', "$", 'not JSON: NaN; a default that is not a finite number is a string: "NaN"'),
        ("3", "$", "3 is not a schema; give a name, an object, or an array for a union"),
        ({}, "$", NO_TYPE),
        ({"type": {"type": "int"}}, "$",
         f"{NO_TYPE}; an object inside `type` is the schema itself: take the outer one away"),
        ('"Foo"', "$", f"Foo{UNDEFINED}"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "x.K", "default": "A"}]},
         "$.fields[0].type", f"x.K{ABOVE}"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["x.K", "null"], "default": "A"}]},
         "$.fields[0].type[0]", f"x.K{ABOVE}"),
        (record(field("x.Foo"), namespace="n"), "$.fields[0].type", f"x.Foo{UNDEFINED}"),
        (record(field({"type": "map", "values": "A"}), namespace="n"), "$.fields[0].type.values", f"n.A{UNDEFINED}"),
        (record(field("int"), field("long")), "$.fields[1]", "record R has two fields named f; rename one"),
        ({"type": "record", "name": "R"}, "$", "record R has no `fields`; give an array, [] for none"),
        ({"type": "record", "fields": []}, "$", "record has no `name`"),
        (record({"type": "int"}), "$.fields[0]", "a field of record R has no `name`"),
        (record({"name": "f"}), "$.fields[0]", "field f of record R has no `type`"),
        (record(field("int", name="a-b")), "$.fields[0]", f'"a-b" is no name for a field: {SPELLING}'),
        (record(namespace="a..b"), "$", f'"a..b" is no name for a namespace: {SPELLING}'),
        (record(aliases=["1"]), "$.aliases", f'"1" is no name for an alias: {SPELLING}'),
        (enum("a", "a"), "$.symbols[1]", "enum E has the symbol a twice"),
        (enum("a", default="b"), "$.default", "'b' is no symbol of enum E: a"),
        ({"type": "enum", "name": "E"}, "$", "enum E has no `symbols`; give an array of names"),
        (fixed(-1), "$.size", "fixed F needs a `size` in bytes: a whole number from 0 to 2147483639"),
        ({"type": "array"}, "$", "array has no `items`: the type of what is in it"),
        (["int", "null", "int"], "$[2]", "the union has int twice; a union knows its branches by type and name"),
        (["int", ["null"]], "$[1]", "a union directly inside a union; put its branches into the outer one"),
        (record(field(["null", "int"], "x")), "$.fields[0].default",
         f'the default "x" of field f of R is none of null, int; {NO_FIT}'),
        (record(field(enum("a"), 1)), "$.fields[0].default", f"the default 1 of field f of R is no E; {NO_FIT}"),
        (record(field(["null", "R"], {})), "$",
         "the default of field f of R holds a record that holds it; use null or []"),
        (record(field(enum("a")), field(enum("b"), name="g")), "$.fields[1].type",
         "E is defined twice, and differently; rename one, or refer to the first by name"),
        (record(field("int", order="up")), "$.fields[0].order",
         '"up" is not an order; use ascending, descending or ignore'),
        (record(field("int", aliases="x")), "$.fields[0].aliases", '"x" is no array of names'),
        (record(name="int"), "$.name", "a type may not be called int, as a primitive is; rename it"),
        (record(x=2**63), "$.x", "Java keeps no whole number beyond 64 bits here; write it as a string"),
        (record(field("double", "x")), "$.fields[0].default", "'x' is no number"),
    ],
)  # fmt: skip
def test_what_errors_say(schema: object, path: str, reason: str) -> None:
    error = refused(schema)
    assert (error.path, error.reason) == (path, reason)
    assert str(error) == f"{path}: {reason}"


def test_an_error_in_a_reference_says_which() -> None:
    assert refused('"int"', references=['"int"', "["]).path == "reference 2, $"


def test_what_is_refused_leaves_nothing_behind() -> None:
    parser = Parser()
    with pytest.raises(AvroSchemaError):
        parser.parse(json.dumps([enum("a"), "Foo"]))
    assert parser.named == {}
    parser.parse(json.dumps(enum("b")))
    assert list(parser.named) == ["E"]


def test_names_and_structure_of_the_nodes() -> None:
    schema = parse(
        json.dumps(
            record(
                field(["null", "R"], None, name="next"),
                field({"type": "array", "items": enum("a", "b", default="a")}, name="letters", aliases=["l"]),
                namespace="n",
                aliases=["Old", "o.Old"],
            )
        )
    )
    assert isinstance(schema, Record)
    following, letters = schema.fields
    assert isinstance(following.schema, Union)
    assert following.schema.branches[1] is schema
    assert following.default is None
    assert letters.default is MISSING
    assert not letters.has_default
    assert letters.position == 1
    assert isinstance(letters.schema, Array)
    assert isinstance(letters.schema.items, Enum)
    assert letters.schema.items.fullname == "n.E"
    assert schema.aliases == ("n.Old", "o.Old")
    assert schema.field("letters") is letters
    assert schema.field("l") is None


class TestLimits:
    def test_a_long_text(self) -> None:
        text = json.dumps({"type": "int", "x": "a" * limits.MAX_TEXT})
        assert "longer than 1,048,576 bytes" in refused(text).reason
        assert (
            "longer than 1,048,576 bytes"
            in refused(json.dumps({"type": "int", "x": "é" * 600_000}, ensure_ascii=False)).reason
        )

    @pytest.mark.parametrize(
        "text", ["[" * 500_000, '{"type":"array","items":' * 40_000, '{"type":"int","x":' + "[" * 300]
    )
    def test_brackets(self, text: str) -> None:
        assert refused(text).reason == "brackets are nested deeper than 256; name the inner types"

    def test_brackets_in_strings_do_not_count(self) -> None:
        parse(json.dumps({"type": "int", "x": ['[{"\\' * 200]}))

    def test_depth(self) -> None:
        def nested(levels: int) -> object:
            return "int" if levels == 0 else {"type": "array", "items": nested(levels - 1)}

        parse(json.dumps(nested(limits.MAX_DEPTH - 1)))
        parse(json.dumps(nested(limits.MAX_DEPTH)))
        assert "nested deeper than 64" in refused(nested(limits.MAX_DEPTH + 1)).reason

    @pytest.mark.parametrize("count", [100, 999])
    def test_depth_through_names(self, count: int) -> None:
        """Flat to look at, but each type is printed inside the one before it."""
        chain = [record(field(f"T{number + 1}"), name=f"T{number}") for number in range(count)]
        assert "nested deeper than 64" in refused([*chain, record(name=f"T{count}")]).reason

    def test_depth_through_references(self) -> None:
        texts = [json.dumps(record(name="T0"))]
        texts += [json.dumps(record(field(f"T{number}"), name=f"T{number + 1}")) for number in range(80)]
        assert "nested deeper than 64" in refused('"T80"', references=texts).reason
        parse('"T40"', references=texts[:41])

    def test_many_named_types(self) -> None:
        many = [enum("a", name=f"E{number}") for number in range(limits.MAX_NAMED_TYPES)]
        schema = parse(json.dumps(many))
        assert isinstance(schema, Union)
        assert refused([*many, enum("a")]).reason == "more than 1,000 named types"
        half = json.dumps(many[:500])
        assert "more than 1,000" in refused(json.dumps([*many[500:], enum("a")]), references=[half]).reason

    def test_a_deep_default_of_a_recursive_type(self) -> None:
        tree = record(field({"type": "array", "items": "T"}, name="children"), name="T")

        def value(levels: int) -> object:
            return {"children": [value(levels - 1)] if levels else []}

        schema = [tree, record(field("T", value(30)))]
        assert json.loads(to_text(parse(json.dumps(schema))))[1]["fields"][0]["default"] == value(30)
        assert "nested" in refused([tree, record(field("T", value(sys.getrecursionlimit() // 6)))]).reason

    @pytest.mark.system
    def test_many_names_used_before_their_definition(self) -> None:
        """Looked up once each, not once for each other."""
        fields = [field(["null", f"T{number}"], None, name=f"f{number}") for number in range(900)]
        types = [record(field(["null", "R"], None), name=f"T{number}") for number in range(900)]
        schema = parse(json.dumps([record(*fields), *types]))
        assert isinstance(schema, Union)
        assert len(schema.branches) == 901

    @pytest.mark.system
    @pytest.mark.parametrize(
        "text",
        [
            "[" * 300 + '"' + '\\"' * 400_000,
            "/*a" * 300_000,
            '{"type":"int","x":"' + "//" * 400_000,
            '{"type":"int", /' + "/" * 900_000,
            json.dumps(["R"] * 150_000 + [record()]),
            json.dumps([*(f"R{number}" for number in range(80_000))]),
            json.dumps(enum(*(f"s{number}" for number in range(70_000)), "s0")),
        ],
    )
    def test_texts_that_would_take_long_if_read_again_and_again(self, text: str) -> None:
        assert len(text) <= limits.MAX_TEXT
        refused(text)

    def test_defaults_that_would_be_checked_again_and_again(self) -> None:
        """Each type holds the one before it twice, with a default."""
        types = [record(field("int", 0), name="T0")]
        for number in range(1, 200):
            below = f"T{number - 1}"
            types.append(record(field(below, {}, name="x"), field(below, {}, name="y"), name=f"T{number}"))
        parse(json.dumps(types))

    def test_a_default_with_many_ways_to_fail(self) -> None:
        """Two records that hold either of them: at each level of the value both have to be tried."""

        def either(name: str) -> dict[str, object]:
            return record(field(["null", "A", "B"], name="x"), name=name)

        value: object = 5
        for _ in range(60):
            value = {"x": value}
        assert "is no A" in refused([either("A"), either("B"), record(field("A", value))]).reason

    @pytest.mark.parametrize("digits", ["1" * 1001, "1" * 5000, "1." + "0" * 1000])
    def test_long_numbers(self, digits: str) -> None:
        assert "more than 1000 digits" in refused(f'{{"type":"int","x":{digits}}}').reason
