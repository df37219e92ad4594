"""Rows and offsets in one transaction of the user's database: each record counts once, whichever process dies."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sqlalchemy import URL, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from eventbus import Consumer, EventBus, TopicPartition
from eventbus.errors import ConfigError
from outbox import OffsetsMoved, SqlOffsets
from tests.databases import KINDS, MOST, ON_SERVERS, THREE, Database, NewDatabase, before_next_look_seconds
from tests.tiers import quick

pytestmark = pytest.mark.system

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ROWS = text("INSERT INTO seen (part, offset_, value) VALUES (:partition, :offset, :value)")

SHARED_MEMORY = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
NO_WAITING = {"connect_args": {"timeout": 0}}
"""Timeout of SQLite's lock: zero, because no other process can release it meanwhile."""


def with_rows(database: Database) -> Database:
    """The table that records are written to."""
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE seen (part INTEGER, offset_ INTEGER, value TEXT)"))
    return database


def rows_of(database: Database) -> list[tuple[int, int]]:
    with database.plain.connect() as connection:
        found = connection.execute(text("SELECT part, offset_ FROM seen ORDER BY part, offset_"))
        return [(partition, offset) for partition, offset in found]


@pytest.fixture(params=quick(["memory", *KINDS], ["memory", *MOST]))
def database(request: pytest.FixtureRequest, new_database: NewDatabase) -> Database:
    if request.param == "memory":
        return with_rows(Database("sqlite", URL.create("sqlite"), **SHARED_MEMORY))
    return with_rows(new_database(request.param, **(NO_WAITING if request.param == "sqlite" else {})))


@pytest.fixture
def file_database(new_database: NewDatabase) -> Database:
    return with_rows(new_database("sqlite", **NO_WAITING))


@asynccontextmanager
async def filled(count: int = 10, partitions: int = 2) -> AsyncIterator[EventBus]:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t", partitions=partitions)
        for partition in range(partitions):
            for n in range(count):
                bus.send_nowait("t", b"%d" % n, partition=partition)
        await bus.flush()
        yield bus


def all_rows(count: int = 10, partitions: int = 2) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


async def write(connection: Any, records: Any) -> None:
    for record in records:
        await connection.execute(
            ROWS, {"partition": record.partition, "offset": record.offset, "value": record.value.decode()}
        )


async def work(consumer: Consumer, offsets: SqlOffsets, max_records: int = 3) -> int:
    """Poll and write until nothing is left; how often the offsets had moved."""
    moved = 0
    while records := await consumer.poll(0, max_records):
        try:
            async with offsets.transaction(records) as connection:
                await write(connection, records)
        except OffsetsMoved:
            moved += 1
    return moved


async def work_once(consumer: Consumer, offsets: SqlOffsets, max_records: int) -> None:
    records = await consumer.poll(0, max_records)
    async with offsets.transaction(records) as connection:
        await write(connection, records)


async def test_rows_and_offsets_are_committed_together(database: Database) -> None:
    async with filled() as bus:
        offsets = SqlOffsets(database.engine, "g")
        async with bus.new_consumer(group="g") as consumer:
            await offsets.follow(consumer, "t")
            assert await work(consumer, offsets) == 0
        assert rows_of(database) == all_rows()
        assert await offsets.stored([T0, T1, TopicPartition("t", 7)]) == {T0: 10, T1: 10}
        again = SqlOffsets(database.engine, "g")
        async with bus.new_consumer(group="g") as consumer:
            await again.follow(consumer, "t")
            assert await consumer.poll(0) == []
            await bus.send("t", b"10", partition=0)
            assert await work(consumer, again) == 0
        assert rows_of(database) == sorted([*all_rows(), (0, 10)])
        # The log's group shows the offsets, but the table decides.
        assert await bus.admin.group_offsets("g") == {T0: (11, ""), T1: (10, "")}


