"""``kafka://`` on its way in, beside a bare confluent-kafka loop and FastStream: one broker, the same topics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from harness import Meter, Numbers, Skip, case, percentile
from kafka_broker import bootstrap, filled_topic, new_topic
from work import paced

BATCH = 100
WARM = 0.3
"""This share of the records is read before the clock starts: by then the group is formed and all is loaded."""


class Count:
    """Starts the meter at the first record behind the warm-up, stops it at the last one."""

    def __init__(self, n: int, on_end: Callable[[], object]) -> None:
        self.seen = 0
        self._n = n
        self._warm = int(n * WARM)
        self._on_end = on_end
        self._meter = Meter()

    def add(self, count: int = 1) -> None:
        """So many records were handled."""
        before, self.seen = self.seen, self.seen + count
        if before < self._warm <= self.seen:
            self._measured = self._n - self.seen
            self._meter.__enter__()
        elif before < self._n <= self.seen:
            self._meter.__exit__()
            self._on_end()

    def numbers(self) -> Numbers:
        rates = self._meter.rates("consume", self._measured)
        return {**rates, "CPU s/M": self._meter.cpu_s / self._measured * 1e6}


# -- throughput --------------------------------------------------------------------------------------------------------


@case("confluent-kafka consume", n=1_000_000, quick=40_000)
def bare(n: int) -> Numbers:
    """The blocking client as its manual has it: ``consume(100)``, look for errors, call a function with the value."""
    return with_loop(n)


@case("confluent-kafka consume, tuned", n=1_000_000, quick=40_000)
def bare_tuned(n: int) -> Numbers:
    """The same with what ``kafka://`` tells librdkafka: look at a full queue again after 20 ms, not after a second."""
    return with_loop(n, {"fetch.queue.backoff.ms": 20})


def with_loop(n: int, settings: dict[str, Any] | None = None) -> Numbers:
    from confluent_kafka import Consumer

    topic = filled_topic(n)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap(), "group.id": uuid4().hex, "auto.offset.reset": "earliest", **(settings or {})}
    )
    consumer.subscribe([topic])
    is_over = False

    def end() -> None:
        nonlocal is_over
        is_over = True

    count = Count(n, end)

    def handle(value: bytes | None) -> None:
        count.add()

    while not is_over:
        for message in consumer.consume(BATCH, 1.0):
            if message.error() is not None:
                raise RuntimeError(message.error().str())
            handle(message.value())
    consumer.close()
    return count.numbers()


def with_bus(n: int, declare: Callable[[Any, str, Count], None]) -> Numbers:
    """A decorated handler, with the bus's own settings: at least once, read committed, a commit every 100 ms."""
    from eventbus import EventBus

    async def run() -> Numbers:
        done = asyncio.Event()
        count = Count(n, done.set)
        bus = EventBus(f"kafka://{bootstrap()}")
        declare(bus, topic, count)
        async with bus:
            await done.wait()
        return count.numbers()

    topic = filled_topic(n)
    return asyncio.run(run())


@case("kafka:// consume", n=1_000_000, quick=40_000)
def per_record(n: int) -> Numbers:
    def declare(bus: Any, topic: str, count: Count) -> None:
        @bus.consumer(topic, group=uuid4().hex)
        async def handle(value: bytes) -> None:
            count.add()

    return with_bus(n, declare)


@case("kafka:// consume in lists", n=1_000_000, quick=40_000)
def per_list(n: int) -> Numbers:
    def declare(bus: Any, topic: str, count: Count) -> None:
        @bus.consumer(topic, group=uuid4().hex, batch=BATCH)
        async def handle(batch: list[bytes]) -> None:
            count.add(len(batch))

    return with_bus(n, declare)


