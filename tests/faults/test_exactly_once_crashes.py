"""Consume, process, produce through power cuts at random calls, checked as Jepsen checks Kafka, in linear time.

Every output names its input and the attempt that made it. After each life, and while it lasts, for readers of committed
records: one offset holds one value for ever; nothing that was read is gone later; no input is answered twice, none of
an aborted transaction is answered at all; both outputs of an input are there, or neither; the offsets say exactly which
inputs are answered; order is kept; polls neither skip nor go back. At the end nothing acknowledged is unanswered.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress
from random import Random

import anyio
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.client.producer import Producer
from eventbus.client.transaction import Transaction
from eventbus.errors import EventBusError
from eventbus.log.partition_log import PartitionLog
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from eventbus.types import ConsumerRecord, GroupMetadata, IsolationLevel, OffsetAndMetadata
from tests.tiers import of_today, quick

INPUTS = [TopicPartition("in", number) for number in range(3)]
OUTPUTS = [TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("log", 0)]
GROUP = "worker"


class History:
    """What was sent, and what readers have seen, over all lives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.storage = CrashStorage()
        self.next_input = 0
        self.attempts = 0
        self.acked: set[int] = set()
        """Inputs that must be answered in the end."""
        self.aborted: set[int] = set()
        """Inputs that must never be."""
        self.seen: dict[TopicPartition, dict[int, str]] = defaultdict(dict)
        """By partition and offset: what the reader of this history has read, in all lives."""
        self.position: dict[TopicPartition, int] = dict.fromkeys(OUTPUTS, 0)

    # the work under test ---------------------------------------------------------------------------------------------

    def bus(self, *, works: bool) -> EventBus:
        bus = bus_on(self.storage)
        bus.topic("in", partitions=3)
        bus.topic("out", partitions=2)
        bus.topic("log", partitions=1)
        if works:

            @bus.consumer("in", group=GROUP, exactly_once=True, transaction_records=self.random.randint(1, 6))
            async def work(number: bytes, record: ConsumerRecord, tx: Transaction) -> None:
                self.attempts += 1
                answer = json.dumps({"input": int(number), "of": record.partition, "attempt": self.attempts})
                tx.send_nowait("out", answer, partition=record.partition % 2)
                if self.random.random() < 0.2:
                    await anyio.lowlevel.checkpoint()
                tx.send_nowait("log", answer, partition=0)

        return bus

    async def feed(self, bus: EventBus) -> None:
        """Inputs: plain ones, and of transactions that are committed or aborted."""
        async with bus.new_producer(transactional_id="feeder") as feeder:
            for _ in range(self.random.randint(3, 12)):
                numbers = [self.number() for _ in range(self.random.randint(1, 4))]
                partition = self.random.randrange(3)
                kind = self.random.random()
                if kind < 0.5:
                    for number in numbers:
                        await bus.send("in", b"%d" % number, partition=partition)
                    self.acked.update(numbers)
                    continue
                await feeder.begin()
                for number in numbers:
                    await feeder.send("in", b"%d" % number, partition=partition)
                if kind < 0.8:
                    await feeder.commit()
                    self.acked.update(numbers)
                else:
                    self.aborted.update(numbers)
                    await feeder.abort()

    def number(self) -> int:
        self.next_input += 1
        return self.next_input

    async def watch(self, bus: EventBus) -> None:
        """A reader beside the work, which remembers where it was over all lives."""
        async with bus.new_consumer(isolation_level="read_committed") as reader:
            await reader.assign(OUTPUTS)
            for where in OUTPUTS:
                reader.seek(where, self.position[where])
            while True:
                for record in await reader.poll(timeout_ms=1):
                    self.read(record)
                for where in OUTPUTS:
                    self.position[where] = await reader.position(where)

    def read(self, record: ConsumerRecord) -> None:
        where = record.topic_partition
        assert record.offset >= self.position[where], f"{where}: a poll went back to {record.offset}"
        self.seen[where][record.offset] = record.value.decode()

    # lives -----------------------------------------------------------------------------------------------------------

    async def live_and_die(self) -> None:
        storage = self.storage
        storage.crash_at_call = storage.calls_count + self.random.randint(1, 900)
        with suppress(SimulatedCrash, EventBusError, ExceptionGroup):
            async with self.bus(works=True) as bus, anyio.create_task_group() as tasks:
                tasks.start_soon(self.watch, bus)
                await self.feed(bus)
                while not storage.stopped:
                    storage.crash_at_call = min(storage.crash_at_call, storage.calls_count + 40)
                    number = self.number()
                    await bus.send("in", b"%d" % number, partition=self.random.randrange(3))
                    self.acked.add(number)
                tasks.cancel_scope.cancel()
        assert storage.stopped, "it ended before it crashed"
        self.storage = storage.crash(self.random)

    async def end_well(self) -> None:
        async with self.bus(works=True) as bus:
            await bus.drain()
            await self.check(bus)
            answered = await self.answered(bus)
            assert self.acked <= answered.keys(), f"never answered: {sorted(self.acked - answered.keys())}"

    async def look(self) -> None:
        """After a crash, before anybody works again."""
        async with self.bus(works=False) as bus:
            await self.check(bus)

    # the checker -----------------------------------------------------------------------------------------------------

    async def check(self, bus: EventBus) -> None:
        found = {where: await read_all(bus, where) for where in OUTPUTS}
        for where, seen in self.seen.items():
            for offset, value in seen.items():
                assert found[where].get(offset) == value, f"{where} at {offset}: {value} was read, and is gone"
            skipped = [o for o in found[where] if o < self.position[where] and o not in seen]
            assert not skipped, f"{where}: the reader was led past {skipped}"
        answers = {topic: self.answers(found, topic) for topic in ("out", "log")}
        for topic, numbers in answers.items():
            twice = [number for number, count in Counter(numbers).items() if count > 1]
            assert not twice, f"answered twice in {topic}: {twice}"
        assert set(answers["out"]) == set(answers["log"]), "half of an answer"
        answered = set(answers["out"])
        assert not answered & self.aborted, f"answers to aborted inputs: {answered & self.aborted}"
        await self.check_offsets(bus, answered)
        self.check_order(found)

    @staticmethod
    def answers(found: dict[TopicPartition, dict[int, str]], topic: str) -> list[int]:
        values = [value for where in found if where.topic == topic for value in found[where].values()]
        return [json.loads(value)["input"] for value in values]

    async def check_offsets(self, bus: EventBus, answered: set[int]) -> None:
        """What is below the group's offset is answered, and nothing else."""
        committed = await bus.admin.group_offsets(GROUP)
        expected: set[int] = set()
        for where in INPUTS:
            offset = committed[where].offset if where in committed else 0
            expected |= {int(value) for at, value in (await read_all(bus, where)).items() if at < offset}
        assert answered == expected, (
            f"answered, but not committed: {answered - expected}; committed, but not answered: {expected - answered}"
        )

    def check_order(self, found: dict[TopicPartition, dict[int, str]]) -> None:
        for where, values in found.items():
            last: dict[int, int] = {}
            for _, value in sorted(values.items()):
                answer = json.loads(value)
                assert last.get(answer["of"], 0) < answer["input"], f"{where}: {value} is out of order"
                last[answer["of"]] = answer["input"]

    async def answered(self, bus: EventBus) -> dict[int, int]:
        found = {where: await read_all(bus, where) for where in OUTPUTS}
        return dict.fromkeys(self.answers(found, "out"), 1)


