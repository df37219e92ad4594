"""A database that was restored or cloned is detected before its relay publishes anything. A complete one is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from eventbus import EventBus
from outbox import Outbox
from outbox.relay.batches import adopt
from outbox.relay.relay import Relay
from tests.databases import THREE, Database, NewDatabase
from tests.outbox.relay.test_ids_again import restart_ids
from tests.outbox.relay.test_relay import Parked, Scene, outbox_in

pytestmark = [pytest.mark.system, pytest.mark.parametrize("kind", [*THREE, "asyncpg"])]


class Dump:
    """The rows of all tables of an outbox at one moment, and the last id that was given."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        with database.plain.begin() as connection:
            self._rows = {
                table.name: [dict(row._mapping) for row in connection.execute(table.select())]
                for table in outbox.tables.all
            }

    def restore(self, database: Database) -> Outbox:
        """Replace the outbox of the database. Ids continue after those in the table of events."""
        outbox = outbox_in(database)
        with database.plain.begin() as connection:
            for table in outbox.tables.all:
                connection.execute(table.delete())
                rows = [{column.key: row[column.name] for column in table.columns} for row in self._rows[table.name]]
                if rows:
                    connection.execute(table.insert(), rows)
        restart_ids(database)
        last = max((row["id"] for row in self._rows["eventbus_outbox"]), default=0)
        if last and database.plain.dialect.name == "postgresql":
            with database.plain.begin() as connection:
                connection.execute(text(f"SELECT setval('eventbus_outbox_id_seq', {last})"))
        return outbox


@asynccontextmanager
async def relay_of(bus: EventBus, database: Database, outbox: Outbox) -> AsyncIterator[Scene]:
    relay = outbox.relay(database.engine, listen=False, lease_ms=300)
    await relay.start(bus)
    try:
        yield Scene(database, outbox, relay, bus)
    finally:
        await relay.aclose()


async def refusal(relay: Relay) -> str:
    """Return the reason in health when the relay has refused its database."""
    while "does not match the log" not in relay.health().reason:
        await relay._quiet.wait()
    assert relay.health().status == "degraded"
    return relay.health().reason


@asynccontextmanager
async def a_log() -> AsyncIterator[EventBus]:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        yield bus


async def test_a_clone_publishes_nothing_and_does_not_stop_the_original(new_database: NewDatabase, kind: str) -> None:
    original, clone = new_database(kind), new_database(kind)
    outbox = outbox_in(original)
    async with a_log() as bus, relay_of(bus, original, outbox) as scene:
        scene.publish("t", b"1")
        await scene.relay.drain()
        cloned = Dump(original, outbox).restore(clone)
        scene.publish("t", b"2")
        await scene.relay.drain()
        async with relay_of(bus, clone, cloned) as other:
            other.publish("t", b"of the clone")
            reason = await refusal(other.relay)
            assert "batch 2 of relay slot 0" in reason and "batches up to 1" in reason
            scene.publish("t", b"3")
            await scene.relay.drain()
            assert scene.relay.metrics().fenced == 0
            with clone.plain.begin() as connection:
                adopt(connection, cloned.tables, "another id")
            await other.relay.drain()
            assert other.relay.health().status == "ok"
            scene.publish("t", b"4")
            await scene.relay.drain()
        assert [record.value for record in await scene.read()] == [b"1", b"2", b"3", b"of the clone", b"4"]


async def test_a_restored_database_is_refused_until_it_is_adopted(new_database: NewDatabase, kind: str) -> None:
    """Ids of rows that the backup does not have are given again, and the new rows are published once."""
    database = new_database(kind)
    outbox = outbox_in(database)
    async with a_log() as bus:
        async with relay_of(bus, database, outbox) as scene:
            scene.publish("t", b"1")
            await scene.relay.drain()
        yesterday = Dump(database, outbox)
        async with relay_of(bus, database, outbox) as scene:
            for value in (b"2", b"3"):
                scene.publish("t", value)
                await scene.relay.drain()
        yesterday.restore(database)
        async with relay_of(bus, database, outbox) as scene:
            scene.publish("t", b"new")
            await refusal(scene.relay)
            with database.plain.begin() as connection:
                adopt(connection, outbox.tables, "another id")
            await scene.relay.drain()
        async with relay_of(bus, database, outbox) as scene:
            await scene.relay.drain()
            assert [record.value for record in await scene.read()] == [b"1", b"2", b"3", b"new"]


