"""Ways in which the database stalls a relay or an inbox: health is degraded, and all goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from sqlalchemy import insert, text, update
from sqlalchemy.orm import Session, sessionmaker

from eventbus import EventBus
from eventbus.client.handling import waits
from outbox import watch
from outbox.database import now_ms
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import ON_SQLITE, outbox_in, running
from tests.support import until

pytestmark = pytest.mark.system

ON_ALL = pytest.mark.parametrize("database", [*THREE, "asyncpg"], indirect=True)


@contextmanager
def renamed(database: Database, table: str, column: str = "") -> Iterator[None]:
    """The table, or one of its columns, has another name for a while, as in the middle of a migration."""
    pairs = [(column, "away"), ("away", column)] if column else [(table, "away"), ("away", table)]
    of = f"ALTER TABLE {table} RENAME COLUMN" if column else "ALTER TABLE"
    statements = [
        text(f"{of} {old} TO {new}" if column else f"ALTER TABLE {old} RENAME TO {new}") for old, new in pairs
    ]
    with database.plain.begin() as connection:
        connection.execute(statements[0])
    try:
        yield
    finally:
        with database.plain.begin() as connection:
            connection.execute(statements[1])


@ON_ALL
@pytest.mark.parametrize("column", ["", "id"])
async def test_a_table_or_a_column_that_is_missing_for_a_while_quarantines_nothing(
    database: Database, column: str
) -> None:
    async with running(database) as scene:
        scene.publish("t", b"before")
        await scene.bus.drain()
        with renamed(database, "eventbus_outbox", column):
            await until(lambda: scene.relay.health().status == "degraded", poll_seconds=0.01)
        scene.publish("t", b"after")
        await until(lambda: scene.relay.metrics().published == 2, poll_seconds=0.01)
        assert scene.relay.metrics().quarantined == 0
        await until(lambda: scene.relay.health().status == "ok", poll_seconds=0.01)


@ON_SQLITE
async def test_published_events_that_cannot_be_deleted(database: Database) -> None:
    """They were published, so nothing showed it."""
    async with running(database, outbox=outbox_in(database, archive=True)) as scene:
        with renamed(database, "eventbus_outbox_archive"):
            scene.publish("t", b"v")
            await until(lambda: scene.relay.health().status == "degraded", poll_seconds=0.01)
            assert scene.relay.health().reason.startswith(
                "published events are not deleted now, it is retried automatically"
            )
        await until(lambda: scene.count(scene.outbox.tables.events) == 0, poll_seconds=0.01)
        await until(lambda: scene.relay.health().status == "ok", poll_seconds=0.01)


@ON_SQLITE
async def test_shards_that_a_dead_relay_holds(database: Database) -> None:
    outbox = outbox_in(database)
    tables = outbox.tables
    with database.plain.begin() as connection:
        now = now_ms(connection)
        relay = {"slot": 3, "token": "x", "host": "gone@elsewhere", "started_at_ms": now, "published": 0}
        connection.execute(insert(tables.relays), {**relay, "seen_at_ms": now - 90_000, "expires_at_ms": now + 500_000})
        connection.execute(update(tables.shards).values(slot=3))
    with patch.object(watch, "_LATE_MS", -1), patch.object(watch, "_FIRST_SECONDS", 0.0):
        with database.plain.begin() as connection:
            outbox.publish(connection, "t", b"v")
        async with running(database, outbox=outbox) as scene:
            await until(lambda: "gone@elsewhere" in scene.relay.health().reason, poll_seconds=0.01)
            assert scene.relay.health().status == "degraded"


@pytest.mark.parametrize("database", [*THREE], indirect=True)
@pytest.mark.parametrize("column", ["", "next_offset"])
async def test_an_inbox_waits_for_its_table_and_health_gives_the_reason(database: Database, column: str) -> None:
    """The partition stopped until a restart."""
    got: list[str] = []
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing", tx=sessionmaker(database.plain))
    def bill(order: str, session: Session) -> None:
        got.append(order)

    with patch.object(waits, "_LONG_SECONDS", 0.0):
        async with bus:
            await bus.send("orders", "1")
            await bus.drain()
            with renamed(database, "eventbus_offsets", column):
                await bus.send("orders", "2")
                reasons = [""]

                async def reason() -> bool:
                    reasons.append((await bus.health()).reason)
                    return "orders-0 waits: the database of tx=" in reasons[-1]

                await until(reason, poll_seconds=0.01)
                assert (await bus.health()).status == "degraded"
            await bus.drain()
            assert got == ["1", "2"]


@ON_SQLITE
async def test_partitions_whose_first_offset_the_database_does_not_give(database: Database) -> None:
    """The callback of an assignment asks the database. Meanwhile the handler does not poll."""
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing", tx=sessionmaker(database.plain))
    def bill(order: str, session: Session) -> None: ...

    with patch.object(waits, "_LONG_SECONDS", 0.0):
        async with bus:
            await bus.drain()
            with renamed(database, "eventbus_offsets"):
                await bus.admin.add_partitions("orders", 2)

                async def is_reported() -> bool:
                    return "waits (and 1 more partitions): its database has not answered" in (await bus.health()).reason

                await until(is_reported, poll_seconds=0.01)
            await bus.send("orders", "1", partition=1)
            await bus.drain()
