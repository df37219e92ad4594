"""A bus that has a bit of everything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import jsonschema
import msgspec
import pytest

from dlq import Retry
from eventbus import EventBus
from serdes.avro import Avro


class Order(msgspec.Struct, tag=True):
    """Somebody bought something."""

    id: str
    items: list[str]
    amount: Annotated[int, msgspec.Meta(ge=1)] = 1
    place: tuple[int, str] | None = None


class Cancelled(msgspec.Struct, tag=True):
    id: str


class Paid(TypedDict):
    id: str
    cents: int


class Flight(msgspec.Struct):
    number: int
    carrier: str = ""


def key_of(order: Order | Cancelled) -> str:
    return order.id


def shop_on(url: str = "memory://", **config: Any) -> EventBus:
    bus = EventBus(url, client_id="shop", **config)
    bus.topic("orders", partitions=3, replication_factor=2, configs={"retention.ms": 1000, "cleanup.policy": "compact"})

    @bus.producer("orders", key=key_of)
    async def place(order: Order) -> Order | Cancelled:
        """Take an order.

        <script>alert(1)</script>
        """
        return order

    @bus.consumer("orders", group="billing", order="key", concurrency=4, retry=Retry(immediate=1, delays=["5s"]))
    @bus.producer("bills")
    async def bill(event: Order | Cancelled) -> Paid:
        """Charge for it."""
        return {"id": event.id, "cents": 1}

    @bus.consumer("questions", replies=True)
    async def answer(question: str) -> int:
        return len(question)

    @bus.consumer("flights")
    async def fly(flight: Annotated[Flight, Avro("log")]) -> None: ...

    return bus


@pytest.fixture
def shop() -> EventBus:
    return shop_on()


@pytest.fixture
def make_shop() -> Callable[..., EventBus]:
    return shop_on


_SCHEMA = Path(__file__).parents[1] / "vectors" / "asyncapi_3_0_0.json"


@pytest.fixture(scope="session")
def mistakes() -> Callable[[Any], list[str]]:
    """What the official JSON Schema of AsyncAPI 3.0.0 finds wrong with a document."""
    validator: Any = jsonschema.Draft7Validator(json.loads(_SCHEMA.read_text()))
    return lambda document: [error.message for error in validator.iter_errors(document)]
