"""Transactions: small ones, durable ones by one and by many, what readers pay for them, and exactly-once handlers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from harness import Meter, Numbers, case, scratch
from work import values

PER_TRANSACTION = 500


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


def fetching(n: int, isolation: str) -> Numbers:
    """A consumer's loop over a log of committed transactions; CPU time."""
    from eventbus import EventBus

    async def run() -> Meter:
        async with EventBus("memory://") as bus:
            await bus.admin.create_topic("log", partitions=1)
            payload = values(PER_TRANSACTION)
            async with bus.new_producer(transactional_id="writer") as producer:
                for _ in range(n // PER_TRANSACTION):
                    await producer.begin()
                    for value in payload:
                        producer.send_nowait("log", value)
                    await producer.commit()
            for _ in range(2):  # the first time everything is loaded, numpy too
                async with bus.new_consumer("log", isolation=isolation) as consumer:
                    seen = 0
                    with Meter() as meter:
                        while seen < n // PER_TRANSACTION * PER_TRANSACTION:
                            seen += len(await consumer.poll(timeout_ms=0, max_records=10_000))
        return meter

    return {"cpu us per record": asyncio.run(run()).cpu_s / n * 1e6}


@case("fetch, read committed", n=300_000, quick=60_000)
def fetch_committed(n: int) -> Numbers:
    return fetching(n, "read_committed")


@case("fetch, read uncommitted", n=300_000, quick=60_000)
def fetch_uncommitted(n: int) -> Numbers:
    return fetching(n, "read_uncommitted")


# -- handlers ----------------------------------------------------------------------------------------------------------


def handled(n: int, *, exactly_once: bool) -> Numbers:
    """Records of one partition through a handler that publishes one each; on disk, as durable as can be."""
    from eventbus import EventBus

    async def run(folder: Path) -> Meter:
        url = f"file://{folder}"
        async with EventBus(url, fsync="commit") as bus:
            for topic in ("log", "out"):
                await bus.admin.create_topic(topic, partitions=1)
            await bus.send_many("log", values(n))
        bus = EventBus(url, fsync="commit")

        @bus.consumer("log", group="bench", exactly_once=exactly_once, transaction_records=PER_TRANSACTION)
        @bus.producer("out")
        async def handle(value: bytes) -> bytes:
            return value

        with Meter() as meter:
            async with bus:
                await bus.drain()
        assert handle is not None
        return meter

    with scratch() as folder:
        return asyncio.run(run(folder)).rates("records", n)


@case("exactly-once handler", n=100_000, quick=20_000)
def exactly_once(n: int) -> Numbers:
    return handled(n, exactly_once=True)


@case("at-least-once handler", n=100_000, quick=20_000)
def at_least_once(n: int) -> Numbers:
    return handled(n, exactly_once=False)
