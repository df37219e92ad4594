"""`Avro(engine="fastavro")` gives the values and bytes of the compiled engine, and Avro files keep every value."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import fastavro
import msgspec
import pytest

from serdes import Avro
from serdes.avro import AvroDataError
from serdes.avro.codec.fastavro_engine import new_decoder, new_encoder
from serdes.avro.codec.reader import Decoder
from serdes.avro.codec.writer import Encoder
from serdes.avro.files import AvroFileError, FileReader, FileWriter
from serdes.avro.parse import parse
from tests.serdes.avro_codec import test_guards, test_resolution
from tests.serdes.avro_codec.fake_registry import FakeRegistry

pytestmark = pytest.mark.system

NEW_DECODER, NEW_ENCODER = partial(new_decoder, "fastavro"), partial(new_encoder, "fastavro")


def plain_tests(module: Any) -> list[Any]:
    return [test for name, test in vars(module).items()
            if name.startswith("test_") and not inspect.signature(test).parameters]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "test"), [(module, test) for module in (test_resolution, test_guards) for test in plain_tests(module)]
)
def test_the_tests_of_the_compiled_engine_pass(
    module: Any, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Decoder", NEW_DECODER)
    monkeypatch.setattr(module, "Encoder", NEW_ENCODER)
    test()


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
    for wrong, why in (({"id": "x", "at": 0}, "int"), ({"id": 1}, "at"), ({"id": 1, "at": 0, "y": 1}, "y")):
        with pytest.raises(AvroDataError, match=rf"schema id 1 \(subject t-value\): .*{why}"):
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
