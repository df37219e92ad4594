"""What is particular to the consumer of kafka://."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from eventbus import EventBus
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.kafka.backend import open_kafka
from eventbus.backends.kafka.consumer import KafkaConsumer
from eventbus.backends.kafka.poll_thread import Arrival, PollRequest
from eventbus.errors import ProducerFenced
from eventbus.types import FetchedRecords, GroupMetadata, TimestampType, TopicPartition
from tests.kafka.targets import QUICK, Node, bus_url
from tests.support import until
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]


@asynccontextmanager
async def reading(
    server: Node, *counts: int, **settings: str
) -> AsyncIterator[tuple[KafkaConsumer, list[TopicPartition]]]:
    """A consumer of a topic with so many records in its partitions."""
    async with EventBus(bus_url(server.bootstrap)) as bus:
        topic = f"read-{id(bus)}"
        await bus.admin.create_topic(topic, partitions=len(counts))
        async with bus.new_producer() as producer:
            for partition, count in enumerate(counts):
                for number in range(count):
                    producer.send_nowait(topic, b"%06d" % number * 20, partition=partition)
    backend = open_kafka("kafka://", server.bootstrap, {**QUICK, **settings}, system_clock)
    await backend.start()
    consumer = backend.consumer(ConsumerConfig(group=topic))
    try:
        await consumer.subscribe([topic])
        yield consumer, [TopicPartition(topic, number) for number in range(len(counts))]
    finally:
        await consumer.aclose()
        await backend.aclose()


async def read(consumer: KafkaConsumer, where: TopicPartition, count: int) -> list[int]:
    """Offsets of a partition, until there are so many."""
    found: list[int] = []
    while len(found) < count:
        for records in await consumer.fetch(1_000):
            if records.partition == where.partition:
                found += records.offsets
    return found


async def test_a_pause_fetches_nothing_again(served: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner pauses a hundred times a second: librdkafka would throw away what it fetched ahead each time."""
    async with reading(served, 5_000) as (consumer, [where]):
        found = await read(consumer, where, 1)
        told: list[str] = []
        for name in ("seek", "pause", "resume"):
            monkeypatch.setattr(consumer._thread, name, lambda *_, name=name: told.append(name) or set())
        while len(found) < 5_000:
            consumer.pause([where])
            assert await consumer.fetch(60) == []
            position = await consumer.position(where)
            assert position == found[-1] + 1, "what is put by was not handed over"
            consumer.resume([where])
            found += await read(consumer, where, 500)
        assert found == list(range(5_000)) and told == []


async def test_one_partition_waits_while_another_is_read(served: Node) -> None:
    """More than may be put by: librdkafka keeps it back, and it is read on where it was, each record once."""
    async with reading(served, 20_000, 20_000, **{"queued.max.messages.kbytes": "256"}) as (consumer, [slow, fast]):
        first = await read(consumer, slow, 1)
        consumer.pause([slow])
        before = await consumer.position(slow)
        # What came of the fast one beside the first records of the slow one is not counted: so not all of it comes.
        while await consumer.position(fast) < 20_000:
            assert all(records.partition == fast.partition for records in await consumer.fetch(500))
        assert consumer._buffer.paused_in_client == {slow}
        assert await consumer.position(slow) == before
        consumer.resume([slow])
        rest = await read(consumer, slow, 20_000 - len(first))
        assert first + rest == list(range(20_000))


async def test_what_nobody_was_given_is_not_behind_the_position(served: Node) -> None:
    """Records that have arrived for a fetch that was cancelled: `drain` would take them for handled."""
    async with reading(served, 500) as (consumer, [where]):
        assert await read(consumer, where, 500) == list(range(500))
        one = FetchedRecords(where.topic, 0, [500], [0], [None], [b"x"], None, TimestampType.CREATE_TIME, 501)
        consumer._on_arrival(Arrival(records=[one]))
        assert await consumer.position(where) == 500
        assert await read(consumer, where, 1) == [500]
        assert await consumer.position(where) == 501


