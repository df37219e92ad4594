"""Brokers are killed while a producer sends, and a service handles, exactly once. What was lost, doubled, or moved?

By hand, for figures: ``python tests/failover/exercise.py [--kills 20] [--records 0] [--every 10]``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import anyio
import anyio.to_thread

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from eventbus import ConsumerRecord, EventBus, Transaction
from eventbus.testing import RealKafka
from tests import support

PARTITIONS, KEYS_OF_EACH = 6, 8
PATIENCE_S = 180
_POLL_S = 0.05
_runs = itertools.count()
until = partial(support.until, poll_seconds=_POLL_S, patience_seconds=PATIENCE_S)


class Batch(NamedTuple):
    """Records that were sent together, when, and when the last of them was acknowledged."""

    sent: float
    acked: float


class Killed(NamedTuple):
    """What a kill did: how long the partitions that the broker led took nothing."""

    node: int
    unavailable_s: list[float]


class Exercise:
    """Writers, one per partition, each with keys of its own whose values count; and a service that copies the records.

    ``batch``: how many records a writer sends before it waits for them; then it rests for ``rest_s``.
    """

    def __init__(self, kafka: RealKafka, *, batch: int = 20, rest_s: float = 0.02) -> None:
        run = f"{os.getpid()}-{next(_runs)}"
        self.source, self.result = f"source-{run}", f"result-{run}"
        self.kills: list[Killed] = []
        self._kafka = kafka
        self._group = f"copying-{run}"
        self._batch, self._rest_s = batch, rest_s
        self._next: defaultdict[str, int] = defaultdict(int)
        """Of each key."""
        self._batches: dict[int, list[Batch]] = {partition: [] for partition in range(PARTITIONS)}
        self._is_over = False

    @property
    def acked(self) -> int:
        """Records that the producer was told are stored, once the run is over."""
        return sum(self._next.values())

    def service(self) -> EventBus:
        bus = EventBus(self._kafka.url)

        @bus.consumer(self.source, group=self._group, exactly_once=True)
        async def copy(number: int, record: ConsumerRecord, tx: Transaction) -> None:
            tx.send_nowait(self.result, number, key=record.key)

        return bus

    async def run(self, kills: int, *, records: int = 0, every_s: float = 0) -> None:
        """Kill the leader of one partition after the other, ``every_s`` or as soon as its replicas are in step again;
        and go on until so many ``records`` are stored."""
        async with EventBus(self._kafka.url) as bus:
            for topic in (self.source, self.result):
                await bus.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
            async with self.service() as service, anyio.create_task_group() as writers:
                for partition in range(PARTITIONS):
                    writers.start_soon(self._write, bus, partition)
                await until(lambda: all(self._batches.values()), "every partition takes records")
                for number in range(kills):
                    next_kill = time.monotonic() + every_s
                    self.kills.append(await self._kill_leader(bus, number % PARTITIONS))
                    await anyio.sleep(max(0, next_kill - time.monotonic()))
                patience = PATIENCE_S + records / 100
                await until(lambda: self.acked >= records, f"{records:,} records", patience_seconds=patience)
                self._is_over = True
            assert service.failure is None

    async def check(self) -> None:
        """Raises AssertionError for a record that was lost, doubled, or is out of its key's order."""
        async with self.service() as service:
            with anyio.fail_after(PATIENCE_S + self.acked / 1_000):
                await service.drain()
            for topic in (self.source, self.result):
                found = await self._read_all(service, topic)
                assert found.keys() == self._next.keys()
                for key, records in found.items():
                    assert [one.value for one in records] == list(range(self._next[key])), odd(records, self._next[key])

    async def _read_all(self, bus: EventBus, topic: str) -> dict[str, list[ConsumerRecord]]:
        """Once it is as much as was acknowledged, or will not be: partitions hear of a commit after its coordinator."""
        found: dict[str, list[ConsumerRecord]] = {}
        with anyio.move_on_after(PATIENCE_S):
            while sum(map(len, found.values())) < self.acked:
                found = await self._read(bus, topic)
                await anyio.sleep(_POLL_S)
        return found

    async def _read(self, bus: EventBus, topic: str) -> dict[str, list[ConsumerRecord]]:
        found: defaultdict[str, list[ConsumerRecord]] = defaultdict(list)
        async with bus.new_consumer(topic, key=str, value=int, isolation_level="read_committed") as consumer:
            async for record in consumer.until_end():
                found[record.key].append(record)
        return dict(found)

    async def _write(self, bus: EventBus, partition: int) -> None:
        keys = [f"key-{partition}-{number}" for number in range(KEYS_OF_EACH)]
        turn = itertools.cycle(keys)
        while not self._is_over:
            sent = time.monotonic()
            chosen = list(itertools.islice(turn, self._batch))
            numbers = self._numbers(chosen)
            deliveries = [
                bus.send_nowait(self.source, number, key=key, partition=partition)
                for key, number in zip(chosen, numbers, strict=True)
            ]
            for delivery in deliveries:
                await delivery
            self._batches[partition].append(Batch(sent, time.monotonic()))
            await anyio.sleep(self._rest_s)

    def _numbers(self, keys: list[str]) -> list[int]:
        numbers: list[int] = []
        for key in keys:
            numbers.append(self._next[key])
            self._next[key] += 1
        return numbers

    async def _kill_leader(self, bus: EventBus, partition: int) -> Killed:
        leaders = await self._leaders(bus)
        node = self._kafka.node(leaders[partition])
        node.kill()
        killed = time.monotonic()
        led = [number for number, leader in enumerate(leaders) if leader == node.id]
        await until(
            lambda: all(self._batches[number][-1].sent > killed for number in led), "the partitions have a leader again"
        )
        answered = [next(batch.acked for batch in self._batches[one] if batch.sent > killed) for one in led]
        await anyio.to_thread.run_sync(node.start)
        await until(lambda: self._is_whole(bus), "all replicas are in step")
        return Killed(node.id, [when - killed for when in answered])

    async def _leaders(self, bus: EventBus) -> list[int]:
        [topic] = await bus.admin.describe_topics([self.source])
        return [part.leader for part in topic.partitions]

    async def _is_whole(self, bus: EventBus) -> bool:
        """Each partition, those of Kafka's own topics included, has all its replicas in step."""
        topics = await bus.admin.describe_topics(await bus.admin.list_topics(internal=True))
        return all(len(part.isr) == 3 for topic in topics for part in topic.partitions)


