"""Each record counts once in the handler's database, whatever offsets the log has, and whichever process dies."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from sqlalchemy import text

from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError, HandlerError
from outbox import Inbox
from tests.databases import THREE, Database
from tests.outbox.inbox.given import (
    T0,
    T1,
    Ledger,
    all_rows,
    batch_handler_of,
    dead_letters,
    fill,
    group_of,
    log_of,
    records_of,
    rows_of,
    service,
)
from tests.support import until

pytestmark = pytest.mark.system

on_three = pytest.mark.parametrize("database", THREE, indirect=True)
on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)


async def test_each_record_counts_once(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of() as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
            assert ledger.rows() == all_rows() and ledger.stored() == {T0: 10, T1: 10}
        await log.admin.alter_group_offsets("g", {T0: 0, T1: 4})  # as if the commits had never come through
        await fill(log, 0, "x")
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == sorted([*all_rows(), (0, 10)])
        assert ledger.stored() == await group_of(log) == {T0: 11, T1: 10}


async def test_a_batch_is_one_transaction(database: Database) -> None:
    ledger, calls = Ledger(database), list[list[int]]()
    handler = batch_handler_of(database.is_async, calls)
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, handler=handler, batch=4) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(partitions=1) and calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert ledger.stored() == {T0: 10}


@pytest.mark.parametrize("database", ["sqlite", "asyncpg"], indirect=True)
async def test_of_a_batch_only_what_is_new_is_handled(database: Database) -> None:
    """The batch is read before another member handles a part of it, and begins afterwards."""
    ledger, calls = Ledger(database), list[list[int]]()
    handler = batch_handler_of(database.is_async, calls)
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, handler=handler, batch=True) as bus:
            await bus.drain()
            units = bus.context.runners[0]._dispatch.calls.units
            assert units is not None
            await bus.send("t", b"10", partition=0)
            await bus.drain()
            await units.passed(T0, 13)
            for n in range(11, 15):
                bus.send_nowait("t", b"%d" % n, partition=0)
            await bus.flush()
            await bus.drain()
        assert calls[-1] == [13, 14] and ledger.rows() == [(0, n) for n in (*range(11), 13, 14)]


@on_three
async def test_the_database_wins_over_the_group(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of(20) as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        ledger.store(T0, 5)  # restored from a backup: later rows are gone as well
        ledger.store(T1, 20)
        with database.plain.begin() as connection:
            connection.execute(text("DELETE FROM ledger WHERE part = 0 AND off >= 5"))
        await log.admin.alter_group_offsets("g", {T0: 20, T1: 3})
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == all_rows(20)


@on_files
async def test_the_first_start_takes_over_where_the_group_is(database: Database) -> None:
    """A handler that is given tx= later goes on, and handles nothing again."""
    ledger = Ledger(database)
    async with log_of() as log:
        await log.admin.alter_group_offsets("g", {T0: 7})
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, 7), (0, 8), (0, 9), *[(1, n) for n in range(10)]]


@on_files
async def test_an_offset_beyond_the_end_of_the_log_stops_loudly(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of() as log:
        async with service(log.url, ledger) as bus:
            await bus.drain()
        ledger.store(T0, 13)  # as if the log had been restored from a backup: the topic is the same, and shorter
        await log.admin.alter_group_offsets("g", {T0: 0, T1: 0})
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"handled up to offset 13, and the log ends at 10.*forget"):
                await service(log.url, ledger).start()
            assert ledger.rows() == all_rows()
        await Inbox(ledger.sessions).forget("g", T0, T1)
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == sorted([*all_rows(), *all_rows()])


# members --------------------------------------------------------------------------------------------------------------


class Gate:
    """Blocks a handler in its transaction, in a thread or on the loop."""

    def __init__(self, is_async: bool) -> None:
        self._is_async = is_async
        self.has_come = threading.Event()
        self.may_go = threading.Event()

    def __call__(self, record: ConsumerRecord, session: Any) -> Any:
        if (record.partition, record.offset) != (0, 5) or self.has_come.is_set():
            return None
        self.has_come.set()
        if self._is_async:
            return anyio.to_thread.run_sync(self.may_go.wait, 30)
        assert self.may_go.wait(30)
        return None


@asynccontextmanager
async def living(bus: EventBus) -> AsyncGenerator[None]:
    """Run a bus in a separate task, so that it may wait while another starts."""
    running, stop = anyio.Event(), anyio.Event()

    async def live() -> None:
        async with bus:
            running.set()
            await stop.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        await running.wait()
        yield
        stop.set()


@pytest.mark.parametrize("database", ["psycopg", "asyncpg", "mariadb", "mariadb-async"], indirect=True)
async def test_a_member_that_wakes_inside_its_transaction_is_waited_for(database: Database) -> None:
    """It lost its partitions while it slept, but locks the row. The new owner waits, and finds the record handled."""
    ledger, gate = Ledger(database), Gate(database.is_async)
    async with log_of() as log:
        first = service(log.url, ledger, gate, drain_timeout_ms=1, client_id="first")
        async with living(first):
            await until(gate.has_come.is_set, poll_seconds=0.002)
            async with living(service(log.url, ledger, client_id="second")):
                await until(lambda: len(ledger.rows()) >= 15, poll_seconds=0.002)
                gate.may_go.set()
                await until(lambda: len(ledger.rows()) >= 20, poll_seconds=0.002)
        assert ledger.rows() == all_rows() and ledger.stored() == {T0: 10, T1: 10}


@on_files
async def test_a_member_that_wakes_before_its_transaction_finds_it_handled(database: Database) -> None:
    ledger, calls = Ledger(database), list[int]()
    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, lambda record, session: calls.append(record.offset)) as bus:
            await bus.drain()
            # What a sleeper does whose next record another member has handled, when it wakes.
            units = bus.context.runners[0]._dispatch.calls.units
            assert units is not None
            function = bus.context.handlers[0].function
            for old in (await records_of(log, "t"))[3:5]:
                if database.is_async:
                    await units.call(function, {"record": old}, (old,), {}, False)
                else:
                    await anyio.to_thread.run_sync(units.call, function, {"record": old}, (old,), {}, False)
        assert calls == list(range(10)) and ledger.rows() == all_rows(partitions=1)


@pytest.mark.parametrize("database", ["sqlite", "psycopg", "mariadb-async"], indirect=True)
async def test_members_that_come_and_go_lose_and_double_nothing(database: Database) -> None:
    ledger = Ledger(database)
    async with log_of(60) as log:
        for _ in range(3):
            async with living(service(log.url, ledger)), living(service(log.url, ledger)):
                await until(lambda: len(ledger.rows()) >= 20, poll_seconds=0.002)
            await fill(log, 0, range(10))
        async with service(log.url, ledger) as bus:
            await bus.drain()
        assert ledger.rows() == [*[(0, n) for n in range(90)], *[(1, n) for n in range(60)]]


@on_files
async def test_a_database_that_goes_back_under_a_running_handler_stops_it(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica without the last transactions took over: to go on would lose what they held."""
    ledger = Ledger(database)
    async with log_of(partitions=1) as log:
        with pytest.raises(HandlerError, match=r"not to blame.*handled up to offset 10.*now says 8"):
            async with service(log.url, ledger, dead_letter=True) as bus:
                await bus.drain()
                ledger.store(T0, 8)
                await bus.send("t", b"10", partition=0)
                await bus.drain()
        with database.plain.begin() as connection:
            connection.execute(text("DELETE FROM ledger WHERE off >= 8"))
        async with service(log.url, ledger, dead_letter=True) as bus:
            await bus.drain()
        assert await dead_letters(log) == []
        assert ledger.rows() == all_rows(11, 1)


@on_files
async def test_an_older_database_is_told_from_a_group_that_is_ahead(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Records that a filter dropped are finished in the log alone: they are not read again, and nothing is doubted."""
    ledger = Ledger(database)
    dropped = list[int]()

    def keep(record: ConsumerRecord) -> bool:
        if record.offset >= 6:
            dropped.append(record.offset)
        return record.offset < 6

    async with log_of(partitions=1) as log:
        async with service(log.url, ledger, filter=keep) as bus:
            await bus.drain()
        assert ledger.stored() == {T0: 6} and (await group_of(log))[T0] == 10 and len(dropped) == 4
        async with service(log.url, ledger, filter=keep) as bus:
            await bus.drain()
        assert len(dropped) == 4 and ledger.rows() == all_rows(6, 1)
        ledger.store(T0, 2)
        with database.plain.begin() as connection:
            connection.execute(text("DELETE FROM ledger WHERE off >= 2"))
        with caplog.at_level(logging.WARNING, "eventbus.runner"):
            async with service(log.url, ledger, filter=keep) as bus:
                await bus.drain()
        assert "begins at offset 2, as its database says; the group in the log is at 10" in caplog.text
        assert ledger.rows() == rows_of(database.plain) == all_rows(6, 1)
