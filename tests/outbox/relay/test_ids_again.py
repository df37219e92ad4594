"""A sequence of event ids restarts: no relay stops for it, no event is lost, and health states what to do."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from outbox.database import Database as Transactions
from outbox.quarantine import Choice, Quarantine, Released
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import Scene, outbox_in, running

pytestmark = [pytest.mark.system, pytest.mark.parametrize("database", [*THREE, "asyncpg"], indirect=True)]

LARGE = b"." * 50_000
"""The topic refuses it."""


def restart_ids(database: Database) -> None:
    """Let the ids begin again, as on a replica that was promoted."""
    statement = {
        "postgresql": "ALTER SEQUENCE eventbus_outbox_id_seq RESTART WITH 1",
        "sqlite": "UPDATE sqlite_sequence SET seq = 0 WHERE name = 'eventbus_outbox'",
        "mysql": "ALTER TABLE eventbus_outbox AUTO_INCREMENT = 1",
    }[database.plain.dialect.name.replace("mariadb", "mysql")]
    with database.plain.begin() as connection:
        connection.execute(text(statement))


def problems(scene: Scene) -> list[str]:
    with scene.database.plain.connect() as connection:
        return scene.outbox.check(connection)


async def test_events_with_the_ids_of_archived_ones_are_archived_too(database: Database) -> None:
    outbox = outbox_in(database, archive=True)
    async with running(database, outbox=outbox) as scene:
        for values in ((b"a", b"b"), (b"c", b"d", b"e")):
            for value in values:
                scene.publish("t", value, partition=0)
            await scene.bus.drain()
            restart_ids(database)
        assert await scene.drained() == [b"a", b"b", b"c", b"d", b"e"]
        assert outbox.tables.archive is not None
        archived = scene.rows(outbox.tables.archive)
        assert sorted(row.value for row in archived) == [b"a", b"b", b"c", b"d", b"e"]
        assert len({row.event_id for row in archived}) == 5


async def test_an_event_with_the_id_of_a_quarantined_one_is_quarantined_too(database: Database) -> None:
    async with running(database) as scene:
        tables = scene.outbox.tables
        scene.publish("t", LARGE + b"1", key=b"a")
        await scene.bus.drain()
        restart_ids(database)
        [problem] = problems(scene)
        assert "ids of the table eventbus_outbox have restarted" in problem and "with the id 1" in problem
        assert scene.relay._watch is not None
        await scene.relay._watch.look()
        health = scene.relay.health()
        assert health.status == "degraded" and health.reason == problem
        scene.publish("t", LARGE + b"2", key=b"b")
        scene.publish("t", b"fine", key=b"c")
        assert await scene.drained() == [b"fine"]
        assert [(row.value[-1:], row.key) for row in scene.rows(tables.failed)] == [(b"1", b"a"), (b"2", b"b")]
        with database.plain.begin() as connection:
            connection.exec_driver_sql(problem.partition("Run: ")[2])
        scene.publish("t", b"later", key=b"c")
        assert problems(scene) == [] and await scene.drained() == [b"fine", b"later"]


async def test_a_quarantined_event_is_put_back_while_another_has_its_id(database: Database) -> None:
    """The events after it are put back too, in their order."""
    outbox = outbox_in(database)
    async with running(database, outbox=outbox) as scene:
        for value in (LARGE, b"2", b"3"):
            scene.publish("t", value, key=b"a")
        await scene.bus.drain()
        failed = scene.rows(outbox.tables.failed)
        assert [row.value[-1:] for row in failed] == [b".", b"2", b"3"]
    restart_ids(database)
    with database.plain.begin() as connection:
        outbox.publish(connection, "t", b"other", key=b"b")
    quarantine = Quarantine(Transactions(database.engine), outbox.tables)
    assert await quarantine.retry(Choice()) == Released(1, 2)
    rows: list[Any] = []
    with database.plain.begin() as connection:
        rows = [row.value[-1:] for row in connection.execute(outbox.tables.events.select().order_by("id"))]
        assert list(connection.execute(outbox.tables.failed.select())) == []
    assert sorted(rows) == [b".", b"2", b"3", b"r"] and [row for row in rows if row != b"r"] == [b".", b"2", b"3"]
