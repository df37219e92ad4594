"""Clients that were given up and go on all the same: 300 of them, paused at every step of their work.

Each is told so by a named error, none of its records is seen by a read-committed reader, and no offset moves back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from eventbus import EventBus, TopicPartition
from eventbus.client.consumer import Consumer
from eventbus.client.producer import Producer
from eventbus.errors import (
    EventBusError,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RebalanceInProgress,
    TransactionAborted,
    UnknownMemberId,
)
from eventbus.log.memory import MemoryStorage
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage
from eventbus.types import GroupMetadata, IsolationLevel

START_MS = 1_700_000_000_000
TIMEOUT_MS = 10_000
SWEEP_MS = 10_000
"""How often the log looks for transactions that timed out."""
PRODUCER_ERRORS = (
    ProducerFenced,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    TransactionAborted,
)
MEMBER_ERRORS = (UnknownMemberId, IllegalGeneration, RebalanceInProgress, FencedInstanceId)
SOURCE, TARGET, GROUP = "source", "target", "group"
S0 = TopicPartition(SOURCE, 0)
RECORDS = 12

Step = tuple[str, Callable[[], Awaitable[object]]]


class Case:
    """One bus with a clock of its own, and what must never be seen on it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = START_MS
        storage = CrashStorage() if self.random.random() < 0.3 else MemoryStorage()
        self.bus: EventBus = bus_on(storage, clock=lambda: self.now_ms)
        self.highest: dict[TopicPartition, int] = {}

    async def advance(self, milliseconds: int) -> None:
        """Time passes; the log does what is due, as its housekeeping would."""
        self.now_ms += milliseconds
        engine = self.bus.context.backend.engine
        engine.tick()
        if engine.waits_for_flush:
            await engine.flushes.flush_all()

    async def observe(self) -> None:
        """Readers see no zombie, and no offset goes back."""
        for value in await self.values():
            assert not value.startswith(b"zombie"), f"{value!r} is visible"
        for where, committed in (await self.bus.admin.group_offsets(GROUP)).items():
            assert committed.offset >= self.highest.get(where, 0), f"{where} went back to {committed}"
            self.highest[where] = committed.offset

    async def values(self) -> list[bytes]:
        """What read-committed readers see of the target."""
        where = [TopicPartition(TARGET, number) for number in range(2)]
        ends = await self.bus.admin.list_offsets(dict.fromkeys(where, -1), IsolationLevel.READ_COMMITTED)
        found: list[bytes] = []
        async with self.bus.new_consumer() as reader:
            await reader.assign(where)
            while any([await reader.position(tp) < ends[tp].offset for tp in where]):
                found += [record.value for record in await reader.poll(timeout_ms=0)]
        return found

    async def run(
        self, steps: list[Step], pause_before: int, during: Callable[[], Awaitable[None]]
    ) -> tuple[str, EventBusError] | None:
        """Carry out the steps, with a pause before one of them; the step that failed, and how."""
        for number, (name, step) in enumerate(steps):
            if number == pause_before:
                await during()
                await self.observe()
            try:
                await step()
            except EventBusError as error:
                assert number >= pause_before, f"{name} failed before the pause: {error!r}"
                assert str(error)
                await self.observe()
                return name, error
            await self.observe()
        return None


@asynccontextmanager
async def case(seed: int) -> AsyncIterator[Case]:
    case = Case(seed)
    async with case.bus as bus:
        await bus.admin.create_topic(SOURCE, 1)
        await bus.admin.create_topic(TARGET, 2)
        await bus.send_many(SOURCE, [b"%d" % number for number in range(RECORDS)])
        yield case
        await case.observe()
        transactions = await bus.admin.list_transactions()
        await case.advance(TIMEOUT_MS + 1_000_000)
        for one in await bus.admin.list_transactions():
            assert one.state not in ("Ongoing", "PrepareCommit", "PrepareAbort"), f"{one} hangs, before: {transactions}"
        ends = dict.fromkeys([TopicPartition(TARGET, 0), TopicPartition(TARGET, 1), S0], -1)
        assert await bus.admin.list_offsets(ends, IsolationLevel.READ_COMMITTED) == await bus.admin.list_offsets(
            ends, IsolationLevel.READ_UNCOMMITTED
        ), "a transaction hangs"
        bus.context.backend.engine.broker.check()


