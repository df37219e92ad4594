"""Errors during a call: in the handler, in its database, in another one, and outside of any code."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, NullPool, create_engine, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from eventbus import ConsumerRecord, EventBus, EventBusError
from eventbus.errors import HandlerError
from eventbus.testing import FakeClock
from outbox import tries
from tests.databases import THREE, Database
from tests.outbox.inbox.given import (
    T0,
    Ledger,
    all_rows,
    dead_letters,
    fill,
    group_of,
    log_of,
    row_of,
    service,
    sessions_of,
)
from tests.support import until

pytestmark = pytest.mark.system

on_three = pytest.mark.parametrize("database", THREE, indirect=True)
on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
_ROW = text("INSERT INTO ledger (part, off, value) VALUES (:part, :off, :value)")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delay before the next try."""
    monkeypatch.setattr(tries, "_LONGEST_SECONDS", 0.005)


class Fails:
    """Raises in the first ``times`` calls with the record at an offset, after the row was written."""

    def __init__(self, offset: int, times: int = 1, error: Exception | None = None) -> None:
        self._offset = offset
        self.left = times
        self._error = error or ZeroDivisionError("no reason")
        self.calls: list[int] = []

    def __call__(self, record: ConsumerRecord, session: Any) -> None:
        self.calls.append(record.offset)
        if record.offset == self._offset and self.left > 0:
            self.left -= 1
            raise self._error


# the handler ----------------------------------------------------------------------------------------------------------


async def test_a_handler_that_raises_leaves_nothing(database: Database) -> None:
    ledger, fails = Ledger(database), Fails(3, 2)
    async with log_of(partitions=1) as log:
        for _ in range(2):
            with pytest.raises(HandlerError, match="ZeroDivisionError: no reason"):
                async with service(log.url, ledger, fails) as bus:
                    await bus.drain()
            assert ledger.rows() == all_rows(3, 1) and ledger.stored() == {T0: 3}
        async with service(log.url, ledger, fails) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(partitions=1) and fails.calls == [0, 1, 2, 3, 3, *range(3, 10)]


@on_three
async def test_a_handler_that_rolls_back_has_handled_its_record(database: Database) -> None:
    ledger = Ledger(database)

    def undo(record: ConsumerRecord, session: Session) -> None:
        if record.offset == 3:
            session.rollback()

    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, undo) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, n) for n in range(10) if n != 3] and ledger.stored() == {T0: 10}


@pytest.mark.parametrize("database", ["asyncpg", "sqlite-async"], indirect=True)
async def test_an_asynchronous_handler_that_rolls_back_has_handled_its_record(database: Database) -> None:
    ledger = Ledger(database)

    async def undo(record: ConsumerRecord, session: AsyncSession) -> None:
        if record.offset == 3:
            await session.rollback()

    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, undo) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, n) for n in range(10) if n != 3] and ledger.stored() == {T0: 10}


@on_sqlite
async def test_what_is_written_behind_a_rollback_is_refused(database: Database) -> None:
    ledger = Ledger(database)

    def undo_and_go_on(record: ConsumerRecord, session: Session) -> None:
        session.rollback()
        session.execute(_ROW, row_of(record))

    async with log_of(1, 1) as log:
        with pytest.raises(HandlerError, match="closed transaction"):
            async with service(log.url, ledger, undo_and_go_on) as bus:
                await bus.drain()
        assert ledger.rows() == [] and ledger.stored() == {}


@on_three
async def test_a_session_that_is_committed_is_not_yet_stored(database: Database) -> None:
    ledger, fails = Ledger(database), Fails(3)

    def commit(record: ConsumerRecord, session: Session) -> None:
        session.commit()
        session.execute(_ROW, row_of(record))
        session.commit()
        fails(record, session)

    async with log_of(partitions=1) as log:
        with pytest.raises(HandlerError):
            async with service(log.url, ledger, commit) as bus:
                await bus.drain()
        assert ledger.rows() == sorted(2 * all_rows(3, 1))
        async with service(log.url, ledger, commit) as bus:
            await bus.drain()
        assert ledger.rows() == sorted(2 * all_rows(10, 1))


