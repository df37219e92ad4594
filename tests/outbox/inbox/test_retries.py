"""tx= with retry= and dead_letter=: whatever dies between two steps, a record has one end."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from dlq import Reject, Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.backends.urls import broker_config
from eventbus.client.handling.forwarding import Moves
from eventbus.recovery import RetryOrder
from eventbus.testing import FakeClock
from eventbus.testing.bus import bus_on
from eventbus.testing.crash_disk import Disk
from eventbus.testing.crash_process import Instant, Process, Settings
from outbox import Inbox
from outbox.calls import Call
from outbox.claims import Claims
from outbox.units import AsynchronousUnits
from tests.databases import THREE, Database
from tests.outbox.inbox.given import (
    T0,
    Ledger,
    batch_handler_of,
    dead_letters,
    fill,
    group_of,
    log_of,
    records_of,
    row_of,
    service,
)
from tests.support import until

pytestmark = pytest.mark.system

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)
_ROW = text("INSERT INTO ledger (part, off, value) VALUES (:part, :off, :value)")


class Plan:
    """A record's value says how many calls of it fail; "never" is not to be helped, "reject" at once."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def __call__(self, record: ConsumerRecord, session: Any) -> None:
        self.calls[record.offset] += 1
        value = (record.value or b"").decode()
        if value == "reject":
            raise Reject("no such customer")
        if value == "never" or self.calls[record.offset] <= int(value):
            raise ValueError(f"call {self.calls[record.offset]}")


PLANS = ["0", "1", "never", "0", "3", "reject", "0", "2", "0"]
"""With an immediate retry and a delayed one: "1" is handled at once, "2" from the retry topic, "3" not at all."""
DONE, DEAD = [0, 1, 3, 6, 7, 8], ["3", "never", "reject"]


async def settled(bus: EventBus, condition: Callable[[], object]) -> None:
    """Wait until no record waits for a retry, and everything is stored."""
    recovering = bus.context.runners[0].failure_policy
    assert recovering is not None
    await until(
        lambda: condition() and recovering.waiting and not any(map(len, recovering.waiting.values())),
        poll_seconds=0.002,
    )
    await bus.drain()


@pytest.mark.parametrize("database", THREE, indirect=True)
@pytest.mark.parametrize("order", ["key", "partition", "none"])
async def test_each_record_has_one_end(database: Database, order: RetryOrder) -> None:
    ledger, plan = Ledger(database), Plan()
    policy = Retry(immediate=1, delays=(0.01,), jitter=False, order=order)
    async with log_of(0, 1) as log:
        await fill(log, 0, PLANS, key="k")
        async with service(log.url, ledger, plan, retry=policy) as bus:
            await settled(bus, lambda: len(ledger.rows()) == len(DONE) and plan.calls[4] == 3)
        assert [offset for _, offset in ledger.rows()] == DONE and sorted(await dead_letters(log)) == DEAD
        assert ledger.stored() == {T0: len(PLANS)} and (await group_of(log))[T0] == len(PLANS)


class Number(msgspec.Struct):
    n: int


@on_files
async def test_a_batch_with_a_record_that_cannot_be_read(database: Database) -> None:
    ledger = Ledger(database)

    def plain(values: list[Number], session: Session) -> None:
        session.execute(_ROW, [{"part": 0, "off": value.n, "value": ""} for value in values])

    async def asynchronous(values: list[Number], session: AsyncSession) -> None:
        await session.execute(_ROW, [{"part": 0, "off": value.n, "value": ""} for value in values])

    async with log_of(0, 1) as log:
        await fill(log, 0, ['{"n": 0}', '{"n": 1}', "no number", '{"n": 3}', '{"n": 4}'])
        handler = asynchronous if database.is_async else plain
        async with service(log.url, ledger, handler=handler, batch=True, dead_letter=True) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, n) for n in (0, 1, 3, 4)] and await dead_letters(log) == ["no number"]


