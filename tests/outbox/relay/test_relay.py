"""Relays on every database, with a log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import OperationalError

from eventbus import ConsumerRecord, EventBus
from eventbus.backends.clock import system_clock
from eventbus.errors import ConfigError, error_for_code
from eventbus.testing import FakeClock
from outbox import Outbox
from outbox.database import now_sql
from outbox.relay import hosts
from outbox.relay.relay import Relay
from outbox.relay.shard_leases import LeaseLost, ShardLeases
from tests.databases import THREE, Database

pytestmark = pytest.mark.system

ON_THREE = pytest.mark.parametrize("database", THREE, indirect=True)
ON_SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Scene(NamedTuple):
    """An outbox, its relay in a bus that runs, and what readers see."""

    database: Database
    outbox: Outbox
    relay: Relay
    bus: EventBus

    def publish(self, topic: str, value: Any, **options: Any) -> str:
        with self.database.plain.begin() as connection:
            return self.outbox.publish(connection, topic, value, **options)

    def count(self, table: Any) -> int:
        with self.database.plain.begin() as connection:
            return connection.execute(select(func.count()).select_from(table)).scalar_one()

    def rows(self, table: Any) -> list[Any]:
        with self.database.plain.begin() as connection:
            return list(connection.execute(select(table).order_by(table.c.id)))

    async def read(self, *topics: str) -> list[ConsumerRecord]:
        async with self.bus.new_consumer(topics=list(topics or ["t"]), group="reader", start="earliest") as consumer:
            return [record async for record in consumer.until_end()]

    async def drained(self, *topics: str) -> list[Any]:
        """Everything that is published once the relay has nothing to do."""
        await self.bus.drain()
        return [record.value for record in await self.read(*topics)]


def outbox_in(database: Database, **options: Any) -> Outbox:
    outbox = Outbox(database.plain, notify=False, **options)
    outbox.create_tables()
    return outbox


@asynccontextmanager
async def running(
    database: Database, *, outbox: Outbox | None = None, url: str = "memory://", **options: Any
) -> AsyncIterator[Scene]:
    outbox = outbox or outbox_in(database)
    relay = outbox.relay(database.engine, **{"listen": False, **options})
    bus = EventBus(url)
    bus.topic("t", partitions=2, configs={"max.message.bytes": 20_000})
    bus.include(relay)
    async with bus:
        yield Scene(database, outbox, relay, bus)


async def test_committed_events_are_published_once_and_leave(database: Database) -> None:
    async with running(database) as scene:
        with database.plain.begin() as connection:
            for n in range(300):
                scene.outbox.publish(connection, "t", b"%d" % n, key=b"k%d" % (n % 7))
        records = await scene.drained()
        assert sorted(map(int, records)) == list(range(300))
        assert scene.count(scene.outbox.tables.events) == 0
        assert scene.relay.metrics().published == 300
        assert not await scene.relay.drain()
    assert scene.count(scene.outbox.tables.relays) == 0
    with database.plain.begin() as connection:
        assert set(connection.scalars(select(scene.outbox.tables.shards.c.slot))) == {None}


@ON_THREE
async def test_a_record_is_what_was_given(database: Database) -> None:
    async with running(database) as scene:
        headers = [("trace", b"1"), ("none", None), ("trace", b"2")]
        event_id = scene.publish("t", b"v", key=b"k", headers=headers, partition=1, timestamp_ms=1_234)
        scene.publish("t", None, key=b"k", partition=1)
        await scene.bus.drain()
        first, tombstone = await scene.read()
        assert (first.key, first.value, first.partition, first.timestamp_ms) == (b"k", b"v", 1, 1_234)
        assert first.headers == (*headers, ("event-id", event_id.encode()))
        assert (tombstone.key, tombstone.value) == (b"k", None)


@ON_THREE
async def test_published_events_go_to_the_archive(database: Database) -> None:
    async with running(database, outbox=outbox_in(database, archive=True)) as scene:
        scene.publish("t", b"v", key=b"k", headers={"a": b"b"})
        await scene.bus.drain()
        assert scene.outbox.tables.archive is not None
        (row,) = scene.rows(scene.outbox.tables.archive)
        assert (row.value, row.key, row.topic) == (b"v", b"k", "t")
        assert abs(row.published_at_ms - row.timestamp_ms) < 60_000
        assert scene.count(scene.outbox.tables.events) == 0


@ON_THREE
async def test_scheduled_events_come_when_they_are_due_and_others_do_not(database: Database) -> None:
    async with running(database) as scene:
        later = scene.outbox.tables.later
        for n, seconds in ((1, 50), (2, 40), (3, 100_000)):
            scene.publish("t", b"%d" % n, key=b"k", deliver_at=_seconds(seconds))
        assert await scene.drained() == []
        with database.plain.begin() as connection:
            connection.execute(update(later).where(later.c.value != b"3").values(due_ms=later.c.due_ms - 60_000))
        scene.outbox.listeners.wake()
        assert await scene.drained() == [b"2", b"1"]
        (row,) = scene.rows(later)
        assert scene.relay.health().details["next_due_ms"] == row.due_ms
        assert scene.relay.metrics().promoted == 2


@ON_SQLITE
async def test_a_scheduled_event_is_not_waited_for_by_the_poll(database: Database) -> None:
    async with running(database, poll_ms=(5, 600_000)) as scene:
        await scene.bus.drain()
        scene.publish("t", b"soon", deliver_at=_seconds(0.05))
        async with scene.bus.new_consumer(topics=["t"], group="g", start="earliest") as consumer:
            with anyio.fail_after(30):
                while not (records := await consumer.poll()):
                    pass
        assert [record.value for record in records] == [b"soon"]


@ON_THREE
async def test_an_event_that_is_too_late_is_not_published(database: Database) -> None:
    async with running(database) as scene:
        events = scene.outbox.tables.events
        with database.plain.begin() as connection:
            for value in (b"late", b"in time"):
                scene.outbox.publish(connection, "t", value, expires_after=1_000)
            late = update(events).where(events.c.value == b"late")
            connection.execute(late.values(expires_at_ms=events.c.expires_at_ms - 2_000_000))
        assert await scene.drained() == [b"in time"]
        assert scene.relay.metrics().expired == 1
        assert scene.count(events) == 0


# what the log refuses ------------------------------------------------------------------------------------------------


async def test_a_row_that_is_refused_blocks_its_key_and_no_other(database: Database) -> None:
    async with running(database) as scene:
        with database.plain.begin() as connection:
            for key in (b"a", b"b"):
                for n in range(3):
                    size = 50_000 if (key, n) == (b"a", 1) else 10
                    scene.outbox.publish(connection, "t", b"%s%d%s" % (key, n, b"." * size), key=key)
        assert [value[:2] for value in sorted(await scene.drained())] == [b"a0", b"b0", b"b1", b"b2"]
        scene.publish("t", b"a3", key=b"a")
        scene.publish("t", b"b3", key=b"b")
        assert len(await scene.drained()) == 5
        poison, *behind = scene.rows(scene.outbox.tables.failed)
        assert (poison.value[:2], poison.is_behind) == (b"a1", 0)
        assert poison.reason.startswith("RecordTooLarge: 50,121 bytes for t-")
        assert [(row.value[:2], row.is_behind) for row in behind] == [(b"a2", 1), (b"a3", 1)]
        metrics = scene.relay.metrics()
        assert (metrics.quarantined, metrics.moved_behind, metrics.published) == (1, 2, 5)
        health = scene.relay.health()
        assert (health.status, health.details["refused"]) == ("degraded", 1)
        assert health.reason == "events that the log refused are quarantined: 1. See: eventbus outbox list"


@ON_SQLITE
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("written_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("may_describe", [True, False])
async def test_an_event_without_a_time_of_its_own_is_not_refused_for_the_time_of_writing(
    database: Database, delivery: Any, written_ms: int, may_describe: bool
) -> None:
    """Relays were away, or the writer's clock was ahead: the event has the time of sending then."""
    log_ms = system_clock()
    outbox = outbox_in(database)
    for number in range(4):
        at_ms = log_ms + written_ms + number
        options = {"timestamp_ms": at_ms - 1} if number == 3 else {}
        with database.plain.begin() as connection, patch.object(outbox._writer, "_clock_ms", lambda at=at_ms: at):
            outbox.publish(connection, "t", b"%d" % number, key=b"k%d" % number, **options)
    limits = {"message.timestamp.before.max.ms": 100_000, "message.timestamp.after.max.ms": 100_000}
    relay = outbox.relay(database.engine, listen=False, delivery=delivery)
    bus = EventBus("memory://", clock=lambda: log_ms)
    bus.topic("t", partitions=2, configs=limits)
    bus.include(relay)
    described = bus.admin.describe_topics
    async with bus:
        scene = Scene(database, outbox, relay, bus)
        if not may_describe:

            async def refuse(topics: list[str]) -> Any:
                if topics == ["t"]:
                    raise error_for_code(29, "Describe is missing")
                return await described(topics)

            bus.admin.describe_topics = refuse  # type: ignore[method-assign]
        await bus.drain()
        records = await scene.read()
        assert {(record.value, record.timestamp_ms) for record in records} == {
            (b"%d" % number, log_ms) for number in range(3)
        }
        assert len(records) == 3 or delivery == "at-least-once"
        (refused,) = scene.rows(outbox.tables.failed)
        assert (refused.value, refused.timestamp_ms) == (b"3", log_ms + written_ms + 2)
        assert "message.timestamp." in refused.reason


