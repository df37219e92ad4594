"""Relays that crash, pause, are fenced and come back at every step, in random order: what the log has is what counts.

Everything runs in one thread, step by step, as a random schedule says: a database in memory, a log in memory, relays
that stop at each of their steps until it is their turn. Rows are committed in any order, but for those of a key.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, cast

import anyio
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import QueuePool

from eventbus import EventBus
from eventbus.client.producer import Producer
from eventbus.errors import RequestTimedOut, TransactionOutcomeUnknown
from outbox import Outbox
from outbox.database import Database
from outbox.relay.relay import Relay
from outbox.relay.work import Work
from tests.tiers import of_today

pytestmark = pytest.mark.system

SHARDS = 4
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
LEASE_MS = 9_000


class _Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class _Here(Database):
    """Transactions in this thread, one at a time; some of them fail, before or after they are committed."""

    fails: Callable[[], str] = staticmethod(lambda: "")

    async def run(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        failure = self.fails()
        if failure == "before":
            raise OperationalError("", {}, Exception("server closed the connection"))
        result = self.run_here(lambda connection: fn(connection, *args, **kwargs))
        if failure == "after":
            raise OperationalError("", {}, Exception("server closed the connection"))
        return result


class _Timers:
    """The clock of all of them, and of the database."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def current_time(self) -> float:
        return self.ms / 1000