async def test_the_table_decides_not_the_log(database: Database) -> None:
    async with filled() as bus:
        await bus.admin.alter_group_offsets("g", {T0: 9, T1: 0})
        async with bus.new_consumer(group="g") as consumer:
            offsets = SqlOffsets(database.engine, "g")
            await offsets.follow(consumer, "t")
            assert (await consumer.position(T0), await consumer.position(T1)) == (0, 0)
            await work(consumer, offsets)
        await bus.admin.alter_group_offsets("g", {T0: 0, T1: 3})
        async with bus.new_consumer(group="g") as consumer:
            offsets = SqlOffsets(database.engine, "g")
            await offsets.follow(consumer, "t")
            assert (await consumer.position(T0), await consumer.position(T1)) == (10, 10)
        async with bus.new_consumer(group="new") as consumer:
            await SqlOffsets(database.engine, "new", start="latest").follow(consumer, "t")
            assert await consumer.poll(0) == []


async def test_an_exception_leaves_nothing_and_the_records_come_again(database: Database) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        for _ in range(3):
            records = await consumer.poll(0, 4)
            with pytest.raises(ZeroDivisionError):
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
                    raise ZeroDivisionError
            assert rows_of(database) == [] and await offsets.stored([T0, T1]) == {}
        await work(consumer, offsets)
        assert rows_of(database) == all_rows()


async def test_a_batch_behind_one_that_was_rolled_back_is_refused(database: Database) -> None:
    async with filled(partitions=1) as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        first, second = await consumer.poll(0, 3), await consumer.poll(0, 3)
        with pytest.raises(ZeroDivisionError):
            async with offsets.transaction(first):
                raise ZeroDivisionError
        with pytest.raises(OffsetsMoved, match="rolled back before"):
            async with offsets.transaction(second) as connection:
                await write(connection, second)
        await work(consumer, offsets)
        assert rows_of(database) == all_rows(partitions=1)


async def test_records_that_were_written_are_not_written_again(database: Database) -> None:
    async with filled(partitions=1) as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        records = await consumer.poll(0, 3)
        for attempt in range(2):
            try:
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
            except OffsetsMoved as error:
                assert attempt == 1 and "have been written" in str(error)
        assert await consumer.position(T0) == 3
        await offsets.forget(T0)
        await consumer.unsubscribe()
        await offsets.follow(consumer, "t")
        await work(consumer, offsets)
        assert len(rows_of(database)) == 13  # as was asked for


# crashes -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Life:
    """Counts steps, and dies at one of them."""

    def __init__(self, dies_at: int) -> None:
        self.dies_at = dies_at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Killed


async def live(bus: EventBus, database: Database, life: Life) -> None:
    """A process: it reads, writes rows, and steps between any two things it does."""
    offsets = SqlOffsets(database.engine, "g")
    async with bus.new_consumer(group="g") as consumer:
        life.step()
        await offsets.follow(consumer, "t")
        life.step()
        while records := await consumer.poll(0, 4):
            life.step()
            async with offsets.transaction(records) as connection:
                life.step()
                for record in records:
                    await write(connection, [record])
                    life.step()
            life.step()


async def test_a_process_that_dies_between_any_two_steps_loses_and_doubles_nothing(new_database: NewDatabase) -> None:
    for dies_at in itertools.count(1):
        database = with_rows(new_database("sqlite", **NO_WAITING))
        async with filled(6) as bus:
            life = Life(dies_at)
            try:
                await live(bus, database, life)
            except Killed:
                await live(bus, database, Life(0))
            assert rows_of(database) == all_rows(6), dies_at
        if life.steps < dies_at:
            assert dies_at > 20
            break


@pytest.mark.parametrize("after", [False, True])
async def test_a_commit_whose_answer_is_lost(file_database: Database, after: bool) -> None:
    """The connection breaks in the commit: it has happened, or not, and the process goes on not knowing."""
    database = file_database
    async with filled(6) as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        breaks = True

        def do_commit(connection: Any) -> None:
            nonlocal breaks
            if breaks:
                if after:
                    connection.commit()
                raise sqlite3.OperationalError("the connection is gone")
            connection.commit()

        database.engine.dialect.do_commit = do_commit
        records = await consumer.poll(0, 4)
        with pytest.raises(OperationalError):
            async with offsets.transaction(records) as connection:
                await write(connection, records)
        breaks = False
        assert await work(consumer, offsets) == (1 if after else 0)
        assert rows_of(database) == all_rows(6)


