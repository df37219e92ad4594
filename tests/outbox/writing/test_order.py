"""Ids of events follow the locks of their rows, and a savepoint is a part of its transaction."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import MetaData, String, event, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from eventbus.errors import ConfigError
from outbox import Outbox
from tests.databases import Database, NewDatabase
from tests.outbox.writing.given import Rollback, awaited, events, made, savepoint, transaction

pytestmark = pytest.mark.system
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20))


def made_with_orders(database: Database, **options: Any) -> Outbox:
    Base.metadata.create_all(database.plain)
    return made(database, **options)


async def test_pending_changes_of_a_session_are_sent_before_the_event(database: Database) -> None:
    outbox = made_with_orders(database)
    sent: list[str] = []
    plain = getattr(database.engine, "sync_engine", database.engine)
    event.listen(plain, "before_cursor_execute", lambda *args: sent.append(args[2]))
    async with transaction(database.engine, "session") as session:
        session.autoflush = False  # what many factories of sessions say
        session.add(Order(id=1, status="new"))
        await awaited(outbox.publish(session, "orders", "new", key="1"))
        session.add(Order(id=2, status="new"))
        await awaited(outbox.publish_many(session, "orders", ["new"]))
    tables = [statement.split()[2].strip('`"') for statement in sent if statement.startswith("INSERT")]
    assert tables == ["orders", "eventbus_outbox", "orders", "eventbus_outbox"]


@pytest.mark.parametrize("database", ["psycopg", "asyncpg"], indirect=True)
async def test_events_of_a_row_have_the_order_of_the_commits(database: Database) -> None:
    outbox = made_with_orders(database)
    with Session(database.plain) as session:
        session.add(Order(id=1, status="new"))
        session.commit()

    async def change(session: Any, status: str) -> None:
        (await awaited(session.get(Order, 1))).status = status
        await awaited(outbox.publish(session, "orders", status, key="1"))

    async def second() -> None:
        async def run() -> None:
            async with transaction(database.engine, "session") as session:
                await change(session, "cancelled")

        await (run() if database.is_async else anyio.to_thread.run_sync(partial(anyio.run, run)))

    async with anyio.create_task_group() as tasks, transaction(database.engine, "session") as session:
        await change(session, "paid")
        tasks.start_soon(second)
        await anyio.to_thread.run_sync(wait_for_a_lock, database)
    assert [row["value"] for row in events(database, outbox)] == [b"paid", b"cancelled"]
    with database.plain.connect() as connection:
        assert connection.scalar(select(Order.status)) == "cancelled"


def wait_for_a_lock(database: Database) -> None:
    """Return when a transaction of PostgreSQL waits for another one."""
    with database.plain.connect() as connection:
        while not connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
            connection.rollback()


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
def test_a_deadlock_of_strict_order_explains_the_order_of_locks(database: Database) -> None:
    outbox = made(database, strict_order=True)
    both_hold, errors = threading.Barrier(2), list[DBAPIError]()

    def write(keys: tuple[str, str]) -> None:
        try:
            with database.plain.begin() as connection:
                outbox.publish(connection, "orders", "1", key=keys[0])
                both_hold.wait()
                outbox.publish(connection, "orders", "2", key=keys[1])
        except DBAPIError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(keys,)) for keys in (("ada", "bob"), ("bob", "ada"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [error] = errors
    assert "strict_order" in error.__notes__[0] and "publish_many" in error.__notes__[0]
    assert len(events(database, outbox)) == 2


@ON_SQLITE
def test_an_error_of_the_pending_changes_is_raised_by_publish(database: Database) -> None:
    outbox = made_with_orders(database)
    with Session(database.plain) as session:
        session.add_all([Order(id=1, status="new"), Order(id=1, status="again")])
        with pytest.raises(IntegrityError):
            outbox.publish(session, "orders", "new")
    assert events(database, outbox) == []


@ON_SQLITE
def test_listeners_of_a_session_publish_after_the_flush(database: Database) -> None:
    outbox = made_with_orders(database)
    with Session(database.plain) as session:
        event.listen(session, "after_flush", lambda session, _: outbox.publish(session, "orders", "after"), once=True)
        event.listen(session, "before_commit", lambda session: outbox.publish(session, "orders", "commit"), once=True)
        session.add(Order(id=1, status="new"))
        session.commit()
        event.listen(session, "before_flush", lambda session, *_: outbox.publish(session, "orders", "before"))
        session.add(Order(id=2, status="new"))
        with pytest.raises(ConfigError, match=r"before_flush listener publishes.*Publish in an after_flush"):
            session.commit()
    assert [row["value"] for row in events(database, outbox)] == [b"after", b"commit"]


@pytest.mark.parametrize("database", ["sqlite", "sqlite-async", "psycopg"], indirect=True)
@pytest.mark.parametrize("how", ["session", "connection"])
async def test_a_released_savepoint_is_rolled_back_with_its_transaction(database: Database, how: str) -> None:
    outbox = made(database)
    for ends in (Rollback, None):
        async with transaction(database.engine, how) as target:
            async with savepoint(target):
                await awaited(outbox.publish(target, "orders", str(ends)))
            if ends is not None:
                raise ends
    assert [row["value"] for row in events(database, outbox)] == [b"None"]


def test_a_savepoint_that_may_be_the_whole_transaction_is_refused(new_database: NewDatabase) -> None:
    database = new_database("sqlite")
    made(database)
    unseen, autocommit = database.new_engine(), database.new_engine(connect_args={"isolation_level": None})
    outboxes = {"before the outbox knew": (unseen, Outbox(MetaData())), "AUTOCOMMIT": (autocommit, Outbox(autocommit))}
    for why, (engine, outbox) in outboxes.items():
        with engine.begin() as connection:
            connection.begin_nested()
            with pytest.raises(ConfigError, match=why):
                outbox.publish(connection, "orders", "o-1")