def writing(producer: Producer, count: int, group: GroupMetadata | None, offset: int, random: Random) -> list[Step]:
    """The steps of one transaction of a producer that may be a zombie before it ends."""
    steps: list[Step] = [("begin", producer.begin)]

    def send(number: int) -> Step:
        partition = number % 2
        if random.random() < 0.3:

            async def nowait() -> None:
                producer.send_nowait(TARGET, b"zombie %d" % number, partition=partition)

            return "send_nowait", nowait

        async def wait() -> None:
            await producer.send(TARGET, b"zombie %d" % number, partition=partition)

        return "send", wait

    steps += [send(number) for number in range(count)]
    if group is not None:
        where = random.randint(1, len(steps))
        steps.insert(where, ("send_offsets", lambda: producer.send_offsets({S0: offset}, group)))
    steps.append(("commit", producer.commit))
    return steps


async def honest_work(case: Case, transactional_id: str, value: bytes, offset: int) -> None:
    """Somebody who may: a record in each partition, and an offset."""
    async with case.bus.new_producer(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS) as producer:
        await producer.begin()
        for partition in range(2):
            await producer.send(TARGET, value, partition=partition)
        await producer.send_offsets({S0: offset}, GroupMetadata(GROUP))
        await producer.commit()


async def paused_past_its_timeout(case: Case) -> None:
    random = case.random
    async with case.bus.new_producer(transactional_id="p", transaction_timeout_ms=TIMEOUT_MS) as producer:
        group = GroupMetadata(GROUP) if random.random() < 0.6 else None
        steps = writing(producer, random.randint(1, 4), group, 3, random)

        async def pause() -> None:
            await case.advance(TIMEOUT_MS + SWEEP_MS)
            await honest_work(case, "other", b"honest", 5)

        # From the third step on something of the transaction is in the log (or in a batch on its way to it).
        failed = await case.run(steps, random.randint(2, len(steps) - 1), pause)
    if failed is None:  # what was given without waiting may not have reached the log before the pause
        raise AssertionError("a transaction that had timed out was committed")
    assert isinstance(failed[1], PRODUCER_ERRORS), failed
    assert (await case.values()).count(b"honest") == 2


async def taken_over(case: Case) -> None:
    random = case.random
    async with case.bus.new_producer(transactional_id="p", transaction_timeout_ms=TIMEOUT_MS) as producer:
        group = GroupMetadata(GROUP) if random.random() < 0.6 else None
        if random.random() < 0.3:  # it has a past
            await producer.begin()
            await producer.send(TARGET, b"honest before", partition=0)
            await producer.commit()
        else:
            await producer.begin()
            await producer.abort()
        steps = writing(producer, random.randint(1, 4), group, 3, random)

        async def pause() -> None:
            await honest_work(case, "p", b"honest", 5)

        failed = await case.run(steps, random.randint(0, len(steps) - 1), pause)
        assert failed is not None, "a producer whose id was taken over has committed"
        assert isinstance(failed[1], PRODUCER_ERRORS), failed
        with pytest.raises(PRODUCER_ERRORS):  # and it stays so
            await producer.begin()
            await producer.send(TARGET, b"zombie again", partition=0)
            await producer.commit()
    assert (await case.values()).count(b"honest") == 2


async def fenced_by_an_admin(case: Case) -> None:
    random = case.random
    async with case.bus.new_producer(transactional_id="p", transaction_timeout_ms=TIMEOUT_MS) as producer:
        steps = writing(producer, random.randint(1, 4), None, 0, random)

        async def pause() -> None:
            await case.bus.admin.fence_producer("p")

        failed = await case.run(steps, random.randint(2, len(steps) - 1), pause)
    assert failed is not None
    assert isinstance(failed[1], PRODUCER_ERRORS), failed


async def joined(consumer: Consumer) -> Consumer:
    while not consumer.assignment():
        await consumer.poll(timeout_ms=1)
    consumer.seek(S0, 0)
    return consumer