@ON_SQLITE
async def test_a_row_that_is_refused_alone_is_put_aside(database: Database) -> None:
    async with running(database, on_poison="skip") as scene:
        for size in (1, 50_000, 1):
            scene.publish("t", b"." * size, key=b"a")
        assert await scene.drained() == [b".", b"."]
        assert [row.is_behind for row in scene.rows(scene.outbox.tables.failed)] == [0]


@ON_SQLITE
async def test_a_row_before_the_one_that_blocks_its_key_is_published(database: Database) -> None:
    """A retried one has its old id."""
    async with running(database) as scene:
        tables = scene.outbox.tables
        scene.publish("t", b"." * 50_000, key=b"a")
        await scene.bus.drain()
        (poison,) = scene.rows(tables.failed)
        with database.plain.begin() as connection:
            connection.execute(update(tables.failed).values(id=poison.id + 100))
            row = {**poison._mapping, "value": b"small"}
            connection.execute(insert(tables.events), {name: row[name] for name in row if name in tables.events.c})
        assert await scene.drained() == [b"small"]


@ON_SQLITE
async def test_a_key_goes_on_when_what_blocked_it_is_gone(database: Database) -> None:
    async with running(database) as scene:
        failed = scene.outbox.tables.failed
        scene.publish("t", b"." * 50_000, key=b"a")
        await scene.bus.drain()
        with database.plain.begin() as connection:
            connection.execute(delete(failed))
        scene.publish("t", b"on", key=b"a")
        assert await scene.drained() == [b"on"]
        assert scene.count(failed) == 0


