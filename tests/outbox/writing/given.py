"""A transaction of any kind, so that a test is written once for sessions and connections, with and without a loop."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outbox import Outbox
from tests.databases import Database


class Rollback(Exception):
    """Leaves a block, which rolls back."""


@asynccontextmanager
async def transaction(engine: Any, how: str) -> AsyncGenerator[Any]:
    """``how``: "session" or "connection"; committed at the end of the block, rolled back by `Rollback`."""
    is_async = hasattr(engine, "sync_engine")
    if how == "connection":
        opened: Any = engine.begin()
    else:
        opened = _session(engine, AsyncSession if is_async else Session)
    try:
        if is_async or how == "session":
            async with opened as target:
                yield target
        else:
            with opened as target:
                yield target
    except Rollback:
        return


@asynccontextmanager
async def _session(engine: Any, kind: type) -> AsyncGenerator[Any]:
    session = kind(engine)
    try:
        yield session
        await awaited(session.commit())
    finally:
        await awaited(session.close())


@asynccontextmanager
async def savepoint(target: Any) -> AsyncGenerator[None]:
    """Released at the end of the block, rolled back by `Rollback`."""
    nested = await awaited(target.begin_nested())
    try:
        yield
    except Rollback:
        await awaited(nested.rollback())
    else:
        await awaited(nested.commit())


async def awaited(result: Any) -> Any:
    """The result of a call that is awaited with some databases, and not with others."""
    return await result if inspect.isawaitable(result) else result


def made(database: Database, **options: Any) -> Outbox:
    """An outbox with its tables."""
    outbox = Outbox(database.engine, **options)
    outbox.create_tables(database.plain)
    return outbox


def events(database: Database, outbox: Outbox) -> list[Mapping[str, Any]]:
    """The rows that wait to be published, as the next relay takes them."""
    return _rows(database, outbox.tables.events)


def later(database: Database, outbox: Outbox) -> list[Mapping[str, Any]]:
    """Those that wait for their time."""
    return _rows(database, outbox.tables.later)


def _rows(database: Database, table: Any) -> list[Mapping[str, Any]]:
    with database.plain.connect() as connection:
        rows = connection.execute(select(table).order_by(table.c.id)).all()
    return [dict(zip(table.c.keys(), row, strict=True)) for row in rows]
