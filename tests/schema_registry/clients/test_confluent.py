"""confluent-kafka's own registry clients and serializers, unmodified, against `eventbus serve --registry-port`."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from schema_registry.formats.protoc import compiled
from tests.clients.conftest import or_skip
from tests.clients.jars import java, protobuf_jar
from tests.schema_registry.clients.conftest import Both

pytestmark = pytest.mark.system

Fresh = Callable[[], SchemaRegistryClient]

USER = {"type": "record", "name": "User", "namespace": "shop", "fields": [{"name": "name", "type": "string"}]}
WITH_AGE = {**USER, "fields": [*USER["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
PERSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Person", "type": "object",
    "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False,
}  # fmt: skip


def avro(schema: Any) -> Schema:
    return Schema(json.dumps(schema), "AVRO")


def value_of(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, [])


@pytest.fixture
def fresh(both: Both) -> Iterator[Callable[[], SchemaRegistryClient]]:
    """``fresh()``: a client that has seen nothing yet."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(SchemaRegistryClient({"url": both.registry}))


@pytest.fixture
def client(fresh: Fresh) -> SchemaRegistryClient:
    return fresh()


def test_register_and_read_again(client: SchemaRegistryClient, topic: str) -> None:
    schema_id = client.register_schema(topic, avro(USER))
    assert client.register_schema(topic, avro(USER)) == schema_id
    assert json.loads(client.get_schema(schema_id).schema_str) == USER
    assert client.lookup_schema(topic, avro(USER)).schema_id == schema_id
    assert topic in client.get_subjects()
    assert client.get_versions(topic) == [1]
    latest = client.get_latest_version(topic)
    assert (latest.version, latest.schema_id, latest.subject) == (1, schema_id, topic)
    by_guid = client.get_schema_by_guid(latest.guid)
    assert json.loads(by_guid.schema_str) == USER


def test_a_client_that_has_not_seen_the_schema(fresh: Fresh, client: SchemaRegistryClient, topic: str) -> None:
    schema_id = client.register_schema(topic, avro(USER))
    other = fresh()
    assert json.loads(other.get_schema(schema_id).schema_str) == USER
    assert json.loads(other.get_schema(schema_id, subject_name=topic).schema_str) == USER
    assert json.loads(other.get_version(topic, 1).schema.schema_str) == USER


def test_compatibility_and_config(client: SchemaRegistryClient, topic: str) -> None:
    client.register_schema(topic, avro(USER))
    incompatible = avro({**USER, "fields": [{"name": "name", "type": "int"}]})
    assert client.test_compatibility(topic, avro(WITH_AGE))
    assert not client.test_compatibility(topic, incompatible)
    assert not client.test_compatibility_all_versions(topic, incompatible)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(topic, incompatible)
    assert refused.value.http_status_code == 409
    client.set_compatibility(topic, "NONE")
    assert client.get_compatibility(topic) == "NONE"
    client.set_config(topic, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_config(topic).compatibility_level == "FULL"
    client.delete_config(topic)
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_compatibility(topic)
    assert missing.value.error_code == 40408


def test_references_and_metadata(client: SchemaRegistryClient, fresh: Fresh, topic: str) -> None:
    client.register_schema(f"{topic}-user", avro(USER))
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "shop.User"}]}
    schema = Schema(
        json.dumps(order), "AVRO", [SchemaReference("shop.User", f"{topic}-user", 1)],
        Metadata(None, MetadataProperties({"owner": "me"}), None),
    )  # fmt: skip
    schema_id = client.register_schema(topic, schema)
    found = fresh().get_schema(schema_id)
    assert [reference.subject for reference in found.references] == [f"{topic}-user"]
    assert client.get_latest_with_metadata(topic, {"owner": "me"}).schema_id == schema_id


