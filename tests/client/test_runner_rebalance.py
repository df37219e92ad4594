"""Several members of a group, in a bus and in several ones of a process, join and leave under load."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from random import Random
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition

PARTITIONS = 8
LOGS = itertools.count()


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return f"memory://rebalance-{next(LOGS)}" if request.param == "memory" else f"file://{tmp_path}/log?fsync=os"


class Ledger:
    """Records who handled what, and overlaps of two members on a partition."""

    def __init__(self) -> None:
        self.handled: dict[TopicPartition, list[int]] = defaultdict(list)
        self.at_work: dict[TopicPartition, str] = {}
        self.overlaps: list[str] = []
        self.by_member: Counter[str] = Counter()

    def begin(self, record: ConsumerRecord, member: str) -> None:
        other = self.at_work.get(record.topic_partition)
        if other is not None:
            self.overlaps.append(f"{record.topic_partition}: {member} beside {other}")
        self.at_work[record.topic_partition] = member

    def end(self, record: ConsumerRecord, member: str) -> None:
        del self.at_work[record.topic_partition]
        self.handled[record.topic_partition].append(record.offset)
        self.by_member[member] += 1

    def check(self, ends: dict[TopicPartition, int]) -> int:
        """Nothing lost, nothing out of order, no two at once; how many records were handled more than once."""
        assert self.overlaps == []
        for partition, end in ends.items():
            offsets = self.handled[partition]
            assert set(offsets) == set(range(end)), f"{partition}: {sorted(set(range(end)) - set(offsets))} lost"
            firsts = list(dict.fromkeys(offsets))
            assert firsts == sorted(firsts), f"{partition} was handled out of order"
        return sum(len(offsets) for offsets in self.handled.values()) - sum(ends.values())


def member(url: str, name: str, ledger: Ledger, **options: Any) -> EventBus:
    bus = EventBus(url, client_id=name)
    bus.topic("t", partitions=PARTITIONS)

    @bus.consumer("t", group="g", **options)
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        ledger.begin(record, name)
        try:
            for _ in range(record.offset % 4):
                await anyio.lowlevel.checkpoint()
        except BaseException:
            del ledger.at_work[record.topic_partition]
            raise
        ledger.end(record, name)

    return bus


async def ends_of(bus: EventBus) -> dict[TopicPartition, int]:
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    return {tp: found.offset for tp, found in (await bus.admin.list_offsets(dict.fromkeys(partitions, -1))).items()}


@pytest.mark.system
@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_share_the_partitions_and_take_over_from_each_other(url: str, assignor: str) -> None:
    ledger = Ledger()
    sent = 0
    async with EventBus(url) as watcher:
        await watcher.admin.create_topic("t", partitions=PARTITIONS)

        async def load(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                watcher.send_nowait("t", b"%d" % sent, key=b"%d" % (sent % 40))
                sent += 1
                await anyio.lowlevel.checkpoint()

        a, b, c = (member(url, name, ledger, partition_assignment_strategy=assignor) for name in "abc")
        async with a:
            await load(200)
            async with b:
                await load(200)
                async with c:
                    await load(200)
                await load(200)
            await load(100)
            await watcher.flush()
            with anyio.fail_after(20):
                await a.drain()
        repeated = ledger.check(await ends_of(watcher))
        committed = {tp: offset.offset for tp, offset in (await watcher.admin.group_offsets("g")).items()}
        assert committed == {tp: end for tp, end in (await ends_of(watcher)).items() if end}
    assert set(ledger.by_member) == {"a", "b", "c"}
    assert repeated == 0, "every partition moved after a commit"


@pytest.mark.system
@pytest.mark.parametrize("seed", range(4))
async def test_a_storm_of_members(url: str, seed: int) -> None:
    """Members come, leave, and are cancelled in the middle, while records arrive."""
    random, ledger = Random(seed), Ledger()
    assignor = random.choice(["range", "cooperative-sticky"])
    async with EventBus(url) as watcher:
        await watcher.admin.create_topic("t", partitions=PARTITIONS)

        async def live(name: str, steps: int, killed: bool) -> None:
            with anyio.CancelScope() as scope:
                async with member(url, name, ledger, partition_assignment_strategy=assignor):
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    if killed:
                        scope.cancel()

        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(live, f"m{number}", random.randrange(20, 400), random.random() < 0.5)
                for _ in range(60):
                    watcher.send_nowait("t", b"x", key=b"%d" % random.randrange(40))
                    await anyio.lowlevel.checkpoint()
        async with member(url, "last", ledger, partition_assignment_strategy=assignor) as last:
            with anyio.fail_after(20):
                await last.drain()
        ledger.check(await ends_of(watcher))


async def test_two_handlers_of_one_group_with_topics_of_their_own(url: str) -> None:
    bus = EventBus(url)
    for topic in ("a", "b"):
        bus.topic(topic, partitions=3)
    seen: dict[str, list[str]] = {"a": [], "b": []}

    @bus.consumer("a", group="g")
    async def of_a(text: str, record: ConsumerRecord) -> None:
        seen["a"].append(record.topic)

    @bus.consumer("b", group="g")
    async def of_b(text: str, record: ConsumerRecord) -> None:
        seen["b"].append(record.topic)

    async with bus:
        for number in range(12):
            for topic in ("a", "b"):
                await bus.send(topic, str(number), partition=number % 3)
        await bus.drain()
    assert seen == {"a": ["a"] * 12, "b": ["b"] * 12}


async def test_a_member_too_many_has_nothing_and_is_idle(url: str) -> None:
    ledger = Ledger()
    async with EventBus(url) as watcher:
        await watcher.admin.create_topic("t", partitions=1)
        async with member(url, "a", ledger) as a, member(url, "b", ledger) as b:
            await watcher.send("t", b"x", partition=0)
            with anyio.fail_after(20):
                await a.drain()
                await b.drain()
    assert sum(ledger.by_member.values()) == 1


async def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(url: str) -> None:
    ledger = Ledger()
    async with EventBus(url) as watcher:
        await watcher.admin.create_topic("t", partitions=PARTITIONS)
        async with member(url, "a", ledger, group_instance_id="a") as a:
            async with member(url, "b", ledger, group_instance_id="b") as b:
                await a.drain()
                await b.drain()
                before = (await watcher.admin.describe_groups(["g"]))[0].generation_id
            async with member(url, "b2", ledger, group_instance_id="b") as b:
                for number in range(40):
                    await watcher.send("t", b"x", partition=number % PARTITIONS)
                with anyio.fail_after(20):
                    await a.drain()
                    await b.drain()
                assert (await watcher.admin.describe_groups(["g"]))[0].generation_id == before
    assert ledger.by_member["a"] == ledger.by_member["b2"] == 20
