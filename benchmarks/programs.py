"""Whole programs with default settings, as users write them (figures U1 to U5), compared with FastStream on Kafka.

Ours keep their events in a directory and wait for the disk. FastStream's go through Apache Kafka, which does not flush
before it answers. Orders are typed (msgspec here, pydantic there), and each program has its handlers in its process.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import msgspec

from harness import Figure, Meter, Numbers, Skip, case, scratch
from kafka_broker import PARTITIONS, bootstrap, new_topic

_WARM = 50


class Order(msgspec.Struct):
    id: int
    item: str


PROGRAM_FIGURES = [
    Figure("U1", "one task awaits each publish", "program:1 task", "faststream program:1 task", None, 2),
    Figure("U2", "64 tasks, each awaits its publish", "program:64 tasks", "faststream program:64 tasks", None, 4),
    Figure("U3", "a handler publishes to another", "program of a chain:chain", "faststream chain:chain", None, 2),
    Figure("U4", "U3, exactly once / at least once", "exactly-once chain:chain", "program of a chain:chain", None, 0.8),
    Figure(
        "U5a", "start to first event, memory", "first event:memory s", "faststream first event:s", None, 0.5, True, "s"
    ),
    Figure("U5b", "first event, file", "first event:file s", "faststream first event:s", None, 0.5, True, "s"),
]


class Count:
    """Counts handled events, and measures from the end of the warm-up."""

    def __init__(self) -> None:
        self.handled = 0
        self._expected = 0
        self._over = asyncio.Event()

    def add(self) -> None:
        self.handled += 1
        if self.handled == self._expected:
            self._over.set()

    async def until(self, expected: int) -> None:
        self._expected = expected
        self._over.clear()
        if self.handled < expected:
            await self._over.wait()


Send = Callable[[int], Coroutine[Any, Any, Any]]


async def published(count: Count, send: Send, n: int, tasks: int) -> Meter:
    """Publish ``n`` orders with so many tasks, and return the time until all are handled."""
    numbers = iter(range(n))

    async def publish() -> None:
        for number in numbers:
            await send(number)

    for number in range(_WARM):
        await send(number)
    await count.until(_WARM)
    with Meter() as meter:
        await asyncio.gather(*(publish() for _ in range(tasks)))
        await count.until(_WARM + n)
    return meter


# -- ours --------------------------------------------------------------------------------------------------------------


@case("program", n=3_000, quick=300)
def program(n: int) -> Numbers:
    from eventbus import EventBus

    async def run(folder: str, tasks: int) -> Numbers:
        bus, count = EventBus(f"file://{folder}"), Count()
        bus.topic("orders", partitions=PARTITIONS)

        @bus.consumer("orders", group="billing")
        async def bill(order: Order) -> None:
            count.add()

        async with bus:
            meter = await published(count, lambda id: bus.send("orders", Order(id, "lamp")), n, tasks)
        return meter.rates("1 task" if tasks == 1 else f"{tasks} tasks", n)

    numbers: Numbers = {}
    for tasks in (1, 64):
        with scratch() as folder:
            numbers |= asyncio.run(run(str(folder), tasks))
    return numbers


def chain(n: int, **options: Any) -> Numbers:
    from eventbus import EventBus

    async def run(folder: str) -> Numbers:
        bus, count = EventBus(f"file://{folder}"), Count()
        bus.topic("orders", partitions=PARTITIONS)
        bus.topic("invoices", partitions=PARTITIONS)

        @bus.consumer("orders", group="billing", **options)
        async def bill(order: Order) -> None:
            await bus.send("invoices", order)

        @bus.consumer("invoices", group="mail")
        async def mail(order: Order) -> None:
            count.add()

        async with bus:
            meter = await published(count, lambda id: bus.send("orders", Order(id, "lamp")), n, 1)
        return meter.rates("chain", n)

    with scratch() as folder:
        return asyncio.run(run(str(folder)))


@case("program of a chain", n=2_000, quick=200)
def chain_of_handlers(n: int) -> Numbers:
    return chain(n)


@case("exactly-once chain", n=2_000, quick=200)
def exactly_once_chain(n: int) -> Numbers:
    return chain(n, exactly_once=True)


# -- FastStream --------------------------------------------------------------------------------------------------------


def faststream() -> Any:
    """Return a broker of FastStream, and its orders' type. Raises Skip without one, or without a Kafka."""
    try:
        from faststream.kafka import KafkaBroker
        from pydantic import BaseModel
    except ImportError:
        raise Skip("FastStream is missing: pip install 'faststream[kafka]'") from None

    class PydanticOrder(BaseModel):
        id: int
        item: str

    return KafkaBroker(bootstrap(), logger=None), PydanticOrder


