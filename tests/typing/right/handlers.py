"""Handlers, producer functions and dependencies, as the guide writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Annotated, Any, assert_type

import msgspec

from dlq import Retry
from eventbus import CallNext, ConsumerRecord, Depends, EventBus, Firing, Router, Transaction, consumer, producer


class Order(msgspec.Struct):
    order_id: str
    amount: float


class Invoice(msgspec.Struct):
    order_id: str
    total: float


class Database:
    async def insert(self, order: Order) -> None: ...


bus = EventBus("file://./data", service="shop", linger_ms=5, compression_type="zstd", drain_timeout_ms=10_000)
bus.topic("orders", partitions=3, configs={"retention.ms": 3_600_000, "cleanup.policy": ["compact"]}, value=Order)


@bus.producer("orders", key=lambda order: order.order_id, partitioner="murmur3", linger_ms=5)
async def place(order_id: str, amount: float) -> Order:
    return Order(order_id, amount)


@bus.producer("orders")
def place_at_once(order_id: str) -> Order | None:
    return Order(order_id, 1.0)


@bus.producer("orders")
async def place_many(count: int) -> AsyncIterator[Order]:
    for number in range(count):
        yield Order(str(number), 1.0)


@bus.producer("orders")
def place_more() -> Iterator[Order]:
    yield Order("1", 1.0)


@bus.consumer("orders", group="billing", exactly_once=True, isolation_level="read_committed")
@bus.producer("invoices", key=lambda invoice: invoice.order_id)
async def bill(order: Order, record: ConsumerRecord, tx: Transaction) -> Invoice:
    await tx.send("audit", order, key=record.key)
    return Invoice(order.order_id, order.amount * 1.2)


def database() -> Database:
    return Database()


async def timed(record: Any, call_next: CallNext) -> Any:
    return await call_next(record)


@bus.consumer(
    ["orders", "returns"], group="store", order="key", concurrency=32, timeout=timedelta(seconds=5), retry=Retry(),
    dead_letter="lost", middleware=[timed], start=timedelta(hours=1), session_timeout_ms=6_000, fetch_min_bytes=1_024,
    partition_assignment_strategy="cooperative-sticky", filter=lambda record: record.key is not None,
)  # fmt: skip
async def store(
    order: Order, given: Annotated[Database, Depends(database)], other: Database = Depends(database)
) -> None:
    await given.insert(order)
    await other.insert(order)


@bus.consumer("orders", batch=500, on_error="skip", delivery="at-most-once")
def count(orders: list[Order]) -> int:
    return len(orders)


@bus.every("*/5 * * * *", retry=True, timeout="30s", missed="skip")
async def clean(firing: Firing) -> None: ...


router = Router(prefix="shop.", group_prefix="test.", order="key", concurrency=8)


@router.consumer("orders", replies=True)
async def price(order: Order) -> float:
    return order.amount


@consumer("orders", name="marked")
def marked(order: Order, record: ConsumerRecord[bytes | None, bytes | None]) -> None:
    assert_type(record.value, bytes | None)


@producer("orders")
def made(order_id: str) -> Order:
    return Order(order_id, 1.0)


bus.include(router, marked, made)


async def call_them() -> None:
    assert_type(await place("o-1", 10.0), Order)
    assert_type(await place_at_once("o-1"), Order | None)
    assert_type(await place_many(3), list[Order])
    assert_type(await place_more(), list[Order])
    assert_type(await made("o-1"), Order)
    assert_type(count([Order("o-1", 1.0)]), int)
    assert_type(await price(Order("o-1", 1.0)), float)
