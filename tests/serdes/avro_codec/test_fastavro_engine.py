"""`Avro(engine="fastavro")` on the tests of the compiled engine, next to it; Avro files keep every value."""

from __future__ import annotations

import io
import json
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import fastavro
import msgspec
import pytest
from hypothesis import given, settings

from serdes import Avro
from serdes.avro import AvroDataError
from serdes.avro.codec.fastavro_engine import new_decoder, new_encoder
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.files import AvroFileError, FileReader, FileWriter
from serdes.avro.parse import parse
from tests.serdes.avro_codec import test_guards, test_reader_limits, test_resolution, test_rules, test_serde, test_types
from tests.serdes.avro_codec.fake_registry import FakeRegistry
from tests.serdes.avro_codec.test_reader_limits import written as cases
from tests.support import examples

pytestmark = pytest.mark.system

NEW_DECODER, NEW_ENCODER = partial(new_decoder, "fastavro"), partial(new_encoder, "fastavro")

# The tests of these modules run here again, as tests of this module, with the other engine.
MODULES = (test_guards, test_reader_limits, test_resolution, test_rules, test_serde, test_types)
registry = test_serde.registry
for name, test in [named for module in MODULES for named in vars(module).items()]:
    if name.startswith("test_"):
        assert name not in globals(), f"two tests have the name {name}"
        globals()[name] = test

LENIENT = {
    "test_bombs_are_refused_before_they_are_built[size of a block]": "fastavro ignores the size of a block",
    "more than 32 bits]": "fastavro reads an int of more than 32 bits",
}


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        for name, other in (
            ("Decoder", NEW_DECODER), ("Encoder", NEW_ENCODER), ("Avro", partial(Avro, engine="fastavro")),
        ):  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, other)
    for end, reason in LENIENT.items():
        if request.node.name.endswith(end):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


def result(function: Any, *arguments: Any) -> Any:
    """Return what a function returns, or a word for any error."""
    try:
        return function(*arguments)
    except Exception:
        return "an error"


@settings(max_examples=examples(200, 2_000))
@given(cases())
def test_both_engines_write_the_same_bytes_and_read_the_same_values(case: tuple[Any, Any]) -> None:
    node = parse(json.dumps(case[0]))
    data = result(Encoder(node, Any).encode, case[1], b"")
    assert result(NEW_ENCODER(node, Any).encode, case[1], b"") == data
    if isinstance(data, bytes):
        ours, theirs = (kind(node, node, Any).decode(data, 0) for kind in (Decoder, NEW_DECODER))
        assert repr(theirs) == repr(ours)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 1 << 31),
        ("boolean", None),
        ("null", 1),
        ("float", 1e300),
        ({"type": "array", "items": "string"}, "abc"),
        ({"type": "array", "items": "int"}, [0] * 1_000_001),
        ({"type": "int", "logicalType": "date"}, 10**9),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 1, 1)),  # of the zone of the machine
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, Decimal("1E+2000000")),  # would not end
    ],
    ids=lambda one: f"{one!s:.40}",
)
def test_nothing_is_written_that_the_compiled_engine_refuses(schema: Any, value: Any) -> None:
    """fastavro itself writes each of these values as another value, or as bytes that no reader accepts."""
    node = parse(json.dumps(schema))
    for encoder in (Encoder(node, Any), NEW_ENCODER(node, Any)):
        with pytest.raises(Exception) as caught:
            encoder.encode(value, b"")
        assert encoder.explain(caught.value).reason


