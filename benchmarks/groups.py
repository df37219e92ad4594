"""Groups: a rebalance of many members, and the offsets that are read back when a log is opened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from core import now_ms, open_broker
from harness import Meter, Numbers, case, scratch

PARTITIONS = 200
WAIT_S = 120


# -- rebalance ---------------------------------------------------------------------------------------------------------


class Members:
    """Consumers of one group, each polled by a task of its own, and what each of them holds by its listener's word."""

    def __init__(self, bus: Any, assignor: str) -> None:
        self._bus = bus
        self._assignor = assignor
        self._started = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.held: dict[int, set[Any]] = {}
        self.changed = asyncio.Event()

    def start(self) -> None:
        self._started += 1
        self.tasks.append(asyncio.create_task(self._poll(self._started)))

    async def _poll(self, number: int) -> None:
        held = self.held[number] = set()

        def assigned(partitions: list[Any]) -> None:
            held.update(partitions)
            self.changed.set()

        def revoked(partitions: list[Any]) -> None:
            held.difference_update(partitions)

        options = {"on_assigned": assigned, "on_revoked": revoked, "partition_assignment_strategy": self._assignor}
        try:
            async with self._bus.new_consumer("log", group="bench", **options) as consumer:
                while True:
                    await consumer.poll()
        finally:
            del self.held[number]

    async def _settled(self, members: int) -> None:
        """Every partition is held by one member, and every member has its share."""
        share = PARTITIONS // members
        while True:
            self.changed.clear()
            if len(self.held) == members and all(share <= len(held) <= share + 1 for held in self.held.values()):
                held = [partition for partitions in self.held.values() for partition in partitions]
                if len(held) == PARTITIONS == len(set(held)):
                    return
            await self.changed.wait()

    async def settled(self, members: int) -> None:
        await asyncio.wait_for(self._settled(members), WAIT_S)

    async def stop(self, task: asyncio.Task[None]) -> None:
        self.tasks.remove(task)
        task.cancel()
        await asyncio.wait([task])


def rebalance(n: int, assignor: str) -> Numbers:
    """``n`` members over 200 partitions in one process; until their listeners have heard of every share."""
    from eventbus import EventBus

    async def run() -> Numbers:
        numbers: Numbers = {}

        async def measured(name: str, change: Callable[[], Awaitable[Any]], members: int) -> None:
            with Meter() as meter:
                await change()
                await group.settled(members)
            numbers[f"{name} s"], numbers[f"{name} cpu s"] = meter.wall_s, meter.cpu_s

        async def start(count: int) -> None:
            for _ in range(count):
                group.start()

        async with EventBus("memory://") as bus:
            await bus.admin.create_topic("log", partitions=PARTITIONS)
            group = Members(bus, assignor)
            await measured("form", lambda: start(n), n)
            await measured("leave", lambda: group.stop(group.tasks[n // 2]), n - 1)
            await measured("join", lambda: start(1), n)
            for task in list(group.tasks):
                await group.stop(task)
        return numbers

    return asyncio.run(run())


@case("rebalance, range", n=100, quick=100)
def rebalance_eager(n: int) -> Numbers:
    return rebalance(n, "range")


@case("rebalance, cooperative", n=100, quick=100)
def rebalance_cooperative(n: int) -> Numbers:
    return rebalance(n, "cooperative-sticky")


# -- offsets -----------------------------------------------------------------------------------------------------------


def commit_groups(folder: Path, count: int, times: int) -> None:
    """``count`` partitions of a topic, committed ``times`` times by each of 100 groups; then the log is closed."""
    from eventbus.broker import TopicSpec
    from eventbus.types import OffsetAndMetadata, TopicPartition

    broker = open_broker(folder)
    broker.create_topics([TopicSpec("log", count)], now_ms())
    for offset in range(times):
        offsets = {TopicPartition("log", number): OffsetAndMetadata(offset) for number in range(count)}
        for number in range(100):
            broker.groups.commit_offsets(f"group-{number}", offsets, now_ms())
    broker.close(now_ms())


def replay(n: int, times: int) -> Numbers:
    """Open a log that holds ``n`` committed group-partitions: the whole opening, of which replay is a part."""
    with scratch() as folder:
        commit_groups(folder, n // 100, times)
        begin = time.perf_counter()
        with Meter() as meter:
            broker = open_broker(folder)
        assert meter.wall_s <= time.perf_counter() - begin
        found = sum(len(broker.groups.fetch_offsets(f"group-{number}")) for number in range(100))
        assert found == n, found
        broker.close(now_ms())
    return {"s": meter.wall_s, "cpu s": meter.cpu_s}


@case("10,000 offsets at open", n=10_000, quick=10_000)
def replay_once(n: int) -> Numbers:
    return replay(n, 1)


@case("10,000 offsets committed 10 times, at open", n=10_000, quick=10_000)
def replay_ten_times(n: int) -> Numbers:
    """Ten commits of each, before any compaction: all 100,000 are read."""
    return replay(n, 10)
