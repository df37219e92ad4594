"""Messages that their sender may send twice: one that was seen is finished without a call."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from eventbus import ConsumerRecord
from outbox import Inbox, units
from outbox.claims import Claims, id_of_message
from tests.databases import THREE, Database
from tests.outbox.inbox.given import (
    T0,
    T1,
    Ledger,
    batch_handler_of,
    dead_letters,
    log_of,
    service,
)
from tests.support import until

pytestmark = pytest.mark.system

on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def headed(*ids: str | bytes | None) -> list[tuple[tuple[str, bytes], ...]]:
    return [() if id is None else (("event-id", id if isinstance(id, bytes) else id.encode()),) for id in ids]


async def send(log: Any, partition: int, *ids: str | bytes | None, value: bytes = b"") -> None:
    for headers in headed(*ids):
        await log.send("t", value, partition=partition, headers=headers)


async def test_a_message_that_was_seen_is_not_handled_again(database: Database) -> None:
    """Across partitions and lives of the service; another group has its own."""
    ledger = Ledger(database)
    async with log_of(0) as log:
        await send(log, 0, "a", "b", "a", None, None)
        async with service(log.url, ledger, tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, 0), (0, 1), (0, 3), (0, 4)] and ledger.stored() == {T0: 5}
        await send(log, 1, "b", "c", "")
        async with service(log.url, ledger, tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, 0), (0, 1), (0, 3), (0, 4), (1, 1), (1, 2)] and ledger.stored() == {T0: 5, T1: 3}
        async with service(log.url, ledger, group="other", tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert len(ledger.rows()) == 6 + 5 + 1


@pytest.mark.parametrize("database", ["sqlite", "asyncpg", "mariadb"], indirect=True)
async def test_messages_of_one_batch(database: Database) -> None:
    ledger, calls = Ledger(database), list[list[int]]()
    handler = batch_handler_of(database.is_async, calls)
    async with log_of(0, 1) as log:
        await send(log, 0, "a", "b", "a", None, "c", "b")
        async with service(log.url, ledger, handler=handler, batch=True, tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert calls == [[0, 1, 3, 4]] and ledger.stored() == {T0: 6}
        await send(log, 0, "c", "a")
        async with service(log.url, ledger, handler=handler, batch=True, tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert calls == [[0, 1, 3, 4]] and ledger.stored() == {T0: 8}


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
async def test_the_same_message_in_two_partitions_at_once(database: Database) -> None:
    ledger = Ledger(database)
    ids = [f"id-{n}" for n in range(40)]
    async with log_of(0) as log:
        await send(log, 0, *ids)
        await send(log, 1, *ids)
        async with service(log.url, ledger, tx={"message_ids": "event-id"}, concurrency=2) as bus:
            await bus.drain()
        assert len(ledger.rows()) == 40 and ledger.stored() == {T0: 40, T1: 40}


@pytest.mark.parametrize("database", THREE, indirect=True)
async def test_ids_of_all_kinds_are_told_apart(database: Database) -> None:
    """Databases fold case, cut trailing spaces, refuse zeros and text that is too long."""
    ids: list[str | bytes] = [
        "a",
        "A",
        "a ",
        " a",
        "a\0",
        "ä",
        "a\u0308",
        "x" * 1_000,
        "x" * 1_001,
        b"\xff",
        "\\xff",
        b"\xff\0",
    ]
    ledger = Ledger(database)
    async with log_of(0, 1) as log:
        await send(log, 0, *ids, *ids)
        async with service(log.url, ledger, tx={"message_ids": "event-id"}) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, n) for n in range(len(ids))]
        assert all(len(id) <= 300 for id in ledger.ids())


@on_sqlite
async def test_a_function_tells_the_id(database: Database) -> None:
    def id_of(record: ConsumerRecord) -> Any:
        value = (record.value or b"").decode()
        return {"none": None, "number": 7}.get(value, value)

    ledger = Ledger(database)
    async with log_of(0, 1) as log:
        for value in ("a", "none", "a", "number", "b", "none"):
            await log.send("t", value.encode(), partition=0)
        async with service(log.url, ledger, tx={"message_ids": id_of}, dead_letter=True) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, 0), (0, 1), (0, 4), (0, 5)] and await dead_letters(log) == ["number"]


@on_sqlite
async def test_an_id_is_claimed_with_the_handlers_work(database: Database) -> None:
    """A call that fails leaves none: the same message is handled when it comes again."""
    ledger, fails = Ledger(database), [True]

    def fail_once(record: ConsumerRecord, session: Any) -> None:
        if fails:
            fails.pop()
            raise ValueError("not yet")

    async with log_of(0, 1) as log:
        await send(log, 0, "a", "a", value=b"x")
        async with service(log.url, ledger, fail_once, tx={"message_ids": "event-id"}, dead_letter=True) as bus:
            await bus.drain()
        assert ledger.rows() == [(0, 1)] and await dead_letters(log) == ["x"]


async def test_old_ids_are_deleted(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted as others are added, but not while a redelivery after a pause is possible."""
    monkeypatch.setattr(units, "_IDS_PER_PURGE", 4)
    monkeypatch.setattr(units, "_PURGE_AFTER_SECONDS", 0.0)
    ledger = Ledger(database)
    options = {"message_ids": "event-id", "keep": timedelta(hours=1)}
    async with log_of(0, 1) as log:
        await send(log, 0, "a", "b", "c")
        async with service(log.url, ledger, tx=options) as bus:
            await bus.drain()
            with database.plain.begin() as connection:
                connection.execute(
                    text("UPDATE eventbus_offsets_ids SET seen_at_ms = seen_at_ms - 3600001 WHERE id <> 'message:c'")
                )
            await send(log, 0, "d")
            await bus.drain()
            await until(lambda: ledger.ids() == ["message:c", "message:d"], poll_seconds=0.002)


@on_sqlite
async def test_a_purge_that_fails_is_nobodys_failure(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(units, "_IDS_PER_PURGE", 1)
    monkeypatch.setattr(units, "_PURGE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(Claims, "forget_ids", fail)
    ledger = Ledger(database)
    async with log_of(0, 1) as log:
        await send(log, 0, "a", "b", "c")
        async with service(log.url, ledger, tx={"message_ids": "event-id"}, dead_letter=True) as bus:
            await bus.drain()
        assert len(ledger.rows()) == 3 and await dead_letters(log) == []


def test_nothing_is_deleted_in_the_first_hour() -> None:
    claims = Claims("g", table="eventbus_offsets", schema=None)
    from sqlalchemy import create_engine

    inbox = Inbox(create_engine("sqlite:///never-opened.db"), message_ids="event-id")
    one = units.BlockingUnits(inbox.database, claims, "h", "session", None, None, 1, creates=True)
    one._ids_added = 10_000
    assert not one._purge_is_due
    one._purge_at = time.monotonic()
    assert one._purge_is_due


def test_what_an_id_is_stored_as() -> None:
    assert id_of_message("01J9-ab") == "message:01J9-ab"
    digests = {id_of_message(one) for one in ("a ", "a", "ä", "x" * 201, "\ud800", "a\n")}
    assert len(digests) == 6 and all(len(one) < 80 for one in digests)
