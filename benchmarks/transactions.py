"""Transactions: small ones, durable ones by one and by many, what readers pay for them, and exactly-once handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from typing import Any

from harness import Meter, Numbers, case, scratch
from work import values

ROUNDS = 5
"""Of two things compared within one process, turn about: for ratios that two processes would blur."""


# -- transactions ------------------------------------------------------------------------------------------------------


async def transactions(bus: Any, count: int, transactional_id: str) -> None:
    """One producer: begin, one record, commit; ``count`` times."""
    async with bus.new_producer(transactional_id=transactional_id) as producer:
        for _ in range(count):
            await producer.begin()
            producer.send_nowait("log", b"x" * 100, partition=0)
            await producer.commit()


async def timed_transactions(url: str, n: int, producers: int, **settings: Any) -> Numbers:
    from eventbus import EventBus

    async with EventBus(url, **settings) as bus:
        await bus.admin.create_topic("log", partitions=1)
        await asyncio.gather(*(transactions(bus, 2, f"id-{number}") for number in range(producers)))  # warm, known
        with Meter() as meter:
            await asyncio.gather(*(transactions(bus, n // producers, f"id-{number}") for number in range(producers)))
    return meter.rates("transactions", n // producers * producers)


@case("small transactions", n=10_000, quick=2_000)
def small_transactions(n: int) -> Numbers:
    """One producer after the other's heels on ``memory://``."""
    return asyncio.run(timed_transactions("memory://", n, 1))


def durable_transactions(n: int, producers: int) -> Numbers:
    with scratch() as folder:
        return asyncio.run(timed_transactions(f"file://{folder}", n, producers, fsync="commit"))


@case("durable transactions, 1 producer", n=1_000, quick=200)
def durable_transactions_of_one(n: int) -> Numbers:
    return durable_transactions(n, 1)


@case("durable transactions, 64 producers", n=12_800, quick=3_200)
def durable_transactions_of_many(n: int) -> Numbers:
    return durable_transactions(n, 64)


# -- readers -----------------------------------------------------------------------------------------------------------


@case("reading without aborts", n=200_000, quick=40_000)
def reading(n: int) -> Numbers:
    """Two consumers' loops over the same log of committed transactions, turn about in one process; CPU time."""
    from eventbus import EventBus

    pool = values(100)
    kinds = ("uncommitted", "committed")

    async def read(bus: Any, kind: str) -> float:
        seen = 0
        async with bus.new_consumer("log", isolation_level=f"read_{kind}") as consumer:
            with Meter() as meter:
                while found := await consumer.poll(timeout_ms=0):
                    seen += len(found)
        assert seen == n, seen
        return meter.cpu_s

    async def run() -> Numbers:
        async with EventBus("memory://") as bus:
            await bus.admin.create_topic("log", partitions=1)
            async with bus.new_producer(transactional_id="writer") as producer:
                for start in range(0, n, 100):
                    await producer.begin()
                    for number in range(start, start + 100):
                        producer.send_nowait("log", pool[number % 1_000])
                    await producer.commit()
            spent: dict[str, list[float]] = {kind: [] for kind in kinds}
            for kind in kinds:  # the first time everything is loaded, numpy too
                await read(bus, kind)
            for number in range(ROUNDS):
                for kind in kinds[:: 1 if number % 2 else -1]:
                    spent[kind].append(await read(bus, kind))
        return {f"{kind} cpu us": median(spent[kind]) / n * 1e6 for kind in kinds}

    return asyncio.run(run())


# -- handlers ----------------------------------------------------------------------------------------------------------


async def handle_all(url: str, n: int, *, exactly_once: bool, **settings: Any) -> Meter:
    """Records of one partition through a handler that publishes one each, until every offset is committed."""
    from eventbus import EventBus, TopicPartition

    pool, out = values(100), TopicPartition("out", 0)
    async with EventBus(url, **settings) as keeper:
        for topic in ("log", "out"):
            await keeper.admin.create_topic(topic, partitions=1)
        await keeper.send_many("log", [pool[number % 1_000] for number in range(n)])
        bus = EventBus(url, **settings)

        @bus.consumer("log", group="bench", exactly_once=exactly_once)  # 500 records a transaction
        @bus.producer("out")
        async def handle(value: bytes) -> bytes:
            return value

        with Meter() as meter:
            async with bus:
                await bus.drain()
        assert handle is not None
        (end,) = (await keeper.admin.list_offsets({out: -1})).values()
        assert end.offset >= n, end
        (offset,) = (await keeper.admin.group_offsets("bench")).values()
        assert offset.offset == n, offset
    return meter


def handled(n: int, open_log: Callable[[str], AbstractContextManager[str]], **settings: Any) -> Numbers:
    """Both kinds of handler turn about in one process, each over a log of its own."""
    meters: dict[str, list[Meter]] = {"exactly once": [], "at least once": []}
    for number in range(ROUNDS):
        for kind in list(meters)[:: 1 if number % 2 else -1]:
            with open_log(f"{kind[:2]}{number}") as url:
                found = asyncio.run(handle_all(url, n, exactly_once=kind == "exactly once", **settings))
            if number:  # the first time everything is loaded
                meters[kind].append(found)
    numbers: Numbers = {}
    for kind, found in meters.items():
        numbers[kind] = n / median([meter.wall_s for meter in found])
        numbers[f"{kind} cpu"] = n / median([meter.cpu_s for meter in found])
    return numbers


@contextmanager
def in_folder(name: str) -> Iterator[str]:
    with scratch() as folder:
        yield f"file://{folder / name}"


@case("handlers, memory", n=100_000, quick=20_000)
def handlers_memory(n: int) -> Numbers:
    return handled(n, lambda name: nullcontext(f"memory://{name}"))


@case("handlers, disk", n=100_000, quick=20_000)
def handlers_disk(n: int) -> Numbers:
    return handled(n, in_folder, fsync="commit")
