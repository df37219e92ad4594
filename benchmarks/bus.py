"""The bus as a user meets it: sends, awaited publishes, decorated handlers, latency, memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from harness import Meter, Numbers, case, percentile, resident_bytes, scratch
from work import KEY_BYTES, paced, pairs, values

WARM = 150_000
"""Records before memory is measured: by then everything is loaded that ever will be."""

BREATH = 10_000
"""A loop of `send_nowait` gives the event loop a turn after so many records, and waits for room in the buffer."""


def on_disk(job: Callable[..., Awaitable[Any]], *arguments: Any, fsync: str, partitions: int = 4) -> Any:
    """Run ``job(bus, *arguments)`` on a bus over an empty folder with a topic ``log``."""
    from eventbus import EventBus

    async def run(folder: Path) -> Any:
        async with EventBus(f"file://{folder}", fsync=fsync) as bus:
            await bus.admin.create_topic("log", partitions=partitions)
            return await job(bus, *arguments)

    with scratch() as folder:
        return asyncio.run(run(folder))


async def send_all(bus: Any, records: list[tuple[bytes, bytes]]) -> None:
    """Every record through one `send_many`, as SQLite gets its rows through ``executemany``."""
    keys = iter([key for key, _ in records])
    await bus.send_many("log", [value for _, value in records], key=lambda _: next(keys))


async def send_each(bus: Any, records: list[tuple[bytes, bytes]]) -> None:
    """Every record through ``send_nowait``, with a handle each; then wait until all are stored."""
    async with bus.new_producer() as producer:
        send = producer.send_nowait
        for start in range(0, len(records), BREATH):
            for key, value in records[start : start + BREATH]:
                send("log", value, key=key)
            await producer.wait_for_room()
        await producer.flush()


# -- E1, E2, E3, E5: throughput ----------------------------------------------------------------------------------------


def through(n: int, size_bytes: int) -> Numbers:
    """Send all, then a decorated handler of bytes reads all, in one process; batches handed to the kernel (class C)."""
    from eventbus import EventBus

    records = pairs(n, size_bytes)
    warm = n * 3 // 10  # by then numpy is loaded, once, as in every service that reads this much

    async def produce(bus: Any) -> Meter:
        with Meter() as meter:
            await send_all(bus, records)
        return meter

    async def consume(bus: Any) -> Meter:
        seen, done = 0, asyncio.Event()

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == warm:
                meter.__enter__()
            elif seen == n:
                meter.__exit__(None, None, None)
                done.set()

        meter = Meter()
        async with bus:
            await done.wait()
        return meter

    async def run(folder: Path) -> tuple[Meter, Meter]:
        url = f"file://{folder}"
        async with EventBus(url, fsync="os") as bus:
            await bus.admin.create_topic("log", partitions=4)
            sent = await produce(bus)
        return sent, await consume(EventBus(url, fsync="os"))

    with scratch() as folder:
        produced, consumed = asyncio.run(run(folder))
    return {
        **produced.rates("produce", n),
        **consumed.rates("consume", n - warm),
        "produce B/s cpu": n * size_bytes / produced.cpu_s,
        "cpu us both": (produced.cpu_s / n + consumed.cpu_s / (n - warm)) * 1e6,
        "produce B/s": n * size_bytes / produced.wall_s,
    }


@case("send and consume", n=500_000, quick=100_000)
def send_and_consume(n: int) -> Numbers:
    return through(n, 100)


@case("send one by one", n=500_000, quick=100_000)
def send_one_by_one(n: int) -> Numbers:
    """``send_nowait``: a call and a handle per record."""
    records = pairs(n)

    async def job(bus: Any) -> Numbers:
        with Meter() as meter:
            await send_each(bus, records)
        return meter.rates("produce", n)

    return on_disk(job, fsync="os")


@case("send and consume 1 KB", n=200_000, quick=40_000)
def send_and_consume_1000(n: int) -> Numbers:
    return through(n, 1_000)


# -- E4, E6: waiting for the ack ---------------------------------------------------------------------------------------


@case("awaited publish", n=100_000, quick=20_000)
def awaited(n: int) -> Numbers:
    """One ``await send`` after another; each is in the file when it returns (class C)."""
    records = pairs(n)

    async def job(bus: Any) -> Numbers:
        async with bus.new_producer() as producer:
            send = producer.send
            with Meter() as meter:
                for key, value in records:
                    await send("log", value, key=key)
        return meter.rates("produce", n)

    return on_disk(job, fsync="os")


@case("send, flushed every 1000", n=300_000, quick=60_000)
def send_flushed(n: int) -> Numbers:
    """Durable sends, acknowledged every 1,000 records, as a transaction of 1,000 rows is."""
    records = pairs(n)

    async def job(bus: Any) -> Numbers:
        keys = iter([key for key, _ in records])
        payloads = [value for _, value in records]
        with Meter() as meter:
            for start in range(0, n, 1_000):
                await bus.send_many("log", payloads[start : start + 1_000], key=lambda _: next(keys))
        return meter.rates("produce", n)

    return on_disk(job, fsync="commit", partitions=1)


# -- E7: memory and disk -----------------------------------------------------------------------------------------------


@case("memory and disk of 1 M events", n=1_000_000, quick=200_000, rounds=3)
def footprint(n: int) -> Numbers:
    """Growth of resident memory while ``n`` events are sent and read back, and their bytes on the disk."""
    from eventbus import EventBus

    pool, keys = values(100), [b"customer%03d" % number for number in range(1_000)]

    async def run(folder: Path) -> Numbers:
        url = f"file://{folder}"
        seen, done = 0, asyncio.Event()
        bus = EventBus(url, fsync="os")

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen >= n + WARM:
                done.set()

        bus.topic("log", partitions=4)
        async with bus, bus.new_producer() as producer:

            async def publish(count: int) -> None:
                for number in range(count):
                    producer.send_nowait("log", pool[number * 7 % 1_000], key=keys[number % 1_000])
                    if not number % BREATH:
                        await producer.wait_for_room()
                        await asyncio.sleep(0)
                await producer.flush()

            await publish(WARM)  # buffers, caches and modules (numpy) that every program pays once
            await bus.drain()
            before = resident_bytes()
            await publish(n)
            await done.wait()
            growth = resident_bytes() - before
        on_disk_bytes = sum(file.stat().st_size for file in folder.glob("log-*/*.log"))
        return {"growth MiB": growth / (1 << 20), "x payload": on_disk_bytes / ((n + WARM) * (100 + KEY_BYTES))}

    with scratch() as folder:
        return asyncio.run(run(folder))


# -- E8, L1, L2: to the handler, to the disk ---------------------------------------------------------------------------


@case("memory publish to handler", n=100_000, quick=20_000)
def memory_to_handler(n: int) -> Numbers:
    """``await send`` on ``memory://`` while a handler reads; until the last record was handled."""
    from eventbus import EventBus

    records = pairs(n)

    async def run() -> Numbers:
        bus = EventBus("memory://")
        seen, done = 0, asyncio.Event()

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            nonlocal seen
            seen += 1
            if seen == n:
                done.set()

        bus.topic("log", partitions=1)
        async with bus, bus.new_producer() as producer:
            with Meter() as meter:
                for key, value in records:
                    await producer.send("log", value, key=key)
                await done.wait()
        return meter.rates("publish to handler", n)

    return asyncio.run(run())


