"""How handlers are called, and what a consumer costs beside that: dispatch, threads, keys, memory, idleness."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec

from bus import BREATH, Order, encoded_orders, send_all
from harness import Meter, Numbers, Skip, case, resident_bytes, scratch
from work import KEYS, values

current: ContextVar[Any] = ContextVar("current")

# -- the records of a fetch, through a handler -------------------------------------------------------------------------

PER_FETCH = 1_000


def fetches(count: int) -> list[Any]:
    """Fetches of ``PER_FETCH`` orders of one partition."""
    from eventbus.types import FetchedRecords, TimestampType

    orders = encoded_orders()
    assert len(orders) == PER_FETCH
    keys = [b"k"] * PER_FETCH
    times = [0] * PER_FETCH
    return [
        FetchedRecords(
            "log",
            0,
            list(range(start, start + PER_FETCH)),
            times,
            keys,
            orders,
            None,
            TimestampType.CREATE_TIME,
            start + PER_FETCH,
        )
        for start in range(0, count, PER_FETCH)
    ]


async def handled(watch: Any, dispatch: Any, driver: Any, chunk: Any) -> None:
    """A fetch through a handler, as the driver of a partition in order has it."""
    driver.work.fetched(chunk)
    call = driver.work.next_call()
    await watch.run_in_order(dispatch, driver, call)
    driver.work.ended(call)


async def dispatched(handler: Any, n: int) -> Meter:
    """``n`` records through a handler, as a lane hands them over."""
    from eventbus import TopicPartition
    from eventbus.backends.clock import RealTimers
    from eventbus.client.handling.call_timeouts import CallTimeouts
    from eventbus.client.handling.dispatch import Dispatch
    from eventbus.client.handling.partition_driver import PartitionDriver

    driver, dispatch = PartitionDriver(TopicPartition("log", 0), lambda error: False), Dispatch(handler, None, {})
    watch = CallTimeouts(handler, RealTimers(), lambda driver, error: None)
    chunks = fetches(n + PER_FETCH)
    await handled(watch, dispatch, driver, chunks[0])  # warm
    with Meter() as meter:
        for chunk in chunks[1:]:
            await handled(watch, dispatch, driver, chunk)
    assert driver.work.finished == n + PER_FETCH, driver
    assert dispatch.counts.handled == n + PER_FETCH, dispatch.counts
    return meter


@case("dispatch of a record", n=300_000, quick=50_000)
def dispatch_of_records(n: int) -> Numbers:
    """Typed body and its record, a context variable set, a latency histogram, counts, the offset marked."""
    from eventbus import ConsumerRecord, consumer

    histogram = [0] * 64
    seen = 0

    async def in_context(record: Any, call_next: Any) -> Any:
        token = current.set(record)
        try:
            return await call_next(record)
        finally:
            current.reset(token)

    async def timed(record: Any, call_next: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return await call_next(record)
        finally:
            histogram[(time.perf_counter_ns() - began).bit_length()] += 1

    @consumer("log", middleware=[in_context, timed], timeout=30, on_error="skip")
    async def handle(order: Order, record: ConsumerRecord) -> None:
        nonlocal seen
        seen += order.quantity > 0 and record.partition == 0

    meter = asyncio.run(dispatched(handle, n))
    assert seen == n + PER_FETCH == sum(histogram), seen
    return meter.rates("records", n)


@case("dependencies of a record", n=300_000, quick=50_000)
def dependencies_of_a_record(n: int) -> Numbers:
    """A typed body and `Depends` of two levels, one of them taking the record."""
    from eventbus import ConsumerRecord, Depends, consumer

    seen = 0

    def settings() -> int:
        return 1

    def place(record: ConsumerRecord, factor: int = Depends(settings)) -> int:
        return record.partition * factor

    @consumer("log")
    async def handle(order: Order, partition: int = Depends(place)) -> None:
        nonlocal seen
        seen += order.quantity > 0 and partition == 0

    meter = asyncio.run(dispatched(handle, n))
    assert seen == n + PER_FETCH, seen
    return meter.rates("records", n)


@case("faststream consume", n=20_000, quick=4_000)
def faststream_consume(n: int) -> Numbers:
    """FastStream's ``subscriber.consume(record)`` with msgspec, the typed body alone; no broker, nothing is mocked."""
    try:
        from aiokafka import ConsumerRecord
        from fast_depends.msgspec import MsgSpecSerializer
        from faststream._internal.endpoint.subscriber.usecase import SubscriberUsecase
        from faststream.kafka import KafkaBroker
    except ImportError as error:
        raise Skip(f"FastStream is missing ({error}): pip install 'faststream[kafka]'") from None
    orders = encoded_orders()
    broker = KafkaBroker(logger=None, serializer=MsgSpecSerializer())
    seen = 0

    @broker.subscriber("log", group_id="bench")
    async def handle(order: Order) -> None:
        nonlocal seen
        seen += order.quantity > 0

    def record(number: int) -> Any:
        value = orders[number % len(orders)]
        return ConsumerRecord(
            topic="log",
            partition=0,
            offset=number,
            timestamp=0,
            timestamp_type=0,
            key=b"k",
            value=value,
            checksum=None,
            serialized_key_size=1,
            serialized_value_size=len(value),
            headers=(),
        )

    async def run() -> Meter:
        subscriber = broker.subscribers[0]
        broker._setup_logger()
        await SubscriberUsecase.start(subscriber)  # without the connection that its own start opens
        subscriber._post_start()
        records = [record(number) for number in range(n)]
        for one in records[:500]:
            await subscriber.consume(one)
        with Meter() as meter:
            for one in records:
                await subscriber.consume(one)
        return meter

    meter = asyncio.run(run())
    assert seen == n + 500, seen
    return meter.rates("records", n)