async def test_a_database_that_is_away_while_partitions_come(file_database: Database) -> None:
    """The listener raises out of `poll`; nothing is written before the offsets were read."""
    database = file_database
    async with filled() as bus:
        offsets = SqlOffsets(database.engine, "g")
        async with bus.new_consumer(group="g") as consumer:
            await offsets.follow(consumer, "t")
            records = await consumer.poll(0, 4)
            async with offsets.transaction(records) as connection:
                await write(connection, records)
        offsets = SqlOffsets(database.engine, "g")
        await offsets.create_table()

        def refuse(*_: Any) -> None:
            raise OperationalError("SELECT", None, Exception("away"))

        await bus.admin.alter_group_offsets("g", {T0: 8, T1: 8})  # wrong, and not to be believed
        async with bus.new_consumer(group="g") as consumer:
            event.listen(database.engine, "before_cursor_execute", refuse)
            with pytest.raises(OperationalError):
                await offsets.follow(consumer, "t")
            records = await consumer.poll(0, 2)
            assert records[0].offset == 8
            with pytest.raises(OperationalError):
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
            event.remove(database.engine, "before_cursor_execute", refuse)
            assert await work(consumer, offsets) == 1  # and with it everything else is put in its place
        assert rows_of(database) == all_rows()


# zombies -------------------------------------------------------------------------------------------------------------


async def pair(
    bus: EventBus, database: Database
) -> tuple[Callable[[], Awaitable[None]], tuple[Consumer, SqlOffsets], tuple[Consumer, SqlOffsets]]:
    """A zombie and its successor: both believe that the partition is theirs."""
    zombie, heir = bus.new_consumer(partitions=[T0]), bus.new_consumer(partitions=[T0])
    made: list[tuple[Consumer, SqlOffsets]] = []
    for consumer in (zombie, heir):
        await consumer.__aenter__()
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer)
        made.append((consumer, offsets))

    async def close() -> None:
        await zombie.aclose()
        await heir.aclose()

    return close, made[0], made[1]


ORDERS = list(itertools.product(THREE, itertools.product([0, 1], repeat=4), [0, 3]))
QUICK_ORDERS = [one for one in ORDERS if sum(one[1]) == 2 and (one[0] == "sqlite" or one[1:] == ((0, 1, 1, 0), 3))]


@pytest.mark.parametrize(("database", "order", "stored"), quick(ORDERS, QUICK_ORDERS), indirect=["database"])
async def test_two_that_believe_to_own_a_partition_write_each_record_once(
    database: Database, stored: int, order: tuple[int, ...]
) -> None:
    async with filled(partitions=1) as bus:
        if stored:
            async with bus.new_consumer(partitions=[T0]) as consumer:
                offsets = SqlOffsets(database.engine, "g")
                await offsets.follow(consumer)
                records = await consumer.poll(0, stored)
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
        close, *both = await pair(bus, database)
        for turn in order:
            consumer, offsets = both[turn]
            records = await consumer.poll(0, 2 + turn)
            try:
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
            except OffsetsMoved:
                assert await consumer.position(T0) == (await offsets.stored([T0]))[T0]
        for consumer, offsets in both:
            await work(consumer, offsets)
        await close()
        assert rows_of(database) == all_rows(partitions=1)


async def test_a_zombie_that_wakes_up_in_its_transaction(file_database: Database) -> None:
    """It read before it slept; its group went on without it, and its partition was handled by the heir."""
    database = file_database
    async with filled(partitions=1) as bus:
        zombie, offsets = bus.new_consumer(group="g"), SqlOffsets(database.engine, "g")
        await zombie.__aenter__()
        await offsets.follow(zombie, "t")
        records = await zombie.poll(0, 4)
        await bus.admin.remove_group_members("g")
        async with bus.new_consumer(group="g") as heir:
            theirs = SqlOffsets(database.engine, "g")
            await theirs.follow(heir, "t")
            await work(heir, theirs)
            with pytest.raises(OffsetsMoved):
                async with offsets.transaction(records) as connection:
                    await write(connection, records)
        await zombie.aclose()
        assert rows_of(database) == all_rows(partitions=1)