async def test_one_poll_is_under_way_at_a_time(served: Node) -> None:
    """Fetches that are given up leave no polls behind that would each bring as much again."""
    async with reading(served, 10_000) as (consumer, [where]):
        assert await read(consumer, where, 1)
        jobs: list[object] = []
        worker = consumer._thread.worker
        do = worker.do

        def counted(*arguments: object) -> object:
            jobs.append(arguments)
            return do(*arguments)

        poll, is_over = consumer._thread.poll, threading.Event()

        def slow_poll(request: PollRequest) -> None:
            is_over.wait()
            poll(request)

        worker.do, consumer._thread.poll = counted, slow_poll
        consumer.pause([where])
        consumer._polled_at = -math.inf
        try:
            for _ in range(20):
                with anyio.move_on_after(0):
                    await consumer._poll(1.0)
            assert len(jobs) <= 2, "one, and one more if that before it had just ended"
        finally:
            is_over.set()


async def test_an_owner_that_is_busy_is_not_given_more(served: Node) -> None:
    """Polls that only keep its place in the group must not fill its memory."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        topic = f"busy-{id(bus)}"
        await bus.admin.create_topic(topic)
        await bus.send_many(topic, [b"x"] * 5_000)
    backend = open_kafka("kafka://", served.bootstrap, QUICK, system_clock)
    await backend.start()
    consumer = backend.consumer(ConsumerConfig(group=topic))
    try:
        await consumer.subscribe([topic])
        while sum(map(len, await consumer.fetch(1_000))) < 2:
            pass  # librdkafka is about to have fetched the rest
        given: list[int] = []
        for _ in range(5):
            while not consumer.polled():  # the poll before has not ended
                await anyio.lowlevel.checkpoint()
                consumer._polled_at = -math.inf  # as if it had been busy for long
            given.append(sum(map(len, await consumer.fetch(0))))
        assert sum(given[1:]) <= 10, given  # the first may still bring what was on its way
        while sum(map(len, await consumer.fetch(1_000))) < 2:
            pass
    finally:
        await consumer.aclose()
        await backend.aclose()


@pytest.mark.parametrize("kind", quick(["real", "served"], 1))
async def test_what_a_killed_exactly_once_service_left_open_is_ended_at_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Its transaction is about to say where the group goes on: waiting for that would take until it times out."""
    url = bus_url(request.getfixturevalue(kind).bootstrap)
    seen: list[bytes] = []
    async with EventBus(url) as other:
        topic = f"left-open-{id(other)}"
        await other.admin.create_topic(topic)
        await other.send(topic, b"once")
        where = TopicPartition(topic, 0)
        dead = other.transaction(f"{topic}.handle.{where}", timeout_ms=60_000)
        await dead.__aenter__()
        try:
            await dead.send_offsets({where: 1}, GroupMetadata(topic))
            bus, done = EventBus(url), anyio.Event()

            @bus.consumer(topic, group=topic, exactly_once=True)
            async def handle(value: bytes) -> None:
                seen.append(value)
                done.set()

            with anyio.fail_after(20):
                async with bus:
                    await done.wait()
        finally:
            with pytest.raises(ProducerFenced):
                await dead.__aexit__(None, None, None)
    assert seen == [b"once"]


async def test_a_rebalance_that_begins_while_a_fetch_prepares_is_taken(served: Node) -> None:
    """The thread waits in librdkafka's callback then: the fetch waited for the next event, and neither went on."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic("prepared", 1)
        await bus.send("prepared", b"1")
        async with bus.new_consumer("prepared", group="prepared") as consumer:
            inner: Any = consumer._consumer
            prepare = inner._prepare

            async def prepare_slowly() -> None:
                inner._prepare = prepare
                await prepare()
                inner._request.want(30, is_sign_of_life=False)
                inner._poll_job = inner._thread.worker.do(lambda: inner._thread.poll(inner._request), inner._wake)
                await until(lambda: inner._steps)

            inner._prepare = prepare_slowly
            with anyio.fail_after(20):
                assert [record.value for record in await consumer.poll(timeout_ms=10_000)] == [b"1"]