@on_sqlite
async def test_a_batch_that_fails_goes_one_by_one(database: Database) -> None:
    ledger, calls = Ledger(database), list[list[int]]()
    write = batch_handler_of(False, calls)

    def refuse(records: list[ConsumerRecord], session: Session) -> None:
        write(records, session)
        if any(record.value == b"bad" for record in records):
            raise ValueError("bad")

    async with log_of(0, 1) as log:
        await fill(log, 0, [0, 1, "bad", 3, "bad", 5])
        async with service(log.url, ledger, handler=refuse, batch=True, dead_letter=True) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, n) for n in (0, 1, 3, 5)] and await dead_letters(log) == ["bad", "bad"]


@on_sqlite
async def test_nothing_is_handled_behind_a_record_that_is_not_stored_elsewhere_yet(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the database would show the record as handled, and a crash would lose it."""
    ledger, plan, stored = Ledger(database), Plan(), list[dict[Any, int]]()
    write = Moves._write

    async def look_first(self: Moves, driver: Any, *arguments: Any) -> None:
        stored.append(ledger.stored())
        await write(self, driver, *arguments)

    monkeypatch.setattr(Moves, "_write", look_first)
    async with log_of(0, 1) as log:
        await fill(log, 0, ["0", "never", "0", "0", "reject", "0"])
        async with service(log.url, ledger, plan, dead_letter=True) as bus:
            await bus.drain()
        assert stored == [{T0: 1}, {T0: 4}] and ledger.stored() == {T0: 6}


@on_sqlite
async def test_an_entry_whose_transaction_was_committed_is_not_handled_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies between the database's commit and the log's."""
    ledger, plan = Ledger(database), Plan()
    policy = Retry(immediate=0, delays=(0.01,), jitter=False)
    async with log_of(0, 1) as log:
        await fill(log, 0, ["1"])

        async def never(*arguments: Any) -> None:
            await anyio.sleep_forever()

        bus = service(log.url, ledger, plan, retry=policy, drain_timeout_ms=10)
        async with bus:
            await until(lambda: bus.context.runners[0].counts.retried, poll_seconds=0.002)
            await bus.context.runners[0].commit()
            monkeypatch.setattr(Moves, "commit", never)
            await until(ledger.rows, poll_seconds=0.002)
            await bus.close()
        monkeypatch.undo()
        assert ledger.rows() == [(0, 0)] and plan.calls[0] == 2
        async with service(log.url, ledger, plan, retry=policy) as bus:
            await settled(bus, lambda: bus.context.runners[0].counts.handled)
        assert ledger.rows() == [(0, 0)] and plan.calls[0] == 2


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
async def test_retry_partitions_that_move_between_members(database: Database) -> None:
    """Records and waiting retries move to other members while they are handled."""
    ledger = Ledger(database)
    policy = Retry(immediate=0, delays=(0.01, 0.02), jitter=False, order="none")

    def fail(record: ConsumerRecord, session: Session) -> None:
        _fails(record)

    async with log_of(0) as log:
        for partition in range(2):
            await fill(log, partition, ["0", "1", "2", "never"] * 8)
        for name in ("one", "two", "three"):
            one = service(log.url, ledger, fail, retry=policy, client_id=name)
            other = service(log.url, ledger, fail, retry=policy, client_id=f"{name}-beside")
            async with one, other:
                at_least = len(ledger.rows()) + 4
                await until(lambda at_least=at_least: len(ledger.rows()) >= min(at_least, 48), poll_seconds=0.002)
        async with service(log.url, ledger, fail, retry=policy) as bus:
            await settled(bus, lambda: len(ledger.rows()) >= 48)
        assert ledger.rows() == [(part, off) for part in range(2) for off in range(32) if off % 4 != 3]
        assert await dead_letters(log) == ["never"] * 16


@on_sqlite
async def test_what_an_older_database_has_lost_is_handled_once(database: Database) -> None:
    """Restored from a backup: a record that was set aside since is read again, and waits for its next try as well."""
    ledger, plan = Ledger(database), Plan()
    policy = Retry(immediate=0, delays=(0.3,), jitter=False)
    async with log_of(0, 1) as log:
        await fill(log, 0, ["0", "1", "0"])
        async with service(log.url, ledger, plan, retry=policy) as bus:
            await until(lambda: len(ledger.rows()) == 2 and bus.context.runners[0].counts.retried, poll_seconds=0.002)
            await bus.context.runners[0].commit()
        ledger.store(T0, 0)
        with database.plain.begin() as connection:
            connection.execute(text("DELETE FROM ledger"))
        async with service(log.url, ledger, plan, retry=policy) as bus:
            await settled(bus, lambda: bus.context.runners[0].counts.handled == 4)
        assert ledger.rows() == [(0, 0), (0, 1), (0, 2)] and plan.calls == {0: 2, 1: 2, 2: 2}
        [topic] = await log.admin.describe_topics(["t"])
        assert sorted(ledger.ids()) == [f"record:{topic.topic_id}:0:{n}" for n in range(3)]
        await Inbox(ledger.sessions).forget("g", T0)
        assert ledger.ids() == [] and ledger.stored() == {}


# a death at every step ------------------------------------------------------------------------------------------------


class Inline(AsynchronousUnits):
    """Calls the handler on the loop without threads, so that each life is reproducible. Reports each of its commits."""

    at: Callable[[str], Any]

    async def _once(self, call: Call, function: Callable[..., Any]) -> tuple[bool, Any]:
        engine = cast("Engine", self._database.engine)
        result, options = None, call.begins()
        with engine.connect().execution_options(**options) as connection, connection.begin() as transaction:
            due = call.claim(connection)
            if due:
                with self._session(connection) as session:
                    result = await function(**call.given(due), **{self._parameter: session})
                    session.commit()
            await self.at("before")
            transaction.commit()
            await self.at("after")
        return True, result

    async def passed(self, partition: Any, next_offset: int) -> None:
        await self.at("before")
        await super().passed(partition, next_offset)
        await self.at("after")


class InlineInbox(Inbox):
    """Asynchronous by its word, on a plain engine."""

    at: Callable[[str], Any]

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.is_async = True

        async def here(call: Callable[[], Any]) -> Any:
            return call()

        vars(self.database)["_in_thread"] = here  # a real thread would end a life: nothing moves meanwhile

    @property
    def _session_class(self) -> type:
        return Session

    def open(self, handler: str, group: str, parameter: str, annotation: Any) -> Any:
        claims = Claims(group, table="eventbus_offsets", schema=None)
        units = Inline(self.database, claims, handler, parameter, self._factory, None, 0, creates=True)
        units.at = self.at
        return units


class Trials:
    """Lives of a service on a disk and a database that begin alike."""

    def __init__(self, folder: Path, order: RetryOrder, batch: int | bool) -> None:
        self._folder = folder
        self._order: RetryOrder = order
        self._batch = batch
        self._clock = FakeClock()
        self.config: dict[str, Any] = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
        self._count = 0

    async def begin(self, values: list[str]) -> tuple[Disk, Path]:
        disk, database = Disk(), self._new_database()
        with _opened(database) as engine, engine.begin() as connection:
            connection.execute(text("CREATE TABLE ledger (part INTEGER, off BIGINT, value VARCHAR(100))"))

        async def send(bus: EventBus) -> None:
            for value in values:
                await bus.send("t", value.encode(), key=b"k" if len(value) > 1 else value.encode(), partition=0)

        bus = EventBus("memory://")
        bus.topic("t", partitions=1)
        await Process(bus, disk, Settings(self._clock, broker_config(self.config), send, 60)).only_publish()
        return disk, database

    def _new_database(self, of: Path | None = None) -> Path:
        self._count += 1
        path = self._folder / f"{self._count}.db"
        if of is not None:
            shutil.copy(of, path)
        return path

    async def live(self, disk: Disk, database: Path, ends_at: Instant | int | None = None) -> tuple[Process, Path]:
        database = self._new_database(database)
        with _opened(database) as engine:
            bus, inbox = EventBus("memory://"), InlineInbox(engine)
            bus.topic("t", partitions=1)
            process = Process(
                bus, disk.copy(), Settings(self._clock, broker_config(self.config), _idle, 60), ends_at, "kill"
            )

            hit, survivor = process._hit, list[Path]()

            def look(when: Any, what: str) -> bool:
                is_over = hit(when, what)
                if process.ended_at is not None and not survivor:
                    survivor.append(self._new_database(database))  # what a dead process goes on to do is not done
                return is_over

            process._hit = look

            async def at(when: str) -> None:
                if process._hit(cast(Any, when), "commit of the database"):
                    await process._rest()
                await anyio.lowlevel.checkpoint()

            inbox.at = at
            policy = Retry(immediate=1, delays=(0.2,), jitter=False, order=self._order)
            handler = _batches if self._batch else _singly
            bus.consumer("t", group="g", name="handle", tx=inbox, retry=policy, batch=self._batch)(handler)
            await process.live()
            assert process.error is None, process.error
        return process, survivor[0] if survivor else database


def _fails(record: ConsumerRecord) -> None:
    from eventbus.delays.retry_records import attempts_of

    value, attempt = (record.value or b"").decode(), attempts_of(record).attempt
    if value == "reject":
        raise Reject("no such customer")
    if value == "never" or attempt < int(value):
        raise ValueError("not yet")


async def _singly(record: ConsumerRecord, session: Session) -> None:
    session.execute(_ROW, row_of(record))
    await anyio.lowlevel.checkpoint()
    _fails(record)


async def _batches(records: list[ConsumerRecord], session: Session) -> None:
    session.execute(_ROW, [row_of(record) for record in records])
    await anyio.lowlevel.checkpoint()
    for record in records:
        _fails(record)


@contextmanager
def _opened(path: Path) -> Generator[Engine]:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0, "check_same_thread": False})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    yield engine
    engine.dispose()