def with_faststream(n: int, broker: Any, **settings: Any) -> Numbers:
    """The same handler, with FastStream's defaults: at most once, commits in the background. Its log is off."""
    topic = filled_topic(n)

    async def run() -> Numbers:
        done = asyncio.Event()
        count = Count(n, done.set)

        @broker.subscriber(topic, group_id=uuid4().hex, auto_offset_reset="earliest", **settings)
        async def handle(body: bytes) -> None:
            count.add()

        await broker.start()
        await done.wait()
        await broker.stop()
        return count.numbers()

    return asyncio.run(run())


@case("faststream aiokafka consume", n=20_000, quick=2_000, rounds=3)
def faststream_aiokafka(n: int) -> Numbers:
    try:
        from faststream.kafka import KafkaBroker
    except ImportError:
        raise Skip("FastStream is missing: pip install 'faststream[kafka]'") from None
    return with_faststream(n, KafkaBroker(bootstrap(), logger=None))


@case("faststream confluent consume", n=20_000, quick=2_000, rounds=3)
def faststream_confluent(n: int) -> Numbers:
    try:
        from faststream.confluent import KafkaBroker
    except ImportError:
        raise Skip("FastStream is missing: pip install 'faststream[confluent]'") from None
    return with_faststream(n, KafkaBroker(bootstrap(), logger=None))


# -- latency -----------------------------------------------------------------------------------------------------------

RATE = 500
"""Records a second, one at a time: far below what anybody here can do."""


class Latencies:
    """From before the send until the handler has the value, which says which send it was."""

    def __init__(self, n: int, on_end: Callable[[], object]) -> None:
        self._n = n
        self._on_end = on_end
        self.sent: list[float] = []
        self.took: list[float] = []

    def arrived(self, value: bytes) -> None:
        self.took.append(time.perf_counter() - self.sent[int(value)])
        if len(self.took) == self._n:
            self._on_end()

    def numbers(self) -> Numbers:
        warm = self.took[self._n // 10 :]
        return {"p50 us": percentile(warm, 0.5) * 1e6, "p99 us": percentile(warm, 0.99) * 1e6}


def value_of(number: int) -> bytes:
    return b"%0100d" % number


@case("confluent-kafka end to end", n=3_000, quick=500, rounds=3)
def bare_latency(n: int) -> Numbers:
    """A thread that sends, at once (``linger.ms=0``), and one that polls."""
    from confluent_kafka import Consumer, Producer

    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": bootstrap(), "linger.ms": 0, "acks": "all"})
    consumer = Consumer({"bootstrap.servers": bootstrap(), "group.id": uuid4().hex, "auto.offset.reset": "earliest"})
    assigned, done = threading.Event(), threading.Event()
    latencies = Latencies(n, done.set)

    def read() -> None:
        consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
        while not done.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                latencies.arrived(message.value() or b"")
        consumer.close()

    async def send(number: int) -> None:
        latencies.sent.append(time.perf_counter())
        producer.produce(topic, value_of(number))
        producer.poll(0)

    reader = threading.Thread(target=read)
    reader.start()
    assigned.wait()
    asyncio.run(paced(n, RATE, send))
    reader.join()
    return latencies.numbers()


@case("kafka:// end to end", n=3_000, quick=500, rounds=3)
def bus_latency(n: int) -> Numbers:
    """``send_nowait`` of a producer, a decorated handler; both in one event loop."""
    from eventbus import EventBus

    topic = new_topic(1)

    async def run() -> Numbers:
        done = asyncio.Event()
        latencies = Latencies(n, done.set)
        bus = EventBus(f"kafka://{bootstrap()}")

        @bus.consumer(topic, group=uuid4().hex)
        async def handle(value: bytes) -> None:
            latencies.arrived(value)

        async with bus, bus.new_producer(linger_ms=0) as producer:
            await bus.drain()  # by then the handler has its partition

            async def send(number: int) -> None:
                latencies.sent.append(time.perf_counter())
                producer.send_nowait(topic, value_of(number))

            await paced(n, RATE, send)
            await done.wait()
        return latencies.numbers()

    return asyncio.run(run())