async def paused_member_with_a_transaction(case: Case) -> None:
    """Consume, process, produce: the member is given up on the way, its successor does the same work."""
    random = case.random
    settings = {"group": GROUP, "max_poll_interval_ms": 20_000}
    async with (
        case.bus.new_producer(transactional_id="p1", transaction_timeout_ms=900_000) as producer,
        case.bus.new_consumer(SOURCE, **settings) as member,
    ):
        await joined(member)
        records = await member.poll(timeout_ms=10, max_records=random.randint(1, RECORDS))
        steps = writing(producer, random.randint(1, 3), member.group_metadata(), records[-1].next_offset, random)
        place_of_offsets = [name for name, _ in steps].index("send_offsets")

        async def pause() -> None:
            await case.advance(25_000)
            await successor(case, records[-1].next_offset)

        # Before its offsets are sent: afterwards it is the open transaction that counts, not the membership.
        failed = await case.run(steps, random.randint(0, place_of_offsets), pause)
        assert failed is not None, "a member that was given up has committed offsets"
        assert failed[0] == "send_offsets", failed
        assert isinstance(failed[1], MEMBER_ERRORS), failed
        await producer.abort()
    assert len([value for value in await case.values() if value == b"honest"]) == 2


async def successor(case: Case, offset: int) -> None:
    async with (
        case.bus.new_producer(transactional_id="p2", transaction_timeout_ms=900_000) as producer,
        case.bus.new_consumer(SOURCE, group=GROUP) as member,
    ):
        await joined(member)
        await producer.begin()
        for partition in range(2):
            await producer.send(TARGET, b"honest", partition=partition)
        await producer.send_offsets({S0: max(offset, RECORDS)}, member.group_metadata())
        await producer.commit()


async def paused_member_that_commits(case: Case) -> None:
    random = case.random
    static = "instance" if random.random() < 0.4 else None
    settings = {"group": GROUP, "max_poll_interval_ms": 20_000, "group_instance_id": static}
    async with case.bus.new_consumer(SOURCE, **settings) as member:
        await joined(member)
        mine = random.randint(1, RECORDS - 1)

        async def poll() -> None:
            await member.poll(timeout_ms=1, max_records=mine)

        async def commit() -> None:
            await member.commit({S0: mine})

        steps: list[Step] = [("poll", poll), *[("commit", commit)] * random.randint(1, 3)]

        async def pause() -> None:
            if static is None or random.random() < 0.5:
                await case.advance(50_000)
            async with case.bus.new_consumer(SOURCE, **settings) as other:
                await joined(other)
                await other.commit({S0: RECORDS})

        failed = await case.run(steps, random.randint(1, len(steps) - 1), pause)
    assert failed is not None, "a member that was given up has committed"
    assert isinstance(failed[1], MEMBER_ERRORS), failed
    assert (await case.bus.admin.group_offsets(GROUP))[S0].offset == RECORDS


KINDS = (
    paused_past_its_timeout,
    taken_over,
    fenced_by_an_admin,
    paused_member_with_a_transaction,
    paused_member_that_commits,
)


@pytest.mark.system
@pytest.mark.parametrize("kind", KINDS)
async def test_zombies(kind: Callable[[Case], Awaitable[None]]) -> None:
    for seed in range(60):
        async with case(seed) as one:
            try:
                await kind(one)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


# planted bugs: each is found by a few cases ---------------------------------------------------------------------------


async def found(kind: Callable[[Case], Awaitable[None]]) -> bool:
    for seed in range(12):
        try:
            async with case(seed) as one:
                await kind(one)
        except (AssertionError, ExceptionGroup, pytest.fail.Exception):
            return True
    return False


async def test_commits_of_anybody_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.coordinator.groups.GroupsShard._check_commit", lambda *_, **__: None)
    assert await found(paused_member_that_commits)
    assert await found(paused_member_with_a_transaction)


async def test_timeouts_that_nobody_looks_at_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.broker.transactions.Transactions.tick", lambda *_: None)
    assert await found(paused_past_its_timeout)