@on_sqlite
async def test_a_connection_that_is_committed_is_told_of(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(database)

    def commit(record: ConsumerRecord, session: Session) -> None:
        if record.offset == 3:
            session.connection().commit()

    async with log_of(partitions=1) as log:
        with caplog.at_level(logging.ERROR, "outbox"):
            async with service(log.url, ledger, commit) as bus:
                await bus.drain()
        assert "'handle' committed its connection itself at t-0 offset 3" in caplog.text
        assert ledger.rows() == all_rows(partitions=1)


@on_files
async def test_a_handler_may_take_the_connection(database: Database) -> None:
    ledger = Ledger(database)

    def plain(value: bytes, connection: Connection, record: ConsumerRecord) -> None:
        connection.execute(_ROW, row_of(record))

    async def asynchronous(value: bytes, connection: AsyncConnection, record: ConsumerRecord) -> None:
        await connection.execute(_ROW, row_of(record))

    async with log_of() as log:
        handler = asynchronous if database.is_async else plain
        async with service(log.url, ledger, handler=handler, tx=database.engine) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows()


@pytest.mark.parametrize("database", ["sqlite-async", "asyncpg", "mariadb-async"], indirect=True)
async def test_a_call_that_is_cancelled_leaves_nothing(database: Database) -> None:
    """The bus stops, and the handler takes longer than it may."""
    ledger, sleeps = Ledger(database), [True]

    async def sleep_once(record: ConsumerRecord, session: AsyncSession) -> None:
        if record.offset == 3 and sleeps:
            has_come.set()
            await anyio.sleep_forever()

    has_come = anyio.Event()
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, sleep_once, drain_timeout_ms=5) as bus:
            await has_come.wait()
            for runner in bus.context.runners:
                runner.cancel()
        assert ledger.rows() == all_rows(3, 1) and ledger.stored() == {T0: 3}
        sleeps.clear()
        async with service(log.url, ledger, sleep_once) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(partitions=1)


# its database ---------------------------------------------------------------------------------------------------------


@on_three
async def test_a_savepoint_takes_what_may_fail(database: Database) -> None:
    ledger = Ledger(database)
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE guests (name VARCHAR(20) PRIMARY KEY)"))

    def add_guest(record: ConsumerRecord, session: Session) -> None:
        try:
            with session.begin_nested():
                session.execute(text("INSERT INTO guests VALUES ('ada')"))
        except IntegrityError:
            pass

    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, add_guest) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(partitions=1)


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
async def test_an_error_that_was_caught_does_not_lose_the_record(database: Database) -> None:
    """PostgreSQL has ended the transaction, and would answer the commit with a silent rollback."""
    ledger = Ledger(database)

    def catch(record: ConsumerRecord, session: Session) -> None:
        if record.offset == 3:
            try:
                session.execute(text("SELECT 1 / 0"))
            except Exception:  # what a careless handler does
                logging.getLogger(__name__).debug("caught")

    async with log_of(partitions=1) as log:
        with pytest.raises(
            HandlerError, match=r"went on after an error of its database.*begin_nested.*division by zero"
        ):
            async with service(log.url, ledger, catch) as bus:
                await bus.drain()
        assert ledger.rows() == all_rows(3, 1) and ledger.stored() == {T0: 3}


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
@pytest.mark.parametrize("is_caught", [False, True])
async def test_a_deadlock_is_run_again(database: Database, is_caught: bool) -> None:
    """One that the handler caught too: MariaDB has undone the claim with the rest."""
    ledger = Ledger(database)
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE locks (id INTEGER PRIMARY KEY, n INTEGER)"))
        connection.execute(text("INSERT INTO locks VALUES (0, 0), (1, 0)"))
    barrier, calls = threading.Barrier(2, timeout=30), list[tuple[int, int]]()
    lock = text("UPDATE locks SET n = n + 1 WHERE id = :id")

    def cross(record: ConsumerRecord, session: Session) -> None:
        if record.offset != 3:
            return
        is_first = (record.partition, 3) not in calls
        calls.append((record.partition, 3))
        session.execute(lock, {"id": record.partition})
        if is_first:
            barrier.wait()
        try:
            session.execute(lock, {"id": 1 - record.partition})
        except OperationalError:
            if not is_caught:
                raise

    async with log_of() as log:
        async with service(log.url, ledger, cross, concurrency=2) as bus:
            if is_caught and database.kind == "psycopg":
                with pytest.raises(HandlerError, match="went on after an error of its database"):
                    await bus.drain()
                return
            await bus.drain()
        assert ledger.rows() == all_rows() and len(calls) == 3
        with database.plain.connect() as connection:
            assert connection.execute(text("SELECT n FROM locks")).scalars().all() == [2, 2]


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
async def test_a_serialization_failure_is_run_again(database: Database) -> None:
    ledger = Ledger(database)
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE counter (n INTEGER)"))
        connection.execute(text("INSERT INTO counter VALUES (0)"))
    calls = list[int]()

    def count(record: ConsumerRecord, session: Session) -> None:
        calls.append(record.offset)
        n = session.execute(text("SELECT n FROM counter")).scalar_one()
        if calls.count(record.offset) == 1:
            with database.plain.begin() as connection:
                connection.execute(text("UPDATE counter SET n = n + 100"))
        session.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

    sessions = sessionmaker(database.new_engine(isolation_level="REPEATABLE READ"))
    async with log_of(3, 1) as log, service(log.url, ledger, count, tx=sessions) as bus:
        await bus.drain()
    assert calls == [0, 0, 1, 1, 2, 2] and ledger.rows() == all_rows(3, 1)
    with database.plain.connect() as connection:
        assert connection.execute(text("SELECT n FROM counter")).scalar_one() == 303


