"""A bus in the server's process and clients of the network share one log: topics, groups, transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord
from eventbus.errors import ProducerFenced
from eventbus.testing import KafkaServer

confluent_kafka = pytest.importorskip("confluent_kafka", reason="the client that shares the log")

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 30


async def blocking(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the blocking client, in a thread: the server lives on this loop."""
    return await asyncio.to_thread(function, *arguments)


def client(server: KafkaServer, **options: Any) -> dict[str, Any]:
    return {"bootstrap.servers": server.bootstrap, **options}


def consumer(server: KafkaServer, group: str, **options: Any) -> Any:
    return confluent_kafka.Consumer(
        client(server, **{"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **options})
    )


def take(reader: Any, count: int) -> list[Any]:
    """So many records; an error of the client is raised."""
    found: list[Any] = []
    while len(found) < count:
        batch = reader.consume(count - len(found), PATIENCE_SECONDS)
        assert batch, f"{len(found)} of {count} records came"
        for message in batch:
            assert message.error() is None, message.error()
        found += batch
    return found


async def test_what_a_bus_sends_a_client_reads() -> None:
    async with KafkaServer() as server, server.bus() as bus:
        await bus.send("orders", b"from the bus", key=b"k", headers={"trace": b"1"})
        reader = consumer(server, "readers")
        reader.subscribe(["orders"])
        (message,) = await blocking(take, reader, 1)
        await blocking(reader.close)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"from the bus", [("trace", b"1")])


async def test_what_a_client_sends_a_handler_gets_and_answers() -> None:
    async with KafkaServer() as server:
        bus = server.bus()

        @bus.consumer("orders", group="billing", exactly_once=True)
        @bus.producer("invoices")
        def bill(record: ConsumerRecord) -> bytes:
            return b"invoice for " + (record.value or b"")

        async with bus:
            sender = confluent_kafka.Producer(client(server))
            sender.produce("orders", b"o-1")
            await blocking(sender.flush, PATIENCE_SECONDS)
            reader = consumer(server, "readers", **{"isolation.level": "read_committed"})
            reader.subscribe(["invoices"])
            (message,) = await blocking(take, reader, 1)
            await blocking(reader.close)
    assert message.value() == b"invoice for o-1"


async def test_a_handler_and_a_client_share_the_partitions_of_one_group() -> None:
    """Each record is read by one of the two, by whichever has its partition."""
    seen: list[bytes] = []
    async with KafkaServer() as server:
        bus = server.bus()
        bus.topic("orders", partitions=4)

        @bus.consumer("orders", group="shared", partition_assignment_strategy="range")
        def handle(record: ConsumerRecord) -> None:
            seen.append(record.value or b"")

        async with bus:
            reader = consumer(server, "shared", **{"partition.assignment.strategy": "range"})
            assigned = asyncio.Event()
            loop = asyncio.get_running_loop()
            shares: list[Any] = []

            def on_assign(_: Any, partitions: list[Any]) -> None:
                shares.append(partitions)
                loop.call_soon_threadsafe(assigned.set)

            reader.subscribe(["orders"], on_assign=on_assign)
            with anyio.fail_after(PATIENCE_SECONDS):
                while not assigned.is_set():
                    assert await blocking(reader.poll, 0.1) is None
                for number in range(40):
                    await bus.send("orders", b"%d" % number, partition=number % 4)
                of_client = len(shares[0]) * 10
                assert 0 < of_client < 40, shares
                messages = await blocking(take, reader, of_client)
                await blocking(lambda: reader.commit(asynchronous=False))  # or the handler, its heir, reads them too
                await bus.drain()
            await blocking(reader.close)
    values = [message.value() for message in messages]
    assert sorted([*values, *seen], key=int) == [b"%d" % number for number in range(40)]


async def test_an_open_transaction_of_a_bus_hides_its_records_from_clients_until_it_is_committed() -> None:
    async with KafkaServer() as server, server.bus() as bus:
        reader = consumer(server, "readers", **{"isolation.level": "read_committed"})
        reader.subscribe(["orders"])
        async with bus.transaction("importer") as transaction:
            await transaction.send("orders", b"1")
            await transaction.send("orders", b"2")
            assert await blocking(reader.consume, 1, 0.5) == []
        messages = await blocking(take, reader, 2)
        await blocking(reader.close)
    assert [message.value() for message in messages] == [b"1", b"2"]


async def test_a_client_that_takes_a_transactional_id_over_fences_the_bus_that_had_it() -> None:
    async with KafkaServer() as server, server.bus() as bus:
        with pytest.raises(ProducerFenced):
            async with bus.transaction("importer") as transaction:
                await transaction.send("orders", b"of the bus")
                other = confluent_kafka.Producer(client(server, **{"transactional.id": "importer"}))
                await blocking(other.init_transactions, PATIENCE_SECONDS)
        other.begin_transaction()
        other.produce("orders", b"of the client")
        await blocking(other.commit_transaction, PATIENCE_SECONDS)
        reader = consumer(server, "readers", **{"isolation.level": "read_committed"})
        reader.subscribe(["orders"])
        messages = await blocking(take, reader, 1)
        await blocking(reader.close)
    assert [message.value() for message in messages] == [b"of the client"]
