"""Interrupt handlers anywhere: unfinished records are never committed, finished ones never lost or repeated.

Each trial gives a handler some records, does something to it (the bus closes, its task is cancelled, partitions move,
...) after a number of turns of the event loop, starts the bus again and lets it drain. In a turn every task takes a
single step, so the turns cover every place at which a task can be interrupted.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition, Transaction
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.embedded_consumer import EmbeddedConsumer
from eventbus.errors import EventBusError, RebalanceInProgress
from eventbus.testing.clock import FakeClock
from tests.client.trial_handlers import KINDS, Kind, Scene
from tests.client.trials import LOGS, CommitWatch, Item, Ledger, run_the_same, turns
from tests.support import examples
from tests.tiers import of_today, quick

TRIALS_PER_LOG = 6
MOST_TURNS = 48
"""After so many turns the records are handled and committed."""
KEYS = (b"a", b"b", b"c")
SESSION_MS = ConsumerConfig().session_timeout_ms


class Log:
    """A log that outlives the buses of its trials."""

    def __init__(self, keeper: EventBus, clock: FakeClock) -> None:
        self.keeper = keeper
        self.clock = clock
        self.watch = CommitWatch(self.engine.broker.groups)
        self.trials = 0

    @property
    def engine(self) -> Any:
        return self.keeper.context.backend.engine


@asynccontextmanager
async def log() -> Any:
    clock = FakeClock()
    async with EventBus(f"memory://trials-{next(LOGS)}", clock=clock) as keeper:
        yield Log(keeper, clock)


class Member:
    """A bus with the handler, in a separate task."""

    def __init__(self, trial: Trial, name: str) -> None:
        self.bus = EventBus(trial.log.keeper.url, client_id=name, clock=trial.log.clock)
        trial.kind.declare(
            Scene(self.bus, trial.topic, trial.out, trial.group, trial.ledger, name, trial.pause, trial.is_last),
            **trial.kind.options,
        )
        self.trial = trial
        self.scope = anyio.CancelScope()
        self.stop = anyio.Event()
        self.ended = anyio.Event()

    async def live(self) -> None:
        try:
            with self.scope:
                async with self.bus:
                    await self.stop.wait()
        finally:
            self.ended.set()

    def stop_at_once(self) -> None:
        """A second signal, or the end of the time to drain."""
        self.trial.may_repeat |= self.trial.kind.is_sparse and not self.ended.is_set()
        self.stop.set()
        for runner in self.bus.context.runners:
            runner.cancel()

    def cancel(self) -> None:
        if self.trial.kind.is_sparse and not self.ended.is_set():
            self.trial.may_repeat = True
        self.scope.cancel()


class Trial:
    """A handler's life, its end, and the life after it."""

    def __init__(self, log: Log, kind: Kind, partitions: int = 2) -> None:
        log.trials += 1
        self.log = log
        self.kind = kind
        self.partitions = partitions
        self.topic, self.out, self.group = (f"{name}{log.trials}" for name in ("t", "o", "g"))
        self.ledger = Ledger(kind.order)
        self.sent = dict.fromkeys(range(partitions), 0)
        self.members: list[Member] = []
        self.pauses: Callable[[Item], int] = lambda item: item.index % 3
        self.may_repeat = False
        """A member lost its partitions, and with them what it had finished but not committed."""
        self.may_have_ghosts = False
        """A member that left before the coordinator restarted may be a member again, see `restart_coordinator`."""

    @property
    def alive(self) -> list[Member]:
        return [member for member in self.members if not member.stop.is_set() and not member.scope.cancel_called]

    async def prepare(self) -> None:
        for topic, partitions in ((self.topic, self.partitions), (self.out, 1)):
            await self.log.keeper.admin.create_topic(topic, partitions)
        self.log.watch.checks = (
            {} if self.kind.exactly_once or self.kind.at_most_once else {self.group: self.unfinished}
        )

    def send(self, count: int) -> None:
        for number in range(count):
            partition = number % self.partitions
            index = self.sent[partition]
            item = Item(partition, index, KEYS[(index * 7 + partition) % len(KEYS)])
            self.log.keeper.send_nowait(self.topic, item.value, key=item.key, partition=partition)
            self.sent[partition] += 1

    async def pause(self, item: Item) -> None:
        await turns(self.pauses(item))

    def is_last(self, item: Item) -> bool:
        return item.index == self.sent[item.partition] - 1

    def unfinished(self, partition: int, offset: int) -> str:
        first = self.ledger.prefix(partition)
        return f"committed {offset} of partition {partition}, but {first} is unfinished" if offset > first else ""

    async def run(self, act: Callable[[Trial], Awaitable[None]]) -> None:
        await self.prepare()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as self.tasks:
                await act(self)
                while self.kind.is_manual and not all(member.ended.is_set() for member in self.members):
                    await self.log.clock.advance(seconds=1)  # closing waits for acknowledgements, for a while
            await self.log.keeper.flush()
            await self.check_what_is_committed()
            await self.drain()
            await self.check_all()

    def join(self) -> Member:
        member = Member(self, f"{self.group}.{len(self.members)}")
        self.members.append(member)
        self.tasks.start_soon(member.live)
        return member

    async def drain(self) -> None:
        if self.may_have_ghosts:
            await self.log.clock.advance(ms=SESSION_MS + 1)
        again = Member(self, f"{self.group}.again")
        async with again.bus as bus:
            await bus.drain()

    async def committed(self) -> dict[int, int]:
        found = await self.log.keeper.admin.group_offsets(self.group)
        return {at.partition: offset.offset for at, offset in found.items()}

    async def outputs(self) -> Counter[Item]:
        """Return the committed outputs."""
        where = TopicPartition(self.out, 0)
        found: Counter[Item] = Counter()
        async with self.log.keeper.new_consumer() as reader:
            await reader.assign([where])
            end = (await reader.end_offsets(where))[where]
            while await reader.position(where) < end:
                found.update(Item.of(record.value) for record in await reader.poll(0))
        return found

    async def check_what_is_committed(self) -> None:
        assert not self.log.watch.errors, self.log.watch.errors
        committed = await self.committed()
        for partition, offset in committed.items():
            assert self.kind.at_most_once or not self.unfinished(partition, offset), self.unfinished(partition, offset)
        if self.kind.copies:
            outputs = await self.outputs()
            below = Counter(
                {item: self.kind.copies for item in self.ledger.begun if item.index < committed.get(item.partition, 0)}
            )
            assert below <= outputs, f"committed, but not published: {below - outputs}"
            if self.kind.exactly_once:
                assert below == outputs, f"published, but not committed: {outputs - below}"

    async def check_all(self) -> None:
        kind, ledger = self.kind, self.ledger
        assert not self.log.watch.errors, self.log.watch.errors
        if not (kind.at_most_once and ledger.overlaps_allowed):
            # A member that was removed continues with what it had committed before: no other member has it.
            ledger.check_order()
        if kind.at_most_once:
            again = [item for item, times in ledger.begun.items() if times > 1]
            assert not again, f"begun twice: {again}"
        if not kind.at_most_once or not self.may_repeat:
            ledger.check_nothing_lost(self.sent)
        if not self.may_repeat and not kind.exactly_once:
            ledger.check_nothing_repeated()
        committed = await self.committed()
        assert committed == {partition: count for partition, count in self.sent.items() if count}, committed
        if kind.copies:
            outputs = await self.outputs()
            assert set(outputs) == set(ledger.finished)
            if kind.exactly_once:
                assert set(outputs.values()) <= {kind.copies}, outputs


