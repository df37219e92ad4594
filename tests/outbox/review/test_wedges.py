"""What must not stop a relay for good: rows that are none, a log that is another one, a log that refuses receipts."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import anyio
import pytest
from sqlalchemy import update

from eventbus.client.producer import Producer
from eventbus.errors import KafkaError
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import ON_SQLITE, outbox_in, running

pytestmark = pytest.mark.system


class Refusal(KafkaError):
    """As for a topic that this client may not use."""

    code = 29


@ON_SQLITE
@pytest.mark.parametrize("odd", [{"headers": b"garbage"}, {"headers": b""}, {"value": 7}], ids=str)
async def test_a_row_that_is_no_event_is_put_aside(database: Database, odd: dict[str, Any]) -> None:
    async with running(database) as scene:
        with database.plain.begin() as connection:
            values = {"event_id": "e", "shard": 1, "topic": "t", "value": b"v", "timestamp_ms": 1, **odd}
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            into = f"INSERT INTO {scene.outbox.tables.events.name} ({names}) VALUES ({marks})"
            connection.exec_driver_sql(into, tuple(values.values()))
        scene.publish("t", b"behind")
        with anyio.fail_after(30):
            assert await scene.drained() == [b"behind"]
        (row,) = scene.rows(scene.outbox.tables.failed)
        assert row.reason.startswith("SerializationError: the row is not an event (")


@ON_SQLITE
async def test_text_that_was_written_by_hand_is_published(database: Database) -> None:
    async with running(database) as scene:
        with database.plain.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO {scene.outbox.tables.events.name} (event_id, shard, topic, key, value, timestamp_ms) "
                "VALUES ('e', 1, 't', 'key', '{\"n\": 1}', 1)"
            )
        with anyio.fail_after(30):
            assert await scene.drained() == [b'{"n": 1}']


@ON_SQLITE
async def test_a_log_without_the_topic_of_receipts_gets_it_again(database: Database) -> None:
    """As one that was replaced by an empty one while the relay ran."""
    async with running(database) as scene:
        scene.publish("t", b"1")
        assert await scene.drained() == [b"1"]
        await scene.bus.admin.delete_topics([f"_outbox.{scene.outbox.name}"])
        scene.publish("t", b"2")
        with anyio.fail_after(30):
            await scene.bus.drain()
            assert sorted(record.value for record in await scene.read()) == [b"1", b"2"]


@ON_SQLITE
async def test_rows_are_not_to_blame_for_a_receipt_that_is_refused(database: Database) -> None:
    async with running(database) as scene:
        tries = 0
        tried_often = anyio.Event()
        give = Producer.send_offsets

        async def refuse(self: Producer, *arguments: Any) -> None:
            nonlocal tries
            tries += 1
            if tries > 7:  # a check of the receipts alone: after a batch, a row would be to blame
                tried_often.set()
            raise Refusal("no access")

        with patch.object(Producer, "send_offsets", refuse):
            for n in range(3):
                scene.publish("t", b"%d" % n, key=b"k")
            with anyio.fail_after(30):
                await tried_often.wait()
            assert scene.count(scene.outbox.tables.failed) == 0
            assert scene.relay.health().status == "degraded"
        assert Producer.send_offsets is give
        with anyio.fail_after(30):
            assert await scene.drained() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("database", THREE, indirect=True)
async def test_shards_of_relays_whose_rows_were_deleted_by_hand_are_published(database: Database) -> None:
    outbox = outbox_in(database)
    with database.plain.begin() as connection:
        connection.execute(update(outbox.tables.shards).values(slot=outbox.tables.shards.c.shard % 2 + 3))
    async with running(database, outbox=outbox, lease_ms=200) as scene:
        for n in range(5):
            scene.publish("t", b"%d" % n, key=b"k%d" % n)
        found: list[Any] = []
        with anyio.fail_after(30):
            while len(found) < 5:
                found += await scene.drained()
        assert sorted(found) == [b"%d" % n for n in range(5)]
        assert scene.relay.metrics().reaped == 2


@ON_SQLITE
async def test_keys_that_were_blocked_meanwhile_are_seen_when_a_shard_is_taken(database: Database) -> None:
    """The relay that had the shard may put a row aside after the look, and then let go of the shard."""
    outbox = outbox_in(database)
    tables = outbox.tables
    with database.plain.begin() as connection:
        connection.execute(update(tables.shards).values(slot=3))
    async with running(database, outbox=outbox, lease_ms=300) as scene:
        steps: list[str] = []
        shared = anyio.Event()

        async def at(step: str) -> None:
            if step == "shared":
                shared.set()
            if step == "looked" and "handed over" not in steps:
                steps.append("handed over")
                with database.plain.begin() as connection:
                    for value in (b"refused", b"behind"):
                        outbox.publish(connection, "t", value, key=b"k")
                    event = connection.execute(tables.events.select().order_by(tables.events.c.id)).mappings().first()
                    assert event is not None
                    refused = {**event, "is_behind": 0, "reason": "it is refused", "failed_at_ms": 1}
                    connection.execute(tables.failed.insert(), refused)
                    connection.execute(tables.events.delete().where(tables.events.c.id == event["id"]))
                    connection.execute(update(tables.shards).values(slot=None))

        scene.relay._at = at
        with anyio.fail_after(30):
            await shared.wait()
            assert await scene.drained() == []
        assert [row.is_behind for row in scene.rows(tables.failed)] == [0, 1]