async def _idle(bus: EventBus) -> None:
    """Keep a life running while anything moves, not only until all records are handled."""
    await anyio.sleep_forever()


async def _ends(disk: Disk, database: Path, **config: Any) -> tuple[list[int], list[int]]:
    """Return the offsets of records that had their effect, and of dead letters."""
    with _opened(database) as engine, engine.connect() as connection:
        done = list(connection.execute(text("SELECT off FROM ledger ORDER BY off")).scalars())
    async with bus_on(disk.copy(), **config) as bus:
        letters = await records_of(bus, "dlq.g")
        return done, sorted(int(dict(one.headers)["__dlq.errors.offset"] or b"") for one in letters)


VALUES = ["0", "2", "never", "0", "reject", "0"]


async def complaints(order: RetryOrder, batch: int | bool, folder: Path, every: int = 1) -> list[str]:
    """Return the errors of lives that end at any step and are started again."""
    trials = Trials(folder, order, batch)
    disk, database = await trials.begin(VALUES)
    whole, after = await trials.live(disk, database)
    expected = [0, 1, 3, 5], [2, 4]
    assert await _ends(whole.disk, after, **trials.config) == expected
    assert len(whole.trace) > 60 and sum("database" in str(step) for step in whole.trace) >= 8
    found: list[str] = []
    for step in whole.trace[::every]:
        died, left = await trials.live(disk, database, step)
        last, after = await trials.live(died.survivors, left)
        ends = await _ends(last.disk, after, **trials.config)
        if ends != expected:
            found.append(f"killed {step}: handled {ends[0]}, dead {ends[1]}")
    return found


@pytest.mark.parametrize(("order", "batch"), [("none", False), ("key", 3)])
async def test_a_death_leaves_each_record_one_end(order: RetryOrder, batch: int | bool, tmp_path: Path) -> None:
    assert await complaints(order, batch, tmp_path, every=8) == []


@pytest.mark.slow
@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("batch", [False, 3])
async def test_a_death_at_every_step_leaves_each_record_one_end(
    order: RetryOrder, batch: int | bool, tmp_path: Path
) -> None:
    assert await complaints(order, batch, tmp_path) == []