# what happens to it ---------------------------------------------------------------------------------------------------


async def send(trial: Trial, random: Random) -> None:
    trial.send(random.randrange(1, 7))


async def join(trial: Trial, random: Random) -> None:
    if len(trial.alive) < 3:
        trial.join()


async def close_one(trial: Trial, random: Random) -> None:
    if trial.alive:
        random.choice(trial.alive).stop.set()


async def cancel_one(trial: Trial, random: Random) -> None:
    if trial.alive:
        random.choice(trial.alive).cancel()


async def kick(trial: Trial, random: Random) -> None:
    """The group throws all its members out, as it does with those it has not heard of for a session's time."""
    trial.may_repeat = trial.ledger.overlaps_allowed = True
    await trial.log.keeper.admin.remove_group_members(trial.group)


async def restart_coordinator(trial: Trial, random: Random) -> None:
    """Let another broker read the group from its log. A member whose join was parked asks again.

    As in Kafka, a departure is stored with the next generation. Until then the new broker treats the departed as a
    member, and a joining member waits until that session has ended. (A log that is opened begins without such ghosts.)
    """
    trial.may_have_ghosts = True
    engine = trial.log.engine
    groups = engine.broker.groups
    number = groups.partition_of(trial.group).partition
    del groups._shards[number]
    groups.load(number, engine.now_ms())
    for member in list(engine.members_of(trial.group)):
        if member._state in ("joining", "syncing"):
            member.refused(RebalanceInProgress("the coordinator was restarted"))
    engine.deadline_changed()


