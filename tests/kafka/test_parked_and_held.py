"""Records of kafka:// that wait before librdkafka has them: none is overtaken, changed, or sent with another's."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
from confluent_kafka import KafkaError as ClientError

from eventbus import EventBus, Producer
from eventbus.backends.kafka.backend import KafkaBackend
from eventbus.backends.kafka.partition_queue import PartitionQueue
from eventbus.backends.kafka.producer import KafkaProducer
from eventbus.backends.kafka.producer_client import ProducerClient
from eventbus.errors import ProducerClosed, RecordTooLarge, SerializationError, TransactionAborted
from tests.kafka.targets import Node, bus_url
from tests.support import values_of

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 20


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own: the server is shared."""
    return f"parked-{request.node.name}"


class Door:
    """What asks the cluster in a thread waits at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.is_open = threading.Event()
        ask = getattr(owner, name)

        def wait_and_ask(*arguments: Any) -> Any:
            assert self.is_open.wait(PATIENCE_SECONDS)
            return ask(*arguments)

        monkeypatch.setattr(owner, name, wait_and_ask)


async def test_what_waits_for_a_look_up_is_not_overtaken(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else of this bus hears of the topic meanwhile."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        async with EventBus(bus_url(served.bootstrap)) as other:
            await other.admin.create_topic(topic)
        door = Door(monkeypatch, KafkaBackend, "partition_count")
        bus.send_nowait(topic, b"1")
        backend: Any = bus.context.backend  # pyright: ignore[reportPrivateUsage]
        await backend.partition_counts([topic])
        bus.send_nowait(topic, b"2")
        door.is_open.set()
        await bus.flush()
        assert await values_of(bus, topic) == [b"1", b"2"]


async def test_what_waits_for_a_look_up_is_what_it_was_when_it_was_sent(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventBus(bus_url(served.bootstrap)) as bus:
        async with EventBus(bus_url(served.bootstrap)) as other:
            await other.admin.create_topic(topic)
        door = Door(monkeypatch, KafkaBackend, "partition_count")
        value, headers = {"number": 1}, [("a", b"1")]
        bus.send_nowait(topic, value, headers=headers)
        with pytest.raises(SerializationError):
            bus.send_nowait(topic, object())
        value["number"], headers[0] = 2, ("a", b"2")
        bus.send_nowait(topic, value, headers=iter(headers))
        door.is_open.set()
        await bus.flush()
        assert await values_of(bus, topic) == [b'{"number":1}', b'{"number":2}']


async def test_one_look_up_has_an_outcome_for_all_that_waits(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a partitioner of one's own fails."""

    def choose(topic: str, key: bytes | None, value: Any, count: int) -> int:
        assert value != "odd", "not this one"
        return 0

    async with EventBus(bus_url(served.bootstrap)) as bus:
        async with EventBus(bus_url(served.bootstrap)) as other:
            await other.admin.create_topic(topic)
        door = Door(monkeypatch, KafkaBackend, "partition_count")
        async with bus.new_producer(partitioner=choose) as producer:
            odd, even = producer.send_nowait(topic, "odd"), producer.send_nowait(topic, "even")
            door.is_open.set()
            with anyio.fail_after(PATIENCE_SECONDS):
                await producer.flush()
            assert "not this one" in str(odd.exception()) and even.result().partition == 0


def backend_of(producer: Producer) -> Any:
    return producer._backend  # pyright: ignore[reportPrivateUsage]


async def until_gone(client: ProducerClient) -> None:
    """Its thread has ended, and librdkafka's."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while hasattr(client, "handle"):
            await anyio.to_thread.run_sync(client.thread.join)


async def grown(bus: EventBus, producer: Any, topic: str) -> None:
    """A partition that the producer's librdkafka has not heard of."""
    await bus.admin.create_topic(topic)
    if producer.transactions is None:
        await producer.sender(topic, 0)(None, b"x", (), 1)
    else:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.sender(topic, 0)(None, b"x", (), 1)
        await producer.commit_transaction()
    await bus.admin.add_partitions(topic, 2)


