"""``kafka://`` on its way out, beside a bare confluent-kafka loop and confluent's own AIOProducer: one broker.

All have the same safe settings: ``acks=all``, an idempotent producer, batches of 64 KB, a buffer of 32 MB.
Every record's outcome is heard of: by a delivery callback, or by its handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from harness import Meter, Numbers, Skip, case
from kafka_broker import bootstrap, new_topic
from work import KEYS, pairs, values

LINGER_MS = 5
BATCH_BYTES = 65_536
BUFFER_BYTES = 33_554_432
WARM = 2_000
"""Records before the clock starts: by then all is connected and loaded."""
SLICE = 1_000
"""Records between two looks at the rest of the world."""
TASKS = {"1 task": (1, 500), "100 tasks": (100, 5), "1,000 tasks": (1_000, 2), "10,000 tasks": (10_000, 1)}
"""How many publish and wait at once, and what part of the records they share: alone, one waits for most of its time."""


def settings() -> dict[str, Any]:
    """librdkafka's names for what the bus has by default, and the linger."""
    return {
        "bootstrap.servers": bootstrap(),
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.kbytes": BUFFER_BYTES // 1024,
        "queue.buffering.max.messages": 10_000_000,
    }


def numbers_of(meter: Meter, name: str, n: int) -> Numbers:
    return {**meter.rates(name, n), f"{name} CPU s/M": meter.cpu_s / n * 1e6}


# -- as fast as it goes ------------------------------------------------------------------------------------------------


@case("confluent-kafka produce", n=500_000, quick=20_000)
def bare(n: int) -> Numbers:
    """The blocking client as its manual has it: ``produce``, ``poll(0)``, and a callback that looks for the error."""
    from confluent_kafka import KafkaError, Message, Producer

    topic, work = new_topic(), pairs(n)
    producer = Producer(settings())
    told = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal told
        if error is not None:
            raise RuntimeError(error.str())
        told += 1

    def send(some: list[tuple[bytes, bytes]]) -> None:
        for key, value in some:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        producer.flush()

    send(work[:WARM])
    with Meter() as meter:
        send(work)
    if told != n + len(work[:WARM]):
        raise RuntimeError(f"{told} records were acknowledged")
    return numbers_of(meter, "produce", n)


def with_bus(work: Callable[[Any, str], Awaitable[Numbers]], linger_ms: int = LINGER_MS) -> Numbers:
    """A producer of a bus, warm, and a topic."""
    from eventbus import EventBus

    topic = new_topic()

    async def run() -> Numbers:
        async with EventBus(f"kafka://{bootstrap()}", linger_ms=linger_ms) as bus, bus.new_producer() as producer:
            for key, value in pairs(WARM):
                producer.send_nowait(topic, value, key=key)
            await producer.flush()
            return await work(producer, topic)

    return asyncio.run(run())


@case("kafka:// send_many", n=500_000, quick=20_000)
def send_many(n: int) -> Numbers:
    async def work(producer: Any, topic: str) -> Numbers:
        records = [value for _, value in pairs(n)]
        key_of = dict(zip(values(100), KEYS, strict=True)).__getitem__
        with Meter() as meter:
            await producer.send_many(topic, records, key=key_of)
        return numbers_of(meter, "produce", n)

    return with_bus(work)


@case("kafka:// send_nowait", n=500_000, quick=20_000)
def send_nowait(n: int) -> Numbers:
    """Every handle is kept, and asked for the record's offset in the end."""
    from eventbus.errors import BufferExhausted

    async def work(producer: Any, topic: str) -> Numbers:
        records = pairs(n)
        handles: list[Any] = []
        with Meter() as meter:
            for number, (key, value) in enumerate(records):
                try:
                    handles.append(producer.send_nowait(topic, value, key=key))
                except BufferExhausted:
                    await producer.wait_for_room()
                    handles.append(producer.send_nowait(topic, value, key=key))
                if number % SLICE == 0:
                    await asyncio.sleep(0)
            await producer.flush()
            offsets = {handle.result().offset for handle in handles}
        if min(offsets) < 0:
            raise RuntimeError("a record has no offset")
        return numbers_of(meter, "produce", n)

    return with_bus(work)


# -- publishes that are waited for: nothing lingers --------------------------------------------------------------------


async def publishing(name: str, n: int, publish: Callable[[bytes, bytes], Awaitable[object]]) -> Numbers:
    """So many tasks, each of which publishes a record, waits for its outcome, and goes on."""
    tasks, share = TASKS[name]
    each = max(n // share // tasks, 1)
    work = pairs(each)

    async def one() -> None:
        for key, value in work:
            await publish(key, value)

    await asyncio.gather(*(one() for _ in range(max(tasks // each, 1))))  # warm
    with Meter() as meter:
        await asyncio.gather(*(one() for _ in range(tasks)))
    return numbers_of(meter, name, each * tasks)


@case("kafka:// awaited", n=100_000, quick=5_000)
def awaited(n: int) -> Numbers:
    async def work(producer: Any, topic: str) -> Numbers:
        async def publish(key: bytes, value: bytes) -> None:
            if (await producer.send(topic, value, key=key)).offset < 0:
                raise RuntimeError("no offset")

        numbers: Numbers = {}
        for name in TASKS:
            numbers |= await publishing(name, n, publish)
        return numbers

    return with_bus(work, linger_ms=0)


@case("kafka:// producer function", n=100_000, quick=5_000)
def decorated(n: int) -> Numbers:
    """A decorated function: what it returns is published, and stored when the call returns."""
    from eventbus import EventBus

    topic = new_topic()
    key_of = dict(zip(values(100), KEYS, strict=True)).__getitem__

    async def run() -> Numbers:
        bus = EventBus(f"kafka://{bootstrap()}")

        @bus.producer(topic, key=key_of)
        async def made(value: bytes) -> bytes:
            return value

        async def publish(key: bytes, value: bytes) -> None:
            await made(value)

        numbers: Numbers = {}
        async with bus:
            for name in TASKS:
                numbers |= await publishing(name, n, publish)
        return numbers

    return asyncio.run(run())


@case("confluent AIOProducer awaited", n=100_000, quick=5_000)
def aio(n: int) -> Numbers:
    """With batches as large as its tasks can fill, which leave after 5 ms otherwise: by default they wait for 1 s."""
    try:
        from confluent_kafka.aio import AIOProducer
    except ImportError:
        raise Skip("this confluent-kafka has no AIOProducer") from None

    topic = new_topic()

    async def run(name: str) -> Numbers:
        size = min(TASKS[name][0], SLICE)
        producer = AIOProducer({**settings(), "linger.ms": 0}, batch_size=size, buffer_timeout=0.005)

        async def publish(key: bytes, value: bytes) -> None:
            if (await (await producer.produce(topic, value, key))).offset() < 0:
                raise RuntimeError("no offset")

        try:
            return await publishing(name, n, publish)
        finally:
            await producer.close()

    numbers: Numbers = {}
    for name in TASKS:
        numbers |= asyncio.run(run(name))
    return numbers
