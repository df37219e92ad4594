"""Logs to mirror: filled with all that a log can hold, and read again as readers see them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio

from eventbus import EventBus
from eventbus.backends.base import Backend, ConsumerConfig, ProducerConfig
from eventbus.backends.urls import open_backend
from eventbus.broker import TopicSpec
from eventbus.mirror.journal import Journal
from eventbus.types import ConsumerRecord, Headers, TopicPartition
from tests import support

PATIENCE_SECONDS = 30
until = partial(support.until, poll_seconds=0.005)


class Undone(Exception):
    """Aborts a transaction."""


@asynccontextmanager
async def opened(url: str, **config: object) -> AsyncGenerator[Backend]:
    """A log at client level, without its housekeeping."""
    backend = open_backend(url, config)
    await backend.start()
    try:
        yield backend
    finally:
        await backend.aclose()


async def create(backend: Backend, topic: str, partitions: int = 1, **configs: str) -> None:
    spec = TopicSpec(topic, partitions, configs={key.replace("_", "."): value for key, value in configs.items()})
    made = (await backend.create_topics([spec]))[topic]
    assert not isinstance(made, Exception), made


async def fill(bus: EventBus, topic: str, partitions: int, random: Random, count: int) -> None:
    """Records of every kind: committed and aborted transactions, tombstones, no keys, headers, any timestamp."""
    for number in range(count):
        partition = random.randrange(partitions)
        match random.randrange(6):
            case 0:
                with contextlib.suppress(Undone):
                    async with bus.transaction("filler") as transaction:
                        for _ in range(random.randint(1, 4)):
                            await transaction.send(topic, b"undone", partition=partition)
                        raise Undone
            case 1:
                async with bus.transaction("filler") as transaction:
                    for each in range(random.randint(1, 4)):
                        await transaction.send(topic, b"%d/%d" % (number, each), key=b"t", partition=partition)
            case 2:
                await bus.send(topic, None, key=b"key-%d" % random.randrange(3), partition=partition)
            case _:
                headers: Headers = (("a", b"1"), ("a", None), ("é", b"")) if random.random() < 0.3 else ()
                key = random.choice([None, b"", b"key-%d" % random.randrange(3)])
                await bus.send(
                    topic, random.choice([b"", b"value %d" % number]), key=key, partition=partition,
                    headers=headers, timestamp_ms=random.choice([1, 1_700_000_000_000 + number]),
                )  # fmt: skip


async def visible(backend: Backend, where: TopicPartition) -> list[ConsumerRecord]:
    """What a read-committed reader finds in a partition."""
    consumer = backend.consumer(ConsumerConfig(start="earliest", fetch_max_wait_ms=10))
    try:
        await consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        found: list[ConsumerRecord] = []
        has_all = False
        while not has_all:
            fetched = await consumer.fetch(1)
            found += [record for records in fetched for record in records if record.offset < end]
            has_all = not fetched and await consumer.position(where) >= end
        return found
    finally:
        await consumer.aclose()


def content(record: ConsumerRecord) -> tuple[object, ...]:
    """A record without where it stands."""
    return record.key, record.value, record.headers, record.timestamp_ms


async def assert_copied(source: Backend, destination: Backend, topic: str, name: str) -> None:
    """Every record once, in order, and each offset of the source translated to the next unread record's."""
    journal = Journal(name)
    await journal.load(destination)
    [described] = await source.describe_topics([topic])
    for one in described.partitions:
        where = TopicPartition(topic, one.partition)
        here, there = await visible(source, where), await visible(destination, where)
        assert [content(record) for record in there] == [content(record) for record in here], where
        ends = (await destination.describe_topics([topic]))[0].partitions[one.partition]
        unread = {record.offset: copy.offset for record, copy in zip(here, there, strict=True)}
        following = None
        for offset in range(one.log_end_offset, one.log_start_offset - 1, -1):
            following = unread.get(offset, following)
            translated = journal.maps[where].translate(offset)
            if following is not None:
                assert translated == following, (where, offset)
            else:
                assert (there[-1].offset if there else -1) < translated <= ends.log_end_offset, (where, offset)


async def write(
    backend: Backend,
    where: TopicPartition,
    *values: bytes,
    key: bytes | None = None,
    timestamp_ms: int = 1_700_000_000_000,
) -> None:
    """As somebody else who writes there."""
    producer = backend.producer(ProducerConfig())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.run)
        append = producer.appender(*where)
        for value in values:
            append(key, value, (), timestamp_ms)
        await producer.aclose()
        tasks.cancel_scope.cancel()
