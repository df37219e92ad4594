"""A reader's schema is not the writer's: what is read then, as Java reads it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.from_types import schema_of
from serdes.avro.parse import parse
from serdes.avro.resolve import mismatch


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def read(writer: Any, reader: Any, value: Any, annotation: Any = Any) -> Any:
    """``value``, written with one schema and read with another."""
    written, wanted = parse(json.dumps(writer)), parse(json.dumps(reader))
    decoder = Decoder(written, wanted, annotation)
    try:
        return decoder.decode(Encoder(written, Any).encode(value, b""), 0)
    except Exception as error:  # any kind, and all are explained
        raise decoder.explain(error) from error


def refusal(writer: Any, reader: Any, value: Any) -> str:
    with pytest.raises(AvroDataError) as raised:
        read(writer, reader, value)
    return str(raised.value)


INNER = record(field("a", "int", default=1), field("b", "string", default="b"), name="Inner")


def test_a_nested_records_default_is_filled_with_its_own_fields_defaults() -> None:
    """Java does; the default says ``{}``, or a part."""
    writer = record(field("x", "int"))
    reader = record(field("x", "int"), field("inner", INNER, default={"a": 5}))
    assert read(writer, reader, {"x": 1}) == {"x": 1, "inner": {"a": 5, "b": "b"}}


def test_defaults_that_can_change_are_each_records_own() -> None:
    writer = record(field("x", "int"))
    reader = record(
        field("x", "int"),
        field("list", {"type": "array", "items": INNER}, default=[{}]),
        field("map", {"type": "map", "values": "int"}, default={"k": 1}),
    )
    first, second = (read(writer, reader, {"x": 1}) for _ in range(2))
    assert first == second == {"x": 1, "list": [{"a": 1, "b": "b"}], "map": {"k": 1}}
    decoder = Decoder(parse(json.dumps(writer)), parse(json.dumps(reader)), Any)
    one, other = decoder.decode(b"\2", 0), decoder.decode(b"\2", 0)
    assert one["list"] is not other["list"]
    assert one["list"][0] is not other["list"][0]


def test_a_default_of_a_union_may_be_of_any_branch_that_it_fits() -> None:
    writer = record(field("x", "int"))
    reader = record(field("y", ["null", "string"], default=None), field("z", ["double", "string"], default="NaN"))
    assert read(writer, reader, {"x": 1}) == {"y": None, "z": "NaN"}


def test_a_field_is_found_by_an_alias() -> None:
    writer = record(field("old", "int"), field("other", "string"))
    reader = record(field("new", "long", aliases=["older", "old"]))
    assert read(writer, reader, {"old": 3, "other": "x"}) == {"new": 3}


def test_its_own_name_goes_before_an_alias() -> None:
    writer = record(field("old", "int"), field("new", "int"))
    reader = record(field("new", "int", aliases=["old"]))
    assert read(writer, reader, {"old": 1, "new": 2}) == {"new": 2}


def test_a_record_of_another_name_is_read_by_its_fields() -> None:
    assert read(record(field("x", "int"), name="a.One"), record(field("x", "int"), name="b.Two"), {"x": 1}) == {"x": 1}


def test_a_missing_field_without_a_default_is_said_with_its_name() -> None:
    said = refusal(record(field("x", "int")), record(field("y", "int")), {"x": 1})
    assert said == "R was written without the field 'y', and R has no default for it"


def test_what_nobody_reads_is_skipped() -> None:
    everything = record(
        field("a", "string"),
        field("b", {"type": "array", "items": ["null", INNER]}),
        field("c", {"type": "map", "values": {"type": "array", "items": "double"}}),
        field("d", {"type": "fixed", "name": "F", "size": 3}),
        field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        field("f", ["null", "float", "bytes"]),
        field("g", "boolean"),
        field("h", "long"),
        field("kept", "int"),
    )
    value = {
        "a": "text", "b": [None, {"a": 1, "b": "x"}], "c": {"k": [1.0, 2.0]}, "d": b"abc", "e": "B", "f": 1.5,
        "g": True, "h": 1 << 40, "kept": 7,
    }  # fmt: skip
    assert read(everything, record(field("kept", "int")), value) == {"kept": 7}


def test_blocks_that_say_their_size_are_skipped_by_it() -> None:
    writer = record(field("list", {"type": "array", "items": "string"}), field("kept", "int"))
    decoder = Decoder(parse(json.dumps(writer)), parse(json.dumps(record(field("kept", "int")))), Any)
    assert decoder.decode(b"\x01\x08\x06abc\x00\x0e", 0) == {"kept": 7}


def test_a_symbol_that_the_reader_does_not_know() -> None:
    writer = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    assert read(writer, {"type": "enum", "name": "E", "symbols": ["A", "D"], "default": "D"}, "C") == "D"
    said = refusal(writer, {"type": "enum", "name": "E", "symbols": ["A", "D"]}, "C")
    assert said == "the symbol 'C' is none of E, which has no default: A, D"
    assert read(writer, {"type": "enum", "name": "E", "symbols": ["A"]}, "A") == "A"


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_enums_of_every_size(size: int) -> None:
    schema = {"type": "enum", "name": "E", "symbols": [f"S{at}" for at in range(size)]}
    for at in (0, size // 2, size - 1):
        assert read(schema, schema, f"S{at}") == f"S{at}"


@pytest.mark.parametrize("size", [2, 64, 70])
def test_unions_of_every_size(size: int) -> None:
    schema = [{"type": "fixed", "name": f"F{at}", "size": at + 1} for at in range(size)]
    for at in (0, size - 1):
        assert read(schema, schema, b"x" * (at + 1)) == b"x" * (at + 1)


def test_the_branch_of_the_same_name_is_taken_before_one_that_fits_too() -> None:
    one, two = record(field("x", "int"), name="n.One"), record(field("x", "int"), name="n.Two")

    class Uno(msgspec.Struct):
        x: int

    class Two(msgspec.Struct):
        x: int

    assert read(two, [one, two], {"x": 1}, Uno | Two) == Two(1)


def test_values_of_a_union_that_cannot_be_read_are_refused_one_by_one() -> None:
    assert read(["null", "int", "string"], "long", 5) == 5
    assert "null, which cannot be read as long" in refusal(["null", "int", "string"], "long", None)
    assert "a union without it (null, long)" in refusal(["null", "string"], ["null", "long"], "x")


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("string", "int", "it was written as string, which cannot be read as int"),
        ("long", "int", "it was written as long, which cannot be read as int"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "with 2 bytes"),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "G", "size": 2}, "give that an alias"),
        (
            {"type": "enum", "name": "a.E", "symbols": ["A"]},
            {"type": "enum", "name": "b.F", "aliases": ["a.E"], "symbols": ["A"]},
            None,
        ),
        ({"type": "enum", "name": "a.E", "symbols": ["A"]}, {"type": "enum", "name": "b.E", "symbols": ["A"]}, None),
    ],
)
def test_what_can_never_be_read(writer: Any, reader: Any, reason: str | None) -> None:
    said = mismatch(parse(json.dumps(writer)), parse(json.dumps(reader)))
    assert (said is None) if reason is None else said is not None and reason in said


def test_recursive_records_that_differ() -> None:
    writer = record(field("v", "int"), field("next", ["null", "R"]), field("gone", "string"))
    reader = record(field("v", "double"), field("next", ["null", "R"]), field("new", "int", default=3))
    value = {"v": 1, "next": {"v": 2, "next": None, "gone": "y"}, "gone": "x"}
    assert read(writer, reader, value) == {"v": 1.0, "next": {"v": 2.0, "next": None, "new": 3}, "new": 3}


def test_two_recursive_records_without_names_in_common() -> None:
    """The search for a branch that fits ends."""
    one = record(field("a", ["null", "One"]), name="One")
    two = record(field("a", ["null", "Two"]), name="Two")
    assert read(one, ["null", two], {"a": {"a": None}}) == {"a": {"a": None}}


class V1(msgspec.Struct, tag="Flight"):
    number: str
    seats: int


class V2(msgspec.Struct):
    number: str
    seats: float
    gate: str | None = None
    stops: list[str] = []


def test_a_class_reads_what_its_older_self_wrote() -> None:
    old, new = schema_of(V1), schema_of(V2)
    data = Encoder(old, V1).encode(V1("BA1", 180), b"")
    assert Decoder(old, new, V2).decode(data, 0) == V2("BA1", 180.0, None, [])


def test_a_schema_that_nests_as_deep_as_allowed_is_compiled() -> None:
    """Python bounds how deep code may nest: what is deeper becomes a function."""
    for wrap in (
        lambda inner, at: {"type": "array", "items": inner},
        lambda inner, at: {"type": "map", "values": inner},
        lambda inner, at: record(field("x", inner), name=f"R{at}"),
        lambda inner, at: record(field("x", ["null", inner]), name=f"R{at}"),
    ):
        schema: Any = "int"
        for at in range(24):
            schema = wrap(schema, at)
        value: Any = 7
        for _ in range(24):
            value = [value] if schema["type"] == "array" else {"k": value} if schema["type"] == "map" else {"x": value}
        assert read(schema, schema, value) == value
        assert read(record(field("s", schema), field("k", "int"), name="Top"), record(field("k", "int"), name="Top"),
                    {"s": value, "k": 1}) == {"k": 1}  # fmt: skip


def test_code_does_not_grow_with_every_mention_of_a_record() -> None:
    """Each record here mentions the one before it twice: written out it would be 2**40 fields."""
    schema: Any = record(field("x", "int"), name="R0")
    for at in range(1, 40):
        schema = record(field("a", schema), field("b", ["null", f"R{at - 1}"], default=None), name=f"R{at}")
    node = parse(json.dumps(schema))
    decoder = Decoder(node, node, Any)
    value: Any = {"x": 1}
    for _ in range(1, 40):
        value = {"a": value, "b": None}
    assert decoder.decode(Encoder(node, Any).encode(value, b""), 0) == value