async def let_time_pass(trial: Trial, random: Random) -> None:
    """Long enough for a commit, or for nothing but what can be done at once."""
    await trial.log.clock.advance(ms=random.choice([0, 99, 150, 3_100]))


ACTIONS = {send: 8, join: 4, close_one: 2, cancel_one: 2, kick: 1, restart_coordinator: 2, let_time_pass: 5}


async def at_random(seed: int, trial: Trial) -> None:
    random = Random(seed)
    shift = random.randrange(5)
    trial.pauses = lambda item: (item.index * 5 + item.partition + shift) % 4
    trial.join()
    trial.send(random.randrange(2, 14))
    for _ in range(random.randrange(6)):
        await turns(random.randrange(25))
        (act,) = random.choices(list(ACTIONS), list(ACTIONS.values()))
        await act(trial, random)
    await turns(random.randrange(25))
    for member in trial.alive:
        how = random.randrange(6)
        if how != 0:
            member.stop.set()
        if how in (1, 2):
            await turns(random.randrange(25))
        if how < 2:
            member.cancel()
        elif how < 4:
            member.stop_at_once()


# at every turn --------------------------------------------------------------------------------------------------------


async def close(trial: Trial) -> None:
    trial.members[0].stop.set()


async def cancel(trial: Trial) -> None:
    trial.members[0].cancel()


async def signal_twice(trial: Trial) -> None:
    trial.members[0].stop.set()
    await turns(3)
    trial.members[0].stop_at_once()


async def revoke(trial: Trial) -> None:
    """Another member joins and leaves again: partitions go and come back, twice."""
    other = trial.join()
    await turns(30)
    other.stop.set()
    while not other.ended.is_set():
        await (trial.log.clock.advance(seconds=1) if trial.kind.is_manual else turns(1))
    trial.members[0].stop.set()


async def take_over(trial: Trial) -> None:
    """Another member joins, and this one closes while they share."""
    other = trial.join()
    await turns(25)
    trial.members[0].stop.set()
    await turns(10)
    other.cancel()


ENDS = {"close": close, "cancel": cancel, "signal_twice": signal_twice, "revoke": revoke, "take_over": take_over}


async def at_turn(turn: int, end: Callable[[Trial], Awaitable[None]], trial: Trial) -> None:
    trial.join()
    trial.send(8)
    await turns(turn)
    await end(trial)


async def trials(kind: Kind, acts: Iterable[tuple[str, Callable[[Trial], Awaitable[None]]]]) -> int:
    count = 0
    waiting = list(acts)
    while waiting:
        some, waiting = waiting[:TRIALS_PER_LOG], waiting[TRIALS_PER_LOG:]
        async with log() as one:
            for name, act in some:
                try:
                    await Trial(one, kind).run(act)
                except BaseException as error:
                    error.add_note(name)
                    raise
                count += 1
    return count


def random_ends(seeds: Iterable[int]) -> list[tuple[str, Callable[[Trial], Awaitable[None]]]]:
    return [(f"seed {seed}", functools.partial(at_random, seed)) for seed in seeds]