SLOW = {"topic_metadata_refresh_interval_ms": "300000"}


async def test_what_was_held_in_an_aborted_transaction_is_not_in_the_next(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch, KafkaProducer, "_until_seen")
    async with EventBus(bus_url(served.bootstrap, **SLOW)) as bus:
        async with bus.new_producer(transactional_id=topic) as producer:
            await grown(bus, backend_of(producer), topic)
            await producer.begin()
            aborted = producer.send_nowait(topic, b"aborted", partition=1)
            await producer.abort()
            await producer.begin()
            door.is_open.set()
            with anyio.fail_after(PATIENCE_SECONDS):
                await producer.send(topic, b"committed", partition=1)
                await producer.commit()
            assert aborted.exception() is not None
        assert await values_of(bus, partitions=[(topic, 1)]) == [b"committed"]


async def test_a_commit_does_not_leave_out_what_is_held(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch, KafkaProducer, "_until_seen")
    async with EventBus(bus_url(served.bootstrap, **SLOW)) as bus:
        async with bus.new_producer(transactional_id=topic, max_block_ms=2_000) as producer:
            await grown(bus, backend_of(producer), topic)
            await producer.begin()
            left_out = producer.send_nowait(topic, b"left out", partition=1)
            await producer.send(topic, b"rest")
            with pytest.raises(TransactionAborted):
                await producer.commit()
            assert left_out.exception() is not None
            door.is_open.set()
        assert await values_of(bus, topic) == [b"x"]


async def test_a_lane_whose_producer_has_gone_is_left_in_peace(
    served: Node, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch, KafkaProducer, "_until_seen")
    released: list[BaseException | None] = []
    release = PartitionQueue.release

    def told(queue: PartitionQueue) -> bool:
        try:
            is_empty = release(queue)
        except BaseException as error:
            released.append(error)
            raise
        released.append(None)
        return is_empty

    monkeypatch.setattr(PartitionQueue, "release", told)
    async with EventBus(bus_url(served.bootstrap, **SLOW), drain_timeout_ms=200) as bus:
        producer = bus.new_producer()
        backend = backend_of(producer)
        await grown(bus, backend, topic)
        held = producer.send_nowait(topic, b"held", partition=1)
        client = backend.client
        backend.client.on_fatal(client, ClientError(ClientError.CLUSTER_AUTHORIZATION_FAILED))
        with anyio.fail_after(PATIENCE_SECONDS):
            await held.wait()
            await until_gone(client)
            door.is_open.set()
            await producer.aclose()
            await anyio.wait_all_tasks_blocked()
    assert held.exception() is not None and not any(released)


async def test_a_record_larger_than_the_buffer_is_refused(served: Node, topic: str) -> None:
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic(topic)
        async with bus.new_producer(buffer_memory=10_000, max_request_size=100_000, max_block_ms=500) as producer:
            await producer.send(topic, b"small")
            with pytest.raises(RecordTooLarge, match="buffer_memory"):
                await producer.send(topic, bytes(50_000))


async def test_a_producer_that_is_closed_while_others_send_leaves_no_thread(served: Node, topic: str) -> None:
    async with EventBus(bus_url(served.bootstrap)) as bus, anyio.create_task_group() as tasks:
        await bus.admin.create_topic(topic)
        producer = bus.new_producer(linger_ms=50)
        backend = backend_of(producer)
        client: ProducerClient = backend.client

        async def send() -> None:
            while True:
                producer.send_nowait(topic, b"x")
                await anyio.sleep(0.001)

        async def until_refused() -> None:

            with contextlib.suppress(ProducerClosed):
                await send()

        tasks.start_soon(until_refused)
        await anyio.sleep(0.01)
        await producer.aclose()
        await until_gone(client)
        assert not backend._pending