class _Thread:
    """A task that the schedule moves from step to step."""

    def __init__(self) -> None:
        self.step = ""
        """The step it has reached."""
        self._turn = anyio.Event()
        self._waits = anyio.Event()
        self._is_killed = False

    async def rest(self, step: str = "between") -> None:
        self.step = step
        self._waits.set()
        await self._turn.wait()
        self._turn = anyio.Event()
        if self._is_killed:
            raise _Killed

    async def live(self, body: Callable[[], Awaitable[object]]) -> None:
        _this.set(self)
        try:
            await self.rest()
            while True:
                await body()
        except (_Killed, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.subgroup(_Killed) is None:
                raise
            self._waits.set()

    async def go_on(self) -> None:
        """Up to its next step."""
        self._waits = anyio.Event()
        self._turn.set()
        await self._waits.wait()

    async def kill(self) -> None:
        self._is_killed = True
        await self.go_on()


_this: ContextVar[_Thread] = ContextVar("_this")


class _Actor(_Thread):
    """A relay, and its cleaner, which deletes concurrently."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.relay = Relay(model.outbox, model.engine, batch_size=model.random.choice((1, 2, 5)))
        self.relay._database = model.database
        self.work = Work(
            model.bus, model.database, model.outbox.tables, self.relay._settings, self.relay._metrics,
            lambda dialect: str(model.timers.ms), self._at, cast("Any", model.timers),
        )  # fmt: skip
        self.cleaner = _Thread()
        self.fails = False
        """Its next step raises an error of the log."""

    def begin(self, tasks: Any) -> None:
        async def step() -> None:
            await self.relay._step(self.work)
            await self.rest()

        async def clean() -> None:
            with suppress(OperationalError):
                await self.work.cleaner.clean()
            await self.cleaner.rest()

        tasks.start_soon(self.live, step)
        tasks.start_soon(self.cleaner.live, clean)

    async def _at(self, step: str) -> None:
        self.model.seen.add(step)
        await _this.get().rest(step)
        is_unlucky = self.model.random.random() < self.model.faults / 4 and step in ("begun", "sent", "receipt")
        if self.fails or is_unlucky:
            self.fails = False
            raise RequestTimedOut("the log does not answer")

    async def go_to(self, *steps: str) -> None:
        """Up to one of these."""
        for _ in range(100):
            await self.go_on()
            if self.step in steps:
                return
        pytest.fail(f"it never came to {steps}")

    async def go_up_to(self, step: str, at_most: int) -> None:
        """Up to this one, if it comes there."""
        for _ in range(at_most):
            await self.go_on()
            if self.step == step:
                return

    async def kill(self) -> None:
        await self.cleaner.kill()
        await super().kill()


class Model:
    """A schedule of relays and faults, drawn from a seed."""

    def __init__(self, seed: int, bus: EventBus, monkeypatch: pytest.MonkeyPatch, seen: set[str]) -> None:
        self.random = random.Random(seed)
        self.bus = bus
        self.seen = seen
        self.timers = _Timers()
        self.faults = self.random.choice((0, 0.02, 0.1))
        url = f"sqlite:///file:model{seed}?mode=memory&cache=shared&uri=true"
        self.engine = create_engine(url, poolclass=QueuePool, pool_size=1)
        self.outbox = Outbox(self.engine, name=f"o{seed}", shards=SHARDS)
        self.outbox.create_tables()
        self.database = _Here(self.engine)
        self.database.fails = self._database_fails
        self.topic = f"t{seed}"
        self.rows: list[tuple[int, bytes]] = []
        """Ids and keys, all that will ever be committed."""
        self._open: dict[bytes, list[int]] = defaultdict(list)
        monkeypatch.setattr(Producer, "commit", self._commit(Producer.commit))

    def _database_fails(self) -> str:
        if self.random.random() >= self.faults:
            return ""
        return self.random.choice(("before", "after"))

    def _commit(self, commit: Any) -> Any:
        async def unsure(producer: Producer) -> None:
            if self.random.random() < self.faults:
                raise TransactionOutcomeUnknown("not answered, and not done")
            await commit(producer)
            if self.random.random() < self.faults:
                raise TransactionOutcomeUnknown("not answered, and done")

        return unsure

    def _begin(self) -> None:
        """A transaction takes an id; it is committed later. Those of one key exclude each other."""
        key = self.random.choice(KEYS)
        self.rows.append((len(self.rows) + 1, key))
        self._open[key].append(len(self.rows))

    def _end(self) -> None:
        """Some key's first open transaction commits, whatever is open with a lower id."""
        keys = [key for key, ids in self._open.items() if ids]
        if keys:
            key = self.random.choice(sorted(keys))
            self._insert(self._open[key].pop(0), key)

    def _insert(self, id_: int, key: bytes) -> None:
        row = {
            "id": id_,
            "event_id": f"{id_:036}",
            "shard": KEYS.index(key) % SHARDS,
            "topic": self.topic,
            "key": key,
            "value": b"%d" % id_,
            "timestamp_ms": self.timers.ms,
        }
        with self.engine.begin() as connection:
            connection.execute(self.outbox.tables.events.insert(), row)

    def write(self, key: bytes = b"a") -> None:
        """A row that is committed at once."""
        self.rows.append((len(self.rows) + 1, key))
        self._insert(len(self.rows), key)

    async def run(self) -> None:
        # The events are as old as the model's clock says: retention would delete them after 30 s.
        await self.bus.admin.create_topic(self.topic, partitions=2, configs={"retention.ms": -1})
        async with anyio.create_task_group() as tasks:
            actors: list[_Actor] = []

            def start() -> None:
                actors.append(_Actor(self))
                actors[-1].begin(tasks)

            for _ in range(self.random.choice((1, 2, 3))):
                start()
            await anyio.lowlevel.checkpoint()
            favourite = actors[0]
            for _ in range(self.random.randrange(50, 250)):
                dice = self.random.random()
                if dice < 0.1:
                    self._begin()
                elif dice < 0.2:
                    self._end()
                elif dice < 0.24:
                    self.timers.ms += self.random.choice((1, 100, 4_501, 9_500))
                elif dice < 0.27:
                    gone = self.random.choice(actors)
                    await gone.kill()
                    actors.remove(gone)
                    start()
                    await anyio.lowlevel.checkpoint()
                else:
                    if dice < 0.35:
                        favourite = self.random.choice(actors)
                    chosen = favourite if favourite in actors and dice < 0.8 else self.random.choice(actors)
                    await (chosen if self.random.random() < 0.75 else chosen.cleaner).go_on()
            await self.come_to_rest(actors)
            for one in actors:
                await one.kill()

    async def come_to_rest(self, actors: list[_Actor]) -> None:
        self.faults = 0
        while any(self._open.values()):
            self._end()
        for _ in range(600):
            for one in actors:
                for _ in range(12):
                    await one.go_on()
                for _ in range(6):
                    await one.cleaner.go_on()
            if not self.left():
                return
            self.timers.ms += 5_000
        pytest.fail(f"rows are left: {self.left()}")

    def left(self) -> list[int]:
        with self.engine.begin() as connection:
            return [row.id for row in connection.execute(self.outbox.tables.events.select())]

    async def published(self) -> list[tuple[bytes, int]]:
        async with self.bus.new_consumer(topics=[self.topic], start="earliest") as consumer:
            return [(record.key, int(record.value)) async for record in consumer.until_end()]


async def check(model: Model) -> None:
    published = await model.published() if model.rows else []
    assert sorted(id_ for _, id_ in published) == [id_ for id_, _ in model.rows], "each once"
    for key in KEYS:
        ids = [id_ for its_key, id_ in published if its_key == key]
        assert ids == sorted(ids), f"the order of {key!r}"


async def check_all(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    async with EventBus("memory://", slow_loop_ms=None) as bus:
        for seed in seeds:
            try:
                with monkeypatch.context() as patch:
                    model = Model(seed, bus, patch, seen)
                    await model.run()
                    await check(model)
                model.engine.dispose()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    steps = {"entered", "fenced", "renewed", "settled", "looked", "shared", "released", "reaped"}
    steps |= {"taken", "begun", "sent", "receipt", "committed", "deleting", "deleted"}
    assert seen >= steps


async def test_nothing_is_lost_nothing_comes_twice_and_keys_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_all(range(5), monkeypatch)


@pytest.mark.slow
async def test_many_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_all(of_today(range(1_000, 6_000)), monkeypatch)


# schedules that chance does not find --------------------------------------------------------------------------------


@asynccontextmanager
async def two_relays(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Model, _Actor, _Actor]]:
    """Yield two relays without faults. At the end everything they have published is checked."""
    async with EventBus("memory://", slow_loop_ms=None) as bus, anyio.create_task_group() as tasks:
        model = Model(0, bus, monkeypatch, set())
        model.faults = 0
        await bus.admin.create_topic(model.topic, partitions=2)
        actors = _Actor(model), _Actor(model)
        for one in actors:
            one.begin(tasks)
        await anyio.lowlevel.checkpoint()
        yield model, *actors
        await model.come_to_rest(list(actors))
        for one in actors:
            await one.kill()
        await check(model)
        model.engine.dispose()


@pytest.mark.parametrize("steps", range(12))
async def test_a_relay_that_sleeps_past_its_lease_as_it_starts(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_relays(monkeypatch) as (model, sleeper, other):
        model.write()
        for _ in range(steps):
            await sleeper.go_on()
        model.timers.ms += LEASE_MS + 500
        model.write()
        await other.go_to("committed")
        for _ in range(20):
            await sleeper.go_on()


@pytest.mark.parametrize("steps", range(12))
async def test_a_relay_that_sleeps_past_its_lease_as_it_recovers(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error it takes its transactional id up again: that alone must not make it the owner of its shards."""
    async with two_relays(monkeypatch) as (model, sleeper, other):
        model.write()
        await sleeper.go_to("committed")
        for _ in range(4):
            await sleeper.cleaner.go_on()
        assert not model.left()
        await other.go_to("looked")
        model.write()
        await sleeper.go_to("sent")
        sleeper.fails = True
        for _ in range(steps):
            await sleeper.go_on()
        model.timers.ms += LEASE_MS - 100
        await other.work.keeper.renew()
        model.timers.ms += 200
        await other.go_up_to("committed", 30)
        for _ in range(20):
            await sleeper.go_on()


async def test_a_relay_that_came_back_while_it_was_reaped_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is over once more when it is taken away: but its producer is not the one that was fenced."""
    async with two_relays(monkeypatch) as (model, sleeper, other):
        model.write()
        await sleeper.go_to("committed")
        model.timers.ms += LEASE_MS - 10
        await other.go_to("entered")
        model.timers.ms += 20
        await other.go_to("looked")
        await other.go_to("settled")  # it has fenced the sleeper
        model.write()
        await sleeper.go_to("fenced")
        await sleeper.go_to("sent")
        model.timers.ms += LEASE_MS - 100
        await other.work.keeper.renew()
        model.timers.ms += 200
        await other.go_up_to("committed", 30)
        for _ in range(20):
            await sleeper.go_on()


async def test_shards_are_let_go_of_when_nothing_of_them_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_relays(monkeypatch) as (model, first, second):
        model.write(KEYS[3])
        await first.go_to("committed")  # and its cleaner sleeps
        await second.go_to("looked")
        model.timers.ms += 4_600
        await first.go_to("released")
        model.timers.ms += 4_600
        await second.go_to("shared")
        await second.go_up_to("committed", 20)
