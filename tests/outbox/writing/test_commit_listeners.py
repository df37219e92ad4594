"""Relays are woken once by every commit of events, when it has happened, and by nothing else."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import Outbox
from outbox.commit_listeners import CommitListeners
from tests.databases import Database, NewDatabase
from tests.outbox.writing.given import awaited, events, made, transaction

pytestmark = pytest.mark.system


@pytest.fixture
def database(new_database: NewDatabase) -> Database:
    return new_database("sqlite")


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return made(database)


@pytest.fixture
def wakes(outbox: Outbox) -> list[int]:
    """Grows with every wake."""
    found: list[int] = []
    outbox.listeners.add(lambda: found.append(1))
    return found


def test_what_is_woken_finds_the_event(database: Database, outbox: Outbox) -> None:
    seen: list[int] = []
    outbox.listeners.add(lambda: seen.append(len(events(database, outbox))))
    with database.engine.begin() as connection:
        outbox.publish(connection, "t", b"1")
    with database.engine.connect() as connection:  # which stays open: nothing else tells of its commit
        connection.begin()
        outbox.publish(connection, "t", b"2")
        connection.commit()
        assert seen == [1, 2]
        connection.begin()
        connection.commit()
    with Session(database.engine) as session:
        outbox.publish(session, "t", b"3")
        session.commit()
        assert seen == [1, 2, 3]
        session.commit()
    assert seen == [1, 2, 3]


def test_savepoints_keep_theirs_until_they_are_released(database: Database, outbox: Outbox, wakes: list[int]) -> None:
    for rolled_back in ("inner", "outer", "neither", "transaction"):
        wakes.clear()
        with database.engine.connect() as connection:
            whole = connection.begin()
            outer = connection.begin_nested()
            connection.execute(text("SELECT 1"))
            inner = connection.begin_nested()
            outbox.publish(connection, "t", b"v")
            (inner.rollback if rolled_back == "inner" else inner.commit)()
            (outer.rollback if rolled_back == "outer" else outer.commit)()
            assert wakes == []
            (whole.rollback if rolled_back == "transaction" else whole.commit)()
        assert wakes == ([1] if rolled_back == "neither" else []), rolled_back


def test_what_is_outside_of_a_savepoint_stays(database: Database, outbox: Outbox, wakes: list[int]) -> None:
    with Session(database.engine) as session:
        outbox.publish(session, "t", b"before")
        for _ in range(2):
            nested = session.begin_nested()
            outbox.publish(session, "t", b"inside")
            nested.rollback()
        session.commit()
    assert wakes == [1]
    assert [row["value"] for row in events(database, outbox)] == [b"before"]


def test_a_savepoint_that_was_opened_before_the_outbox_saw_the_engine(new_database: NewDatabase) -> None:
    database = new_database("psycopg")
    made(database)
    for rolled_back, count in ((True, 0), (False, 1)):
        engine = database.new_engine()
        outbox, found = Outbox(MetaData()), list[int]()
        outbox.listeners.add(lambda found=found: found.append(1))
        with engine.begin() as connection:
            nested = connection.begin_nested()
            outbox.publish(connection, "t", b"v")
            (nested.rollback if rolled_back else nested.commit)()
        assert len(found) == count


@pytest.mark.parametrize("mode", ["rollback_only", "create_savepoint", "conditional_savepoint"])
def test_a_session_inside_of_a_connections_transaction_is_not_its_end(
    database: Database, outbox: Outbox, wakes: list[int], mode: Any
) -> None:
    for ends, count in (("commit", 1), ("rollback", 1)):
        with database.engine.connect() as connection:
            outer = connection.begin()
            with Session(connection, join_transaction_mode=mode) as session:
                outbox.publish(session, "t", b"v")
                session.commit()
            assert len(wakes) == (0 if ends == "commit" else 1)
            getattr(outer, ends)()
        assert len(wakes) == count


@pytest.mark.parametrize("kind", ["sqlite", "sqlite-async"])
async def test_a_commit_that_fails_leaves_nothing_behind(new_database: NewDatabase, kind: str) -> None:
    database = new_database(kind)
    outbox, found = made(database), list[int]()
    outbox.listeners.add(lambda: found.append(1))
    engine = database.new_engine(pool_size=1, max_overflow=0)
    execute = "PRAGMA foreign_keys = ON", "CREATE TABLE parent (id INTEGER PRIMARY KEY)", (
        "CREATE TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)"
    )  # fmt: skip
    async with transaction(engine, "connection") as connection:
        for statement in execute:
            await awaited(connection.exec_driver_sql(statement))
    with pytest.raises(IntegrityError):
        async with transaction(engine, "connection") as connection:
            await awaited(connection.exec_driver_sql("INSERT INTO child VALUES (1)"))
            await awaited(outbox.publish(connection, "t", b"ghost"))
    async with transaction(engine, "connection") as connection:  # the same one, from the pool
        await awaited(connection.exec_driver_sql("INSERT INTO parent VALUES (1)"))
    assert found == []
    assert events(database, outbox) == []


def test_options_of_an_engine_change_nothing(database: Database, outbox: Outbox, wakes: list[int]) -> None:
    with database.engine.execution_options(logging_token="x").begin() as connection:
        outbox.publish(connection, "t", b"1")
        outbox.publish(connection, "t", b"2")
    assert wakes == [1]


def test_two_outboxes_in_one_transaction_each_hear_of_it(database: Database, outbox: Outbox, wakes: list[int]) -> None:
    other, others = made(database, name="other"), list[int]()
    other.listeners.add(lambda: others.append(1))
    with database.engine.begin() as connection:
        outbox.publish(connection, "t", b"1")
        other.publish(connection, "t", b"2")
    with database.engine.begin() as connection:
        other.publish(connection, "t", b"3")
    assert (wakes, others) == ([1], [1, 1])


def test_a_registry_of_sessions_stands_for_the_one_of_the_thread(
    database: Database, outbox: Outbox, wakes: list[int]
) -> None:
    sessions = scoped_session(sessionmaker(database.engine))
    outbox.publish(sessions, "t", b"v")
    sessions.commit()
    sessions.remove()
    assert (wakes, len(events(database, outbox))) == ([1], 1)


def test_threads_wake_for_themselves(database: Database, outbox: Outbox) -> None:
    engine = database.new_engine(connect_args={"timeout": 60})
    seen: list[str] = []
    outbox.listeners.add(lambda: seen.append(threading.current_thread().name))

    def publish() -> None:
        for _ in range(5):
            with engine.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                outbox.publish(connection, "t", b"v")

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(thread.name for thread in threads for _ in range(5))
    assert len(events(database, outbox)) == 20


def test_a_callback_that_fails_does_not_fail_the_commit(
    database: Database, outbox: Outbox, wakes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("no loop")

    remove = outbox.listeners.add(broken)
    outbox.listeners.add(lambda: wakes.append(2))
    with caplog.at_level(logging.ERROR, "outbox"), database.engine.begin() as connection:
        outbox.publish(connection, "t", b"v")
    assert wakes == [1, 2]
    assert "relays find the events at their next poll" in caplog.text
    remove()
    remove()  # as often as one likes
    outbox.listeners.wake()
    assert wakes == [1, 2, 1, 2]


def test_the_same_callback_twice_is_two() -> None:
    wakes, found = CommitListeners(), list[int]()

    def callback() -> None:
        found.append(1)

    first, second = wakes.add(callback), wakes.add(callback)
    first()
    wakes.wake()
    assert found == [1]
    second()
    wakes.wake()
    assert found == [1]


def test_nothing_is_kept_of_what_is_over(database: Database) -> None:
    engine = create_engine(database.url)
    outbox = Outbox(engine)
    outbox.create_tables()
    with engine.connect() as connection:
        for ends in (connection.commit, connection.rollback, connection.close):
            connection.begin()
            connection.begin_nested()
            outbox.publish(connection, "t", b"v")
            info = connection.info
            assert info
            ends()
            assert info.keys() == {"eventbus.outbox.process"}
    engine.dispose()
    gone = [weakref.ref(engine), weakref.ref(engine.dialect), weakref.ref(outbox)]
    del engine, outbox, connection, info, ends
    gc.collect()
    assert [reference() for reference in gone] == [None, None, None]
