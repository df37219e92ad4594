"""Isolation levels of the user's engine: outbox, relay and inbox work at each, and make no other transaction fail."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from eventbus import EventBus
from eventbus.errors import ConfigError
from outbox import Inbox, OffsetsMoved, Outbox, SqlOffsets
from tests.databases import Database
from tests.outbox.test_schemas import publish_and_handle
from tests.outbox.writing.given import awaited, events, transaction
from tests.outbox.writing.test_order import wait_for_a_lock

pytestmark = pytest.mark.system
ON_POSTGRESQL = pytest.mark.parametrize("database", ["psycopg", "asyncpg"], indirect=True)


@pytest.mark.parametrize(
    ("database", "level"),
    [
        ("sqlite", "SERIALIZABLE"),
        ("psycopg", "REPEATABLE READ"),
        ("asyncpg", "SERIALIZABLE"),
        ("mariadb", "SERIALIZABLE"),
        ("mariadb-async", "READ COMMITTED"),
    ],
    indirect=["database"],
)
async def test_outbox_relay_and_inbox_work_at_each_level(database: Database, level: str) -> None:
    engine = database.new_engine(isolation_level=level)
    assert await publish_and_handle(engine, Outbox(engine, archive=True, strict_order=True)) == ["o-1", "o-2"]


@ON_POSTGRESQL
async def test_what_an_outbox_reads_makes_no_serializable_writer_fail(database: Database) -> None:
    engine = database.new_engine(isolation_level="SERIALIZABLE")
    outbox, bus = Outbox(engine), EventBus("memory://")
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE stock (left_over INTEGER)"))
    bus.topic("orders")
    bus.include(outbox.relay())
    async with bus:
        async with transaction(engine, "session") as session:
            await awaited(session.execute(text("SELECT * FROM stock")))
            async with transaction(engine, "session") as other:  # the writer has read what this one changes
                await awaited(other.execute(text("INSERT INTO stock VALUES (1)")))
            # A serializable reader of the events would now make the writer the pivot of a dangerous structure.
            await bus.drain()
            await outbox.status()
            await awaited(outbox.publish(session, "orders", "o-1"))
        await bus.drain()
    assert events(database, outbox) == []


@ON_POSTGRESQL
async def test_serializable_handlers_of_several_partitions_have_no_conflicts(database: Database) -> None:
    engine = database.new_engine(isolation_level="SERIALIZABLE", pool_size=10)
    bus, errors, handled = EventBus("memory://"), list[str](), list[int]()
    event.listen(getattr(engine, "sync_engine", engine), "handle_error", lambda ctx: errors.append(str(ctx)))
    tx = Inbox((async_sessionmaker if database.is_async else sessionmaker)(engine), message_ids="event-id")
    bus.topic("orders", partitions=8)

    def bill(order: int, session: Session) -> None:
        handled.append(order)

    async def bill_async(order: int, session: AsyncSession) -> None:
        handled.append(order)

    bus.consumer("orders", group="billing", tx=tx, concurrency=8)(bill_async if database.is_async else bill)
    async with bus:
        for first in (0, 100):
            for order in range(first, first + 100):
                await bus.send("orders", order, partition=order % 8, headers={"event-id": str(order).encode()})
            await bus.drain()
            with database.plain.begin() as connection:  # from now on small tables are read as a whole
                connection.execute(text("ANALYZE eventbus_offsets, eventbus_offsets_ids"))
    assert errors == [] and sorted(handled) == list(range(200))


@ON_POSTGRESQL
async def test_offsets_that_another_transaction_moves_at_the_same_moment_have_moved(database: Database) -> None:
    offsets = SqlOffsets(database.new_engine(isolation_level="REPEATABLE READ"), "g")
    bus = EventBus("memory://")
    bus.topic("t")
    async with bus, bus.new_consumer(group="g") as consumer:
        await bus.send_many("t", ["0", "1"])
        await offsets.follow(consumer, "t")
        first, second = [record async for record in consumer.until_end()]
        async with offsets.transaction([first]):
            pass

        async def write() -> None:
            with pytest.raises(OffsetsMoved, match="moved by another transaction at the same moment"):
                async with offsets.transaction([second]):
                    raise AssertionError

        async with anyio.create_task_group() as tasks:
            with database.plain.begin() as connection:
                connection.execute(text("UPDATE eventbus_offsets SET next_offset = 2"))
                tasks.start_soon(write)
                await anyio.to_thread.run_sync(wait_for_a_lock, database)
        assert await offsets.stored([second.topic_partition]) == {second.topic_partition: 2}


@ON_POSTGRESQL
async def test_a_handler_in_autocommit_is_refused(database: Database) -> None:
    bus = EventBus("memory://")
    bus.topic("orders")
    engine: Any = database.new_engine(isolation_level="AUTOCOMMIT")

    def bill(order: int, session: Session) -> None: ...

    async def bill_async(order: int, session: AsyncSession) -> None: ...

    bus.consumer("orders", group="billing", tx=engine)(bill_async if database.is_async else bill)
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        await bus.start()


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_the_relay_of_mysql_keeps_the_options_of_its_engine(database: Database) -> None:
    engine = database.new_engine(execution_options={"isolation_level": "SERIALIZABLE", "seen": 1}, hide_parameters=True)
    relay: Any = Outbox(engine).relay()
    own = relay._database.engine
    assert own.get_execution_options() == {"seen": 1} and own.hide_parameters
    with own.connect() as connection:
        assert connection.get_isolation_level() == "READ COMMITTED"
    own.dispose()
