"""Every kind of database, with a session and with a connection: what each does of its own accord."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import create_engine, text

from eventbus.errors import ConfigError
from outbox import Outbox
from outbox.database import now_ms
from outbox.headers import published
from outbox.schema import read_meta
from tests.database_servers import MariaDB
from tests.databases import KINDS, MORE_KINDS, THREE, Database, Databases
from tests.outbox.writing.given import Rollback, awaited, events, later, made, savepoint, transaction

pytestmark = pytest.mark.system

HOWS = ("session", "connection")


@pytest.mark.parametrize("database", [*KINDS, *MORE_KINDS], indirect=True)
async def test_an_event_is_there_with_its_transaction_or_not_at_all(database: Database) -> None:
    outbox = made(database)
    wakes: list[str] = []
    for how in HOWS:
        remove = outbox.listeners.add(lambda how=how: wakes.append(how))
        async with transaction(database.engine, how) as target:
            event_id = await awaited(outbox.publish(target, "orders", {"id": 1}, key="k", headers={"trace": "t"}))
            assert (events(database, outbox) == [], wakes) == (True, []), how
        (row,) = events(database, outbox)
        assert wakes == [how]
        assert (row["event_id"], row["topic"], row["key"], row["value"]) == (event_id, "orders", b"k", b'{"id":1}')
        assert published(row["headers"], row["event_id"]) == (("trace", b"t"), ("event-id", event_id.encode()))
        assert (row["partition"], row["expires_at_ms"]) == (None, None)
        assert abs(row["timestamp_ms"] - time.time() * 1_000) < 60_000

        async with transaction(database.engine, how) as target:
            await awaited(outbox.publish(target, "orders", b"gone"))
            raise Rollback
        assert len(events(database, outbox)) == 1
        assert wakes == [how]

        async with transaction(database.engine, how) as target:
            await awaited(outbox.publish_many(target, "orders", [b"a", b"b", b"c"], key=lambda value: value))
            async with savepoint(target):
                await awaited(outbox.publish(target, "orders", b"dropped"))
                raise Rollback
            async with savepoint(target):
                await awaited(outbox.publish(target, "orders", None, key=b"tombstone", partition=3, timestamp_ms=7))
        assert wakes == [how, how]
        rows = events(database, outbox)[1:]
        assert [row["value"] for row in rows] == [b"a", b"b", b"c", None]
        assert (rows[-1]["partition"], rows[-1]["timestamp_ms"]) == (3, 7)
        remove()
        wakes.clear()
        with database.plain.begin() as connection:
            connection.execute(outbox.tables.events.delete())


async def test_times_are_counted_from_the_databases_clock(database: Database) -> None:
    outbox = made(database)
    half_an_hour = timedelta(minutes=30)
    then = datetime.now(UTC) + half_an_hour
    async with transaction(database.engine, "connection") as target:
        await awaited(outbox.publish(target, "t", b"over", expires_after=60))
        await awaited(outbox.publish(target, "t", b"past", deliver_at=datetime(2020, 1, 1, tzinfo=UTC)))
        await awaited(outbox.publish(target, "t", b"at", deliver_at=then, expires_after=half_an_hour))
        await awaited(outbox.publish_many(target, "t", [b"in", b"in"], deliver_at=half_an_hour, expires_after=60))
        now_ms = time.time() * 1_000
    over, past = events(database, outbox)
    at, *ins = later(database, outbox)
    assert abs(over["expires_at_ms"] - now_ms - 60_000) < 30_000
    assert (past["value"], past["expires_at_ms"]) == (b"past", None)
    then_ms = int(then.timestamp() * 1_000)
    assert (at["due_ms"], at["timestamp_ms"], at["expires_at_ms"]) == (then_ms, then_ms, then_ms + 1_800_000)
    for row in ins:
        assert abs(row["due_ms"] - now_ms - 1_800_000) < 30_000
        assert (row["timestamp_ms"], row["expires_at_ms"]) == (row["due_ms"], row["due_ms"] + 60_000)


@pytest.mark.parametrize("ahead_ms", [86_400_000, -86_400_000])
async def test_the_databases_clock_decides_whether_a_time_has_come(database: Database, ahead_ms: int) -> None:
    outbox = made(database)
    wrong_ms, now = time.time_ns() // 1_000_000 + ahead_ms, datetime.now(UTC)
    with patch.object(outbox._writer, "_clock_ms", lambda: wrong_ms):
        async with transaction(database.engine, "connection") as target:
            await awaited(outbox.publish(target, "t", b"past", deliver_at=now - timedelta(hours=1)))
            await awaited(outbox.publish(target, "t", b"future", deliver_at=now + timedelta(hours=1)))
    assert [row["value"] for row in events(database, outbox)] == [b"past"]
    assert [row["value"] for row in later(database, outbox)] == [b"future"]


@pytest.mark.slow
def test_the_hour_that_summer_time_repeats_is_two_hours(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    databases.check("mariadb")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with MariaDB() as server:
        engine = create_engine(f"mysql+pymysql://{server.address}/mysql")
        with engine.connect() as connection:
            hours: list[int] = []
            for at_seconds in (1_761_438_600, 1_761_442_200):  # 00:30 and 01:30 UTC, both 02:30 in Berlin
                connection.execute(text(f"SET timestamp = {at_seconds}"))
                hours.append(now_ms(connection))
        engine.dispose()
    assert hours == [1_761_438_600_000, 1_761_442_200_000]


async def test_tables_are_made_once_and_found_fine(database: Database) -> None:
    outbox = Outbox(database.engine, schema=None, archive=True, strict_order=True)
    with database.plain.connect() as connection:
        assert [
            problem for problem in outbox.check(connection) if "is missing: outbox.create_tables()" not in problem
        ] == []
    await outbox.create_tables_async()
    await outbox.create_tables_async()
    with database.plain.connect() as connection:
        assert outbox.check(connection) == []
        meta = read_meta(connection, outbox.tables)
        shards = connection.execute(outbox.tables.shards.select()).all()
    assert (meta["version"], meta["shards"], len(meta["id"])) == ("1", "64", 12)
    assert sorted(shards) == [(shard, None) for shard in range(64)]
    async with transaction(database.engine, "session") as target:  # locks what it needs
        await awaited(outbox.publish(target, "t", b"v", key=b"k"))
    with pytest.raises(ConfigError, match=r"has 64 shards, and this program says 8: Outbox\(shards=64\)"):
        await Outbox(database.engine, shards=8).create_tables_async()


async def test_missing_tables_are_named_with_their_cure(database: Database) -> None:
    outbox = Outbox(database.engine)
    for how in HOWS:
        async with transaction(database.engine, how) as target:
            with pytest.raises(ConfigError, match=r"no table 'eventbus_outbox'.*create_tables.*eventbus outbox ddl"):
                await awaited(outbox.publish(target, "t", b"v"))
            raise Rollback
    made(database)
    async with transaction(database.engine, "connection") as target:
        with pytest.raises(ConfigError, match=r"other columns than this program writes.*another version"):
            await awaited(Outbox(database.engine, columns="debezium").publish(target, "t", b"v"))
        raise Rollback


@pytest.mark.parametrize("database", THREE, indirect=True)
@pytest.mark.parametrize("columns", ["plain", "debezium"])
def test_ddl_makes_the_same_tables(database: Database, columns: Any) -> None:
    outbox = Outbox(database.engine, columns=columns, archive=True)
    name = {"mysql": "mariadb"}.get(database.plain.dialect.name, database.plain.dialect.name)
    with database.plain.begin() as connection:
        for statement in outbox.ddl(name).split(";\n\n"):
            if statement:
                connection.exec_driver_sql(statement)
        assert outbox.check(connection) == []


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
def test_writers_of_a_shard_commit_one_after_the_other(database: Database) -> None:
    outbox = made(database, strict_order=True)
    patience = {"postgresql": "SET lock_timeout = '50ms'", "mysql": "SET innodb_lock_wait_timeout = 1"}
    with database.plain.begin() as first, database.plain.begin() as second:
        second.execute(text(patience[second.dialect.name]))
        outbox.publish(first, "t", b"1", key=b"same")
        outbox.publish(second, "t", b"2", key=b"another shard")
        relay = second.execute(outbox.tables.shards.update().values(slot=1))  # relays wait for no writer
        assert relay.rowcount == 64
        with pytest.raises(Exception, match=r"(?i)lock"):
            outbox.publish(second, "t", b"3", key=b"same")
        second.rollback()
    with database.plain.begin() as third:
        outbox.publish(third, "t", b"4", key=b"same")
    assert [row["value"] for row in events(database, outbox)] == [b"1", b"4"]


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
def test_without_it_they_do_not_wait(database: Database) -> None:
    outbox = made(database)
    with database.plain.begin() as first:
        outbox.publish(first, "t", b"1", key=b"same")
        with database.plain.begin() as second:
            outbox.publish(second, "t", b"2", key=b"same")
        assert [row["value"] for row in events(database, outbox)] == [b"2"]
    assert [row["value"] for row in events(database, outbox)] == [b"1", b"2"]  # its id was drawn first


@pytest.mark.parametrize("strict_order", [False, True])
@pytest.mark.parametrize("database", ["sqlite", "psycopg"], indirect=True)
def test_publishing_while_the_connection_streams_a_result(database: Database, strict_order: bool) -> None:
    outbox = made(database, strict_order=strict_order)
    numbers = text("SELECT 1 AS n UNION ALL SELECT 2 ORDER BY n")
    with database.plain.connect().execution_options(stream_results=True) as connection, connection.begin():
        for (number,) in connection.execute(numbers):
            outbox.publish(connection, "orders", str(number), key="k")
    assert [row["value"] for row in events(database, outbox)] == [b"1", b"2"]


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
def test_a_prepared_transaction_wakes_when_it_is_committed(database: Database) -> None:
    outbox = made(database)
    wakes: list[int] = []
    outbox.listeners.add(lambda: wakes.append(1))
    with database.plain.connect() as connection:
        if connection.dialect.name == "postgresql" and connection.scalar(text("SHOW max_prepared_transactions")) == "0":
            pytest.skip("this server allows no prepared transactions: max_prepared_transactions = 0")
        connection.rollback()
        for ends, before, after in (("commit", 0, 1), ("rollback", 1, 1)):
            both = connection.begin_twophase()
            outbox.publish(connection, "t", b"v")
            both.prepare()
            assert len(wakes) == before
            getattr(both, ends)()
            assert len(wakes) == after
    assert len(events(database, outbox)) == 1


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_a_replica_says_where_to_write(database: Database) -> None:
    outbox = made(database)
    name = database.plain.dialect.name
    with database.plain.connect() as connection:
        read_only = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET default_transaction_read_only = on"}
        connection.execute(text(read_only.get(name, "SET SESSION TRANSACTION READ ONLY")))
        connection.commit()
        with connection.begin(), pytest.raises(Exception, match=r"(?i)read.?only") as raised:
            outbox.publish(connection, "t", b"v")
        assert "publish with a session of the primary" in raised.value.__notes__[0]
        connection.invalidate()


@pytest.mark.parametrize("database", ["sqlite", "psycopg", "asyncpg"], indirect=True)
async def test_a_schema_of_each_tenant(database: Database) -> None:
    """What SQLAlchemy translates, it has to compile itself."""
    outbox = made(database)
    named = {"sqlite": "main"}.get(database.plain.dialect.name, "public")
    engine = database.engine.execution_options(schema_translate_map={None: named})
    async with transaction(engine, "connection") as target:
        await awaited(outbox.publish(target, "t", b"1", key=b"k"))
        await awaited(outbox.publish_many(target, "t", [b"2", b"3"], expires_after=60))
    assert [row["value"] for row in events(database, outbox)] == [b"1", b"2", b"3"]