def odd(records: list[ConsumerRecord], count: int) -> str:
    """Where the values of a key do not count."""
    first = records[0]
    lines = [f"{first.topic}, {first.key}: {len(records)} values of {count}; @offset value:"]
    jumps = [n for n, (one, other) in enumerate(itertools.pairwise(records)) if other.value != one.value + 1]
    lines += [
        "  ... " + " ".join(f"@{one.partition}:{one.offset} {one.value}" for one in records[max(n - 2, 0) : n + 4])
        for n in jumps[:20]
    ]
    return "\n".join(lines)


def story(exercise: Exercise, took_s: float) -> str:
    times = sorted(one for kill in exercise.kills for one in kill.unavailable_s)
    cuts = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return (
        f"{exercise.acked:,} records, {len(exercise.kills)} kills in {took_s:.0f} s: 0 lost, 0 twice, in order; "
        f"partitions without a leader for p50 {cuts[49]:.1f} s, p99 {cuts[98]:.1f} s, at most {times[-1]:.1f} s "
        f"({len(times)} partitions)"
    )


async def figures(kills: int, records: int, every_s: float, rest_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix="failover-") as folder, RealKafka(Path(folder), nodes=3) as kafka:
        exercise = Exercise(kafka, rest_s=rest_s)
        began = time.monotonic()
        await exercise.run(kills, records=records, every_s=every_s)
        took_s = time.monotonic() - began
        print(f"{exercise.acked:,} records are acknowledged after {took_s:.0f} s; checking", flush=True)
        await exercise.check()
        print(story(exercise, took_s), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill brokers for figures.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--records", type=int, default=0, help="go on until so many are stored")
    parser.add_argument("--every", type=float, default=10.0, help="seconds from kill to kill, at least")
    parser.add_argument("--rest", type=float, default=0.02, help="seconds that a writer rests between batches of 20")
    chosen = parser.parse_args()
    anyio.run(figures, chosen.kills, chosen.records, chosen.every, chosen.rest)


if __name__ == "__main__":
    main()
