"""What a producer does while the cluster has to be asked, is away, or has lost what it had."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from confluent_kafka import KafkaError as ClientError

from eventbus import EventBus
from eventbus.backends.base import ProducerConfig
from eventbus.backends.kafka import producer as producers
from eventbus.backends.kafka.backend import KafkaBackend
from eventbus.backends.urls import open_backend
from eventbus.client.producing import metadata_waits
from eventbus.errors import BufferExhausted, KafkaError, RequestTimedOut, UnknownTopicOrPartition
from tests.kafka.targets import KillableServer, Node, bus_url
from tests.support import values_of

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 20


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own: the server is shared."""
    return f"producer-{request.node.name}"


class Door:
    """Look-ups of topics wait at it. One that the event loop waits for would never come through, and fails instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.metadata_waits = 0
        ask = KafkaBackend.partition_count

        def wait_and_ask(backend: KafkaBackend, topic: str) -> int:
            self.metadata_waits += 1
            assert self.is_open.wait(PATIENCE_SECONDS), "the event loop waits for the look-up"
            return ask(backend, topic)

        monkeypatch.setattr(KafkaBackend, "partition_count", wait_and_ask)


@asynccontextmanager
async def bus_and_later(served: Node, topic: str, partitions: int = 1) -> AsyncGenerator[EventBus]:
    """A bus, and a topic that somebody else made after it had looked which ones there are."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        async with EventBus(bus_url(served.bootstrap)) as other:
            await other.admin.create_topic(topic, partitions=partitions)
        yield bus


async def test_records_for_a_topic_never_heard_of_wait_for_the_look_up_and_not_the_loop(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch)
    told: list[int] = []
    async with bus_and_later(served, topic) as bus:
        first = bus.send_nowait(topic, b"0", on_delivery=lambda at, error: told.append(-1 if at is None else at.offset))
        others = [bus.send_nowait(topic, b"%d" % number) for number in range(1, 4)]
        assert not first.done() and door.metadata_waits <= 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.send, topic, b"4")
            tasks.start_soon(bus.send_many, topic, [b"5", b"6"])
            await anyio.lowlevel.checkpoint()
            door.is_open.set()
        metadata = await first
        assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 0, 0)
        assert [(await other).offset for other in others] == [1, 2, 3]
        assert told == [0] and door.metadata_waits == 1
        assert await values_of(bus, topic) == [b"%d" % number for number in range(7)]


async def test_a_flush_waits_for_what_waits_for_a_look_up(served: Node, topic: str) -> None:
    async with bus_and_later(served, topic, partitions=3) as bus:
        delivery = bus.send_nowait(topic, b"x", partition=2)
        await bus.flush()
        assert delivery.done() and delivery.result().partition == 2


async def test_what_the_cluster_says_of_an_unknown_topic_comes_with_the_handle(served: Node, topic: str) -> None:
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic(topic)
        deliveries = [bus.send_nowait(f"{topic}s", b"x") for _ in range(2)]
        for delivery in deliveries:
            with pytest.raises(UnknownTopicOrPartition, match=f"did you mean '{topic}'"):
                await delivery
        with pytest.raises(UnknownTopicOrPartition, match=f"did you mean '{topic}'"):
            await bus.send(f"{topic}s", b"x")
        with pytest.raises(UnknownTopicOrPartition, match=f"did you mean '{topic}'"):
            await bus.send_many(f"{topic}s", [b"x"])


