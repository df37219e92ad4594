"""aiokafka."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from tests.clients.drivers.driving import LIMIT_S, SHRINKS, Scenario, Security, main

connection: dict[str, Any] = {}
"""Settings of every client: how it gets into a secured server."""


def secure(security: Security) -> None:
    connection.update(
        security_protocol="SASL_SSL",
        sasl_mechanism=security.mechanism,
        sasl_plain_username=security.username,
        sasl_plain_password=security.password,
        ssl_context=ssl.create_default_context(cafile=security.ca),
    )


async def until(done: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > limit:
            raise TimeoutError(f"still waiting after {LIMIT_S} s")
        await asyncio.sleep(0.02)


async def read(bootstrap: str, topic: str, count: int, isolation: str = "read_uncommitted") -> list[ConsumerRecord]:
    """``count`` records from the beginning, and what comes directly behind them."""
    client = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", **connection
    )
    await client.start()
    seen: list[ConsumerRecord] = []
    try:
        await client._client.add_topic(topic)  # what assign() takes for known
        client.assign([TopicPartition(topic, number) for number in sorted(client.partitions_for_topic(topic) or ())])
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < count:
                for found in (await client.getmany(timeout_ms=100)).values():
                    seen += found
        for found in (await client.getmany(timeout_ms=300)).values():
            seen += found
    finally:
        await client.stop()
    return seen


def rows(records: list[ConsumerRecord]) -> list[list[Any]]:
    return sorted(
        [
            record.partition,
            record.offset,
            record.key.decode(),
            record.value.decode(),
            {name: value.decode() for name, value in record.headers},
        ]
        for record in records
    )


async def _produce(bootstrap: str, topic: str, count: int, times: int = 1, **settings: Any) -> None:
    """``times``: what stands in a value so often."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=5, **connection, **settings)
    await client.start()
    try:
        sent = [
            await client.send(topic, f"v{i}".encode() * times, f"k{i}".encode(), headers=[("n", str(i).encode())])
            for i in range(count)
        ]
        await asyncio.gather(*sent)
    finally:
        await client.stop()