def test_delete_softly_and_for_good(client: SchemaRegistryClient, topic: str) -> None:
    client.register_schema(topic, avro(USER))
    client.register_schema(topic, avro(WITH_AGE))
    assert client.delete_version(topic, 1) == 1
    assert client.delete_subject(topic) == [2]
    assert client.delete_subject(topic, permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_versions(topic)
    assert missing.value.error_code == 40401


def test_mode_and_contexts(client: SchemaRegistryClient, topic: str) -> None:
    assert client.get_global_mode() == "READWRITE"
    client.update_mode(topic, "READONLY")
    assert client.get_mode(topic) == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(topic, avro(USER))
    assert refused.value.error_code == 42205
    assert "." in client.get_contexts()


@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize.schemas": True}, {"subject.name.strategy": lambda ctx, name: f"{ctx.topic}-{name}"}],
    ids=["default", "normalized", "own subject"],
)
def test_avro_there_and_back(client: SchemaRegistryClient, fresh: Fresh, topic: str, settings: dict[str, Any]) -> None:
    write = AvroSerializer(client, json.dumps(USER), conf=settings)
    data = write({"name": "Ann"}, value_of(topic))
    assert data[0] == 0
    read = AvroDeserializer(fresh())
    assert read(data, value_of(topic)) == {"name": "Ann"}
    evolved = AvroDeserializer(fresh(), json.dumps(WITH_AGE))
    assert evolved(data, value_of(topic)) == {"name": "Ann", "age": None}


def test_the_serializers_subject_is_the_topics(client: SchemaRegistryClient, topic: str) -> None:
    """They ask for associations first, and fall back to the topic's name."""
    AvroSerializer(client, json.dumps(USER))({"name": "Ann"}, value_of(topic))
    assert client.get_versions(f"{topic}-value") == [1]


def test_avro_without_registering(client: SchemaRegistryClient, fresh: Fresh, topic: str) -> None:
    lookup = AvroSerializer(client, json.dumps(USER), conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError) as unknown:
        lookup({"name": "Ann"}, value_of(topic))
    assert unknown.value.error_code == 40401
    client.register_schema(f"{topic}-value", avro(USER))
    other = fresh()
    lookup = AvroSerializer(other, json.dumps(USER), conf={"auto.register.schemas": False})
    assert AvroDeserializer(client)(lookup({"name": "Ann"}, value_of(topic)), value_of(topic)) == {"name": "Ann"}
    latest = AvroSerializer(
        other, None, conf={"auto.register.schemas": False, "use.latest.version": True}
    )  # no schema of its own
    assert AvroDeserializer(client)(latest({"name": "Bob"}, value_of(topic)), value_of(topic)) == {"name": "Bob"}


