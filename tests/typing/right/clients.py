"""Clients with a loop of their own, requests, the blocking interface, and buses for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, assert_type

import msgspec

from eventbus import ConsumerRecord, EventBus, Producer, RecordMetadata, Scheduled, TopicPartition
from eventbus.client.keywords import BusOptions, HandlerOptions
from eventbus.testing import FakeClock, KafkaServer, TestBus, in_memory


class Order(msgspec.Struct):
    order_id: str


bus = EventBus(
    "kafka://h1:9092,h2:9092", client_id="shop", acks="all", security_protocol="SASL_SSL", sasl_mechanism="PLAIN",
    sasl_username="me", sasl_password="secret", fsync="commit", auto_create_topics=True, session_timeout_ms="30s",
)  # fmt: skip


async def send() -> None:
    assert_type(await bus.send("orders", Order("1"), key="1", headers={"trace": b"1"}), RecordMetadata)
    async with bus.new_producer(linger_ms=5, acks=1, transactional_id="importer") as producer:
        assert_type(producer, Producer)
        await producer.send("orders", Order("1"))
    async with bus.transaction("importer-1", timeout_ms="10s") as tx:
        await tx.send("orders", Order("1"))


async def read() -> None:
    async with bus.new_consumer("orders", group="audit", key=str, value=Order, start="latest") as consumer:
        async for record in consumer:
            assert_type(record.key, str | None)
            assert_type(record.value, Order | None)
        for polled in await consumer.poll(timeout_ms=100):
            assert_type(polled, ConsumerRecord[str | None, Order | None])
            await consumer.commit({polled.topic_partition: polled.next_offset})
    async with bus.new_consumer(partitions=[TopicPartition("orders", 0)], isolation_level="read_uncommitted") as plain:
        assert_type((await plain.poll())[0].value, bytes | None)


async def request() -> None:
    assert_type(await bus.request("prices", Order("1"), returns=float, timeout=5), float)
    assert_type(await bus.request("prices", Order("1"), returns=list[Order]), list[Order])
    assert_type((await bus.request("prices", Order("1"))).value, bytes | None)


def block() -> None:
    with bus.blocking() as b:
        assert_type(b.send("orders", Order("1"), key="1"), RecordMetadata)
        assert_type(b.send("orders", Order("1"), delay="3s", schedule_id="o-1"), Scheduled)
        b.send_many("orders", [Order("1")], key=lambda order: order.order_id)
        with b.new_consumer("orders", group="audit", value=Order, fetch_min_bytes=10) as consumer:
            for record in consumer:
                assert_type(record.value, Order | None)
            assert_type(consumer.poll(timeout_ms=10)[0].key, bytes | None)
        with b.new_producer(linger_ms=5) as producer:
            producer.flush()
            producer.send("orders", Order("1"), partition=0)
        assert_type(b.request("prices", Order("1"), returns=float), float)
        assert_type(b.request("prices", Order("1"), timeout="5s", key="1"), ConsumerRecord[bytes | None, bytes | None])


async def test() -> None:
    async with TestBus(clock=FakeClock(), num_partitions=3, service="shop", linger_ms=5) as test_bus:
        await test_bus.send("orders", b"1")
    async with in_memory(bus, num_partitions=3) as log:
        print(log)
    async with KafkaServer(num_partitions=3) as server:
        print(server.bootstrap)


def shop_bus(**options: Unpack[BusOptions]) -> EventBus:
    return EventBus("memory://", **options)


def subscribe(topics: Sequence[str], **options: Unpack[HandlerOptions]) -> None:
    @shop_bus(num_partitions=3).consumer(topics, **options)
    async def handle(order: Order) -> None: ...

    print(handle)
