"""A log's dead letters: sent back, and seen in groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from harness import Figure, Meter, Numbers, case, scratch
from work import KEYS, values

PARTITIONS = 4
CASES = 40
"""Different reasons to be a dead letter."""


def failures() -> list[Any]:
    """Errors with a traceback each, raised in functions of different names."""
    found: list[Any] = []
    for number in range(CASES):
        names: dict[str, Any] = {}
        exec(f"def step_{number}():\n    raise ValueError('order {number} has no price')", names)
        try:
            names[f"step_{number}"]()
        except ValueError as error:
            found.append(error)
    return found


async def written(bus: Any, n: int) -> None:
    """The topics of a handler: the empty ``log``, its dead letters as a handler writes them, and its retry topic."""
    from dlq.headers import Cause, dead_letter_record
    from eventbus.types import ConsumerRecord, TimestampType

    await bus.admin.create_topic("log", partitions=PARTITIONS)
    await bus.admin.create_topic("dlq.bench", partitions=PARTITIONS)
    await bus.admin.create_topic("retry.bench", partitions=PARTITIONS)
    pool, now_ms = values(100), time.time_ns() // 1_000_000
    letters: list[Any] = []
    for error in failures():
        cause = Cause(
            error=error,
            reason="exhausted",
            group="bench",
            handler="handle",
            service="shop",
            attempts=6,
            first_failed_ms=now_ms - 60_000,
            now_ms=now_ms,
            retry_topic="retry.bench",
        )
        record = ConsumerRecord("log", 0, 0, now_ms, TimestampType.CREATE_TIME, b"", b"", (("traceparent", b"x" * 55),))
        letters.append(dead_letter_record(record, cause, max_bytes=1 << 20).headers)
    async with bus.new_producer() as producer:
        for number in range(n):
            await producer.wait_for_room()
            producer.send_nowait(
                "dlq.bench",
                pool[number % 1_000],
                key=KEYS[number % 1_000],
                headers=letters[number * 7 % CASES],
                partition=number % PARTITIONS,
            )


@asynccontextmanager
async def filled(scheme: str, n: int) -> AsyncGenerator[Any]:
    """A bus over a log with so many dead letters."""
    from eventbus import EventBus

    with scratch() as folder:
        async with EventBus("memory://" if scheme == "memory" else f"file://{folder}") as bus:
            await written(bus, n)
            yield bus


# -- F5: redrive -------------------------------------------------------------------------------------------------------


def redriven(n: int, scheme: str) -> Numbers:
    """All of them sent back as fast as it goes; the index of them is built by then, as where somebody has looked."""

    async def run() -> Numbers:
        from dlq import DeadLetters, Selection

        async with filled(scheme, n) as bus:
            letters = DeadLetters(bus)
            await letters.groups()
            with Meter() as meter:
                done = await letters.redrive(Selection())
        assert done.redriven == n, done
        return {**meter.rates("records", n), "us": meter.cpu_s / n * 1e6}

    return asyncio.run(run())


@case("redrive, file", n=30_000, quick=500)
def redrive_file(n: int) -> Numbers:
    return redriven(n, "file")


@case("redrive, memory", n=30_000, quick=500)
def redrive_memory(n: int) -> Numbers:
    return redriven(n, "memory")


@case("redrive, cancelled", n=30_000, quick=3_000)
def redrive_cancelled(n: int) -> Numbers:
    """From `cancel` in the middle of the second batch, and at a slow rate, until the redrive has ended."""

    async def latency(letters: Any, **options: Any) -> float:
        from dlq import Selection

        began = asyncio.Event()
        async with letters.start_redrive(Selection(), on_progress=lambda _: began.set(), **options) as run:
            await began.wait()
            begin = time.perf_counter()
            run.cancel()
            done = await run.wait()
            took = time.perf_counter() - begin
        assert done.cancelled and 0 < done.redriven < done.total, done
        return took

    async def run() -> Numbers:
        from dlq import DeadLetters

        async with filled("file", n) as bus:
            letters = DeadLetters(bus)
            return {"s": await latency(letters), "s at a rate": await latency(letters, rate=10)}

    return asyncio.run(run())


# -- F6: the grouped view ----------------------------------------------------------------------------------------------


@case("grouped view", n=1_000_000, quick=2_000, rounds=2)
def grouped_view(n: int) -> Numbers:
    """Cold, by reading all, and again after a new letter."""

    async def run() -> Numbers:
        from dlq import DeadLetters

        async with filled("file", n) as bus:
            letters = DeadLetters(bus)
            numbers: Numbers = {}

            async def measured(name: str, count: int) -> None:
                with Meter() as meter:
                    cases = await letters.groups()
                assert (len(cases), sum(case.count for case in cases)) == (CASES, count), cases
                numbers[f"{name} s"], numbers[f"{name} cpu s"] = meter.wall_s, meter.cpu_s

            await measured("cold", n)
            await letter_written(bus)
            await measured("warm", n + 1)
        return numbers

    return asyncio.run(run())


async def letter_written(bus: Any) -> None:
    """Another one of those that are there."""
    async with bus.new_consumer("dlq.bench", start="earliest") as consumer:
        record = (await consumer.poll(max_records=1))[0]
    await bus.send("dlq.bench", record.value, key=record.key, headers=record.headers)


DEAD_LETTER_FIGURES = [
    Figure("F5a", "redrive, file", "redrive, file:records", None, None, 5_000),
    Figure("F5b", "redrive, memory", "redrive, memory:records", None, None, 5_000),
    Figure("F5c", "CPU of a letter redriven", "redrive, file:us", None, None, 100, True, "us"),
    Figure("F5d", "from cancel to its end", "redrive, cancelled:s", None, None, 1, True, "s"),
    Figure("F5e", "the same at 10 a second", "redrive, cancelled:s at a rate", None, None, 1, True, "s"),
    Figure("F6a", "groups of 1,000,000, after a new one", "grouped view:warm s", None, None, 2, True, "s"),
    Figure("F6b", "the index from nothing", "grouped view:cold s", None, None, 60, True, "s"),
]  # fmt: skip