@case("plain function", n=200_000, quick=50_000)
def plain_function(n: int) -> Numbers:
    """A plain function of a typed body: it runs in a worker thread, many records a change of threads."""
    from eventbus import consumer

    seen = 0

    @consumer("log")
    def handle(order: Order) -> None:
        nonlocal seen
        seen += order.quantity > 0

    meter = asyncio.run(dispatched(handle, n))
    assert seen == n + PER_FETCH, seen
    return meter.rates("records", n)


@case("thread per record", n=10_000, quick=2_000)
def thread_per_record(n: int) -> Numbers:
    """The same function, decoded on the loop, through ``anyio.to_thread.run_sync`` each."""
    import anyio.to_thread

    orders = encoded_orders()
    decode = msgspec.json.Decoder(Order).decode
    seen = 0

    def handle(order: Order) -> None:
        nonlocal seen
        seen += order.quantity > 0

    async def run() -> Meter:
        limiter = anyio.CapacityLimiter(1)
        await anyio.to_thread.run_sync(handle, decode(orders[0]), limiter=limiter)
        with Meter() as meter:
            for number in range(n):
                await anyio.to_thread.run_sync(handle, decode(orders[number % PER_FETCH]), limiter=limiter)
        return meter

    meter = asyncio.run(run())
    assert seen == n + 1
    return meter.rates("records", n)


# -- a whole consumer --------------------------------------------------------------------------------------------------


async def consumed(folder: Path, n: int, group: str, handle: Callable[..., Any], **options: Any) -> Meter:
    """CPU and time until a handler has returned for all records of the topic, in a bus of its own; start included."""
    from eventbus import EventBus

    bus = EventBus(f"file://{folder}", fsync="os")
    seen, done = 0, asyncio.Event()

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == n:
            done.set()

    bus.consumer("log", group=group, **options)(handle(count))
    with Meter() as meter:
        async with bus:
            await done.wait()
    return meter


async def filled(folder: Path, records: list[tuple[bytes, bytes]], partitions: int = 4) -> None:
    from eventbus import EventBus

    async with EventBus(f"file://{folder}", fsync="os") as bus:
        await bus.admin.create_topic("log", partitions=partitions)
        await send_all(bus, records)