async def produce(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    await _produce(bootstrap, topic, count)
    return {"failed": [], "records": rows(await read(bootstrap, topic, count))}


async def idempotent(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    await _produce(bootstrap, topic, count, enable_idempotence=True)
    return {"failed": [], "records": rows(await read(bootstrap, topic, count))}


async def compression(bootstrap: str, topic: str, count: int, codecs: list[str]) -> dict[str, Any]:
    for codec in codecs:
        await _produce(bootstrap, f"{topic}-{codec}", count, SHRINKS, compression_type=codec)
    counts = {codec: len(await read(bootstrap, f"{topic}-{codec}", count)) for codec in codecs}
    return {"failed": [], "counts": counts}


async def transactions(bootstrap: str, source: str, target: str, group: str) -> dict[str, Any]:
    writer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{group}-writer")
    await writer.start()
    await writer.begin_transaction()
    for i in range(5):
        await writer.send_and_wait(target, f"aborted{i}".encode())
    await writer.abort_transaction()

    reader = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await reader.start()
    seen = [await asyncio.wait_for(reader.getone(), LIMIT_S) for _ in range(10)]
    async with writer.transaction():
        for record in seen:
            await writer.send(target, record.value, record.key)
        at = TopicPartition(source, 0)
        await writer.send_offsets_to_transaction({at: seen[-1].offset + 1}, group)
    committed = None  # a transaction's offsets count when its markers are written, a moment after the commit's answer
    async with asyncio.timeout(LIMIT_S):
        while committed is None:
            committed = await reader.committed(TopicPartition(source, 0))
    await reader.stop()
    await writer.stop()
    return {
        "committed": [record.value.decode() for record in await read(bootstrap, target, 10, "read_committed")],
        "all": len(await read(bootstrap, target, 15)),
        "offset": committed,
    }


async def read_committed(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    return {"values": [record.value.decode() for record in await read(bootstrap, topic, count, "read_committed")]}


class Member(ConsumerRebalanceListener):
    """A consumer of a group that notes what it was given and what was taken from it."""

    def __init__(self, bootstrap: str, topic: str, group: str, **more: Any) -> None:
        self.records: list[ConsumerRecord] = []
        self.held: set[int] = set()
        self.gave_up = 0
        self.assignments = 0
        self.client = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[RangePartitionAssignor],
            **more,
        )
        self.client.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assignments += 1
        self.held = {at.partition for at in assigned}

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.gave_up += len(revoked)
        self.held = set()

    async def start(self) -> Member:
        await self.client.start()
        self._reading = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        async for record in self.client:
            self.records.append(record)

    async def close(self) -> None:
        self._reading.cancel()
        await self.client.stop()


async def group(bootstrap: str, topic: str, group: str, strategy: str) -> dict[str, Any]:
    assert strategy == "range"
    one = await Member(bootstrap, topic, group).start()
    await until(lambda: len(one.held) == 4)
    two = await Member(bootstrap, topic, group).start()
    await until(lambda: len(one.held) == len(two.held) == 2)
    moved, shares = one.gave_up, [sorted(one.held), sorted(two.held)]
    await _produce(bootstrap, topic, 40)
    await until(lambda: len(one.records) + len(two.records) >= 40)
    await one.client.commit()
    await two.client.commit()
    seen = sorted(record.value.decode() for record in one.records + two.records)
    await two.close()
    await until(lambda: len(one.held) == 4)
    await one.close()
    return {"failed": [], "moved": moved, "shares": shares, "seen": seen}


async def static(bootstrap: str, topic: str, group: str) -> dict[str, Any]:
    one, two = await asyncio.gather(
        Member(bootstrap, topic, group, group_instance_id="one").start(),
        Member(bootstrap, topic, group, group_instance_id="two").start(),
    )
    await until(lambda: len(one.held) == len(two.held) == 2)
    before, held = one.assignments, sorted(two.held)
    await two.close()
    two = await Member(bootstrap, topic, group, group_instance_id="two").start()
    await until(lambda: two.held)
    await asyncio.sleep(0.5)
    result = {"same": sorted(two.held) == held, "rebalances": one.assignments - before}
    await one.close()
    await two.close()
    return result


async def admin(bootstrap: str, topic: str) -> dict[str, Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()

    async def retention() -> str:
        (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        ((_, _, _, _, entries),) = answer.resources
        return next(entry[1] for entry in entries if entry[0] == "retention.ms")

    await client.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "1000000"})])
    created = await retention()
    await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "2000000"})])
    changed = await retention()
    await client.create_partitions({topic: NewPartitions(4)})
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for i in range(10):
        await producer.send_and_wait(topic, f"v{i}".encode(), partition=0)
    await producer.stop()
    await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(4)})
    group = f"{topic}-group"
    reader = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    await reader.start()
    reader.assign([TopicPartition(topic, 0)])
    (start,) = (await reader.beginning_offsets([TopicPartition(topic, 0)])).values()
    await reader.commit({TopicPartition(topic, 0): 7})
    await reader.stop()
    listed = [name for name, _ in await client.list_consumer_groups()]
    committed = await client.list_consumer_group_offsets(group)
    await client.delete_topics([topic])
    gone = topic not in await client.list_topics()
    await client.close()
    return {
        "created": created,
        "changed": changed,
        "start": start,
        "listed": group in listed,
        "committed": committed[TopicPartition(topic, 0)].offset,
        "gone": gone,
    }


def run(scenario: Callable[..., Any]) -> Scenario:
    return lambda **arguments: asyncio.run(scenario(**arguments))


if __name__ == "__main__":
    main(
        {
            "produce": run(produce),
            "idempotent": run(idempotent),
            "compression": run(compression),
            "transactions": run(transactions),
            "read_committed": run(read_committed),
            "group": run(group),
            "static": run(static),
            "admin": run(admin),
        },
        secure,
    )
