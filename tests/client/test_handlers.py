"""Signatures and options: what is wrong is said at decoration, with the right form beside it."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from eventbus import ConsumerRecord, EventBus, consumer, producer
from eventbus.errors import ConfigError


class Order(msgspec.Struct):
    amount: float


@dataclasses.dataclass
class Shipment:
    amount: float


class Payment(TypedDict):
    amount: float


class Refund(pydantic.BaseModel):
    amount: float


def test_a_payload_without_annotation_shows_the_right_signature() -> None:
    with pytest.raises(ConfigError, match=r"'handle' of orders: parameter 'order' has no annotation.*order: Order"):

        @consumer("orders")
        async def handle(order) -> None: ...


def test_no_parameter_at_all() -> None:
    with pytest.raises(ConfigError, match="takes no parameter for the record"):

        @consumer("orders")
        async def handle() -> None: ...


def test_two_payloads() -> None:
    with pytest.raises(ConfigError, match="'second' is a second payload"):

        @consumer("orders")
        async def handle(first: Order, second: Order) -> None: ...


def test_star_arguments() -> None:
    with pytest.raises(ConfigError, match=r"\*args says nothing"):

        @consumer("orders")
        async def handle(*args: Any) -> None: ...


def test_an_unknown_name_in_an_annotation() -> None:
    with pytest.raises(ConfigError, match="annotation 'Missing' is not known"):

        @consumer("orders")
        async def handle(order: Missing) -> None: ...  # noqa: F821 - that is the point


def test_a_batch_handler_takes_one_list() -> None:
    with pytest.raises(ConfigError, match=r"a batch handler takes one list"):

        @consumer("orders", batch=True)
        async def handle(order: Order) -> None: ...

    @consumer("orders", batch=True)
    async def right(orders: list[Order]) -> None: ...

    assert right.signature.payload is Order


def test_types_local_to_a_function_are_found() -> None:
    class Local(msgspec.Struct):
        x: int

    @consumer("orders")
    async def handle(order: Local, record: ConsumerRecord) -> None: ...

    assert handle.signature.payload is Local
    assert handle.signature.record_name == "record"


def test_a_record_alone_and_a_default_are_fine() -> None:
    @consumer("orders")
    async def handle(record: ConsumerRecord, limit: int = 5, *, flag=False) -> None: ...

    assert handle.signature.record_name == "record"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grup": "x"}, "no option 'grup'; did you mean 'group'"),
        ({"start": "first"}, "start"),
        ({"on_error": "ignore"}, "on_error"),
        ({"pattern": "x"}, "one of the two"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer("orders", **options)


def test_forgotten_arguments() -> None:
    with pytest.raises(ConfigError, match="@consumer takes the topic"):

        @consumer
        async def handle(order: Order) -> None: ...

    with pytest.raises(ConfigError, match="@producer takes the topic"):

        @producer
        async def make() -> Order: ...


def test_producer_above_consumer_is_explained() -> None:
    with pytest.raises(ConfigError, match="put @producer below @consumer"):

        @producer("invoices")
        @consumer("orders")
        async def handle(order: Order) -> Order: ...


@pytest.mark.parametrize("model", [Order, Shipment, Payment, Refund, dict, Any])
async def test_payload_types(model: Any) -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[Any] = []

    async def handle(payload) -> None:
        seen.append(payload)

    handle.__annotations__["payload"] = model
    bus.consumer("t")(handle)
    async with bus:
        await bus.send("t", Refund(amount=1.5))
        await bus.drain()
    expected = {"amount": 1.5} if model in (dict, Any, Payment) else model(amount=1.5)
    assert seen == [expected]


@pytest.mark.parametrize(("model", "value"), [(bytes, b"\x00\xff"), (str, "Grüße"), (int, -(2**40))])
async def test_primitive_payloads(model: Any, value: Any) -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[Any] = []

    async def handle(payload) -> None:
        seen.append(payload)

    handle.__annotations__["payload"] = model
    bus.consumer("t")(handle)
    async with bus:
        await bus.send("t", value, key=7)
        await bus.drain()
    assert seen == [value]


async def test_a_serde_of_ones_own_by_type() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    class CelsiusSerde:
        def serialize(self, topic: str, value: Celsius) -> bytes:
            return f"{topic}:{value.degrees}".encode()

        def deserialize(self, topic: str, data: bytes) -> Celsius:
            return Celsius(float(data.decode().removeprefix(f"{topic}:")))

    bus = EventBus("memory://", serdes={Celsius: CelsiusSerde()})
    bus.topic("weather")
    seen: list[float] = []

    @bus.consumer("weather")
    async def handle(reading: Celsius) -> None:
        seen.append(reading.degrees)

    async with bus:
        await bus.send("weather", Celsius(21.5))
        await bus.drain()
        async with bus.new_consumer("weather") as reader:
            assert (await reader.poll())[0].value == b"weather:21.5"
    assert seen == [21.5]
