"""Outbox, relay and inbox in the schema and under the names that the user chooses, whatever way the schema is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import event, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from eventbus import EventBus
from outbox import Inbox, Outbox
from tests.databases import MOST, Database, NewDatabase
from tests.outbox.writing.given import awaited, transaction

pytestmark = pytest.mark.system
ODD = "Übersicht 100% :x \"`'"


@pytest.fixture(params=[*MOST, "psycopg"])
async def tenant(request: pytest.FixtureRequest, new_database: NewDatabase) -> AsyncIterator[tuple[Database, str]]:
    """A database, and the name of an empty second schema in it."""
    database, schema = new_database(request.param), "tenant-42 %a"
    if request.param == "sqlite":
        file = new_database("sqlite").plain.url.database
        event.listen(database.engine, "connect", lambda raw, _: raw.execute(f"ATTACH '{file}' AS \"{schema}\""))
        yield database, schema
        return
    if request.param == "mariadb":  # where a schema is a database
        schema = f"{database.plain.url.database} %a"
    quoted = f"`{schema}`" if request.param == "mariadb" else f'"{schema}"'
    with database.plain.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {quoted}"))
    yield database, schema
    with database.plain.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {quoted}{'' if request.param == 'mariadb' else ' CASCADE'}"))


async def publish_and_handle(engine: Any, outbox: Outbox, *, transactions: int = 1, **inbox: Any) -> list[str]:
    """Return what a handler with ``tx=`` was called with, after two events in each of these transactions."""
    bus, handled = EventBus("memory://"), list[str]()
    bus.topic("orders")
    bus.include(outbox.relay())
    is_async = hasattr(engine, "sync_engine")
    tx = Inbox((async_sessionmaker if is_async else sessionmaker)(engine), message_ids="event-id", **inbox)

    def bill(order: str, session: Session) -> None:
        handled.append(order)

    async def bill_async(order: str, session: AsyncSession) -> None:
        handled.append(order)

    bus.consumer("orders", group="billing", tx=tx)(bill_async if is_async else bill)
    async with bus:
        for _ in range(transactions):
            async with transaction(engine, "session") as session:
                await awaited(outbox.publish(session, "orders", "o-1", key="1"))
                await awaited(outbox.publish(session, "orders", "o-2", key="1", expires_after=60))
        await bus.drain()
        await outbox.status()
    return handled


@pytest.mark.parametrize("how", ["translated", "named"])
async def test_everything_is_in_the_schema_of_the_tenant(tenant: tuple[Database, str], how: str) -> None:
    database, schema = tenant
    engine: Any = database.engine
    if how == "translated":
        engine = engine.execution_options(schema_translate_map={None: schema})
    named = {} if how == "translated" else {"schema": schema}
    outbox = Outbox(engine, archive=True, **named)
    assert await publish_and_handle(engine, outbox, **named) == ["o-1", "o-2"]
    async with transaction(engine, "connection") as connection:
        check: Any = connection.run_sync(outbox.check) if database.is_async else outbox.check(connection)
        assert await awaited(check) == []
    assert outbox.relay().health().part == f"outbox {schema}.eventbus_outbox"
    with database.plain.connect() as connection:
        assert len([name for name in inspect(connection).get_table_names(schema) if name.startswith("eventbus_")]) == 9
        assert inspect(connection).get_table_names() == []


async def test_a_missing_table_is_named_with_the_schema_of_the_tenant(tenant: tuple[Database, str]) -> None:
    database, schema = tenant
    engine = database.plain.execution_options(schema_translate_map={None: schema})
    with engine.connect() as connection:
        problems = Outbox(engine).check(connection)
    assert problems[0].startswith(f"the table {schema}.eventbus_outbox is missing")


@pytest.mark.parametrize("database", [*MOST, "psycopg"], indirect=True)
@pytest.mark.parametrize("name", [ODD, "o" * 55])
async def test_any_name_that_the_database_accepts(database: Database, name: str) -> None:
    outbox = Outbox(database.engine, name, archive=True)
    assert await publish_and_handle(database.engine, outbox, table=f"{name[1:]}i") == ["o-1", "o-2"]
    with database.plain.connect() as connection:
        assert outbox.check(connection) == []
        assert {f"{name}_archive", f"{name[1:]}i_ids"} < set(inspect(connection).get_table_names())