@pytest.mark.parametrize("database", ["sqlite", "psycopg"], indirect=True)
async def test_rows_of_a_topic_that_is_missing_for_too_long_are_put_aside(database: Database) -> None:
    async with running(database, patience_ms=0) as scene:
        with database.plain.begin() as connection:
            for n in range(3):
                scene.outbox.publish(connection, "nowhere", b"%d" % n)
                scene.outbox.publish(connection, "t", b"%d" % n)
            scene.outbox.publish(connection, "t", b"9", partition=9)
        assert sorted(await scene.drained()) == [b"0", b"1", b"2"]
        assert [row.topic for row in scene.rows(scene.outbox.tables.failed)] == ["nowhere"] * 3 + ["t"]


# ways ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["sqlite", "asyncpg"], indirect=True)
async def test_without_transactions(database: Database) -> None:
    async with running(database, delivery="at-least-once") as scene:
        with database.plain.begin() as connection:
            for n in range(50):
                scene.outbox.publish(connection, "t", b"%d" % n, key=b"k")
            scene.outbox.publish(connection, "t", b"." * 50_000, key=b"other")
        values = await scene.drained()
        assert list(dict.fromkeys(map(int, values))) == list(range(50))
        assert scene.count(scene.outbox.tables.events) == 0
        assert scene.count(scene.outbox.tables.failed) == 1
        assert await scene.bus.admin.list_transactions() == []


