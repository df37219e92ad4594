"""The document of a bus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest
from pydantic import BaseModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.asyncapi import asyncapi_document
from eventbus.asyncapi.keys import type_of_key
from eventbus.errors import ConfigError
from serdes import Int
from serdes.avro import Avro

pytestmark = pytest.mark.system

T = TypeVar("T")
Make = Callable[..., EventBus]
Mistakes = Callable[[Any], list[str]]


class Line(BaseModel):
    sku: str
    count: int = 1


class Basket(BaseModel):
    """What is about to be bought."""

    lines: list[Line]
    parent: Basket | None = None


class Colour(StrEnum):
    RED = "red"


@dataclass
class Point:
    x: int
    children: list[Point]


class Holder(msgspec.Struct):
    basket: Basket


class Odd:
    """No JSON says what it is."""


class OddSerde:
    def serialize(self, topic: str, value: Any) -> bytes:
        return b""

    def deserialize(self, topic: str, data: bytes) -> Odd:
        return Odd()


def one_message(document: dict[str, Any], channel: str) -> dict[str, Any]:
    (message,) = document["channels"][channel]["messages"].values()
    return message


def test_it_is_valid_and_the_same_each_time(make_shop: Make, mistakes: Mistakes) -> None:
    document = asyncapi_document(make_shop(), title="Shop", version="2.1.0", description="What it does.")
    assert mistakes(document) == []
    assert json.dumps(document) == json.dumps(
        asyncapi_document(make_shop(), title="Shop", version="2.1.0", description="What it does.")
    )
    assert document["info"] == {"title": "Shop", "version": "2.1.0", "description": "What it does."}
    assert "servers" not in document


def test_the_vector_refuses_what_is_wrong(shop: EventBus, mistakes: Mistakes) -> None:
    document = asyncapi_document(shop)
    document["operations"]["send.orders.place"]["action"] = "publish"
    assert mistakes(document)


def test_channels_have_kafkas_bindings(shop: EventBus) -> None:
    kafka = asyncapi_document(shop)["channels"]["orders"]["bindings"]["kafka"]
    assert (kafka["partitions"], kafka["replicas"]) == (3, 2)
    assert kafka["topicConfiguration"] == {"cleanup.policy": ["compact"], "retention.ms": 1000}


def test_operations_name_functions_groups_and_promises(shop: EventBus) -> None:
    operations = asyncapi_document(shop)["operations"]
    assert list(operations) == [
        "receive.flights.fly",
        "receive.orders.bill",
        "receive.questions.answer",
        "send.bills.bill",
        "send.orders.place",
    ]
    bill = operations["receive.orders.bill"]
    assert bill["bindings"]["kafka"]["groupId"]["enum"] == ["billing"]
    assert bill["x-eventbus"] == {"delivery": "at-least-once", "order": "key", "retry": "Retry"}
    assert operations["send.orders.place"]["summary"] == "Take an order."


def test_a_union_is_a_message_for_each_arm_with_the_key(shop: EventBus) -> None:
    document = asyncapi_document(shop)
    messages = document["channels"]["orders"]["messages"]
    assert list(messages) == ["Order", "Cancelled"]
    assert messages["Order"]["bindings"]["kafka"]["key"] == {"type": "string"}
    assert messages["Order"]["description"] == "Somebody bought something."
    order = document["components"]["schemas"]["Order"]
    assert order["properties"]["place"]["anyOf"][0]["items"] == [{"type": "integer"}, {"type": "string"}]


def test_retry_and_dead_letter_topics_hold_the_messages_that_failed(shop: EventBus) -> None:
    document = asyncapi_document(shop)
    for topic, role in (("retry.billing", "retry"), ("dlq.billing", "dead letters")):
        channel = document["channels"][topic]
        assert channel["x-eventbus"] == {"role": role}
        assert channel["messages"]["Order"] == {"$ref": "#/channels/orders/messages/Order"}
        assert not any(one["channel"]["$ref"].endswith(topic) for one in document["operations"].values())


def test_a_reply_goes_where_the_request_says(shop: EventBus) -> None:
    document = asyncapi_document(shop)
    reply = document["operations"]["receive.questions.answer"]["reply"]
    assert reply["address"] == {"location": "$message.header#/reply_to"}
    message = one_message(document, "replies.answer")
    assert message["payload"]["format"] == "int64"
    assert message["correlationId"] == {"location": "$message.header#/correlation_id"}


def test_avro_is_a_schema_of_its_own_format(shop: EventBus) -> None:
    message = one_message(asyncapi_document(shop), "flights")
    assert message["payload"]["schemaFormat"] == "application/vnd.apache.avro;version=1.9.0"
    assert [field["name"] for field in message["payload"]["schema"]["fields"]] == ["number", "carrier"]


def test_pydantic_dataclasses_and_plain_types(mistakes: Mistakes) -> None:
    bus = EventBus("memory://", serdes={Odd: OddSerde(), int: Int})

    def reads(topic: str, annotation: Any) -> None:
        async def handle(value: Any) -> None: ...

        handle.__annotations__["value"] = annotation
        bus.consumer(topic, name=topic)(handle)

    kinds = (Basket, Holder, Point, Colour, bytes, int, list[Line], dict[str, int], Odd, bool, ConsumerRecord)
    for number, annotation in enumerate(kinds):
        reads(f"t{number:02}", annotation)
    document = asyncapi_document(bus)
    assert mistakes(document) == []
    assert {"Basket", "Line", "Holder", "Point"} <= {*document["components"]["schemas"]}
    assert one_message(document, "t00")["payload"] == {"$ref": "#/components/schemas/Basket"}
    assert one_message(document, "t03")["payload"] == {"$ref": "#/components/schemas/Colour"}
    assert one_message(document, "t05")["payload"]["format"] == "int32"
    assert "OddSerde" in one_message(document, "t08")["payload"]["description"]
    assert document["channels"]["t10"]["messages"] == {}


def test_two_classes_of_one_name_are_two_schemas() -> None:
    bus = EventBus("memory://")
    bus.consumer("a", name="a")(_reads(msgspec.defstruct("Same", [("x", int)])))
    bus.consumer("b", name="b")(_reads(msgspec.defstruct("Same", [("y", str)])))
    document = asyncapi_document(bus)
    assert list(document["components"]["schemas"]) == ["Same", "Same_2"]
    assert one_message(document, "b")["payload"] == {"$ref": "#/components/schemas/Same_2"}


def _reads(annotation: Any) -> Any:
    async def handle(value: Any) -> None: ...

    handle.__annotations__["value"] = annotation
    return handle


def test_a_pattern_reads_the_declared_topics_that_it_matches() -> None:
    bus = EventBus("memory://")
    bus.topic("orders.eu")

    @bus.consumer(pattern=r"orders\..*")
    async def one(order: str) -> None: ...

    @bus.consumer(pattern=r"other\..*")
    async def two(order: str) -> None: ...

    document = asyncapi_document(bus)
    assert {"receive.orders.eu.one", "receive.pattern.two.two"} == {*document["operations"]}
    assert document["channels"]["pattern.two"]["address"] is None


def test_servers_tell_how_one_logs_in_and_never_with_what(make_shop: Make, mistakes: Mistakes) -> None:
    bus = make_shop(
        "kafka://a:9092,b:9093",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="alice",
        sasl_password="open-sesame",
    )
    document = asyncapi_document(bus)
    assert mistakes(document) == []
    assert [one["host"] for one in document["servers"].values()] == ["a:9092", "b:9093"]
    assert document["servers"]["kafka"]["protocol"] == "kafka-secure"
    assert document["components"]["securitySchemes"] == {"login": {"type": "scramSha512"}}
    assert "alice" not in json.dumps(document) and "sesame" not in json.dumps(document)


def test_a_url_may_be_named_for_a_bus_on_another_log(shop: EventBus) -> None:
    document = asyncapi_document(shop, url="kafka://prod:9092?security.protocol=SASL_PLAINTEXT&sasl.password=secret")
    assert document["servers"]["kafka"]["host"] == "prod:9092"
    assert document["servers"]["kafka"]["protocol"] == "kafka"
    assert "secret" not in json.dumps(document)
    with pytest.raises(ConfigError, match="no user and password before the host") as refused:
        asyncapi_document(shop, url="kafka://u:secret@prod:9092")
    assert "secret" not in str(refused.value)


def test_a_type_without_a_schema_names_the_handler_and_the_fix() -> None:
    class Holds(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        odd: Odd

    bus = EventBus("memory://")
    bus.consumer("things", name="take")(_reads(Holds))
    with pytest.raises(ConfigError, match=r"handler 'take' of topic 'things'.*Holds.*msgspec.Struct"):
        asyncapi_document(bus)


def test_functions_with_a_timetable_are_no_contract() -> None:
    bus = EventBus("memory://")

    @bus.every("*/5 * * * *")
    async def tick() -> None: ...

    assert asyncapi_document(bus)["operations"] == {} == asyncapi_document(bus)["channels"]


def test_a_topic_setting_that_is_no_number_is_told() -> None:
    bus = EventBus("memory://")
    bus.topic("orders", configs={"retention.ms": "a day"})
    with pytest.raises(ConfigError, match=r"topic 'orders': retention\.ms='a day' is not an integer"):
        asyncapi_document(bus)


def test_two_classes_of_one_name_that_differ_in_what_they_hold_are_two_schemas(mistakes: Mistakes) -> None:
    bus = EventBus("memory://")
    lines = [msgspec.defstruct("Line", [("x", kind)]) for kind in (int, str)]
    for topic, line in zip("abc", (*lines, lines[0]), strict=True):
        bus.consumer(topic, name=topic)(_reads(msgspec.defstruct("Order", [("line", line)])))
    document = asyncapi_document(bus)
    schemas = document["components"]["schemas"]
    assert [one_message(document, topic)["payload"]["$ref"].rpartition("/")[2] for topic in "abc"] == [
        "Order", "Order_2", "Order",
    ]  # fmt: skip
    assert schemas["Order"]["properties"]["line"] == {"$ref": "#/components/schemas/Line"}
    assert schemas["Order_2"]["properties"]["line"] == {"$ref": "#/components/schemas/Line_2"}
    assert schemas["Line"]["properties"]["x"] == {"type": "integer"}


class Answer(BaseModel, Generic[T]):
    data: T


class Größe(msgspec.Struct):
    x: int


def test_names_of_schemas_are_those_that_the_specification_allows() -> None:
    bus = EventBus("memory://")
    bus.consumer("a", name="a")(_reads(Answer[int]))
    bus.consumer("b", name="b")(_reads(Größe))
    document = asyncapi_document(bus)
    assert list(document["components"]["schemas"]) == ["Answer_int_", "Gr__e"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in document["channels"]["b"]["messages"])


class Level(IntEnum):
    LOW = 1


def test_text_and_numbers_that_are_an_enumeration_say_which(mistakes: Mistakes) -> None:
    bus = EventBus("memory://")
    for topic, kind in (("a", Literal["x", "y"]), ("b", Level), ("c", Decimal)):
        bus.consumer(topic, name=topic)(_reads(kind))
    document = asyncapi_document(bus)
    assert mistakes(document) == []
    assert (one_message(document, "a")["contentType"], one_message(document, "a")["payload"]["enum"]) == (
        "text/plain",
        ["x", "y"],
    )
    assert one_message(document, "b")["payload"]["format"] == "int64"
    assert one_message(document, "b")["payload"]["allOf"] == [{"$ref": "#/components/schemas/Level"}]
    assert "description" not in one_message(document, "c"), "Python's own text about Decimal is nobody's contract"


class Account(msgspec.Struct):
    owner: str


class AccountKey(msgspec.Struct, frozen=True):
    number: int


def test_tables_receive_what_their_topics_hold(mistakes: Mistakes) -> None:
    bus = EventBus("memory://")
    bus.topic("payments", partitions=3)
    bus.table("accounts", key=Annotated[AccountKey, Avro("log")], value=Annotated[Account, Avro("log")])
    bus.table("balances", of="payments", key=UUID, value=Account, fold=lambda state, event: state, initial=int)
    document = asyncapi_document(bus)
    assert mistakes(document) == []
    assert list(document["operations"]) == ["receive.accounts.accounts", "receive.payments.balances"]
    operation = document["operations"]["receive.payments.balances"]
    assert operation["x-eventbus"]["table"] == "balances" and "bindings" not in operation
    kafka = document["channels"]["accounts"]["bindings"]["kafka"]
    assert kafka["topicConfiguration"] == {"cleanup.policy": ["compact"]}
    assert document["channels"]["payments"]["bindings"]["kafka"]["partitions"] == 3
    assert one_message(document, "payments")["bindings"]["kafka"]["key"] == {"type": "string", "format": "uuid"}
    key = one_message(document, "accounts")["bindings"]["kafka"]["key"]
    assert [field["name"] for field in key["x-avro"]["fields"]] == ["number"]


class Owner(msgspec.Struct):
    name: str | None
    number: int
    id: UUID

    @property
    def label(self) -> str:
        return ""


class Sale(msgspec.Struct, Generic[T]):
    owner: Owner
    what: T


class Paid(TypedDict):
    id: str


def annotated(sale: Any) -> bytes:
    raise AssertionError("is not called")


KEYS: list[tuple[Callable[[Any], Any], Any, Any]] = [
    (annotated, Sale, bytes),
    (lambda sale: sale.owner.number, Sale, int),
    (lambda sale: sale.owner.name, Sale[int], str),
    (attrgetter("owner.label"), Sale, str),
    (lambda sale: f"{sale.owner.number}-{sale.owner.id:>40}", Sale, str),
    (lambda sale: str(uuid4()), Sale, str),
    (lambda paid: paid["id"], Paid, str),
    (lambda sale: sale.what, Sale[int], None),
    (lambda sale: sale.nothing, Sale, None),
    (lambda sale: sale.owner.name or 1, Sale, None),
    (lambda sale: 1 if sale.owner.name == "x" else "y", Sale, None),
    (lambda sale: sale.owner.name.upper(), Sale, None),
    (lambda sale: next(iter(sale.owner.name)), Sale, None),
    (lambda paid: paid[0], Paid, None),
    (lambda owner: owner.id, Owner | Paid, None),
    (lambda sale: 1 / 0, Sale, None),
]


@pytest.mark.parametrize(("key", "value", "found"), KEYS)
def test_the_type_of_a_key_is_told_where_it_can_be(key: Any, value: Any, found: Any) -> None:
    assert type_of_key(key, value) is found


def test_keys_of_several_functions_are_any_of_them(mistakes: Mistakes) -> None:
    bus = EventBus("memory://")

    @bus.producer("owners", key=lambda one: one.number)
    async def first() -> Owner: ...

    @bus.producer("owners", key=lambda one: one.id)
    async def second() -> Owner: ...

    @bus.producer("owners", key=lambda one: one.nothing)
    async def third() -> Owner: ...

    document = asyncapi_document(bus)
    assert mistakes(document) == []
    key = one_message(document, "owners")["bindings"]["kafka"]["key"]
    assert [one["format"] for one in key["anyOf"]] == ["int64", "uuid"]


def test_retry_topics_of_a_pattern_hold_what_it_reads() -> None:
    bus = EventBus("memory://")
    bus.topic("orders.eu")

    @bus.consumer(pattern=r"orders\..*", group="g", retry=Retry(delays=["5s"]))
    async def one(owner: Owner) -> None: ...

    document = asyncapi_document(bus)
    assert document["channels"]["retry.g"]["messages"] == {"Owner": {"$ref": "#/channels/orders.eu/messages/Owner"}}


@pydantic_dataclass
class Invoice:
    cents: int = pydantic.Field(gt=0)


def test_a_pydantic_dataclass_has_the_schema_that_it_is_checked_by() -> None:
    bus = EventBus("memory://")

    @bus.consumer("invoices", group="g")
    async def handle(invoices: list[Invoice]) -> None: ...

    schema = asyncapi_document(bus)["components"]["schemas"]["Invoice"]
    assert schema["properties"]["cents"]["exclusiveMinimum"] == 0
    assert schema["required"] == ["cents"]


def test_the_declared_type_of_a_topic_is_what_its_senders_write() -> None:
    bus = EventBus("memory://")
    bus.topic("degrees", value=float)
    bus.topic("alone", value=list[int])

    @bus.producer("degrees")
    async def measure() -> int:
        return 3

    channels = asyncapi_document(bus)["channels"]
    assert channels["degrees"]["messages"]["float"]["contentType"] == "application/json"
    assert channels["alone"]["messages"]["list_int"]["payload"]["items"] == {"type": "integer"}
