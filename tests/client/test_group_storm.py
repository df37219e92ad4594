"""Members join, leave, stall and die at random: no partition is read twice at a time, and nothing is left out."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from eventbus import EventBus, TopicPartition
from eventbus.client.consumer import Consumer
from eventbus.errors import FencedInstanceId, IllegalGeneration, RebalanceInProgress, UnknownMemberId
from tests.support import naming
from tests.tiers import of_today, quick

PARTITIONS = 12
MOST_MEMBERS = 6
STEPS = 300


class Storm:
    """One seed's run. Two buses of one log; a fake clock; every member polls without waiting."""

    def __init__(self, seed: int, assignors: str) -> None:
        self.random = random.Random(seed)
        self.assignors = assignors
        self.now_ms = 1_800_000_000_000
        self.buses: list[EventBus] = []
        self.members: list[Consumer] = []
        self.stalled: list[Consumer] = []
        """Neither polled nor closed: their task hangs."""
        self.sent = 0
        self.handled: set[int] = set()

    def clock(self) -> int:
        return self.now_ms

    async def run(self, url: str) -> None:
        async with EventBus(url, clock=self.clock) as one, EventBus(url, clock=self.clock) as two:
            self.buses = [one, two]
            await one.admin.create_topic("t", partitions=PARTITIONS)
            async with AsyncExitStack() as self.stack:
                for _ in range(STEPS):
                    await self.step()
                    self.check_no_partition_has_two_readers()
                await self.calm_down()
            self.engine.broker.check()

    @property
    def engine(self) -> Any:
        return self.buses[0].context.backend.engine

    async def step(self) -> None:
        choose = self.random.choices(
            [self.poll, self.send, self.join, self.leave, self.stall, self.recover, self.wait, self.grow],
            [60, 10, 10, 3, 1, 3, 12, 1],
        )
        await choose[0]()

    async def poll(self) -> None:
        if not self.members:
            return
        member = self.random.choice(self.members)
        try:
            records = await member.poll(0, max_records=self.random.choice([1, 5, 500]))
        except FencedInstanceId:
            self.members.remove(member)
            return
        self.handled.update(int(record.value) for record in records)
        if self.random.random() < 0.6:
            with suppress(IllegalGeneration, UnknownMemberId, RebalanceInProgress, FencedInstanceId):
                await member.commit()

    async def send(self) -> None:
        for _ in range(self.random.randrange(1, 10)):
            partition = self.random.randrange(self.engine.broker.partitions_of("t"))
            await self.random.choice(self.buses).send("t", b"%d" % self.sent, partition=partition)
            self.sent += 1

    async def join(self) -> None:
        if len(self.members) + len(self.stalled) >= MOST_MEMBERS:
            return
        config: dict[str, Any] = {"partition_assignment_strategy": self.assignors, "max_poll_interval_ms": 60_000}
        if self.random.random() < 0.2:
            config["group_instance_id"] = self.random.choice(["x", "y"])  # sometimes of one that runs: it is fenced
        member = self.random.choice(self.buses).new_consumer("t", group="g", **config)
        self.members.append(await self.stack.enter_async_context(member))

    async def leave(self) -> None:
        if self.members:
            await self.members.pop(self.random.randrange(len(self.members))).aclose()

    async def stall(self) -> None:
        if self.members:
            self.stalled.append(self.members.pop(self.random.randrange(len(self.members))))

    async def recover(self) -> None:
        if self.stalled:
            self.members.append(self.stalled.pop(0))

    async def wait(self) -> None:
        (milliseconds,) = self.random.choices([100, 3_000, 20_000, 61_000], [70, 27, 2, 1])
        self.now_ms += milliseconds
        self.engine.tick()

    async def grow(self) -> None:
        count = self.engine.broker.partitions_of("t")
        if count < 2 * PARTITIONS:
            await self.buses[0].admin.add_partitions("t", count + 2)

    def check_no_partition_has_two_readers(self) -> None:
        held: dict[TopicPartition, Consumer] = {}
        for member in self.members + self.stalled:
            for partition in member.assignment():
                assert partition not in held, f"{partition} is read by {held[partition]} and {member}"
                held[partition] = member

    async def calm_down(self) -> None:
        """Everybody who stays polls: the partitions are shared among them, and everything sent is handled."""
        for member in self.stalled:
            await member.aclose()
        self.stalled = []
        self.now_ms += 100_000  # places of static members that are gone end, too
        for _ in range(60):
            if not self.members:
                await self.join()
            self.engine.tick()
            for member in list(self.members):
                try:
                    records = await member.poll(0)
                except FencedInstanceId:
                    self.members.remove(member)
                else:
                    self.handled.update(int(record.value) for record in records)
            self.check_no_partition_has_two_readers()
            self.now_ms += 1_000
        count = self.engine.broker.partitions_of("t")
        shares = [len(member.assignment()) for member in self.members]
        assert sum(shares) == count and max(shares) - min(shares) <= 1, shares
        assert self.handled == set(range(self.sent))


@pytest.mark.parametrize("assignors", ["range", "cooperative-sticky", "sticky,range"])
@pytest.mark.parametrize("seed", quick(range(8), 2))
async def test_a_storm(seed: int, assignors: str) -> None:
    await Storm(seed, assignors).run(f"memory://storm-{assignors}-{seed}")


async def test_a_fenced_member_holds_nothing_while_its_successor_waits_to_join() -> None:
    """Found here: others were given what it held before it heard of being fenced."""
    await Storm(10_048, "cooperative-sticky").run("memory://storm-fenced")


@pytest.mark.system
@pytest.mark.parametrize("seed", quick(range(2), 1))
async def test_a_storm_on_disk(seed: int, tmp_path: Any) -> None:
    await Storm(1_000 + seed, "cooperative-sticky").run(f"file://{tmp_path / 'log'}")


@pytest.mark.slow
@pytest.mark.parametrize("assignors", ["range", "cooperative-sticky", "sticky,range"])
async def test_many_storms(assignors: str) -> None:
    for seed in of_today(range(10_000, 10_400)):
        with naming(f"seed {seed}"):
            await Storm(seed, assignors).run(f"memory://storm-{assignors}-{seed}")