def every_turn(step: int) -> list[tuple[str, Callable[[Trial], Awaitable[None]]]]:
    return [
        (f"{end} at turn {turn}", functools.partial(at_turn, turn, act))
        for end, act in ENDS.items()
        for turn in range(0, MOST_TURNS, step)
    ]


@pytest.mark.system
@pytest.mark.parametrize("name", KINDS)
def test_interrupted_at_random(name: str) -> None:
    run_the_same("asyncio", trials, KINDS[name], random_ends(range(examples(4, 8))))
    run_the_same("trio", trials, KINDS[name], random_ends(range(40, 40 + examples(3, 5))))


@pytest.mark.system
@pytest.mark.parametrize(
    "name", quick(KINDS, ["record", "by_key_plain", "batch", "at_most_once", "exactly_once_plain"])
)
def test_interrupted_at_many_turns(name: str) -> None:
    run_the_same("asyncio", trials, KINDS[name], every_turn(13))
    run_the_same("trio", trials, KINDS[name], every_turn(24))


@pytest.mark.system
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_last_commit_after_a_cancel_begins_no_record(backend: str) -> None:
    """The commit makes room for records of other keys, but the workers' task group has ended."""
    acts = [(f"cancel at turn {turn}", functools.partial(at_turn, turn, cancel)) for turn in range(10)]
    run_the_same(backend, trials, KINDS["by_key_producer"], acts)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", KINDS)
def test_interrupted_at_every_turn(name: str, backend: str) -> None:
    run_the_same(backend, trials, KINDS[name], every_turn(1))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("name", KINDS)
def test_interrupted_at_random_for_long(name: str, backend: str) -> None:
    run_the_same(backend, trials, KINDS[name], random_ends(of_today(range(10_000, 11_000))))


# planted bugs: the trials can fail ------------------------------------------------------------------------------------


def found(name: str) -> bool:
    for seed in range(0, 60, 10):
        try:
            run_the_same("asyncio", trials, KINDS[name], random_ends(range(seed, seed + 10)))
        except (AssertionError, ExceptionGroup, EventBusError):
            return True
    return False


@pytest.mark.parametrize("name", ["payload", "batch", "producer"])
def test_a_commit_of_one_record_too_many_would_be_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = EmbeddedConsumer.commit

    async def one_more(self: EmbeddedConsumer, offsets: Any) -> None:
        ends = await self.end_offsets(offsets)
        await commit(self, {tp: OffsetAndMetadata(min(at.offset + 1, ends[tp])) for tp, at in offsets.items()})

    monkeypatch.setattr(EmbeddedConsumer, "commit", one_more)
    assert found(name)


def test_a_commit_that_is_not_made_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = EmbeddedConsumer.commit
    made = itertools.count()

    async def now_and_then(self: EmbeddedConsumer, offsets: Any) -> None:
        if next(made) % 3:
            await commit(self, offsets)

    monkeypatch.setattr(EmbeddedConsumer, "commit", now_and_then)
    assert found("payload")


def test_a_partition_that_moves_while_its_record_is_at_work_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: EmbeddedConsumer, member: Any, step: Any) -> None:
        self._gave_up(member, step)

    monkeypatch.setattr(EmbeddedConsumer, "_give_up", at_once)
    assert found("record")


@pytest.mark.system
@pytest.mark.parametrize("name", ["plain", "exactly_once"])
def test_a_record_that_is_skipped_would_be_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    starting = EmbeddedConsumer._starting_offset

    def one_further(self: EmbeddedConsumer, topic_partition: TopicPartition) -> int:
        offset = starting(self, topic_partition)
        return offset + 1 if 0 < offset < self._engine.broker.list_offsets(topic_partition, -1).offset else offset

    monkeypatch.setattr(EmbeddedConsumer, "_starting_offset", one_further)
    assert found(name)


def test_a_transaction_without_its_offsets_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Transaction, offsets: Any, group: Any) -> None: ...

    monkeypatch.setattr(Transaction, "send_offsets", nothing)
    assert found("exactly_once")
