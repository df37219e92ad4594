"""confluent-kafka's Avro serializer beside ours, on one registry: the same bytes, and each reads the other's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import (
    RegisteredSchema,
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from serdes import Avro
from serdes.avro.parse import parse
from serdes.avro.text import to_text
from serdes.registry import SchemaText
from tests.serdes.avro_codec.fake_registry import FakeRegistry

pytestmark = pytest.mark.system


class Theirs(SchemaRegistryClient):
    """Their client, asking the registry in this process."""

    def __init__(self, registry: FakeRegistry) -> None:
        super().__init__({"url": "http://nowhere.invalid"})
        self.registry = registry

    def register_schema_full_response(
        self, subject_name: str, schema: Schema, normalize_schemas: bool = False
    ) -> RegisteredSchema:
        text = SchemaText(to_text(parse(str(schema.schema_str))))  # as a registry stores it
        found = self.registry.register(subject_name, text, normalize=normalize_schemas)
        return RegisteredSchema(subject=subject_name, version=1, schema_id=found.id, guid=found.guid, schema=schema)

    def get_schema(self, schema_id: int, *arguments: Any, **options: Any) -> Schema:
        return Schema(self.registry.by_id(schema_id).text.schema, "AVRO")

    def get_schema_by_guid(self, guid: str, *arguments: Any, **options: Any) -> Schema:
        return Schema(self.registry.by_guid(guid).text.schema, "AVRO")

    def get_associations_by_resource_name(self, *arguments: Any, **options: Any) -> list[Any]:
        return []


class Leg(msgspec.Struct):
    start: str
    price: float | None = None


class Flight(msgspec.Struct):
    number: str
    seats: int
    legs: list[Leg]
    notes: dict[str, str] = {}


FLIGHT = Flight("BA1", 180, [Leg("LHR", 9.5), Leg("JFK")], {"k": "v"})
VALUE = SerializationContext("flights", MessageField.VALUE)
KEY = SerializationContext("flights", MessageField.KEY)


def test_both_write_the_same_bytes_and_read_each_others() -> None:
    registry = FakeRegistry(first_id=258)
    ours = Avro(registry, Flight)
    text = to_text(ours.schema) if ours.schema is not None else ""
    theirs = AvroSerializer(Theirs(registry), text)
    plain = msgspec.to_builtins(FLIGHT)
    assert theirs(plain, VALUE) == ours.serialize("flights", FLIGHT)
    assert registry.subjects == {"flights-value": [258]}
    assert AvroDeserializer(Theirs(registry))(ours.serialize("flights", FLIGHT), VALUE) == plain
    assert ours.deserialize("flights", theirs(plain, VALUE)) == FLIGHT
    assert Avro(registry).deserialize("flights", theirs(plain, VALUE)) == plain


def test_keys_have_a_subject_of_their_own_on_both_sides() -> None:
    registry = FakeRegistry()
    ours = Avro(registry, str, is_key=True)
    assert AvroSerializer(Theirs(registry), '"string"')("BA1", KEY) == ours.serialize("flights", "BA1")
    assert list(registry.subjects) == ["flights-key"]


def test_the_guid_in_a_header_is_read_by_both() -> None:
    registry = FakeRegistry()
    ours = Avro(registry, Flight, id_in="header")
    data, headers = ours.serialize_with_headers("flights", FLIGHT, [("trace", b"1")])
    text = to_text(ours.schema) if ours.schema is not None else ""
    theirs = AvroSerializer(Theirs(registry), text, None, {"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext("flights", MessageField.VALUE, [("trace", b"1")])
    assert theirs(msgspec.to_builtins(FLIGHT), context) == data
    assert [tuple(one) for one in context.headers or []] == list(headers)
    assert [name for name, _ in headers] == ["trace", "__value_schema_id"]
    assert data is not None
    assert ours.deserialize("flights", data, headers) == FLIGHT


def test_a_schema_as_json_data_writes_dicts() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    registry = FakeRegistry()
    ours = Avro(registry, schema=schema)
    theirs = AvroSerializer(Theirs(registry), json.dumps(schema, separators=(",", ":")))
    assert ours.serialize("t", {"x": 5}) == theirs({"x": 5}, VALUE) == b"\0\0\0\0\1\x0a"
