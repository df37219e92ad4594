"""A warning names the outbox when a handler with ``tx=`` sends with its bus inside of the database's transaction."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from eventbus import ConsumerRecord, EventBus
from tests.databases import Database
from tests.outbox.inbox.given import Ledger, log_of, service

pytestmark = pytest.mark.system

on_files = pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for record in caplog.records if "database transaction (tx=)" in (text := record.getMessage())]


@on_files
@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_send_inside_of_the_transaction_warns_once(
    database: Database, is_batch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """``transactional=False`` says that it is meant. So does a place around the call, where no transaction is open."""
    inside: list[EventBus] = []

    async def around(record: Any, call_next: Any) -> Any:
        await inside[0].send("sent", b"around")
        return await call_next(record)

    async def asynchronous(records: list[ConsumerRecord], session: AsyncSession) -> None:
        await inside[0].send("sent", b"on purpose", transactional=False)
        assert (warnings_of(caplog) == []) == (not told)
        told.append(len(records))
        await inside[0].send("sent", b"inside")

    def plain(records: list[ConsumerRecord], session: Session) -> None:
        with inside[0].blocking() as blocking:
            blocking.send("sent", b"on purpose", transactional=False)
            assert (warnings_of(caplog) == []) == (not told)
            told.append(len(records))
            blocking.send("sent", b"inside")

    async def asynchronous_one(record: ConsumerRecord, session: AsyncSession) -> None:
        await asynchronous([record], session)

    def plain_one(record: ConsumerRecord, session: Session) -> None:
        plain([record], session)

    told = list[int]()
    many, one = (asynchronous, asynchronous_one) if database.is_async else (plain, plain_one)
    async with log_of(4, partitions=1) as log:
        await log.admin.create_topic("sent")
        ledger = Ledger(database)
        bus = service(
            log.url, ledger, handler=many if is_batch else one, batch=2 if is_batch else False, middleware=[around]
        )
        inside.append(bus)
        async with bus:
            await bus.drain()
    assert sum(told) == 4
    [text] = warnings_of(caplog)
    assert text.startswith("Handler 'handle' calls send inside of its database transaction")
    assert "outbox.publish(session, ...)" in text and "transactional=False" in text


@on_files
async def test_a_reply_is_no_such_send(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async def asynchronous(value: int, session: AsyncSession) -> int:
        return value + 1

    def plain(value: int, session: Session) -> int:
        return value + 1

    ledger = Ledger(database)
    async with log_of(0, partitions=1) as log:
        handler = asynchronous if database.is_async else plain
        async with service(log.url, ledger, handler=handler, replies=True) as bus:
            assert await bus.request("t", 1, returns=int) == 2
    assert warnings_of(caplog) == []
