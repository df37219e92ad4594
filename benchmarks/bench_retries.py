"""What waits in a retry topic: how punctual it is, and how soon it is known again when a service starts."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from typing import Any

from harness import Figure, Meter, Numbers, case, percentile, resident_bytes, scratch
from work import values

PARTITIONS = 4
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def written(bus: Any, dues_ms: Sequence[int]) -> None:
    """A retry topic with an entry of a key of its own for each of these, in their order; the source topic is empty."""
    from eventbus.delays.retry_records import retry_entry
    from eventbus.types import ConsumerRecord, TimestampType

    await bus.admin.create_topic("log", partitions=PARTITIONS)
    await bus.admin.create_topic("retry.bench", partitions=PARTITIONS)
    value, headers, failed_ms = values(100)[0], (("traceparent", b"x" * 55),), now_ms()
    async with bus.new_producer() as producer:
        for number, due_ms in enumerate(dues_ms):
            offset, partition = divmod(number, PARTITIONS)
            key = b"%d" % number
            record = ConsumerRecord("log", partition, offset, failed_ms, TimestampType.CREATE_TIME, key, value, headers)
            entry = retry_entry(
                record, attempt=1, due_ms=due_ms, first_failed_ms=failed_ms, error="ValueError: it fails"
            )
            await producer.wait_for_room()
            producer.send_nowait("retry.bench", entry.value, key=entry.key, headers=entry.headers, partition=partition)


def known(bus: Any) -> int:
    """Entries that wait, as far as they are read."""
    return sum(map(len, bus.context.runners[0].failure_policy.waiting.values()))


# -- F3: punctuality ---------------------------------------------------------------------------------------------------


def punctuality(n: int, **handling: Any) -> Numbers:
    """``n`` entries fall due within 29 s, once all of them wait; how much later than due each was called, in ms."""
    seconds = 1 if n < 10_000 else 29
    source = random.Random(n)
    late_ms: list[float] = []

    async def run(url: str) -> float:
        from dlq import Retry
        from eventbus import ConsumerRecord, EventBus

        done, at_first = asyncio.Event(), 0
        begin_ms = now_ms() + 1_500 + n // 8  # until then they are written and read
        async with EventBus(url) as bus:
            await written(bus, [begin_ms + int(1_000 * source.uniform(0, seconds)) for _ in range(n)])
        bus = EventBus(url)

        @bus.consumer("log", group="bench", retry=Retry(), **handling)
        async def handle(value: bytes, record: ConsumerRecord) -> None:
            nonlocal at_first
            if not late_ms:
                at_first = known(bus)
            late_ms.append(time.time_ns() / 1e6 - int(record.header("eb-retry-due") or b""))
            if len(late_ms) == n:
                done.set()

        with Meter() as meter:
            async with bus:
                gc.collect()
                await done.wait()
        assert at_first > 0.99 * n, f"{at_first} waited when the first was due: they were not read in time"
        return meter.cpu_s

    with scratch() as folder:
        cpu_s = asyncio.run(run(f"file://{folder}"))
    assert min(late_ms) >= 0, "a record was called before it was due"
    return {
        "p50": percentile(late_ms, 0.5),
        "p99": percentile(late_ms, 0.99),
        "max": max(late_ms),
        "least": min(late_ms),
        "us": cpu_s / n * 1e6,
    }


@case("punctuality", n=100_000, quick=1_000, rounds=3)
def punctual(n: int) -> Numbers:
    return punctuality(n)


@case("punctuality, 32 at once", n=100_000, quick=1_000, rounds=3)
def punctual_side_by_side(n: int) -> Numbers:
    return punctuality(n, order="key", concurrency=32)


# -- F4: the start of a service ----------------------------------------------------------------------------------------


def rebuilt(n: int, dues_ms: Sequence[int]) -> Numbers:
    """Until a handler is called with new records, which it is not before it knows whose keys wait."""
    due_now = sum(due_ms < now_ms() for due_ms in dues_ms)

    def service(url: str, count: int) -> tuple[Any, asyncio.Event]:
        from dlq import Retry
        from eventbus import EventBus

        done, called = asyncio.Event(), 0
        bus = EventBus(url)

        @bus.consumer("log", group="bench", retry=Retry())
        async def handle(value: bytes) -> None:
            nonlocal called
            called += 1
            if called == count:
                done.set()

        return bus, done

    async def run(url: str) -> Numbers:
        from eventbus import EventBus

        async with EventBus(url) as bus:
            await written(bus, dues_ms)
        if due_now:
            bus, done = service(url, due_now)
            async with bus:
                await done.wait()
        async with EventBus(url) as bus:
            for partition in range(PARTITIONS):
                await bus.send("log", b"new", key=b"new", partition=partition)
        gc.collect()
        before, (bus, done) = resident_bytes(), service(url, PARTITIONS)
        with Meter() as meter:
            async with bus:
                await done.wait()
                meter.__exit__()
                waiting, memory = known(bus), resident_bytes() - before
        assert waiting == n - due_now, (waiting, due_now)
        return {"s": meter.wall_s, "cpu s": meter.cpu_s, "MiB": memory / 2**20}

    with scratch() as folder:
        return asyncio.run(run(f"file://{folder}"))


@case("rebuild", n=100_000, quick=1_000)
def rebuild(n: int) -> Numbers:
    return rebuilt(n, [now_ms() + HOUR_MS] * n)


@case("rebuild, half of them done", n=100_000, quick=1_000)
def rebuild_half_done(n: int) -> Numbers:
    """Every other entry is done, which marks tell that were written while they were."""
    return rebuilt(n, [now_ms() + (HOUR_MS if number // PARTITIONS % 2 else -HOUR_MS) for number in range(n)])


RETRY_FIGURES = [
    Figure("F3a", "later than due, 100,000 wait: p50", "punctuality:p50", None, None, 10, True, "ms"),
    Figure("F3b", "p99", "punctuality:p99", None, None, 100, True, "ms"),
    Figure("F3c", "the latest", "punctuality:max", None, None, 1_000, True, "ms"),
    Figure("F3d", "the earliest: never before it is due", "punctuality:least", None, None, 0, False, "ms"),
    Figure("F3e", "p99, 32 keys at once", "punctuality, 32 at once:p99", None, None, 100, True, "ms"),
    Figure("F4a", "start on 100,000 that wait", "rebuild:s", None, None, 3, True, "s"),
    Figure("F4b", "CPU of that", "rebuild:cpu s", None, None, 3, True, "s"),
    Figure("F4c", "with half of them done", "rebuild, half of them done:s", None, None, 3, True, "s"),
    Figure("F4d", "memory of 100,000 that wait", "rebuild:MiB", None, None, 150, True, "MiB"),
]  # fmt: skip
