"""Services of one group join, leave, are killed and stall concurrently: 16 members, 64 partitions.

Each is a bus with a handler. No partition is handled by two current members at once, no record is left out or handled
out of order, no commit goes back. If no member was killed or stalled, no record is handled twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.errors import RequestTimedOut
from eventbus.testing import FakeClock
from tests.client.trials import LOGS, run_the_same, turns
from tests.tiers import quick

pytestmark = pytest.mark.system

PARTITIONS = 64
MOST_MEMBERS = 16
STEPS = 200
OPTIONS = {"session_timeout_ms": 6_000, "max_poll_interval_ms": 20_000, "drain_timeout_ms": 2_000}


class Member:
    """A service of the group."""

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm = storm
        self.name = name
        self.bus = EventBus(storm.url, clock=storm.clock, client_id=name)
        self.scope = anyio.CancelScope()
        self.stop = anyio.Event()
        self.is_dead = False
        self.gate = anyio.Event()
        self.gate.set()

        @self.bus.consumer("t", group="g", partition_assignment_strategy=storm.assignors, **OPTIONS)
        async def handle(value: bytes, record: ConsumerRecord) -> None:
            await storm.handle(self, record)

    async def live(self) -> None:
        try:
            with self.scope:
                async with self.bus:
                    self.stand_in_between()
                    await self.stop.wait()
        finally:
            self.is_dead = True

    @property
    def consumer(self) -> Any:
        return self.bus.context.runners[0]._consumer if self.bus.context.runners else None

    @property
    def holds(self) -> set[TopicPartition]:
        return set(self.consumer._held) if self.consumer is not None and not self.is_dead else set()

    def stand_in_between(self) -> None:
        consumer, fetch = self.consumer, self.consumer.fetch

        async def gated(max_wait_ms: int | None = None) -> Any:
            await self.gate.wait()
            return await fetch(max_wait_ms)

        consumer.fetch = gated

    def pause(self) -> None:
        """It polls no more, as a process that hangs."""
        if self.gate.is_set():
            self.gate = anyio.Event()

    def resume(self) -> None:
        self.gate.set()

    def kill(self) -> None:
        """Kill the service without notice: its membership ends with its session."""

        async def dead(*_: Any) -> None:
            raise RequestTimedOut("the process is dead")

        consumer, self.is_dead = self.consumer, True
        if consumer is not None and consumer._member is not None:
            consumer.commit = dead
            self.storm.engine.remove_member(consumer._member)
            consumer._member = None
        self.scope.cancel()


class Storm:
    """A run with a seed."""

    def __init__(self, seed: int, *, gentle: bool) -> None:
        self.random = Random(seed)
        self.assignors = self.random.choice([("range",), ("cooperative-sticky",), ("roundrobin",), ("sticky",)])
        self.gentle = gentle
        self.url = f"memory://storm-{next(LOGS)}"
        self.clock = FakeClock()
        self.members: list[Member] = []
        self.at_work: dict[TopicPartition, dict[Member, int]] = defaultdict(dict)
        self.handled: dict[TopicPartition, list[int]] = defaultdict(list)
        self.sent: Counter[TopicPartition] = Counter()
        self.committed: dict[TopicPartition, int] = {}
        self.errors: list[str] = []
        self.generations: set[int] = set()
        self.kinds: Counter[str] = Counter()

    @property
    def engine(self) -> Any:
        return self.keeper.context.backend.engine

    @property
    def alive(self) -> list[Member]:
        return [one for one in self.members if not one.is_dead and not one.stop.is_set()]

    # what the services do ---------------------------------------------------------------------------------------------

    async def handle(self, member: Member, record: ConsumerRecord) -> None:
        where = record.topic_partition
        others = [other.name for other in self.at_work[where] if other is not member and where in other.holds]
        if others:
            self.errors.append(f"{where} offset {record.offset}: {member.name} beside {others}")
        if where not in member.holds and not member.is_dead:
            self.errors.append(f"{where} offset {record.offset}: begun by {member.name}, which does not hold it")
        self.at_work[where][member] = record.offset
        try:
            await turns((record.offset + record.partition) % 4)
            if (record.offset + record.partition) % 17 == 5:
                await self.clock.sleep(0.7)
        finally:
            del self.at_work[where][member]
        self.handled[where].append(record.offset)

    def watch_commits(self) -> None:
        groups = self.engine.broker.groups
        commit = groups.commit_offsets

        def look(group: Any, offsets: Mapping[TopicPartition, Any], now_ms: int) -> Any:
            result = commit(group, offsets, now_ms)
            self.generations.add(group.generation_id)
            for where, at in offsets.items():
                done = set(self.handled[where])
                missing = [offset for offset in range(at.offset) if offset not in done]
                if missing:
                    self.errors.append(f"{where}: committed {at.offset}, but {missing} are unfinished")
                if at.offset < self.committed.get(where, 0):
                    self.errors.append(f"{where}: the commit goes back from {self.committed[where]} to {at.offset}")
                self.committed[where] = at.offset
            return result

        groups.commit_offsets = look

    # what happens to them ---------------------------------------------------------------------------------------------

    async def join(self) -> None:
        if len(self.alive) < MOST_MEMBERS:
            member = Member(self, f"m{len(self.members)}")
            self.members.append(member)
            self.tasks.start_soon(member.live)

    async def leave(self) -> None:
        if len(self.alive) > 2:
            self.random.choice(self.alive).stop.set()

    async def kill(self) -> None:
        if len(self.alive) > 2 and not self.gentle:
            self.random.choice(self.alive).kill()

    async def pause(self) -> None:
        if self.alive and not self.gentle:
            self.random.choice(self.alive).pause()

    async def resume(self) -> None:
        for member in self.alive:
            if not member.gate.is_set() and self.random.random() < 0.5:
                member.resume()

    async def send(self) -> None:
        for _ in range(self.random.randrange(40)):
            where = TopicPartition("t", self.random.randrange(PARTITIONS))
            self.keeper.send_nowait("t", b"%d" % self.sent[where], partition=where.partition)
            self.sent[where] += 1

    async def take_turns(self) -> None:
        await turns(self.random.randrange(40))

    async def wait(self) -> None:
        (ms,) = self.random.choices([50, 400, 3_000, 7_000, 21_000], [40, 30, 20, 5, 0 if self.gentle else 5])
        await self.clock.advance(ms=ms)

    CHANCES: ClassVar = {join: 8, leave: 3, kill: 2, pause: 2, resume: 3, send: 20, take_turns: 15, wait: 20}

    async def run(self) -> None:
        async with EventBus(self.url, clock=self.clock) as self.keeper:
            await self.keeper.admin.create_topic("t", PARTITIONS)
            self.watch_commits()
            async with anyio.create_task_group() as self.tasks:
                for _ in range(STEPS):
                    (step,) = self.random.choices(list(self.CHANCES), list(self.CHANCES.values()))
                    self.kinds[step.__name__] += 1
                    await step(self)
                    self.check_now()
                await self.calm_down()
                for member in self.alive:
                    member.stop.set()
            [group] = await self.keeper.admin.describe_groups(["g"])
            self.generation = group.generation_id
            self.check_end()

    async def calm_down(self) -> None:
        for member in self.alive:
            member.resume()
        await self.join()
        await self.clock.advance(seconds=30)
        await self.keeper.flush()
        with anyio.fail_after(60):
            for member in self.alive:
                await member.bus.drain()

    def check_now(self) -> None:
        assert not self.errors, self.errors
        holders: dict[TopicPartition, str] = {}
        for member in self.members:
            for where in member.holds:
                other = holders.setdefault(where, member.name)
                assert other == member.name, f"{where} is held by {other} and {member.name}"

    def check_end(self) -> None:
        assert not self.errors, self.errors
        repeated = 0
        for where, count in self.sent.items():
            offsets = self.handled[where]
            assert set(offsets) == set(range(count)), f"{where}: {sorted(set(range(count)) - set(offsets))} lost"
            firsts = list(dict.fromkeys(offsets))
            assert firsts == sorted(firsts), f"{where} was handled out of order: {offsets}"
            repeated += len(offsets) - count
        if self.gentle:
            assert repeated == 0, f"{repeated} records were handled again"


def run(seed: int, backend: str, *, gentle: bool) -> Storm:
    storm = Storm(seed, gentle=gentle)
    run_the_same(backend, storm.run)
    return storm


@pytest.mark.parametrize("seed", quick([0, 3], 1))  # on asyncio, and on trio; hundreds more in the slow tier
def test_a_storm(seed: int) -> None:
    storm = run(seed, "trio" if seed == 3 else "asyncio", gentle=False)
    assert storm.generation > 10


@pytest.mark.parametrize("seed", quick([100, 102], [102]))
def test_members_that_come_and_go_handle_nothing_twice(seed: int) -> None:
    run(seed, "trio" if seed == 102 else "asyncio", gentle=True)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("gentle", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 101, *range(1_000, 1_025)])
def test_many_storms(seed: int, gentle: bool, backend: str) -> None:
    run(seed, backend, gentle=gentle)