@case("latency to the handler", n=5_000, quick=1_000)
def latency(n: int) -> Numbers:
    """Publish to handler at 1,000 a second in one process, through a file (class C)."""
    pool = values(100)
    sent: list[float] = []
    took: list[float] = []

    async def run(folder: Path) -> None:
        from eventbus import EventBus

        bus = EventBus(f"file://{folder}", fsync="os")
        done = asyncio.Event()

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            took.append(time.perf_counter() - sent[len(took)])
            if len(took) == n:
                done.set()

        bus.topic("log", partitions=1)
        async with bus, bus.new_producer() as producer:

            async def publish(number: int) -> None:
                sent.append(time.perf_counter())
                await producer.send("log", pool[number % 1_000])

            await asyncio.sleep(0.1)
            await paced(n, 1_000, publish)
            await done.wait()

    with scratch() as folder:
        asyncio.run(run(folder))
    return {"p50 us": percentile(took, 0.5) * 1e6, "p99 us": percentile(took, 0.99) * 1e6}


@case("durable publish", n=60_000, quick=2_000, rounds=2)
def durable_publish(n: int) -> Numbers:
    """A publish every millisecond for a minute, on time even when earlier ones still wait; from publish to its ack."""
    pool = values(100)
    took: list[float] = []

    async def job(bus: Any) -> None:
        async with bus.new_producer() as producer:

            async def publish(number: int) -> None:
                begin = time.perf_counter()

                def acknowledged(metadata: object, error: Exception | None) -> None:
                    assert error is None, error
                    took.append(time.perf_counter() - begin)

                producer.send_nowait("log", pool[number % 1_000], on_delivery=acknowledged)

            await paced(n, 1_000, publish)
            await producer.flush()

    on_disk(job, fsync="commit", partitions=1)
    assert len(took) == n
    return {"p50 us": percentile(took, 0.5) * 1e6, "p99 us": percentile(took, 0.99) * 1e6, "worst ms": max(took) * 1e3}