async def test_what_waits_for_a_look_up_is_bounded_and_given_up_with_the_bus(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(monkeypatch)
    monkeypatch.setattr(metadata_waits, "_PARKED", 1_000)
    bus = EventBus(bus_url(served.bootstrap), drain_timeout_ms=100)
    async with bus:
        deliveries = [bus.send_nowait(topic, b"x") for _ in range(1_000)]
        with pytest.raises(BufferExhausted, match="wait for what the cluster says"):
            bus.send_nowait(topic, b"one more")
    door.is_open.set()
    assert all(isinstance(delivery.exception(), RequestTimedOut) for delivery in deliveries)
    assert "1000 record(s) were not acknowledged in time" in caplog.text


async def test_a_transaction_waits_for_what_waits_for_a_look_up(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch)
    async with bus_and_later(served, topic) as bus, bus.transaction(f"id-{topic}") as tx:
        tx.send_nowait(topic, b"in it")
        door.is_open.set()
    async with EventBus(bus_url(served.bootstrap)) as bus:
        assert await values_of(bus, topic) == [b"in it"]


async def test_a_partition_librdkafka_has_not_heard_of_is_looked_up_beside_the_loop(served: Node, topic: str) -> None:
    slow = bus_url(served.bootstrap, topic_metadata_refresh_interval_ms="300000")
    async with EventBus(slow) as bus:
        await bus.admin.create_topic(topic)
        await bus.send(topic, b"x", partition=0)
        await bus.admin.add_partitions(topic, 2)
        deliveries = [bus.send_nowait(topic, b"%d" % number, partition=1) for number in range(5)]
        assert not any(delivery.done() for delivery in deliveries)
        deliveries.append(bus.send_nowait(topic, b"5", partition=1))
        await bus.flush()
        assert [delivery.result().offset for delivery in deliveries] == list(range(6))
        assert await values_of(bus, partitions=[(topic, 1)]) == [b"%d" % number for number in range(6)]


async def test_a_first_send_creates_a_topic_where_that_was_asked_for(served: Node, topic: str) -> None:
    async with EventBus(bus_url(served.bootstrap, auto_create_topics="true")) as bus:
        assert (await bus.send(f"{topic}-a", b"x")).offset == 0
        delivery = bus.send_nowait(f"{topic}-b", b"y")
        await bus.flush()
        assert delivery.result().offset == 0
        assert await values_of(bus, f"{topic}-b") == [b"y"]


async def test_an_awaited_send_waits_for_room(served: Node, topic: str) -> None:
    async with (
        EventBus(bus_url(served.bootstrap)) as bus,
        bus.new_producer(buffer_memory=20_000, max_request_size=10_000) as producer,
    ):
        await bus.admin.create_topic(topic)
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(producer.send, topic, bytes(2_000))
        assert len(await values_of(bus, topic)) == 50


async def test_every_record_has_its_own_outcome(served: Node, topic: str) -> None:
    """Of records given in one turn of the event loop one may fail; also where the log sets the time."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        configs = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000"}
        await bus.admin.create_topic(topic, configs=configs)
        small = bus.send_nowait(topic, b"x", timestamp_ms=1)
        async with bus.new_producer(linger_ms=0) as other:
            large = other.send_nowait(topic, bytes(3_000))
            with pytest.raises(Exception, match="large"):
                await large
        assert (await small).timestamp_ms > 1
        assert small.exception() is None and large.exception() is not None


class Lossy:
    """A server whose disk loses what was written after `remember`."""

    def __init__(self, folder: Path) -> None:
        self._kept = folder / "kept"
        self.server = KillableServer(folder / "log")

    def _remember(self) -> None:
        self.server.stop()
        shutil.copytree(self.server.logs, self._kept)
        self.server.start()

    def _lose(self) -> None:
        self.server.kill()
        shutil.rmtree(self.server.logs)
        shutil.copytree(self._kept, self.server.logs)
        self.server.start()

    async def remember(self) -> None:
        await anyio.to_thread.run_sync(self._remember)

    async def lose(self) -> None:
        await anyio.to_thread.run_sync(self._lose)


async def test_a_producer_whose_place_was_lost_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log lost records it had acknowledged: librdkafka's idempotent producer is finished, the bus's goes on."""
    lossy = Lossy(tmp_path)
    await anyio.to_thread.run_sync(lossy.server.start)
    try:
        async with EventBus(bus_url(lossy.server.bootstrap)) as bus, bus.new_producer() as producer:
            await bus.admin.create_topic("topic")
            for number in range(3):
                await producer.send("topic", b"kept %d" % number)
            await lossy.remember()
            for number in range(3):
                await producer.send("topic", b"lost %d" % number)
            await lossy.lose()
            outcomes = [producer.send_nowait("topic", b"met it %d" % number) for number in range(5)]
            with anyio.fail_after(PATIENCE_SECONDS):
                await producer.flush()
                acknowledged = [b"met it %d" % n for n, one in enumerate(outcomes) if one.exception() is None]
                for one in outcomes:
                    error = one.exception()
                    assert error is None or (isinstance(error, RequestTimedOut) and "has taken over" in str(error))
                for number in range(3):
                    await producer.send("topic", b"after %d" % number)
            stored = await values_of(bus, "topic")
            assert stored[:3] == [b"kept 0", b"kept 1", b"kept 2"]
            assert stored[3:] == [*acknowledged, b"after 0", b"after 1", b"after 2"]
            said = [one for one in caplog.records if one.name == "eventbus.producer" and one.levelno >= logging.WARNING]
            assert len(said) == 1 and "another takes over" in said[0].getMessage()
            assert not all(one.exception() is None for one in outcomes), "the loss went unnoticed"
    finally:
        await anyio.to_thread.run_sync(lossy.server.stop)


async def test_a_producer_that_is_not_allowed_in_asks_again_after_a_while(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another client would be refused as well: not one for each record."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic(topic)
        backend = open_backend(bus_url(served.bootstrap), {})
        assert isinstance(backend, KafkaBackend)
        await backend.start()
        producer = backend.producer(ProducerConfig())
        send = producer.sender(topic, 0)
        await send(None, b"0", (), 1)
        refused = producer.client
        refused.on_fatal(refused, ClientError(ClientError.CLUSTER_AUTHORIZATION_FAILED))
        await anyio.lowlevel.checkpoint()
        for _ in range(3):
            with pytest.raises(KafkaError) as caught:
                await send(None, b"1", (), 1)
            assert caught.value.code == 31 and not caught.value.retriable
        assert producer.client is refused
        producer.is_full = True
        await producer.wait_for_room()  # also when librdkafka's producer is gone
        monkeypatch.setattr(producers, "_REFUSED_SECONDS", 0)
        assert (await send(None, b"2", (), 1)).offset == 1
        await producer.aclose()
        await backend.aclose()
    assert len([one for one in caplog.records if "is refused" in one.getMessage()]) == 1


async def test_closing_says_what_it_waits_for_and_what_it_gave_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = KillableServer(tmp_path)
    await anyio.to_thread.run_sync(server.start)
    with anyio.fail_after(PATIENCE_SECONDS):
        async with EventBus(bus_url(server.bootstrap), drain_timeout_ms=1_500) as bus:
            await bus.admin.create_topic("topic")
            await bus.send("topic", b"stored")
            await anyio.to_thread.run_sync(server.kill)
            deliveries = [bus.send_nowait("topic", b"%d" % number) for number in range(7)]
    assert "7 record(s) are not acknowledged yet: waiting for the brokers" in caplog.text
    assert "7 record(s) were not acknowledged in time" in caplog.text
    assert all(isinstance(delivery.exception(), RequestTimedOut) for delivery in deliveries)