async def test_a_partition_that_moved_is_refused_without_asking_the_database(file_database: Database) -> None:
    database = file_database
    async with filled() as bus, bus.new_consumer(group="g") as one:
        mine, told = SqlOffsets(database.engine, "g"), []
        await mine.follow(
            one,
            "t",
            on_assigned=lambda ps: told.append(("+", len(ps))),
            on_revoked=lambda ps: told.append(("-", len(ps))),
        )
        records = await one.poll(0, 100)
        async with bus.new_consumer(group="g") as two:
            theirs = SqlOffsets(database.engine, "g")
            await theirs.follow(two, "t")
            for _ in range(3):
                await one.poll(0)
                await two.poll(0)
            gone = set(two.assignment())
            assert len(gone) == 1
            with pytest.raises(OffsetsMoved, match="no longer, this consumer's"):
                async with mine.transaction(records):
                    pass
            await work(one, mine)
            await two.seek_to_beginning()
            await work(two, theirs)
        assert told[0] == ("+", 2) and ("-", 2) in told
        assert rows_of(database) == all_rows()


# two transactions at once: SQLite lets no second one in, a server has it wait for the row -----------------------------


CLAIMS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
    "AND datname = current_database() AND query LIKE '%eventbus_offsets%'",
    "mysql": "SELECT count(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = database() "
    "AND t.trx_query LIKE '%eventbus_offsets%'",
}
"""How many wait for another transaction's claim."""


async def until_a_claim_waits(database: Database) -> None:
    look = text(CLAIMS[database.plain.dialect.name])

    def claims() -> int:
        with database.plain.connect() as connection:
            return connection.execute(look).scalar_one()

    with anyio.fail_after(60):
        while not await anyio.to_thread.run_sync(claims):  # noqa: ASYNC110 - servers have no event for waiters
            await anyio.sleep(before_next_look_seconds())


HEIRS = list(itertools.product(ON_SERVERS, [0, 3], [True, False]))
QUICK_HEIRS = [("asyncpg", 0, True), ("asyncpg", 3, False), ("mariadb", 3, True)]


@pytest.mark.parametrize(("database", "stored", "commits"), quick(HEIRS, QUICK_HEIRS), indirect=["database"])
async def test_an_heir_waits_for_the_zombies_transaction_and_goes_by_its_outcome(
    database: Database, stored: int, commits: bool
) -> None:
    async with filled(partitions=1) as bus:
        if stored:
            async with bus.new_consumer(partitions=[T0]) as consumer:
                offsets = SqlOffsets(database.engine, "g")
                await offsets.follow(consumer)
                await work_once(consumer, offsets, stored)
        close, (zombie, its), (heir, theirs) = await pair(bus, database)
        refused: list[bool] = []

        async def inherit() -> None:
            try:
                await work_once(heir, theirs, 3)
                refused.append(False)
            except OffsetsMoved:
                refused.append(True)

        records = await zombie.poll(0, 2)
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with its.transaction(records) as connection:
                    await write(connection, records)
                    tasks.start_soon(inherit)
                    await until_a_claim_waits(database)
                    assert not refused
                    if not commits:
                        scope.cancel()
                        await anyio.sleep_forever()
        assert refused == [commits]
        for consumer, offsets in ((zombie, its), (heir, theirs)):
            await work(consumer, offsets)
        await close()
    assert rows_of(database) == all_rows(partitions=1)


@pytest.mark.parametrize("database", quick(ON_SERVERS, ["asyncpg", "mariadb"]), indirect=True)
async def test_a_table_that_several_create_at_once(database: Database) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(SqlOffsets(database.engine, "g").create_table)
    assert await SqlOffsets(database.engine, "g").stored([T0]) == {}


# loops, threads, misuse ----------------------------------------------------------------------------------------------


def test_a_plain_engine_works_under_trio(file_database: Database) -> None:
    database = file_database

    async def main() -> None:
        async with filled() as bus, bus.new_consumer(group="g") as consumer:
            offsets = SqlOffsets(database.engine, "g")
            await offsets.follow(consumer, "t")
            await work(consumer, offsets)

    anyio.run(main, backend="trio")
    assert rows_of(database) == all_rows()


async def test_a_blocking_driver_never_runs_on_the_loop(file_database: Database) -> None:
    database = file_database
    on_loop: list[str] = []

    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        on_loop.append(statement)

    event.listen(database.engine, "before_cursor_execute", look)
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        await work(consumer, offsets)
    assert on_loop == [] and rows_of(database) != []