@ON_SQLITE
async def test_on_disk(database: Database, tmp_path: Any) -> None:
    async with running(database, url=f"file://{tmp_path / 'log'}") as scene:
        for n in range(5):
            scene.publish("t", b"%d" % n, key=b"k")
        assert await scene.drained() == [b"0", b"1", b"2", b"3", b"4"]


@ON_SQLITE
async def test_debeziums_names_and_text_keys(database: Database) -> None:
    async with running(database, outbox=outbox_in(database, columns="debezium")) as scene:
        scene.publish("t", b"v", key="ä")
        await scene.bus.drain()
        (record,) = await scene.read()
        assert (record.key, record.value) == ("ä".encode(), b"v")


@ON_SQLITE
async def test_two_outboxes_of_one_name_share_a_log(database: Database, new_database: Any) -> None:
    """Two services, each with a separate database."""
    second = new_database("sqlite")
    async with running(database) as one:
        outbox = outbox_in(second)
        relay = outbox.relay(second.engine, listen=False)
        await relay.start(one.bus)
        two = Scene(second, outbox, relay, one.bus)
        for n in range(3):
            one.publish("t", b"one %d" % n)
            two.publish("t", b"two %d" % n)
            assert await one.relay.drain()
            assert await relay.drain()
        assert len(await one.read()) == 6
        assert one.relay.metrics().fenced == relay.metrics().fenced == 0
        await relay.aclose()


