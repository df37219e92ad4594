"""Transactions that are slow, or fail, or are run again: what is not committed is never seen, and stops nobody."""

from __future__ import annotations

import threading
from datetime import timedelta

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from outbox.database import trouble_of
from outbox.relay.relay import Relay
from tests.databases import ON_SERVERS, Database
from tests.outbox.faults.scenes import TOPIC, Scene, scene
from tests.tiers import quick

pytestmark = pytest.mark.system

PLAIN_SERVERS = pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)


def begun(engine: Engine) -> Connection:
    connection = engine.connect()
    connection.begin()
    return connection


def end(connection: Connection, *, commit: bool) -> None:
    with connection:
        (connection.commit if commit else connection.rollback)()


async def relayed(here: Scene, relay: Relay) -> list[str]:
    """Values in the log, once the relay has nothing to do. It does not wait for what others have not committed."""
    with anyio.fail_after(20):  # MariaDB's patience with a lock is 50 s
        await relay.drain()
    return sorted(str(record.value, "ascii") for record in await here.read())


@pytest.mark.parametrize("batch_size", [3, 1_000])
@pytest.mark.parametrize("database", quick(ON_SERVERS, ["asyncpg", "mariadb"]), indirect=True)
async def test_a_slow_transaction_with_a_low_id_is_neither_waited_for_nor_passed_over(
    database: Database, batch_size: int
) -> None:
    async with scene(database, archive=True) as here:
        relay = here.relay(batch_size=batch_size)
        await relay.start(here.bus)
        expected: list[str] = []
        slow: list[Connection] = []

        def write(connection: Connection, value: str) -> None:
            here.outbox.publish(connection, TOPIC, value, key=value)
            here.outbox.publish(connection, TOPIC, f"{value}, later", deliver_at=timedelta(0))

        for number in range(40):
            connection = begun(database.plain)
            write(connection, f"{number}")
            if number in (1, 20, 21, 39):
                slow.append(connection)
                continue
            end(connection, commit=True)
            expected += [f"{number}", f"{number}, later"]
            if number % 10 == 0:
                assert await relayed(here, relay) == sorted(expected)
        assert await relayed(here, relay) == sorted(expected)
        for connection, number in zip(slow[:3], (1, 20, 21), strict=True):
            end(connection, commit=True)
            expected += [f"{number}", f"{number}, later"]
            assert await relayed(here, relay) == sorted(expected)
        end(slow[3], commit=False)
        assert await relayed(here, relay) == sorted(expected)
        await relay.aclose()
    with database.plain.connect() as connection:
        assert here.outbox.tables.archive is not None
        archived = connection.execute(here.outbox.tables.archive.select()).all()
        assert len(archived) == len(expected)


@PLAIN_SERVERS
async def test_a_deadlock_leaves_no_ghost(database: Database) -> None:
    """Two transactions publish, and then want each other's row; one is rolled back, and run again."""
    async with scene(database) as here:
        with database.plain.begin() as connection:
            connection.execute(text("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)"))
            connection.execute(text("INSERT INTO accounts VALUES (1, 0), (2, 0)"))
        both = threading.Barrier(2)
        tries: list[tuple[int, int]] = []

        def transfer(first: int, second: int) -> None:
            for attempt in (1, 2):
                tries.append((first, attempt))
                try:
                    with database.plain.begin() as connection:
                        _pay(connection, first)
                        here.outbox.publish(connection, TOPIC, f"{first} to {second}, {attempt}")
                        if attempt == 1:
                            both.wait()
                        _pay(connection, second)
                    return
                except DBAPIError as error:
                    assert trouble_of(error) == "conflict"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, transfer, 1, 2)
            tasks.start_soon(anyio.to_thread.run_sync, transfer, 2, 1)
        assert len(tries) == 3
        last = dict(tries)
        relay = here.relay()
        await relay.start(here.bus)
        assert await relayed(here, relay) == [f"1 to 2, {last[1]}", f"2 to 1, {last[2]}"]
        await relay.aclose()


def _pay(connection: Connection, account: int) -> None:
    connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = :id"), {"id": account})


@PLAIN_SERVERS
async def test_a_serialization_failure_leaves_no_ghost(database: Database) -> None:
    """Its snapshot is older than a row it changes: what it has published goes with it."""
    async with scene(database) as here:
        with database.plain.begin() as connection:
            connection.execute(text("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)"))
            connection.execute(text("INSERT INTO accounts VALUES (1, 0)"))
        engine = database.plain.execution_options(isolation_level="REPEATABLE READ")
        first, second = begun(engine), begun(engine)
        for connection in (first, second):
            if database.kind == "mariadb":
                connection.execute(text("SET innodb_snapshot_isolation = ON"))
            connection.execute(text("SELECT * FROM accounts")).all()
        for connection, value in ((first, "first"), (second, "second")):
            here.outbox.publish(connection, TOPIC, value)
        _pay(first, 1)
        end(first, commit=True)
        with pytest.raises(DBAPIError) as raised:
            _pay(second, 1)
        assert trouble_of(raised.value) == "conflict"
        end(second, commit=False)
        relay = here.relay()
        await relay.start(here.bus)
        assert await relayed(here, relay) == ["first"]
        await relay.aclose()