# -- group commit, many partitions -------------------------------------------------------------------------------------


async def waiting_senders(bus: Any, senders: int, seconds: float) -> Numbers:
    """So many tasks, each with one record on its way at a time, each ack from the disk."""
    pool, acks, stop = values(100), 0, time.perf_counter() + seconds

    async def sender(producer: Any, number: int) -> None:
        nonlocal acks
        while time.perf_counter() < stop:
            await producer.send("log", pool[number], key=b"%d" % number)
            acks += 1

    async with bus.new_producer() as producer, asyncio.TaskGroup() as group:
        for number in range(senders):
            group.create_task(sender(producer, number))
    return {"acks": acks / seconds}


@case("1 waiting sender", n=2_000, quick=500)
def one_sender(n: int) -> Numbers:
    """``n`` is the time, in milliseconds."""
    return on_disk(waiting_senders, 1, n / 1e3, fsync="commit", partitions=1)


@case("64 waiting senders", n=2_000, quick=500)
def many_senders(n: int) -> Numbers:
    return on_disk(waiting_senders, 64, n / 1e3, fsync="commit", partitions=1)


def durable_commit(n: int, partitions: int) -> Numbers:
    """One record into each of so many partitions, then wait for the disk: the p50 of such a commit."""
    value = values(100)[0]
    took: list[float] = []

    async def job(bus: Any) -> None:
        async with bus.new_producer() as producer:
            for number in range(n + 5):
                begin = time.perf_counter()
                for partition in range(partitions):
                    producer.send_nowait("log", value, partition=partition)
                await producer.flush()
                if number >= 5:  # the first ones create the files
                    took.append(time.perf_counter() - begin)

    on_disk(job, fsync="commit", partitions=partitions)
    return {"p50 us": percentile(took, 0.5) * 1e6}


@case("durable commit, 1 partition", n=500, quick=100)
def commit_one(n: int) -> Numbers:
    return durable_commit(n, 1)


@case("durable commit, 100 partitions", n=100, quick=20)
def commit_many(n: int) -> Numbers:
    return durable_commit(n, 100)


# -- a typed handler ---------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    """Ten fields, about 200 bytes of JSON."""

    order_id: str
    customer: str
    product: str
    quantity: int
    price: float
    currency: str
    country: str
    note: str
    created_ms: int
    express: bool


def encoded_orders() -> list[bytes]:
    """1,000 different ones."""
    return [
        msgspec.json.encode(
            Order(
                f"o-{i:06}",
                f"customer{i % 1000:03}",
                "a pair of shoes",
                i % 9 + 1,
                i * 0.25,
                "EUR",
                "DE",
                "-" * 20,
                i,
                False,
            )
        )
        for i in range(1_000)
    ]


@case("typed JSON consumer", n=300_000, quick=60_000)
def json_consumer(n: int) -> Numbers:
    """Fetch, decode, JSON into a Struct, ``await handler(order)``, commits: records a CPU second."""
    from eventbus import EventBus

    encoded = encoded_orders()
    records = [(b"customer%03d" % (i % 1_000), encoded[i % 1_000]) for i in range(n)]

    async def run(folder: Path) -> Numbers:
        url = f"file://{folder}"
        async with EventBus(url, fsync="os") as bus:
            await bus.admin.create_topic("log", partitions=4)
            await send_all(bus, records)
        bus = EventBus(url, fsync="os")
        seen, done = 0, asyncio.Event()

        @bus.consumer("log", group="bench")
        async def handle(order: Order) -> None:
            nonlocal seen
            seen += order.quantity > 0
            if seen == n:
                done.set()

        with Meter() as meter:
            async with bus:
                await done.wait()
        return meter.rates("records", n)

    with scratch() as folder:
        return asyncio.run(run(folder))