async def read_all(bus: EventBus, where: TopicPartition) -> dict[int, str]:
    """All that is committed now, by offset."""
    end = (await bus.admin.list_offsets({where: -1}, IsolationLevel.READ_COMMITTED))[where].offset
    found: dict[int, str] = {}
    async with bus.new_consumer(isolation_level="read_committed") as reader:
        await reader.assign([where])
        await reader.seek_to_beginning()
        while await reader.position(where) < end:
            found.update((r.offset, r.value.decode()) for r in await reader.poll(timeout_ms=0))
    return found


async def run(seed: int) -> None:
    history = History(seed)
    try:
        with anyio.fail_after(60):
            for _ in range(history.random.randint(1, 4)):
                await history.live_and_die()
                if history.random.random() < 0.5:
                    await history.look()
            await history.end_well()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.system
@pytest.mark.parametrize("block", quick(range(4), 1))
async def test_crashes(block: int) -> None:
    for seed in range(block * 10, (block + 1) * 10):
        await run(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_crashes() -> None:
    for seed in of_today(range(1_000, 1_400)):
        await run(seed)


# planted bugs ---------------------------------------------------------------------------------------------------------


async def found_by(seeds: range) -> str:
    """What the checker says of a planted bug."""
    for seed in seeds:
        try:
            await run(seed)
        except AssertionError as error:
            return str(error)
        except ExceptionGroup as group:
            errors, _ = group.split(AssertionError)
            assert errors is not None, group
            return str(errors.exceptions[0])
    raise LookupError(f"not found by {len(seeds)} seeds")


@pytest.mark.system
async def test_readers_of_open_transactions_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))
    assert await found_by(range(20))


async def test_readers_of_aborted_records_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "aborted_in", lambda *_: ())
    assert await found_by(range(20))


async def test_offsets_beside_the_transaction_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def beside(self: Producer, offsets: dict[TopicPartition, int], group: GroupMetadata) -> None:
        engine = self._backend.engine
        plain = {where: OffsetAndMetadata(offset) for where, offset in offsets.items()}
        engine.broker.groups.commit_offsets(group, plain, engine.now_ms())

    monkeypatch.setattr(Producer, "send_offsets", beside)
    assert "not answered" in await found_by(range(40))
