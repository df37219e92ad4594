"""The declared type of a topic decides what is written there, whatever class the single value has."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import msgspec
import pytest

from eventbus import EventBus
from eventbus.errors import ConfigError, SerializationError
from outbox.serializing import Packer
from serdes import Str
from serdes.choose import Serdes, encoder_for
from tests.support import values_of


class Order(msgspec.Struct):
    id: int


class Discount(Order):
    percent: int


class Packed:
    """A custom serde."""

    def serialize(self, topic: str, value: Any) -> bytes:
        return b"packed"

    def deserialize(self, topic: str, data: bytes) -> Any:
        return data


@pytest.mark.parametrize(
    ("declared", "values", "stored"),
    [
        (float, [3, 3.5, True], [b"3", b"3.5", b"true"]),
        (int | str, [3, "three"], [b"3", b'"three"']),
        (Order | str, [Order(1), "none"], [b'{"id":1}', b'"none"']),
        (Any, ["text", 3], [b'"text"', b"3"]),
        (str, ["text", b"raw", None], [b"text", b"raw", None]),
        (int, [1], [(1).to_bytes(8, "big")]),
        (Order, [Discount(1, 20), {"id": 2}, b"raw"], [b'{"id":1,"percent":20}', b'{"id":2}', b"raw"]),
    ],
)
async def test_every_sender_writes_the_declared_type(declared: Any, values: list[Any], stored: list[Any]) -> None:
    bus = EventBus("memory://")
    bus.topic("t", partitions=1, value=declared)
    async with bus:
        await bus.send("t", values[0])
        await bus.send_nowait("t", values[0])
        await bus.send_many("t", values)
        async with bus.transaction("tx") as tx:
            await tx.send("t", values[0])
        records = await values_of(bus, "t")
    assert records == [stored[0], stored[0], *stored, stored[0]]


async def test_the_annotation_of_a_producer_function_declares_its_topic() -> None:
    bus, seen = EventBus("memory://"), list[Any]()

    @bus.producer("degrees")
    async def measure(value: float) -> float:
        return value

    @bus.consumer("degrees", group="g")
    async def handle(value: float) -> None:
        seen.append(value)

    async with bus:
        await measure(3)
        await bus.send("degrees", 4)
        await bus.drain()
    assert seen == [3.0, 4.0]


async def test_two_producer_functions_share_one_format() -> None:
    bus, seen = EventBus("memory://"), list[Any]()

    @bus.producer("events")
    async def order() -> Order:
        return Order(1)

    @bus.producer("events")
    async def note() -> str:
        return "note"

    @bus.consumer("events", group="g")
    async def handle(event: Order | str) -> None:
        seen.append(event)

    async with bus:
        await order()
        await note()
        await bus.drain()
    assert seen == [Order(1), "note"]


class Invoice(msgspec.Struct):
    """Without a tag: no reader could be declared as Order | Invoice."""

    number: int


@dataclasses.dataclass
class Basket:
    cents: int
    total: int = dataclasses.field(init=False, default=0)


@pytest.mark.parametrize("value", [Invoice(1), {"number": 1}, Basket(1), (1,), datetime.date(2026, 1, 1), b"raw"])
async def test_producer_functions_may_write_what_no_single_reader_reads(value: Any) -> None:
    bus = EventBus("memory://")

    @bus.producer("events")
    async def order() -> Order:
        return Order(1)

    async def other() -> Any:
        return value

    other.__annotations__["return"] = type(value)
    bus.producer("events")(other)
    async with bus:
        await order()
        await bus.send("events", value)


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (str, 3, "expected str, got int"),
        (Order, '{"id": 1}', "declared as Order, and a str is none. Send text that is JSON already as bytes"),
        (dict[str, int], "{}", r"declared as dict, and a str is none"),
    ],
)
async def test_a_value_of_another_type_is_refused_at_send(declared: Any, value: Any, message: str) -> None:
    bus = EventBus("memory://")
    bus.topic("t", value=declared)
    async with bus:
        with pytest.raises(SerializationError, match=message):
            await bus.send("t", value)


async def test_a_reply_is_written_as_its_handler_declares() -> None:
    bus = EventBus("memory://")
    bus.topic("ask")

    @bus.consumer("ask", group="g", replies=True)
    async def half(value: int) -> float:
        return value // 2

    async with bus:
        assert await bus.request("ask", 6, returns=float) == 3.0


async def test_a_reply_need_not_be_of_a_type_that_this_service_reads() -> None:
    bus = EventBus("memory://")
    bus.topic("ask")

    @bus.consumer("ask", group="g", replies=True)
    async def find(value: int) -> Basket:
        return Basket(value)

    async with bus:
        assert await bus.request("ask", 6, returns=dict) == {"cents": 6}


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda bus: bus.topic("t", value=bytes | str), r"bus.topic\('t', value=bytes \| str\): no single format"),
        (lambda bus: bus.topic("t", value=int | Order), "its types have different serdes"),
        (lambda bus: bus.topic("t", value=float) or bus.topic("t", value=Order), "is declared twice"),
    ],
)
def test_a_type_that_no_single_format_carries_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        declare(EventBus("memory://", serdes={Order: Packed()}))


def test_a_handler_of_a_union_with_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"payload type bytes \| .*Order cannot be read: no single format"):

        @EventBus("memory://").consumer("t", group="g")
        async def handle(value: bytes | Order) -> None: ...


@pytest.mark.parametrize(
    ("sent", "read", "cause"),
    [
        (5, float, "It has 8 bytes, as an int is sent to a topic without a declared type"),
        ("some text", Order, "It is text without JSON's quotes"),
        (b"\0\0\0\0\1rest", Order, "It begins with a schema id"),
        (3.5, int, "It is JSON"),
    ],
)
async def test_an_unreadable_record_names_the_likely_cause(sent: Any, read: Any, cause: str) -> None:
    bus = EventBus("memory://")
    bus.topic("t", partitions=1)
    async with bus:
        await bus.send("t", sent)
        async with bus.new_consumer("t", start="earliest", value=read) as consumer:
            with pytest.raises(SerializationError, match=cause):
                await consumer.poll()


def test_an_outbox_with_the_serdes_of_a_bus_writes_the_declared_type() -> None:
    bus = EventBus("memory://")
    bus.topic("t", value=float)
    assert Packer(bus.context.serdes, 1_000_000).topic("t").pack(None, 3, ()).value == b"3"


def test_serdes_by_type_keep_the_types_of_topics() -> None:
    serdes = Serdes()
    serdes.declare("t", float, is_final=True)
    assert encoder_for(int, "t", serdes.joined_with({str: Str}))(3) == b"3"