@on_files
async def test_a_locked_database_is_waited_for(database: Database) -> None:
    """However long it takes, the record is not counted as failed."""
    ledger = Ledger(database)
    held = create_engine(database.plain_url, connect_args={"timeout": 0})
    async with log_of(2, 1) as log:
        engine, refused = database.new_engine(connect_args={"timeout": 0}), list[object]()
        event.listen(getattr(engine, "sync_engine", engine), "handle_error", refused.append)
        async with service(log.url, ledger, tx=sessions_of(engine), dead_letter=True) as bus:
            await bus.drain()
            with held.connect() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                await fill(log, 0, range(2))
                await until(lambda: len(refused) > 25, poll_seconds=0.002)
            await bus.drain()
        held.dispose()
        assert ledger.rows() == all_rows(4, 1) and await dead_letters(log) == []


@contextmanager
def away(engine: Any, *, at: str, times: int) -> Generator[list[str]]:
    """The database does not answer, so often: when it is asked for a connection, a statement, or a commit."""
    plain, met = getattr(engine, "sync_engine", engine), list[str]()
    dialect, do_commit = plain.dialect, plain.dialect.do_commit

    def refuse(*arguments: Any) -> None:
        if len(met) < times:
            met.append(at)
            raise dialect.loaded_dbapi.OperationalError("could not connect: the server closed the connection")

    def commit(connection: Any) -> None:
        refuse()
        do_commit(connection)

    if at == "do_commit":
        dialect.do_commit = commit
        yield met
        dialect.do_commit = do_commit
    else:
        event.listen(plain, at, refuse)
        yield met
        event.remove(plain, at, refuse)


@on_files
@pytest.mark.parametrize("at", ["do_connect", "do_execute", "do_commit"])
async def test_a_database_that_is_away_is_waited_for(database: Database, at: str) -> None:
    """When a transaction begins, and when it is committed."""
    ledger, engine = Ledger(database), database.new_engine(poolclass=NullPool)
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, tx=sessions_of(engine), dead_letter=True) as bus:
            await bus.drain()
            times = 3 if at == "do_commit" else 40
            with away(engine, at=at, times=times) as met:
                await fill(log, 0, range(2))
                await until(lambda: len(met) == times, poll_seconds=0.002)
                await bus.drain()
        assert ledger.rows() == all_rows(12, 1) and await dead_letters(log) == []