async def test_a_backup_that_lacks_rows_of_the_last_batch_is_refused(new_database: NewDatabase, kind: str) -> None:
    """The backup was made before the batch was written, and the relay dies before it deletes the rows of the batch."""
    database = new_database(kind)
    outbox = outbox_in(database)
    async with a_log() as bus:
        async with relay_of(bus, database, outbox) as scene:
            await scene.relay.drain()
            backup = Dump(database, outbox)
            parked = Parked(scene.relay, "deleting")
            scene.publish("t", b"1")
            await parked.is_there.wait()
            parked.goes_on.set()
        backup.restore(database)
        async with relay_of(bus, database, outbox) as scene:
            scene.publish("t", b"new")
            await refusal(scene.relay)


async def test_a_complete_copy_goes_on_where_the_relay_died(new_database: NewDatabase, kind: str) -> None:
    """A replica is promoted, and a relay on another machine uses it."""
    database, replica = new_database(kind), new_database(kind)
    outbox = outbox_in(database)
    async with a_log() as bus:
        async with relay_of(bus, database, outbox) as scene:
            scene.publish("t", b"1")
            await scene.relay.drain()
            parked = Parked(scene.relay, "deleting")
            scene.publish("t", b"2")
            await parked.is_there.wait()
            copy = Dump(database, outbox).restore(replica)
            parked.goes_on.set()
        async with relay_of(bus, replica, copy) as scene:
            scene.publish("t", b"3")
            await scene.relay.drain()
            assert [record.value for record in await scene.read()] == [b"1", b"2", b"3"]
            assert scene.relay.metrics().settled == 1


async def test_a_clone_of_an_idle_database_is_refused(
    new_database: NewDatabase, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay without events commits a receipt now and then."""
    original, clone = new_database(kind), new_database(kind)
    outbox = outbox_in(original)
    async with a_log() as bus, relay_of(bus, original, outbox) as scene:
        await scene.relay.drain()
        cloned = Dump(original, outbox).restore(clone)
        monkeypatch.setattr("outbox.relay.work._IDLE_SECONDS", 0)
        assert scene.relay._work is not None
        scene.relay._work._receipt_at = 0
        scene.relay._work.look_again()
        await scene.relay.drain()
        monkeypatch.undo()
        async with relay_of(bus, clone, cloned) as other:
            await refusal(other.relay)
        scene.publish("t", b"1")
        await scene.relay.drain()
        assert [record.value for record in await scene.read()] == [b"1"]


async def test_a_row_with_the_id_of_one_just_published_is_published(new_database: NewDatabase, kind: str) -> None:
    """TRUNCATE ... RESTART IDENTITY between the publishing of a row and its deletion."""
    database = new_database(kind)
    outbox = outbox_in(database, archive=True)
    async with a_log() as bus, relay_of(bus, database, outbox) as scene:
        is_done = False

        async def restart(step: str) -> None:
            nonlocal is_done
            if step != "deleting" or is_done:
                return
            is_done = True
            with database.plain.begin() as connection:
                connection.execute(outbox.tables.events.delete())
            restart_ids(database)
            scene.publish("t", b"2")

        scene.relay._at = restart
        scene.publish("t", b"1")
        await scene.relay.drain()
        await scene.relay.drain()
        assert is_done and [record.value for record in await scene.read()] == [b"1", b"2"]
        assert outbox.tables.archive is not None
        assert [row.value for row in scene.rows(outbox.tables.archive)] == [b"2"]
