"""The failure loop at work: what a policy costs where nothing fails, and what a record costs that fails.

What is compared takes turns in one process, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bus import Order, encoded_orders, send_all
from harness import Figure, Meter, Numbers, case, scratch
from work import KEYS, values

PARTITIONS = 4
TURNS = 4
"""Pairs of runs that are compared."""
FEW = 10_000
"""Records: so many only show that it runs, and one pair does."""
BAD_KEYS = 10
"""Of 1,000."""

Records = list[tuple[bytes, bytes]]


def of_bytes(n: int) -> Records:
    pool = values(100)
    return [(KEYS[number % 1_000], pool[number % 1_000]) for number in range(n)]


def of_orders(n: int) -> Records:
    orders = encoded_orders()
    return [(KEYS[number % 1_000], orders[number % 1_000]) for number in range(n)]


def in_turn(n: int, one: Callable[[str], Awaitable[Meter]], first: str, second: str) -> Numbers:
    """Medians of both, in records a CPU second; their runs take turns, each is as often the first as the second."""

    async def run() -> Numbers:
        meters: dict[str, list[Meter]] = {first: [], second: []}
        await one(first)  # warm
        for turn in range(TURNS if n > FEW else 1):
            for name in (first, second) if turn % 2 else (second, first):
                gc.collect()
                meters[name].append(await one(name))
        numbers: Numbers = {}
        for name, found in meters.items():
            numbers[name] = n / statistics.median(meter.cpu_s for meter in found)
            numbers[f"{name} wall"] = n / statistics.median(meter.wall_s for meter in found)
        return numbers

    return asyncio.run(run())


# -- F1: nothing fails -------------------------------------------------------------------------------------------------


class Counting:
    """From the ``warm``-th call to the ``n``-th: the start of a bus is left out."""

    def __init__(self, warm: int, n: int) -> None:
        self._warm = warm
        self._n = n
        self._seen = 0
        self.meter = Meter()
        self.done = asyncio.Event()

    def __call__(self) -> None:
        self._seen += 1
        if self._seen == self._warm:
            self.meter.__enter__()
        elif self._seen == self._n:
            self.meter.__exit__()
            self.done.set()


def handler_of(kind: type, counted: Callable[[], None]) -> Any:
    if kind is bytes:

        async def handle(value: bytes) -> None:
            counted()

        return handle

    async def handle_order(order: Order) -> None:
        counted()

    return handle_order


@asynccontextmanager
async def filled(scheme: str, records: Records) -> AsyncGenerator[str]:
    """The URL of a log with a topic of these, which is there as long as the block lasts."""
    from eventbus import EventBus

    with scratch() as folder:
        url = "memory://bench" if scheme == "memory" else f"file://{folder}"
        async with EventBus(url) as bus:
            await bus.admin.create_topic("log", partitions=PARTITIONS)
            await send_all(bus, records)
            yield url


def without_failures(scheme: str, n: int, kind: type) -> Numbers:
    """``n`` records through a handler with ``retry=Retry()`` and without, where none fails."""
    from dlq import Retry
    from eventbus import EventBus

    warm = n // 3
    records = (of_bytes if kind is bytes else of_orders)(n + warm)

    async def one(name: str) -> Meter:
        options: dict[str, Any] = {"retry": Retry()} if name == "with" else {}
        async with filled(scheme, records) as url:
            bus = EventBus(url)
            counting = Counting(warm, n + warm)
            bus.consumer("log", group="bench", **options)(handler_of(kind, counting))
            async with bus:
                await counting.done.wait()
        return counting.meter

    return in_turn(n, one, "with", "without")


@case("policy memory bytes", n=300_000, quick=5_000)
def policy_memory_bytes(n: int) -> Numbers:
    return without_failures("memory", n, bytes)


@case("policy memory JSON", n=200_000, quick=5_000)
def policy_memory_json(n: int) -> Numbers:
    return without_failures("memory", n, Order)


@case("policy file bytes", n=300_000, quick=5_000)
def policy_file_bytes(n: int) -> Numbers:
    return without_failures("file", n, bytes)


@case("policy file JSON", n=200_000, quick=5_000)
def policy_file_json(n: int) -> Numbers:
    return without_failures("file", n, Order)


# -- F2: some keys wait ------------------------------------------------------------------------------------------------


def with_blocked_keys(n: int, **handling: Any) -> Numbers:
    """Records of healthy keys, while 10 keys of 1,000 wait in the retry topic for good, and where all are healthy."""
    from dlq import Retry
    from eventbus import EventBus

    warm = n // 3
    good, bad = values(100)[:2]
    records = [(KEYS[number % 1_000], bad if number % 1_000 < BAD_KEYS else good) for number in range(n + warm)]
    healthy = sum(value is good for _, value in records)

    async def one(name: str) -> Meter:
        fails, counting = name == "blocked", Counting(warm, healthy)
        async with filled("file", records) as url:
            bus = EventBus(url)

            @bus.consumer("log", group="bench", retry=Retry(immediate=0, delays=["1h"]), **handling)
            async def handle(value: bytes) -> None:
                if value != bad:
                    counting()
                elif fails:
                    raise ValueError("of a key that is blocked")

            async with bus:
                await counting.done.wait()
        return counting.meter

    numbers = in_turn(n, one, "blocked", "healthy")
    share = BAD_KEYS / len(KEYS)
    return numbers | {"us": (1 / numbers["blocked"] - 1 / numbers["healthy"]) / share * 1e6}


@case("blocked keys", n=200_000, quick=5_000)
def blocked_keys(n: int) -> Numbers:
    return with_blocked_keys(n)


@case("blocked, 32 at once", n=60_000, quick=5_000)
def blocked_keys_side_by_side(n: int) -> Numbers:
    return with_blocked_keys(n, order="key", concurrency=32)


# -- F7: everything fails ----------------------------------------------------------------------------------------------


def all_fail(n: int, calls: int, **options: Any) -> Numbers:
    """Every record fails until it was called ``calls`` times; until all are handled or dead, and that is committed."""
    one_value = values(100)[0]
    records = [(b"%d" % number, one_value) for number in range(n)]
    called: dict[tuple[int, int], int] = {}

    async def run() -> Meter:
        from dlq import DeadLetters
        from eventbus import ConsumerRecord, EventBus

        async with filled("file", records) as url:
            bus = EventBus(url)
            ended, all_ended = 0, asyncio.Event()

            @bus.consumer("log", group="bench", **options)
            async def handle(value: bytes, record: ConsumerRecord) -> None:
                nonlocal ended
                place = record.partition, record.offset
                count = called[place] = called.get(place, 0) + 1
                ended += count == calls
                if ended == n:
                    all_ended.set()
                if count < calls or "retry" not in options:
                    raise ValueError("it fails")

            with Meter() as meter:
                async with bus:
                    await all_ended.wait()
                    await bus.drain()
            async with EventBus(url) as reader:
                dead = sum(topic.count for topic in await DeadLetters(reader).topics())
        assert dead == (0 if "retry" in options else n), dead
        return meter

    gc.collect()
    meter = asyncio.run(run())
    assert set(called.values()) == {calls}
    return {**meter.rates("records", n), "us": meter.cpu_s / n * 1e6}


@case("all become dead letters", n=20_000, quick=500)
def all_dead(n: int) -> Numbers:
    return all_fail(n, 1, dead_letter=True)


@case("all tried again later", n=20_000, quick=500)
def all_later(n: int) -> Numbers:
    from dlq import Retry

    return all_fail(n, 2, retry=Retry(immediate=0, delays=[0.001], jitter=False))


@case("all tried again at once", n=50_000, quick=500)
def all_at_once(n: int) -> Numbers:
    from dlq import Retry

    return all_fail(n, 2, retry=Retry(immediate=1))


# -- F8: what is decided -----------------------------------------------------------------------------------------------


@case("decide", n=50_000, quick=1_000)
def deciding(n: int) -> Numbers:
    """One decision: alone, and with what is written of it."""
    from dlq import Retry
    from dlq.decisions import Failed, decide
    from dlq.policy import policy_of
    from eventbus.recovery import Handling
    from eventbus.types import ConsumerRecord, TimestampType

    retry, error, failed = Retry(), _raised(), Failed(tries=3, first_failed_ms=0)
    headers = (("traceparent", b"x" * 55),)
    record = ConsumerRecord("log", 3, 128, 1, TimestampType.CREATE_TIME, b"key", b"v" * 100, headers)
    handling = Handling(handler="handle", group="bench", topics=("log",))
    later = policy_of(Retry(immediate=0), None, "bench")
    dead = policy_of(None, True, "bench")
    assert later and dead
    to_retry, to_dead = later.open(handling), dead.open(handling)
    works: dict[str, Callable[[], Any]] = {
        "alone us": lambda: decide(retry, error, failed, now_ms=0, chance=0.5),
        "entry us": lambda: to_retry.decide(record, error, 1, 0),
        "letter us": lambda: to_dead.decide(record, error, 1, 0),
    }
    logging.getLogger("dlq").setLevel(logging.CRITICAL)  # the lines are counted in what a failing record costs
    return {name: _cpu_us(work, n) for name, work in works.items()}


def _cpu_us(work: Callable[[], Any], n: int) -> float:
    times: list[float] = []
    for _ in range(5):
        begin = time.process_time()
        for _ in range(n // 5):
            work()
        times.append((time.process_time() - begin) / (n // 5) * 1e6)
    return statistics.median(times)


def _raised() -> ValueError:
    """An error with a traceback, as a handler's has one."""
    try:
        raise ValueError("it fails")
    except ValueError as error:
        return error


