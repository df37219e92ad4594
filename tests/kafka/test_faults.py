"""The server dies while records are on their way: none is lost, none comes twice, their order stays."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.errors import (
    IllegalGeneration,
    RebalanceInProgress,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnknownMemberId,
)
from eventbus.types import ConsumerRecord
from tests.kafka.targets import Node, bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

SERVERS = ("served", pytest.param("real", marks=pytest.mark.slow))


@pytest.fixture(params=SERVERS)
def node(request: pytest.FixtureRequest) -> Node:
    return request.getfixturevalue(request.param)


async def read(bus: EventBus, topic: str, count: int) -> list[ConsumerRecord]:
    """At least ``count`` records, and what else is there."""
    records: list[ConsumerRecord] = []
    async with bus.new_consumer(topic) as consumer:
        with anyio.fail_after(60):
            while len(records) < count:
                records += await consumer.poll(timeout_ms=500)
            while more := await consumer.poll(timeout_ms=300):
                records += more
    return records


async def die_and_come_back(node: Node) -> None:
    await anyio.to_thread.run_sync(node.kill)
    await anyio.to_thread.run_sync(node.start)


async def test_a_producer_outlives_the_server(node: Node) -> None:
    async with EventBus(bus_url(node.bootstrap)) as bus:
        topic = f"outlived-{id(bus)}"
        await bus.admin.create_topic(topic)
        told: list[int] = []
        for number in range(300):
            delivery = bus.send_nowait(topic, b"%d" % number)
            delivery.add_callback(lambda at, error: told.append(-1 if at is None else at.offset))
            if number in (50, 150):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(die_and_come_back, node)
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
        await bus.flush()
        assert told == list(range(300))
        assert [record.value for record in await read(bus, topic, 300)] == [b"%d" % n for n in range(300)]


async def test_transactions_outlive_the_server(node: Node) -> None:
    """Each is whole or absent, and what `commit` says is so."""
    async with EventBus(bus_url(node.bootstrap)) as bus:
        topic = f"whole-{id(bus)}"
        await bus.admin.create_topic(topic)
        committed: list[bytes] = []
        async with bus.new_producer(transactional_id=topic, max_block_ms=30_000) as producer:
            for number in range(12):
                await producer.begin()
                try:
                    for part in range(3):
                        producer.send_nowait(topic, b"%d/%d" % (number, part))
                    if number in (4, 8):
                        await die_and_come_back(node)
                    await producer.commit()
                except TransactionAborted:
                    continue
                except TransactionOutcomeUnknown as error:
                    raise AssertionError("the server is back, so the outcome can be found out") from error
                committed += [b"%d/%d" % (number, part) for part in range(3)]
        assert [record.value for record in await read(bus, topic, len(committed))] == committed
        assert len(committed) >= 30


async def test_a_consumer_outlives_the_server(node: Node) -> None:
    async with EventBus(bus_url(node.bootstrap)) as bus:
        topic = f"read-{id(bus)}"
        await bus.admin.create_topic(topic, 2)
        values = [b"%d" % number for number in range(200)]
        for number, value in enumerate(values):
            bus.send_nowait(topic, value, partition=number % 2)
        await bus.flush()
        seen: list[ConsumerRecord] = []
        async with bus.new_consumer(topic, group=topic) as consumer:
            with anyio.fail_after(90):
                while len(seen) < 100:
                    seen += await consumer.poll(timeout_ms=200, max_records=20)
                await consumer.commit()
                await die_and_come_back(node)
                for number in range(20):
                    await bus.send(topic, b"late", partition=number % 2)
                while len({(record.partition, record.offset) for record in seen}) < 220:
                    try:
                        seen += await consumer.poll(timeout_ms=200, max_records=20)
                        await consumer.commit()
                    except (UnknownMemberId, IllegalGeneration, RebalanceInProgress):
                        continue  # its session was over before the server was back: what was not committed comes again
        assert {record.value for record in seen} == {*values, b"late"}
