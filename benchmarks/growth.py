"""What should not grow with the log: the cost of a batch, over 1 and 1,000 partitions, in a small and in a large log.

Small and large are measured turn about in one process, in CPU time: two processes differ by more than is looked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from core import batches, now_ms, open_broker
from harness import Numbers, case, scratch
from work import values

if TYPE_CHECKING:
    from eventbus.types import TopicPartition

ROUNDS = 8
FULL = 500
"""Records of a batch of 57 KB, about what a producer fills."""
SMALL = 100
"""Records of a batch of 11 KB: more of them to look through."""
SMALL_BYTES = 10 << 20
LARGE_BYTES = int(os.environ.get("BENCH_LOG_BYTES", 4 << 30))
FILL_S = 60
"""A slow disk stops the filling here; "GiB" tells how large the log was."""

Job = Callable[[], int]


def turn_about(jobs: dict[str, dict[str, Job]]) -> Numbers:
    """CPU microseconds of one of each kind of work, by log: the median round. Each job returns how often it did it."""
    spent: dict[tuple[str, str], list[float]] = {(what, name): [] for what, by_log in jobs.items() for name in by_log}
    clock = time.process_time
    for number in range(ROUNDS + 1):
        for what, by_log in jobs.items():
            for name in list(by_log)[:: 1 if number % 2 else -1]:
                begin = clock()
                count = by_log[name]()
                if number:  # the first round pays what is paid once
                    spent[what, name].append((clock() - begin) / count)
    return {f"{what}, {name} us": median(took) * 1e6 for (what, name), took in spent.items()}


class Log:
    """A topic in a folder of its own: what is appended to and fetched from it, batch by batch."""

    def __init__(self, folder: Path, partitions: int, records_per_batch: int) -> None:
        from eventbus.broker import TopicSpec
        from eventbus.types import TopicPartition

        self._places: list[tuple[TopicPartition, int]] = []
        self._records_per_batch = records_per_batch
        self._pool = batches(20_000, per_batch=records_per_batch)
        self._partitions = [TopicPartition("log", number) for number in range(partitions)]
        self._written = 0
        self.broker = open_broker(folder)
        self.broker.create_topics([TopicSpec("log", partitions, configs={"retention.ms": "-1"})], now_ms())

    def append(self, count: int) -> int:
        """To one partition after the other."""
        broker, partitions, pool, at_ms = self.broker, self._partitions, self._pool, now_ms()
        for number in range(self._written, self._written + count):
            batch = bytearray(pool[number % len(pool)])
            broker.produce(partitions[number % len(partitions)], batch, at_ms, trusted=True)
        self._written += count
        return count

    def seek(self, count: int) -> int:
        """Fetch one batch from somewhere in it: where that is, an index has to tell.

        The same 1,000 batches each time, so that the kernel has them in memory: reading the disk is not compared.
        """
        fetch, places = self.broker.fetch, self._find_places()
        for number in range(count):
            assert fetch(*places[number % 1_000], 1).records
        return count

    def read(self, count: int) -> int:
        """Fetch batch after batch from somewhere on, as a consumer does: ten, then from elsewhere."""
        fetch, places = self.broker.fetch, self._find_places()
        for number in range(count // 10):
            partition, offset = places[number % 100]
            for _ in range(10):
                assert fetch(partition, offset, 1).records
                offset += self._records_per_batch
        return count

    def _find_places(self) -> list[tuple[TopicPartition, int]]:
        if not self._places:
            source, last = random.Random(1), self._written // len(self._partitions) - 10
            for _ in range(1_000):
                offset = source.randrange(max(last, 1)) * self._records_per_batch
                self._places.append((source.choice(self._partitions), offset))
        return self._places

    def fill(self, size_bytes: int) -> int:
        """Until it is so large, or took too long; how large it is."""
        stop = time.monotonic() + FILL_S
        while self._written * len(self._pool[0]) < size_bytes and time.monotonic() < stop:
            self.append(100)
        return self._written * len(self._pool[0])


def compared(logs: dict[str, Log], appends: int) -> Numbers:
    def jobs(work: Callable[[Log, int], int], each: int) -> dict[str, Job]:
        return {name: lambda log=log: work(log, each) for name, log in logs.items()}

    numbers = turn_about(
        {"append": jobs(Log.append, appends), "fetch": jobs(Log.read, 2_000), "seek": jobs(Log.seek, 2_000)}
    )
    for log in logs.values():
        log.broker.close(now_ms())
    return numbers


@case("1 and 1,000 partitions", n=1_000, quick=500, rounds=3)
def partitions_on_disk(n: int) -> Numbers:
    """Logs of the same size, 570 MB to begin with, in 1 and in 1,000 partitions; ``n`` appends a round."""
    with ExitStack() as stack:
        logs: dict[str, Log] = {}
        for name, count in (("1", 1), ("1,000", 1_000)):
            logs[name] = Log(stack.enter_context(scratch()), count, FULL)
            logs[name].append(10_000)
        return compared(logs, n)


@case("10 MiB and 4 GiB of log", n=LARGE_BYTES, quick=1 << 28, rounds=2)
def log_size(n: int) -> Numbers:
    """One partition of 10 MiB and one of ``n`` bytes, which has segments and indexes to look through."""
    with ExitStack() as stack:
        folders = [stack.enter_context(scratch()) for _ in range(2)]
        if shutil.disk_usage(folders[1]).free < 2 * n:
            raise RuntimeError(f"{folders[1]} has no room for a log of {n:,} bytes: name another --dir")
        logs = {"small": Log(folders[0], 1, SMALL), "large": Log(folders[1], 1, SMALL)}
        logs["small"].fill(SMALL_BYTES)
        size_bytes = logs["large"].fill(n)
        return {**compared(logs, 100), "GiB": size_bytes / (1 << 30)}


# -- through the bus ---------------------------------------------------------------------------------------------------


async def tiny_batches(n: int) -> Numbers:
    """Awaited sends of one record to partitions by chance, and the polls of a consumer that reads them all."""
    from eventbus import EventBus

    value, source = values(100)[0], random.Random(1)
    sent: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        clients: dict[str, tuple[Any, Any, int]] = {}
        for name, count in (("1", 1), ("1,000", 1_000)):
            bus = await stack.enter_async_context(EventBus(f"memory://{count}"))
            await bus.admin.create_topic("log", partitions=count)
            consumer = await stack.enter_async_context(bus.new_consumer("log"))
            producer = await stack.enter_async_context(bus.new_producer())
            for partition in range(count):
                await producer.send("log", value, partition=partition)
            seen = 0
            while seen < count:
                seen += len(await consumer.poll())
            clients[name] = producer, consumer, count
        clock = time.process_time
        for number in range(ROUNDS + 1):
            for name in list(clients)[:: 1 if number % 2 else -1]:
                producer, consumer, count = clients[name]
                targets = [source.randrange(count) for _ in range(n // ROUNDS)]
                appending = polling = 0.0
                for partition in targets:
                    begin = clock()
                    await producer.send("log", value, partition=partition)
                    between = clock()
                    found = await consumer.poll()
                    polling += clock() - between
                    appending += between - begin
                    assert len(found) == 1, found
                if number:
                    sent.setdefault(f"append, {name} us", []).append(appending / len(targets))
                    sent.setdefault(f"poll, {name} us", []).append(polling / len(targets))
    return {name: sum(took) / len(took) * 1e6 for name, took in sent.items()}


@case("tiny batches, 1 and 1,000 partitions", n=20_000, quick=4_000)
def partitions_through_the_bus(n: int) -> Numbers:
    return asyncio.run(tiny_batches(n))