FAILURE_FIGURES = [
    Figure("F1a", "policy/none, memory, bytes", "policy memory bytes:with", "policy memory bytes:without", None, 0.97),
    Figure("F1b", "policy/none, memory, JSON", "policy memory JSON:with", "policy memory JSON:without", None, 0.97),
    Figure("F1c", "policy/none, file, bytes", "policy file bytes:with", "policy file bytes:without", None, 0.97),
    Figure("F1d", "policy/none, file, JSON", "policy file JSON:with", "policy file JSON:without", None, 0.97),
    Figure("F2a", "healthy keys, 1 % blocked / none", "blocked keys:blocked", "blocked keys:healthy", None, 0.9),
    Figure("F2b", "the same, 32 keys at once", "blocked, 32 at once:blocked", "blocked, 32 at once:healthy", None, 0.9),
    Figure("F2c", "CPU of a record that waits behind another", "blocked keys:us", None, None, 50, True, "us"),
    Figure("F7a", "all become dead letters", "all become dead letters:records", None, None, 2_000),
    Figure("F7b", "CPU of a dead letter", "all become dead letters:us", None, None, 200, True, "us"),
    Figure("F7c", "all fail once, tried again later", "all tried again later:records", None, None, 2_000),
    Figure("F7d", "CPU of a failure and its later try", "all tried again later:us", None, None, 200, True, "us"),
    Figure("F7e", "CPU of a failure and a try at once", "all tried again at once:us", None, None, 30, True, "us"),
    Figure("F8a", "decide()", "decide:alone us", None, None, 5, True, "us"),
    Figure("F8b", "with the entry of a retry topic", "decide:entry us", None, None, 20, True, "us"),
    Figure("F8c", "with the dead letter, stack and all", "decide:letter us", None, None, 100, True, "us"),
]  # fmt: skip
