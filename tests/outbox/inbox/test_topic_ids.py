"""Offsets in a database belong to one topic. Another topic with its name is noticed before its first record."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.orm import Session

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError
from outbox import Inbox, SqlOffsets
from tests.databases import THREE, Database
from tests.outbox.inbox.given import T0, T1, Ledger, all_rows, fill, log_of, service, values
from tests.support import until

pytestmark = pytest.mark.system

on_three = pytest.mark.parametrize("database", THREE, indirect=True)
on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@on_three
async def test_a_recreated_topic_that_is_longer_is_refused_and_then_read_from_its_beginning(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of(3) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        await log.admin.delete_topics(["t"])
        await log.admin.create_topic("t", partitions=2)
        for partition in (0, 1):
            await fill(log, partition, range(5))
        with pytest.raises(ConfigError, match=r"offsets of another topic 't'.*forget\('g', TopicPartition"):
            await service(log.url, ledger).start()
        assert ledger.rows() == all_rows(3)
        await Inbox(ledger.sessions).forget("g", T0, T1)
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == sorted([*all_rows(3), *all_rows(5)])


@on_files
async def test_a_topic_that_is_recreated_under_a_running_handler_ends_it(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of(3, 1) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
            await log.admin.delete_topics(["t"])
            await log.admin.create_topic("t", partitions=1)
            await fill(log, 0, range(5))
            await until(lambda: bus.context.runners[0].has_left)
            assert "offsets of another topic 't'" in str(bus.context.runners[0].error)
            assert (await bus.health()).status == "failed"
        assert ledger.rows() == all_rows(3, 1)


@on_files
async def test_records_that_were_deleted_before_they_were_handled_are_counted_in_health(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of(3, 1) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        await fill(log, 0, range(3, 6))
        await log.admin.delete_records({T0: 5})
        async with service(log.url, ledger) as bus:
            await bus.drain()
            health = await bus.health()
            assert health.status == "degraded" and "t-0: 2 record(s) are lost to the handler" in health.reason
        assert ledger.rows() == [(0, offset) for offset in (0, 1, 2, 5)]


@on_three
async def test_a_table_of_an_earlier_release_is_upgraded(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of() as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        with database.plain.begin() as connection:
            connection.execute(text("ALTER TABLE eventbus_offsets DROP COLUMN topic_id"))
        bus = service(log.url, ledger, tx={"create_tables": False})
        with pytest.raises(ConfigError, match=r"ALTER TABLE .*eventbus_offsets.* ADD COLUMN topic_id") as raised:
            await bus.start()
        async with service(log.url, ledger) as bus:
            await fill(bus, 0, "x")
            await bus.drain()
        assert ledger.rows() == sorted([*all_rows(), (0, 10)])
        with database.plain.begin() as connection:  # and the statement of the error does the same
            found = [column["name"] for column in inspect(connection).get_columns("eventbus_offsets")]
            rows = connection.execute(text(f"SELECT {ledger._quoted('partition')}, topic_id FROM eventbus_offsets"))
            ids = {partition: topic_id for partition, topic_id in rows}
            connection.execute(text("ALTER TABLE eventbus_offsets DROP COLUMN topic_id"))
            connection.exec_driver_sql(str(raised.value).partition("Add the column: ")[2])
        [topic] = await log.admin.describe_topics(["t"])
        assert "topic_id" in found and ids == {0: topic.topic_id, 1: ""}, "noted with the next record"
        async with service(log.url, ledger, tx={"create_tables": False}) as bus:
            await bus.drain()
        assert ledger.rows() == sorted([*all_rows(), (0, 10)])


@on_sqlite
async def test_a_retried_record_is_not_taken_for_one_of_a_deleted_topic(database: Database) -> None:
    """Their offsets are equal, whether the old record was handled or waits for its next try."""
    ledger, fails = Ledger(database), True

    def hook(record: ConsumerRecord, session: Session) -> None:
        if fails:
            raise ValueError("later")

    def options(delay: str) -> dict[str, object]:
        return {"retry": Retry(immediate=0, delays=[delay], jitter=False)}

    async with log_of(0, 1) as log:
        for value, delay in (("old", "1ms"), ("older", "1h"), ("new", "1ms")):
            if value != "old":
                await log.admin.delete_topics(["t"])
                await log.admin.create_topic("t", partitions=1)
                with database.plain.begin() as connection:  # by hand: the ids of handled records stay
                    connection.execute(text("DELETE FROM eventbus_offsets"))
            await fill(log, 0, [value], key=b"k")
            fails = True
            async with service(log.url, ledger, hook, **options(delay)) as bus:
                counts = bus.context.runners[0].counts
                await until(lambda counts=counts: counts.retried)
                fails = False
                await until(lambda counts=counts, delay=delay: counts.handled or delay == "1h")
        with database.plain.connect() as connection:
            assert connection.execute(text("SELECT value FROM ledger")).scalars().all() == ["old", "new"]


@on_sqlite
async def test_a_loop_with_sql_offsets_is_refused_too(database: Database, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    for count, is_refused in ((3, False), (5, True)):
        async with EventBus(url) as bus:
            await bus.admin.create_topic("t")
            await fill(bus, 0, range(count))
            offsets = SqlOffsets(database.engine, "g")
            if is_refused:
                async with bus.new_consumer(group="g") as consumer:
                    with pytest.raises(ConfigError, match=r"another topic 't'.*forget\(TopicPartition"):
                        await offsets.follow(consumer, "t")
                        await consumer.poll()
                await offsets.forget(T0)
                offsets = SqlOffsets(database.engine, "g")
            async with bus.new_consumer(group="g") as consumer:
                await offsets.follow(consumer, "t")
                records = await consumer.poll()
                assert values(records) == [str(n) for n in range(count)]
                async with offsets.transaction(records):
                    pass
            await bus.admin.delete_topics(["t"])


async def test_a_loop_that_runs_while_its_topic_is_recreated_skips_nothing(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/offsets.db")
    offsets = SqlOffsets(engine, "g")
    async with log_of(3, 1) as log, log.new_consumer(group="g") as consumer:
        await offsets.follow(consumer, "t")
        async with offsets.transaction(await consumer.poll()):
            pass
        await log.admin.delete_topics(["t"])
        await log.admin.create_topic("t", partitions=1)
        await fill(log, 0, range(5))
        with pytest.raises(ConfigError, match="another topic 't'"):
            for _ in range(100):
                records = await consumer.poll(100)
                assert records == [], "it begins nowhere before the offsets are deleted"
        await offsets.forget(T0)
        records = await consumer.poll()
        assert values(records) == ["0", "1", "2", "3", "4"]
    engine.dispose()