def test_the_branch_of_a_union_and_the_rules_of_an_annotation_are_those_of_the_compiled_engine() -> None:
    node = parse(json.dumps(["string", {"type": "enum", "name": "E", "symbols": ["A"]}]))
    assert NEW_ENCODER(node, Any).encode("A", b"") == Encoder(node, Any).encode("A", b"")
    node, limited = parse('{"type": "map", "values": "int"}'), Annotated[dict[str, Any], msgspec.Meta(max_length=1)]
    with pytest.raises(Exception, match="length"):
        NEW_ENCODER(node, limited).encode({"a": 1, "b": 2}, b"")
    # Without this property it would be a decimal. Java and the compiled engine read text.
    node = parse('{"type": "string", "logicalType": "uuid", "avro.java.string": "String"}')
    assert NEW_DECODER(node, node, Any).decode(b"\2a", 0) == "a"


ORDER = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "long"},
               {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}  # fmt: skip
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def test_fastavro_is_used_for_plain_data_only_where_it_gives_the_same_values() -> None:
    class Order(msgspec.Struct):
        id: int

    order, other = parse(json.dumps(ORDER)), parse(json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))
    assert type(NEW_DECODER(order, parse(json.dumps(ORDER)), dict)) is not Decoder
    assert type(NEW_ENCODER(order, Any)) is not Encoder
    assert type(NEW_DECODER(order, other, Any)) is Decoder
    assert type(NEW_DECODER(order, order, Order)) is Decoder
    for schema in (
        NODE,
        {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
        ["null", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}],
        {"type": "array", "items": {"type": "bytes", "logicalType": "big-decimal"}},
    ):
        node = parse(json.dumps(schema))
        assert type(NEW_DECODER(node, node, Any)) is Decoder
        assert type(NEW_ENCODER(node, Any)) is Encoder


def test_the_serde_reads_and_writes_with_fastavro() -> None:
    registry = FakeRegistry()
    ours, theirs = (Avro(registry, schema=ORDER, engine=engine) for engine in ("compiled", "fastavro"))
    value = theirs.deserialize("t", ours.serialize("t", {"id": 1, "at": 1_000}))
    assert value == ours.deserialize("t", theirs.serialize("t", value))
    for wrong, why in (
        ({"id": "x", "at": 0}, "field id: 'x' is str, not int"),
        ({"id": 1}, "field at: 'at' is missing"),
    ):
        with pytest.raises(AvroDataError, match=rf"schema id 1 \(subject t-value\): {why}"):
            theirs.serialize("t", wrong)
    with pytest.raises(AvroDataError, match=r"schema id 1 .*the message ends before the value does"):
        theirs.deserialize("t", b"\0\0\0\0\1\2")
    with pytest.raises(AvroDataError, match=r"schema id 1 .*2 bytes are left"):
        theirs.deserialize("t", b"\0\0\0\0\1\2\2\2\2")
    with pytest.raises(ValueError, match="engine='c' does not exist"):
        Avro(registry, engine="c")


CHOICE = {
    "type": "record", "name": "Choice",
    "fields": [{"name": "of", "type": ["null", *(
        {"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]} for name in "AB")]}],
}  # fmt: skip


def written(*values: Any) -> bytes:
    file, node = io.BytesIO(), parse(json.dumps(CHOICE))
    encode = Encoder(node, Any).encode
    writer = FileWriter(file, node)
    for value in values:
        writer.write(encode(value, b""))
    writer.flush()
    return file.getvalue()


def test_a_value_of_a_file_keeps_its_branch_of_a_union() -> None:
    data = written({"of": ("B", {"x": 1})}, {"of": None})
    assert [*FileReader(io.BytesIO(data))] == [{"of": ("B", {"x": 1})}, {"of": None}]
    assert [*fastavro.reader(io.BytesIO(data))] == [{"of": {"x": 1}}, {"of": None}]


def test_a_damaged_file_is_read_up_to_the_damage() -> None:
    data = written({"of": None})
    with pytest.raises(AvroFileError, match="not an Avro object container file"):
        FileReader(io.BytesIO(b"PAR1" + data))
    reader = iter(FileReader(io.BytesIO(data + written({"of": None})[-40:])))
    assert next(reader) == {"of": None}
    with pytest.raises(AvroFileError, match="damaged after 1 values"):
        next(reader)