@ON_SQLITE
async def test_services_with_logs_of_their_own_do_not_publish_each_others_events(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A database, and outboxes of the default name: the second relay publishes after the first has left."""
    async with running(database, outbox=outbox_in(database)) as one:
        await one.relay.drain()
        async with running(database, outbox=one.outbox) as two:
            while two.relay.health().status == "ok":
                await two.relay._quiet.wait()
            for number in range(20):
                one.publish("t", b"%d" % number, key=b"%d" % number)
            assert len(await one.drained()) == 20
            assert "to another log by the relay" in two.relay.health().reason
            assert two.relay.metrics().published == 0
    async with running(database, outbox=one.outbox) as moved:
        moved.publish("t", b"after the move")
        assert await moved.drained() == [b"after the move"]
    assert "its events were published to another log until now" in caplog.text


@ON_SQLITE
async def test_a_log_created_again_under_a_relay_is_followed_and_shared(database: Database) -> None:
    """The relays of later instances were refused, as those of another log."""
    async with running(database) as one:
        one.publish("t", b"before")
        assert await one.relay.drain()
        await one.bus.admin.delete_topics(["_outbox.eventbus_outbox"])  # as in a log that was created again
        one.publish("t", b"after")
        assert await one.drained() == [b"before", b"after"]
        relay = one.outbox.relay(database.engine, listen=False)
        await relay.start(one.bus)
        await relay._quiet.wait()
        assert relay.health().status == "ok", relay.health()
        await relay.aclose()


@ON_SQLITE
async def test_relays_of_two_logs_that_start_at_the_same_moment_do_not_both_enter(database: Database) -> None:
    outbox = outbox_in(database)
    outbox.create_tables()
    slots = ShardLeases(outbox.tables, 9_000, database.engine.dialect.name, now_sql)
    with database.engine.begin() as connection:
        slots.identity(connection, "log 0", hosts.is_gone)
    with database.engine.begin() as connection:
        slots.identity(connection, "log 1", hosts.is_gone)
        with pytest.raises(LeaseLost, match="at the same moment"):
            slots._agree_on(connection, "log 2", "log 0", hosts.is_gone)  # as a transaction that read before


class Moves:
    """The moves of shards between relays."""

    def __init__(self, *relays: Relay) -> None:
        self._moved = anyio.Event()
        for one in relays:
            one._at = self._at

    async def _at(self, step: str) -> None:
        if step in ("renewed", "shared", "released", "looked"):
            self._moved.set()

    async def next(self) -> None:
        self._moved = anyio.Event()
        await self._moved.wait()


async def test_two_relays_share_the_shards(database: Database) -> None:
    async with running(database, lease_ms=300) as scene:
        await scene.relay.drain()
        second = scene.outbox.relay(database.engine, listen=False, lease_ms=300)
        moved = Moves(scene.relay, second)
        await second.start(scene.bus)
        while (scene.relay.metrics().shards, second.metrics().shards) != (32, 32):
            await moved.next()
        with database.plain.begin() as connection:
            for n in range(200):
                scene.outbox.publish(connection, "t", b"%d" % n, key=b"k%d" % (n % 20))
        await scene.relay.drain()
        await second.drain()
        await second.aclose()
        assert sorted(int(record.value) for record in await scene.read()) == list(range(200))
        assert scene.relay.metrics().published > 20
        assert second.metrics().published > 20


# what is not as it should be -----------------------------------------------------------------------------------------


@ON_SQLITE
async def test_ids_of_the_last_receipt_that_are_given_again_lose_nothing(database: Database) -> None:
    """The rows of the receipt are recorded as deleted, so rows with their ids are new events."""
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        outbox = outbox_in(database)
        for n in range(2):
            relay = outbox.relay(listen=False)
            await relay.start(bus)
            scene = Scene(database, outbox, relay, bus)
            for value in range(3):
                scene.publish("t", b"%d" % (10 * n + value))
            await relay.drain()
            await relay.aclose()
            with database.plain.begin() as connection:
                connection.execute(text("DELETE FROM sqlite_sequence"))
        scene.publish("t", b"lost?")
        relay = outbox.relay(listen=False)
        await relay.start(bus)
        await relay.drain()
        await relay.aclose()
        assert [int(record.value) for record in (await scene.read())[:-1]] == [0, 1, 2, 10, 11, 12]


@ON_SQLITE
async def test_an_engine_that_may_see_what_is_rolled_back_is_refused(database: Database) -> None:
    outbox = outbox_in(database)
    engine = database.plain.execution_options(isolation_level="READ UNCOMMITTED")
    bus = EventBus("memory://")
    bus.include(outbox.relay(engine))
    with pytest.raises(ConfigError, match="READ UNCOMMITTED"):
        async with bus:
            pass


@ON_SQLITE
async def test_tables_of_another_count_of_shards_are_refused(database: Database) -> None:
    outbox_in(database, shards=8)
    bus = EventBus("memory://")
    bus.include(Outbox(database.plain, shards=16).relay())
    with pytest.raises(ConfigError, match=r"8.*16"):
        async with bus:
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "once"},
        {"on_poison": "drop"},
        {"batch_size": 0},
        {"batch_size": 10_001},
        {"lease_ms": 5},
        {"poll_ms": (10, 5)},
        {"poll_ms": 5},
    ],
)
@ON_SQLITE
async def test_options_that_are_none(database: Database, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Outbox(database.plain).relay(**options)


@ON_SQLITE
async def test_missing_tables_are_made(database: Database) -> None:
    async with running(database, outbox=Outbox(database.plain)) as scene:
        scene.publish("t", b"v")
        assert await scene.drained() == [b"v"]


@ON_SQLITE
async def test_a_database_that_is_away_is_waited_for(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with running(database) as scene:
        scene.publish("t", b"before")
        await scene.bus.drain()
        away = [True] * 3
        run = scene.relay._database.run

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            if away:
                away.pop()
                assert "failed" not in scene.relay.health().status
                raise OperationalError("", {}, Exception("could not connect to server"))
            return await run(*args, **kwargs)

        scene.relay._database.run = refuse
        scene.publish("t", b"after")
        assert await scene.drained() == [b"before", b"after"]
        assert "could not connect" in caplog.text
        assert scene.relay.health().status == "ok"
        assert scene.relay.metrics().failures == 3


STEPS = ["looked", "taken", "begun", "sent", "receipt", "committed", "deleted"]


class Parked:
    """A relay that waits at a step for the event ``goes_on``."""

    def __init__(self, relay: Relay, step: str) -> None:
        self.step = step
        self.is_there = anyio.Event()
        self.goes_on = anyio.Event()
        relay._at = self._at

    async def _at(self, step: str) -> None:
        if step == self.step and not self.is_there.is_set():
            self.is_there.set()
            await self.goes_on.wait()


@pytest.mark.parametrize("step", STEPS)
@ON_SQLITE
async def test_closing_finishes_the_batch_at_work(database: Database, step: str) -> None:
    outbox = outbox_in(database)
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        relay = outbox.relay(listen=False)
        parked = Parked(relay, step)
        scene = Scene(database, outbox, relay, bus)
        scene.publish("t", b"v")
        await relay.start(bus)
        await parked.is_there.wait()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(relay.aclose)
            await anyio.lowlevel.checkpoint()
            parked.goes_on.set()
        assert scene.count(outbox.tables.relays) == 0
        assert scene.count(outbox.tables.events) == 0
        assert [record.value for record in await scene.read()] == [b"v"]


@pytest.mark.parametrize("step", STEPS)
@ON_SQLITE
async def test_a_bus_that_is_cancelled_leaves_nothing_in_doubt(database: Database, step: str) -> None:
    outbox = outbox_in(database)
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        relay = outbox.relay(listen=False)
        parked = Parked(relay, step)
        scene = Scene(database, outbox, relay, bus)
        for value in (b"1", b"2"):
            scene.publish("t", value, key=b"k")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                with patch.object(bus.context, "start_soon", tasks.start_soon):
                    await relay.start(bus)
                await parked.is_there.wait()
                scope.cancel()
        await relay.aclose()
        after = outbox.relay(listen=False)
        await after.start(bus)
        await after.drain()
        await after.aclose()
        assert [record.value for record in await scene.read()] == [b"1", b"2"]
        assert scene.count(outbox.tables.relays) == 0


@ON_SQLITE
async def test_under_a_clock_that_stands(database: Database) -> None:
    """A database is real: the relay waits for its lock, though a test's clock does not move."""
    outbox = outbox_in(database)
    relay = outbox.relay(listen=False)
    bus = EventBus("memory://", clock=FakeClock())
    bus.include(relay)
    bus.topic("t")
    met = anyio.Event()

    def seconds(low: float, high: float) -> float:
        met.set()
        return low

    async with bus:
        await bus.drain()
        with database.plain.begin() as connection, patch("outbox.relay.transactions.random.uniform", seconds):
            outbox.publish(connection, "t", b"1")
            assert relay._work is not None
            relay._work.keeper.look_at = 0
            outbox.listeners.wake()
            await met.wait()
        await bus.drain()
        assert [record.value for record in await Scene(database, outbox, relay, bus).read()] == [b"1"]


# what it says --------------------------------------------------------------------------------------------------------


@ON_SQLITE
async def test_health_and_metrics(database: Database) -> None:
    async with running(database) as scene:
        scene.publish("t", b"v")
        await scene.bus.drain()
        health = scene.relay.health()
        assert (health.part, health.status) == ("outbox eventbus_outbox", "ok")
        assert health.details["shards"] == 64
        samples = {sample.name: sample.value for sample in scene.bus.metrics().samples()}
        assert samples["eventbus_outbox_published_events_total"] == 1
        assert samples["eventbus_outbox_lag_seconds_count"] == 1
        assert repr(scene.relay) == "<Relay of outbox 'eventbus_outbox', ok>"
    assert scene.relay.health().status == "failed"
    assert not await scene.relay.drain()


def _seconds(seconds: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=seconds)