def test_guids_in_headers(client: SchemaRegistryClient, fresh: Fresh, topic: str) -> None:
    write = AvroSerializer(client, json.dumps(USER), conf={"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext(topic, MessageField.VALUE, [])
    data = write({"name": "Annabel"}, context)
    headers = dict(context.headers or [])
    guid = client.get_latest_version(f"{topic}-value").guid
    assert headers["__value_schema_id"] == b"\1" + bytes.fromhex(guid.replace("-", ""))
    assert data == b"\x0eAnnabel"
    read = AvroDeserializer(fresh())
    assert read(data, SerializationContext(topic, MessageField.VALUE, context.headers)) == {"name": "Annabel"}


def test_a_short_payload_with_a_guid_is_their_bug(client: SchemaRegistryClient, topic: str) -> None:
    """Their deserializer wants 6 bytes though the id is in the header. If this fails, they have mended it: good."""
    write = AvroSerializer(client, json.dumps(USER), conf={"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext(topic, MessageField.VALUE, [])
    data = write({"name": "Ann"}, context)
    assert data == b"\x06Ann"
    with pytest.raises(SerializationError, match=r"[Ee]xpecting data framing of length 6 bytes or more"):
        AvroDeserializer(client)(data, SerializationContext(topic, MessageField.VALUE, context.headers))


def test_json_there_and_back(client: SchemaRegistryClient, fresh: Fresh, topic: str) -> None:
    write = JSONSerializer(json.dumps(PERSON), client)
    data = write({"name": "Ann"}, value_of(topic))
    read = JSONDeserializer(None, schema_registry_client=fresh())
    assert read(data, value_of(topic)) == {"name": "Ann"}
    with pytest.raises(SerializationError):
        write({"name": 1}, value_of(topic))


ORDER = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "shop.User"}]}
ORDER_JSON = {"properties": {"by": {"$ref": "person.json"}}, "required": ["by"], "type": "object"}  # normalized
LATEST = {"auto.register.schemas": False, "use.latest.version": True}


@pytest.mark.parametrize("settings", [{}, {"normalize.schemas": True}, LATEST], ids=["default", "normalized", "latest"])
@pytest.mark.parametrize("guid_in_header", [False, True])
@pytest.mark.parametrize("schema_type", ["AVRO", "JSON"])
def test_schemas_with_references_there_and_back(
    client: SchemaRegistryClient,
    fresh: Fresh,
    topic: str,
    settings: dict[str, Any],
    guid_in_header: bool,
    schema_type: str,
) -> None:
    """A client that has seen nothing yet reads them, and no setting of the serializer registers a second version."""
    name, inner, outer = ("shop.User", USER, ORDER) if schema_type == "AVRO" else ("person.json", PERSON, ORDER_JSON)
    client.register_schema(f"{topic}-inner", Schema(json.dumps(inner), schema_type))
    schema = Schema(json.dumps(outer, indent=1), schema_type, [SchemaReference(name, f"{topic}-inner", 1)])
    registered = client.register_schema(f"{topic}-value", schema)
    conf = {**settings, "schema.id.serializer": header_schema_id_serializer} if guid_in_header else settings
    writer, reader = fresh(), fresh()
    if schema_type == "AVRO":
        write, read = AvroSerializer(writer, schema, conf=conf), AvroDeserializer(reader)
    else:
        write, read = JSONSerializer(schema, writer, conf=conf), JSONDeserializer(None, schema_registry_client=reader)
    place, order = value_of(topic), {"by": {"name": "Annabel"}}
    data = write(order, place)
    assert read(data, SerializationContext(topic, MessageField.VALUE, place.headers)) == order
    assert client.get_versions(f"{topic}-value") == [1]
    if not guid_in_header:
        assert data[1:5] == registered.to_bytes(4, "big")
    if schema_type == "JSON":
        with pytest.raises(SerializationError):
            write({"by": {"name": 1}}, place)


def test_through_a_topic(client: SchemaRegistryClient, fresh: Fresh, both: Both, topic: str) -> None:
    """The log and its registry, one process: a producer and a consumer of theirs."""
    write = AvroSerializer(client, json.dumps(USER))
    producer = Producer({"bootstrap.servers": both.bootstrap})
    for name in ("Ann", "Bob"):
        producer.produce(topic, write({"name": name}, value_of(topic)))
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": both.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read = AvroDeserializer(fresh())
    try:
        messages = consumer.consume(2, 20)
        assert [read(message.value(), value_of(topic)) for message in messages] == [{"name": "Ann"}, {"name": "Bob"}]
    finally:
        consumer.close()


async def test_the_asynchronous_client(both: Both, topic: str) -> None:
    async with AsyncSchemaRegistryClient({"url": both.registry}) as client:
        write = await AsyncAvroSerializer(client, json.dumps(USER))
        read = await AsyncAvroDeserializer(client)
        data = await write({"name": "Ann"}, value_of(topic))
        assert await read(data, value_of(topic)) == {"name": "Ann"}
        assert await client.get_versions(f"{topic}-value") == [1]
        assert not await client.test_compatibility(f"{topic}-value", avro({**USER, "name": "Other"}))
        assert await client.delete_subject(f"{topic}-value") == [1]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that asks who one is."""
    folder = tmp_path_factory.mktemp("secured")
    (folder / "users").write_text("alice: a-secret\nbearer: a-token\n", "utf-8")
    options = ("--registry-port", "0", "--registry-users", str(folder / "users"))
    with Both(folder / "log", *options) as server:
        yield server.registry


@pytest.mark.parametrize(
    "settings",
    [
        {"basic.auth.user.info": "alice:a-secret"},
        {"url": "http://alice:a-secret@"},
        {
            "bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "a-token",
            "bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1",
        },
    ],
    ids=["user info", "in the url", "token"],
)  # fmt: skip
def test_they_say_who_they_are(secured: str, topic: str, settings: dict[str, str]) -> None:
    url = settings.get("url", "http://") + secured.removeprefix("http://")
    with SchemaRegistryClient({**settings, "url": url}) as client:
        assert client.register_schema(topic, avro(USER)) == 1


@pytest.mark.parametrize("user_info", [None, "alice:wrong"])
def test_strangers_are_told_so(secured: str, user_info: str | None) -> None:
    settings = {"basic.auth.user.info": user_info} if user_info else {}
    with SchemaRegistryClient({"url": secured, **settings}) as client, pytest.raises(SchemaRegistryError) as refused:
        client.get_subjects()
    assert refused.value.http_status_code == 401


# Protobuf ------------------------------------------------------------------------------------------------------------

MONEY = 'syntax = "proto3"; package shop; message Money { string currency = 1; }'
OPTIONS = """syntax = "proto3"; package shop; import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { bool pii = 50001; }"""
SALE = """syntax = "proto3"; package shop; import "money.proto"; import "options.proto";
import "google/protobuf/timestamp.proto";
message Sale { string id = 1 [(pii) = true]; Money price = 2; google.protobuf.Timestamp at = 3;
  message Part { int32 number = 1; }
  map<string, Part> parts = 4; message Note { string text = 1; } }"""  # fmt: skip


def message_class(name: str) -> Any:
    pool = DescriptorPool()
    for file in compiled(SALE, {"money.proto": MONEY, "options.proto": OPTIONS}).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.parametrize("settings", [{}, {"normalize.schemas": True}, {"skip.known.types": False}], ids=str)
@pytest.mark.parametrize("guid_in_header", [False, True])
def test_protobuf_there_and_back(
    client: SchemaRegistryClient, fresh: Fresh, topic: str, settings: dict[str, Any], guid_in_header: bool
) -> None:
    if guid_in_header:
        settings = {**settings, "schema.id.serializer": header_schema_id_serializer}
    conf = {"use.deprecated.format": False}
    for name, values in (("Sale", {"id": "7", "price": {"currency": "EUR"}}), ("Sale.Note", {"text": "x" * 9})):
        kind, place = message_class(f"shop.{name}"), value_of(f"{topic}-{name}")
        data = ProtobufSerializer(kind, client, {**settings, **conf})(kind(**values), place)
        assert ProtobufDeserializer(kind, conf, fresh())(data, place) == kind(**values)
        if name == "Sale.Note":
            continue  # with the latest version, the client looks for nested messages at the top level
        latest = {**settings, **conf, "auto.register.schemas": False, "use.latest.version": True}
        assert ProtobufSerializer(kind, fresh(), latest)(kind(**values), place) == data
        read = {**conf, "use.latest.version": True}
        assert ProtobufDeserializer(kind, read, fresh())(data, place) == kind(**values)
    stored = client.get_latest_version(f"{topic}-Sale-value").schema.schema_str
    assert "string id = 1 [(pii) = true];" in stored


def test_a_protobuf_text_with_references_is_the_version_that_a_descriptor_is(
    client: SchemaRegistryClient, topic: str
) -> None:
    references = []
    for name, text in (("money.proto", MONEY), ("options.proto", OPTIONS)):
        client.register_schema(name, Schema(text, "PROTOBUF"))
        references.append(SchemaReference(name, name, 1))
    schema_id = client.register_schema(f"{topic}-value", Schema(SALE, "PROTOBUF", references))
    kind = message_class("shop.Sale")
    write = ProtobufSerializer(kind, client, {"use.deprecated.format": False, "auto.register.schemas": False})
    assert write(kind(id="1"), value_of(topic))[1:5] == schema_id.to_bytes(4, "big")


def test_javas_protobuf_classes_read_and_write_by_the_serialized_schemas(
    client: SchemaRegistryClient, fresh: Fresh, topic: str
) -> None:
    """Java builds its descriptors from ``format=serialized``, and the Python client reads what Java wrote."""
    jar = or_skip(protobuf_jar)
    kind, place, conf = message_class("shop.Sale"), value_of(topic), {"use.deprecated.format": False}
    sale = kind(id="7", price={"currency": "EUR"}, parts={"a": {"number": 3}}, at={"seconds": 5})
    data = ProtobufSerializer(kind, client, conf)(sale, place)
    stored = client.get_latest_version(f"{topic}-value", fmt="serialized")
    files = {
        one.name: client.get_version(one.subject, one.version, fmt="serialized").schema.schema_str
        for one in stored.schema.references
        if not one.name.startswith("google/")
    }
    files["sale.proto"] = stored.schema.schema_str
    command = [
        java(),
        "-cp",
        jar,
        str(Path(__file__).with_name("JavaProtobuf.java")),
        "Sale",
        b64encode(data[6:]).decode(),
    ]
    done = subprocess.run(
        [*command, *(f"{name}={text}" for name, text in files.items())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    text, written = done.stdout.splitlines()
    assert text == 'id: "7" price { currency: "EUR" } at { seconds: 5 } parts { key: "a" value { number: 3 } }'
    assert ProtobufDeserializer(kind, conf, fresh())(data[:6] + b64decode(written), place) == sale