def orders_of(n: int) -> list[tuple[bytes, bytes]]:
    orders = encoded_orders()
    return [(KEYS[number % 1_000], orders[number % 1_000]) for number in range(n)]


def typed_handler(count: Callable[[], None]) -> Any:
    async def handle(order: Order) -> None:
        if order.quantity > 0:
            count()

    return handle


async def pass_on(record: Any, call_next: Any) -> Any:
    return await call_next(record)


@case("typed JSON consumer, 3 middlewares", n=300_000, quick=60_000)
def json_consumer_with_middleware(n: int) -> Numbers:
    """As the typed JSON consumer, through three middlewares that pass the record on."""

    async def run(folder: Path) -> Meter:
        await filled(folder, orders_of(n))
        return await consumed(folder, n, "bench", typed_handler, middleware=[pass_on, pass_on, pass_on])

    with scratch() as folder:
        return asyncio.run(run(folder)).rates("records", n)


@case("handlers with everything on", n=200_000, quick=50_000)
def everything_on(n: int) -> Numbers:
    """The typed JSON consumer as it is, and with a time limit and a policy for failures; turn about in one process."""

    async def run(folder: Path) -> Numbers:
        await filled(folder, orders_of(n))
        took: dict[str, list[float]] = {"off": [], "on": []}
        for turn in range(6):
            name = "on" if turn % 2 else "off"
            options: dict[str, Any] = {"timeout": 30, "on_error": "skip"} if name == "on" else {}
            meter = await consumed(folder, n, f"{name}{turn}", typed_handler, **options)
            took[name].append(meter.cpu_s / n * 1e6)
        return {f"{name} cpu us": min(times) for name, times in took.items()}

    with scratch() as folder:
        return asyncio.run(run(folder))


# -- keys side by side -------------------------------------------------------------------------------------------------

SLEEP_SECONDS = 0.001