@case("faststream program", n=3_000, quick=300)
def faststream_program(n: int) -> Numbers:
    async def run(tasks: int) -> Numbers:
        (broker, order_type), count, topic = faststream(), Count(), new_topic()

        async def bill(order: Any) -> None:
            count.add()

        bill.__annotations__["order"] = order_type
        broker.subscriber(topic, group_id=uuid4().hex, auto_offset_reset="earliest")(bill)
        async with broker:
            await broker.start()
            send: Send = lambda id: broker.publish(order_type(id=id, item="lamp"), topic)  # noqa: E731
            meter = await published(count, send, n, tasks)
        return meter.rates("1 task" if tasks == 1 else f"{tasks} tasks", n)

    return asyncio.run(run(1)) | asyncio.run(run(64))


@case("faststream chain", n=2_000, quick=200)
def faststream_chain(n: int) -> Numbers:
    async def run() -> Numbers:
        (broker, order_type), count, orders, invoices = faststream(), Count(), new_topic(), new_topic()

        async def bill(order: Any) -> None:
            await broker.publish(order, invoices)

        async def mail(order: Any) -> None:
            count.add()

        for topic, handler in ((orders, bill), (invoices, mail)):
            handler.__annotations__["order"] = order_type
            broker.subscriber(topic, group_id=uuid4().hex, auto_offset_reset="earliest")(handler)
        async with broker:
            await broker.start()
            meter = await published(count, lambda id: broker.publish(order_type(id=id, item="lamp"), orders), n, 1)
        return meter.rates("chain", n)

    return asyncio.run(run())


# -- from the start of the interpreter to the first event --------------------------------------------------------------

FIRST_EVENT = """
import asyncio, sys
import msgspec
from eventbus import EventBus

class Order(msgspec.Struct):
    id: int

bus = EventBus(sys.argv[1], auto_create_topics=True)
handled = asyncio.Event()

@bus.consumer("orders", group="billing")
async def bill(order: Order) -> None:
    handled.set()

async def main() -> None:
    async with bus:
        await bus.send("orders", Order(1))
        await handled.wait()
        print("handled", flush=True)

asyncio.run(main())
"""

FASTSTREAM_FIRST_EVENT = """
import asyncio, sys
from faststream.kafka import KafkaBroker
from pydantic import BaseModel

class Order(BaseModel):
    id: int

broker = KafkaBroker(sys.argv[1], logger=None)
handled = asyncio.Event()

@broker.subscriber(sys.argv[2], group_id=sys.argv[2], auto_offset_reset="earliest")
async def bill(order: Order) -> None:
    handled.set()

async def main() -> None:
    async with broker:
        await broker.start()
        await broker.publish(Order(id=1), sys.argv[2])
        await handled.wait()
        print("handled", flush=True)

asyncio.run(main())
"""


def seconds_to_first_event(program: str, *arguments: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took_s = time.perf_counter() - begin
    if line != "handled\n" or process.returncode:
        raise RuntimeError(f"the program ended with {process.returncode}")
    return took_s


@case("first event", n=5, quick=1)
def first_event(n: int) -> Numbers:
    def with_directory() -> float:
        with scratch() as folder:
            return seconds_to_first_event(FIRST_EVENT, f"file://{folder}")

    return {
        "memory s": statistics.median(seconds_to_first_event(FIRST_EVENT, "memory://") for _ in range(n)),
        "file s": statistics.median(with_directory() for _ in range(n)),
    }


@case("faststream first event", n=5, quick=1)
def faststream_first_event(n: int) -> Numbers:
    faststream()
    took = [seconds_to_first_event(FASTSTREAM_FIRST_EVENT, bootstrap(), new_topic()) for _ in range(n)]
    return {"s": statistics.median(took)}
