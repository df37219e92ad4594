"""S1: Avro to a typed object and back, schema id and its look-up included, beside fastavro's bare functions for dicts.

The order has ten fields, as in the JSON cases: numbers, texts, a double, a boolean, an optional text, a list, a time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import msgspec

from figures import Figure
from harness import Meter, Numbers, case
from serdes.avro.marks import AvroType

AVRO_FIGURES = [
    Figure("S1e", "Avro: encode a Struct", "avro encode:records cpu", "fastavro encode:records cpu", 1 / 1.3, 1 / 0.9),
    Figure("S1d", "decode to a Struct", "avro decode:records cpu", "fastavro decode:records cpu", 1 / 1.3, 1 / 0.9),
    Figure("S1r", "decode, resolved", "avro resolve:records cpu", "fastavro resolve:records cpu", 1 / 0.9, 1 / 0.6),
    Figure("S1p", "to a dict", "avro decode a dict:records cpu", "fastavro decode:records cpu", 1 / 1.3, 1 / 0.9),
]
"""With ``bench.py --registry``."""


class Order(msgspec.Struct):
    """As its sender has it."""

    id: int
    customer: str
    sku: str
    quantity: int
    price: float
    currency: str
    paid: bool
    note: str | None
    tags: list[str]
    placed_at: int


class NewOrder(msgspec.Struct):
    """As a reader has it that was deployed later: a field more."""

    __avro__ = AvroType(name="Order")

    id: int
    customer: str
    sku: str
    quantity: int
    price: float
    currency: str
    paid: bool
    note: str | None
    tags: list[str]
    placed_at: int
    channel: str = "web"


ORDERS = [
    Order(
        123_456 + n, f"customer-{n}", f"sku-{n % 17:05}", n % 7, 9.99 + n, "EUR", n % 3 > 0, "gift" if n % 4 else None,
        ["new", "priority"][: n % 3], 1_700_000_000_000 + n,
    )
    for n in range(1_000)
]  # fmt: skip


class _Registry:
    """Gives the first schema the id 1, and keeps it."""

    def __init__(self) -> None:
        self.one: Any = None

    def register(self, subject: str, text: Any, *, normalize: bool = False) -> Any:
        from serdes.registry import RegisteredSchema

        self.one = RegisteredSchema(1, None, text)
        return self.one

    def known(self, schema_id: int, subject: str | None = None) -> Any:
        return self.one


def serdes() -> tuple[Any, Any, list[bytes]]:
    """The serde, its registry, and the orders' messages."""
    from serdes import Avro

    registry: Any = _Registry()
    avro = Avro(registry, Order)
    return avro, registry, [avro.serialize("orders", order) or b"" for order in ORDERS]


def fast(kind: type) -> Any:
    """fastavro's schema of a class."""
    import json

    import fastavro

    from serdes.avro.from_types import schema_of
    from serdes.avro.text import to_text

    return fastavro.parse_schema(json.loads(to_text(schema_of(kind))))


def measured(do: Callable[[Any], object], items: list[Any], n: int) -> Numbers:
    for item in items:  # warm
        do(item)
    work: Iterator[Any] = islice(cycle(items), n)
    with Meter() as meter:
        for item in work:
            do(item)
    return meter.rates("records", n)


@case("avro encode", n=300_000, quick=20_000)
def avro_encode(n: int) -> Numbers:
    avro, _, _ = serdes()
    return measured(avro.encoder("orders"), ORDERS, n)


@case("avro decode", n=300_000, quick=20_000)
def avro_decode(n: int) -> Numbers:
    avro, _, messages = serdes()
    decode = avro.decoder("orders")
    assert decode(messages[3]) == ORDERS[3]
    return measured(decode, messages, n)


@case("avro resolve", n=300_000, quick=20_000)
def avro_resolve(n: int) -> Numbers:
    avro, _, messages = serdes()
    decode = avro.of(NewOrder).decoder("orders")
    assert decode(messages[3]).channel == "web"
    return measured(decode, messages, n)


@case("avro decode a dict", n=300_000, quick=20_000)
def avro_decode_a_dict(n: int) -> Numbers:
    from serdes import Avro

    _, registry, messages = serdes()
    decode = Avro(registry).decoder("orders")
    assert decode(messages[3])["id"] == ORDERS[3].id
    return measured(decode, messages, n)


@case("fastavro encode", n=300_000, quick=20_000)
def fastavro_encode(n: int) -> Numbers:
    from fastavro import schemaless_writer

    schema = fast(Order)

    def encode(order: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        schemaless_writer(out, schema, order)
        return out.getvalue()

    return measured(encode, [msgspec.to_builtins(order) for order in ORDERS], n)


@case("fastavro decode", n=300_000, quick=20_000)
def fastavro_decode(n: int) -> Numbers:
    from fastavro import schemaless_reader

    schema = fast(Order)
    _, _, messages = serdes()
    return measured(lambda data: schemaless_reader(io.BytesIO(data), schema, None), [one[5:] for one in messages], n)


@case("fastavro resolve", n=300_000, quick=20_000)
def fastavro_resolve(n: int) -> Numbers:
    from fastavro import schemaless_reader

    writer, reader = fast(Order), fast(NewOrder)
    _, _, messages = serdes()
    return measured(lambda data: schemaless_reader(io.BytesIO(data), writer, reader), [one[5:] for one in messages], n)