@case("keys side by side", n=20_000, quick=4_000)
def keys_side_by_side(n: int) -> Numbers:
    """A handler that sleeps 1 ms, one partition: 32 keys side by side, and one record after the other.

    From the first call that has ended to the last: the start of the bus is left out.
    """
    one = values(100)[0]
    few = max(n // 10, 1)

    async def rate(folder: Path, count: int, **options: Any) -> float:
        ends: list[float] = []

        def handler(counted: Callable[[], None]) -> Any:
            async def handle(value: bytes) -> None:
                await asyncio.sleep(SLEEP_SECONDS)
                ends.append(time.perf_counter())
                counted()

            return handle

        await filled(folder, [(KEYS[number % 1_000], one) for number in range(count)], partitions=1)
        await consumed(folder, count, "bench", handler, **options)
        return (count - 1) / (ends[-1] - ends[0])

    with scratch() as first, scratch() as second:
        return {
            "records": asyncio.run(rate(first, n, order="key", concurrency=32)),
            "in order": asyncio.run(rate(second, few)),
        }


@case("one blocked key", n=20_000, quick=4_000)
def one_blocked_key(n: int) -> Numbers:
    """The same with 1,000 keys, one of which hangs until the others are done: their rate, beside that without it."""
    from eventbus import EventBus

    one = values(100)[0]

    async def consume(folder: Path, blocked: bool) -> float:
        seen, done, release = 0, asyncio.Event(), asyncio.Event()
        others = n - n // 1_000 if blocked else n
        bus = EventBus(f"file://{folder}", fsync="os")

        async def handle(value: bytes) -> None:
            nonlocal seen
            if blocked and value == b"blocked":
                await release.wait()
                return
            await asyncio.sleep(SLEEP_SECONDS)
            seen += 1
            if seen == others:
                done.set()

        # All records stay in sight: how far the others may run ahead of the blocked one is max_unfinished's business.
        bus.consumer("log", group=f"blocked {blocked}", order="key", concurrency=32, max_unfinished=2 * n)(handle)
        async with bus:
            began = time.perf_counter()
            await done.wait()
            rate = others / (time.perf_counter() - began)
            release.set()
        return rate

    async def run(folder: Path) -> Numbers:
        records = [(KEYS[number % 1_000], one if number % 1_000 else b"blocked") for number in range(n)]
        await filled(folder, records, partitions=1)
        return {"free": await consume(folder, False), "others": await consume(folder, True)}

    with scratch() as folder:
        return asyncio.run(run(folder))


# -- at rest, and for long ---------------------------------------------------------------------------------------------


@case("idle consumer", n=10_000, quick=3_000)
def idle_consumer(n: int) -> Numbers:
    """CPU of a bus with a handler and nothing to do, for ``n`` ms: percent of one core."""
    from eventbus import EventBus

    async def run(folder: Path) -> Numbers:
        bus = EventBus(f"file://{folder}")
        bus.topic("log", partitions=4)

        @bus.consumer("log", group="bench", timeout=30)
        async def handle(value: bytes) -> None: ...

        async with bus:
            await bus.send("log", b"x")
            await bus.drain()
            await asyncio.sleep(0.5)
            with Meter() as meter:
                await asyncio.sleep(n / 1_000)
        return {"% cpu": meter.cpu_s / meter.wall_s * 100}

    with scratch() as folder:
        return asyncio.run(run(folder))


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line with the least squares."""
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / sum((x - middle_x) ** 2 for x, _ in points)


@case("memory of a long run", n=5_000_000, quick=1_000_000, rounds=2)
def memory_of_a_long_run(n: int) -> Numbers:
    """Resident memory while ``n`` records are sent and handled: its slope after a warm-up of a fifth, per million."""
    from eventbus import EventBus

    pool = values(100)
    step = n // 50

    async def run(folder: Path) -> Numbers:
        bus = EventBus(f"file://{folder}", fsync="os")
        bus.topic("log", partitions=4)
        seen = 0

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            nonlocal seen
            seen += 1

        points: list[tuple[float, float]] = []
        async with bus, bus.new_producer() as producer:
            for start in range(0, n, step):
                for number in range(start, start + step):
                    producer.send_nowait("log", pool[number * 7 % 1_000], key=KEYS[number % 1_000])
                    if not number % BREATH:
                        await producer.wait_for_room()
                        await asyncio.sleep(0)
                await bus.drain()
                points.append(((start + step) / 1e6, resident_bytes() / 1e6))
        assert seen == n, seen
        return {"MB per M": slope(points[len(points) // 5 :]), "MB at the end": points[-1][1]}

    with scratch() as folder:
        return asyncio.run(run(folder))


# -- tests with the kit ------------------------------------------------------------------------------------------------

KIT_TEST = """
import pytest

@pytest.mark.parametrize("number", range({count}))
async def test_a_service(bus, number):
    seen = []

    @bus.consumer("orders", group="billing")
    @bus.producer("invoices")
    async def bill(payload: str) -> str:
        seen.append(payload)
        return payload.upper()

    async with bus:
        await bus.send("orders", "a", key="k")
        await bus.log.drain()
        assert [record.value for record in bus.log.records("invoices")] == [b"A"]
        assert seen == ["a"]
"""


@contextmanager
def suite_of(count: int) -> Any:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        (Path(folder) / "test_kit.py").write_text(KIT_TEST.format(count=count), "utf-8")
        yield folder


def seconds_of(count: int) -> float:
    with suite_of(count) as folder:
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
            "-o", "eventbus_short_fixtures=true", "-p", "no:anyio", "--rootdir", folder, folder,
        ]  # fmt: skip
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        took = time.perf_counter() - begin
    if done.returncode:
        raise Skip(f"the tests failed: {done.stdout.strip().splitlines()[-1]}")
    return took


@case("a test with the kit", n=1_000, quick=200)
def test_with_the_kit(n: int) -> Numbers:
    """A bus started, a record through a handler with an output, drained, asserted, closed; pytest's own part included.

    The seconds of ``n`` such tests less those of one, so that the start of pytest does not count.
    """
    return {"ms": (seconds_of(n) - seconds_of(1)) / (n - 1) * 1e3}