async def test_a_cancelled_block_writes_nothing(database: Database) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        records = await consumer.poll(0, 4)
        with anyio.CancelScope() as scope:
            async with offsets.transaction(records) as connection:
                await write(connection, records)
                scope.cancel()
                await anyio.sleep_forever()
        assert rows_of(database) == []
        await work(consumer, offsets)
        assert rows_of(database) == all_rows()


async def test_a_statement_that_asyncio_cancels_is_rolled_back_with_the_others(file_database: Database) -> None:
    """asyncio's own cancellation leaves a working thread behind; the rollback must wait for it."""
    database = file_database
    at_work, go_on, order = threading.Event(), threading.Event(), list[str]()

    def hold(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO seen") and not at_work.is_set():
            at_work.set()
            go_on.wait(20)
            order.append("statement")

    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        event.listen(database.engine, "before_cursor_execute", hold)
        event.listen(database.engine, "rollback", lambda connection: order.append("rollback"))
        task = asyncio.ensure_future(work_once(consumer, offsets, 4))
        await anyio.to_thread.run_sync(at_work.wait)
        task.cancel()
        for _ in range(1_000):
            await anyio.lowlevel.checkpoint()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert order == ["statement", "rollback"]
        await work(consumer, offsets)
    assert rows_of(database) == all_rows()


async def test_what_a_connection_can_do(database: Database) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        offsets = SqlOffsets(database.engine, "g")
        await offsets.follow(consumer, "t")
        records = await consumer.poll(0, 4)

        def orm(connection: Any, count: int) -> int:
            with Session(bind=connection) as session:
                return session.execute(text("SELECT COUNT(*) + :count FROM seen"), {"count": count}).scalar_one()

        async with offsets.transaction(records) as connection:
            await write(connection, records)
            assert await connection.scalar(text("SELECT COUNT(*) FROM seen")) == 4
            assert [row[0] for row in await connection.execute(text("SELECT offset_ FROM seen"))] == [0, 1, 2, 3]
            assert await connection.run_sync(orm, 1) == 5
        async with offsets.transaction([]) as connection:  # nothing was polled: rows may be written nevertheless
            await write(connection, records[:1])
        assert len(rows_of(database)) == 5


async def test_groups_share_a_table(database: Database) -> None:
    async with filled() as bus:
        for group in ("one", "two"):
            async with bus.new_consumer(group=group) as consumer:
                offsets = SqlOffsets(database.engine, group, table="positions")
                await offsets.follow(consumer, pattern="t")
                await work(consumer, offsets)
        assert sorted(rows_of(database)) == sorted(all_rows() * 2)


async def test_names_are_checked_and_values_are_bound(file_database: Database) -> None:
    database = file_database
    for table in ("", "a\0", "x" * 64):
        with pytest.raises(ConfigError, match="table="):
            SqlOffsets(database.engine, "g", table=table)
    with pytest.raises(ConfigError, match="schema="):
        SqlOffsets(database.engine, "g", schema="")
    with pytest.raises(ConfigError, match="group="):
        SqlOffsets(database.engine, "")
    with pytest.raises(ConfigError, match="start="):
        SqlOffsets(database.engine, "g", start="none")  # that is the point
    group = "'; DROP TABLE seen; --"
    async with filled() as bus, bus.new_consumer(group=group) as consumer:
        offsets = SqlOffsets(database.engine, group, table='1;"DROP TABLE seen')  # it is quoted
        await offsets.follow(consumer, "t")
        await work(consumer, offsets)
        assert await offsets.stored([T0]) == {T0: 10}
    assert rows_of(database) == all_rows()


async def test_misuse_is_named(file_database: Database) -> None:
    database = file_database
    with pytest.raises(ConfigError, match="connection per thread"):
        SqlOffsets(create_engine("sqlite://"), "g")
    async with filled() as bus, bus.new_consumer(group="g") as one, bus.new_consumer() as groupless:
        offsets = SqlOffsets(database.engine, "g")
        with pytest.raises(ConfigError, match="follow no consumer yet"):
            async with offsets.transaction([]):
                pass
        with pytest.raises(ConfigError, match="no group"):
            await SqlOffsets(database.engine, "g").follow(groupless, "t")
        await offsets.follow(one, "t")
        with pytest.raises(ConfigError, match="another consumer already"):
            await offsets.follow(groupless)
