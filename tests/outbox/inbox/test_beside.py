"""The inbox together with other parts of a bus: filters, middleware, test kits, replays, health, the outbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from eventbus import ConsumerRecord, EventBus
from eventbus.testing import TestBus
from outbox import Inbox, Outbox
from tests.databases import Database
from tests.outbox.inbox.given import (
    T0,
    T1,
    Ledger,
    all_rows,
    batch_handler_of,
    fill,
    group_of,
    handler_of,
    log_of,
    service,
)

pytestmark = pytest.mark.system

on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@on_files
async def test_a_filter_and_middleware(database: Database) -> None:
    """A middleware that calls again gets nothing the second time: the record counts once."""
    ledger, calls = Ledger(database), list[int]()

    async def twice(record: Any, call_next: Any) -> Any:
        await call_next(record)
        return await call_next(record)

    async with log_of(6) as log:

        def hook(record: ConsumerRecord, session: Any) -> None:
            calls.append(record.offset)

        def keep(record: ConsumerRecord) -> bool:
            return record.offset % 2 == 0

        async with service(log.url, ledger, hook, filter=keep, middleware=[twice]) as bus:
            await bus.drain()
            assert bus.context.runners[0].counts.filtered > 0
        assert ledger.rows() == [(part, off) for part in range(2) for off in (0, 2, 4)] and sorted(calls) == sorted(
            [0, 2, 4] * 2
        )
        assert (await group_of(log)) == {T0: 6, T1: 6}


@on_files
async def test_middleware_around_batches(database: Database) -> None:
    ledger, calls = Ledger(database), list[list[int]]()
    handler = batch_handler_of(database.is_async, calls)

    async def twice(records: Any, call_next: Any) -> Any:
        await call_next(records[:2])
        return await call_next(records)

    async with log_of(6, 1) as log:
        options: dict[str, Any] = {"batch": True, "filter": lambda record: record.offset != 4, "middleware": [twice]}
        async with service(log.url, ledger, handler=handler, **options) as bus:
            await bus.drain()
        assert calls == [[0, 1], [2, 3, 5]] and ledger.stored() == {T0: 6}


@on_sqlite
async def test_a_policy_and_a_middleware_see_what_a_handler_raises(database: Database) -> None:
    ledger, seen = Ledger(database), list[str]()

    def fail(record: ConsumerRecord, session: Session) -> None:
        raise LookupError("no such order")

    async def look(record: Any, call_next: Any) -> Any:
        try:
            return await call_next(record)
        except LookupError as error:
            seen.append(str(error))
            raise

    async with log_of(1, 1) as log:
        async with service(log.url, ledger, fail, middleware=[look], on_error="skip") as bus:
            await bus.drain()
        assert seen == ["no such order"] and ledger.rows() == [] and (await group_of(log))[T0] == 1


@on_files
async def test_on_a_test_bus(database: Database) -> None:
    ledger = Ledger(database)
    bus = TestBus(auto_create_topics=True)
    bus.consumer("t", group="g", tx=ledger.sessions)(handler_of(database.is_async))
    async with bus:
        await bus.send("t", b"x")
        await bus.drain()
    async with bus:
        await bus.send("t", b"y")
        await bus.drain()
    assert [offset for _, offset in ledger.rows()] == [0, 1]


def test_under_trio(tmp_path: Path) -> None:
    """A plain engine works in threads, under any loop."""
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{tmp_path / 'db'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (part INTEGER, off BIGINT, value VARCHAR(100))"))

    async def main() -> None:
        async with EventBus("memory://") as keeper:
            await keeper.admin.create_topic("t", partitions=1)
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)
        bus.consumer("t", group="g", tx=sessionmaker(engine))(handler_of(False))
        async with bus:
            await fill(bus, 0, range(3))
            await bus.drain()

    anyio.run(main, backend="trio")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT off FROM ledger")).scalars().all() == [0, 1, 2]
    engine.dispose()


@on_files
async def test_a_replay_is_another_group(database: Database) -> None:
    """A replay handles records again that the handler's own group has handled."""
    ledger = Ledger(database)
    async with log_of(5, 1) as log:
        bus = service(log.url, ledger)
        async with bus:
            await bus.drain()
        with bus.context.in_group(bus.context.handlers[0], "replay"):
            async with bus:
                await bus.drain()
        assert ledger.rows() == sorted(2 * all_rows(5, 1))
        assert ledger.stored() == ledger.stored("replay") == {T0: 5}
        async with bus:
            await bus.drain()
        assert len(ledger.rows()) == 10


@on_sqlite
async def test_what_is_handled_shows_in_the_group_after_a_crash(database: Database) -> None:
    """The database is ahead of the group, and no record comes: lag and health say what is so."""
    ledger = Ledger(database)
    async with log_of(5) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        await log.admin.alter_group_offsets("g", {T0: 2, T1: 5})
        async with service(log.url, ledger) as bus:
            with anyio.fail_after(20):
                while (await group_of(log))[T0] < 5:  # noqa: ASYNC110 - a commit in the background
                    await anyio.sleep(0.005)
            assert set((await bus.context.runners[0].lag()).values()) == {0}
            assert (await bus.health()).is_healthy
        assert ledger.rows() == all_rows(5)


@pytest.mark.parametrize("database", ["sqlite", "sqlite-async", "psycopg", "asyncpg"], indirect=True)
async def test_events_are_published_with_the_handlers_work(database: Database) -> None:
    """Events get the trace of the record, and are not published if the call fails."""
    ledger, fails = Ledger(database), [True]
    outbox = Outbox(database.engine)
    if database.is_async:
        await outbox.create_tables_async()
    else:
        outbox.create_tables()
    woken = list[int]()
    outbox.listeners.add(lambda: woken.append(len(ledger.rows())))

    def plain(record: ConsumerRecord, session: Session) -> None:
        outbox.publish(session, "bills", b"bill", key="k")
        if fails:
            fails.pop()
            raise ValueError("not yet")

    async def asynchronous(record: ConsumerRecord, session: AsyncSession) -> None:
        await outbox.publish(session, "bills", b"bill", key="k")
        if fails:
            fails.pop()
            raise ValueError("not yet")

    async with log_of(0, 1) as log:
        trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await log.send("t", b"x", partition=0, headers=(("traceparent", trace),))
        await log.send("t", b"y", partition=0)
        hook = asynchronous if database.is_async else plain
        async with service(log.url, ledger, hook, tx=Inbox(database.engine), dead_letter=False, on_error="skip") as bus:
            await bus.drain()
        async with service(log.url, ledger, hook, group="again", tx=Inbox(database.engine)) as bus:
            await bus.drain()
    with database.plain.connect() as connection:
        events = connection.execute(select(outbox.tables.events)).all()
    assert len(events) == 3 and len(ledger.rows()) == 3
    assert sum(trace in (event.headers or b"") for event in events) == 1
    assert len(woken) == 3 and (woken == [1, 2, 3] or database.kind.startswith("sqlite"))