@on_files
async def test_a_database_that_is_away_at_the_assignment_is_waited_for(database: Database) -> None:
    ledger, engine, met = Ledger(database), database.new_engine(), list[str]()
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        await log.admin.alter_group_offsets("g", {T0: 0})

        def refuse(cursor: Any, statement: str, *rest: Any) -> None:
            if "SELECT" in statement and "next_offset" in statement and len(met) < 20:
                met.append(statement)
                raise plain.dialect.loaded_dbapi.OperationalError("could not connect")

        plain = getattr(engine, "sync_engine", engine)
        event.listen(plain, "do_execute", refuse)
        async with service(log.url, ledger, tx=sessions_of(engine)) as bus:
            await fill(log, 0, "x")
            await bus.drain()
        assert len(met) == 20 and ledger.rows() == all_rows(11, 1)


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async", "asyncpg", "mariadb"])
async def test_a_commit_whose_answer_was_lost_counts_once(new_database: Any, kind: str) -> None:
    """The commit was stored: the next transaction sees that, and the handler is not called again."""
    database = new_database(kind)
    ledger, engine, calls = Ledger(database), database.new_engine(), list[int]()
    plain, lost = getattr(engine, "sync_engine", engine), list[int]()
    do_commit = plain.dialect.do_commit

    def commit(connection: Any) -> None:
        do_commit(connection)
        if len(calls) == 4 and not lost:
            lost.append(1)
            raise plain.dialect.loaded_dbapi.OperationalError("server closed the connection unexpectedly")

    plain.dialect.do_commit = commit
    async with log_of(partitions=1) as log:

        def hook(record: ConsumerRecord, session: Any) -> None:
            calls.append(record.offset)

        async with service(log.url, ledger, hook, tx=sessions_of(engine), dead_letter=True) as bus:
            await bus.drain()
        assert lost and calls == list(range(10)) and ledger.rows() == all_rows(partitions=1)
        assert await dead_letters(log) == []


@on_files
async def test_a_database_without_the_table_of_claims_is_waited_for_and_dead_letters_nothing(
    database: Database,
) -> None:
    ledger = Ledger(database)
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, dead_letter=True, retry=None) as bus:
            await bus.drain()
            with database.plain.begin() as connection:
                connection.execute(text("ALTER TABLE eventbus_offsets RENAME TO gone"))
            await fill(log, 0, "x")

            async def is_waiting() -> bool:
                return "waits: the database of tx=" in (await bus.health()).reason

            await until(is_waiting, poll_seconds=0.01)
            with database.plain.begin() as connection:
                connection.execute(text("ALTER TABLE gone RENAME TO eventbus_offsets"))
            await bus.drain()
        assert ledger.rows() == all_rows(11, 1) and await dead_letters(log) == []


@on_files
async def test_a_bus_stops_while_its_database_is_away(database: Database) -> None:
    ledger, engine = Ledger(database), database.new_engine(poolclass=NullPool)
    async with log_of(partitions=1) as log:
        bus = service(log.url, ledger, tx=sessions_of(engine), dead_letter=True)
        async with bus:
            await bus.drain()
            with away(engine, at="do_connect", times=1_000_000) as met:
                await fill(log, 0, "x")
                await until(lambda: len(met) > 5, poll_seconds=0.002)
                await bus.close()
        async with service(log.url, ledger, dead_letter=True) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(11, 1) and await dead_letters(log) == []


# another database ----------------------------------------------------------------------------------------------------


@on_files
async def test_another_database_that_is_away_is_waited_for(database: Database) -> None:
    """It is an outage, also where failures go to a dead-letter topic."""
    ledger, calls = Ledger(database), list[int]()

    def ask_another(record: ConsumerRecord, session: Any) -> None:
        calls.append(record.offset)
        if record.offset == 3 and calls.count(3) < 3:
            raise OperationalError("SELECT 1", None, ConnectionResetError("could not connect to server"))

    async def is_over() -> bool:
        await clock.advance(seconds=1)
        return len(calls) == 12

    clock = FakeClock()
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, ask_another, dead_letter=True, clock=clock) as bus:
            await until(is_over)
            await bus.drain()
        assert calls == [0, 1, 2, 3, 3, *range(3, 10)] and ledger.rows() == all_rows(partitions=1)
        assert await dead_letters(log) == [] and (await group_of(log))[T0] == 10


async def test_a_database_that_is_away_when_the_bus_starts_is_named(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'nowhere' / 'db'}")
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t", tx=sessionmaker(engine))
    def write(value: bytes, session: Session) -> None:
        raise AssertionError("there is nowhere to write")

    with pytest.raises(EventBusError, match=r"handler 'write': its database sqlite:///.*nowhere/db does not answer"):
        await bus.start()
