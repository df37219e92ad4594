"""PgBouncer in transaction mode between the engine and PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from dlq import DeadLetters, Retry
from eventbus import EventBus
from eventbus.errors import ConfigError, HandlerError
from outbox import Outbox
from tests.database_servers import NotInstalledError, PgBouncer
from tests.databases import Database, NewDatabase, skip
from tests.outbox.test_schemas import publish_and_handle
from tests.outbox.writing.given import awaited, made, transaction

pytestmark = pytest.mark.system
WITHOUT_PREPARED_STATEMENTS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None},
    "asyncpg": {
        "statement_cache_size": 0,
        "prepared_statement_cache_size": 0,
        "prepared_statement_name_func": lambda: f"__{uuid.uuid4()}__",
    },
}
"""Arguments of the drivers that docs/how-to/outbox.md names."""

LOST = text("EXECUTE lost")
"""The statement of a driver for a statement that it has prepared."""


@pytest.fixture(params=["psycopg", "asyncpg"])
def proxied(request: pytest.FixtureRequest, new_database: NewDatabase) -> Iterator[Database]:
    """A database whose engines go through the proxy, except ``plain``."""
    database = new_database(request.param)
    url = make_url(database.plain_url)
    try:
        proxy = PgBouncer(f"{url.host}:{url.port}", connections=1)
    except NotInstalledError as missing:
        skip(f"PgBouncer is not installed: install Debian's package {missing}")
    with proxy:
        database.go_through(proxy.port)
        yield database


async def test_outbox_relay_and_inbox_work_without_prepared_statements(proxied: Database) -> None:
    engine = proxied.new_engine(connect_args=WITHOUT_PREPARED_STATEMENTS[proxied.kind])
    handled = await publish_and_handle(engine, Outbox(engine, archive=True), transactions=20)
    assert handled == ["o-1", "o-2"] * 20


async def test_a_prepared_statement_that_is_on_another_connection_is_explained(proxied: Database) -> None:
    outbox, writer = made(proxied), proxied.new_engine(pool_size=1, max_overflow=0)
    for _ in range(6):  # psycopg prepares a statement when it is sent for the sixth time
        await write(writer, outbox)
    url = proxied.through(proxied.plain_url)
    other = create_engine(url, poolclass=NullPool, connect_args={"prepare_threshold": None})
    with other.begin() as connection:  # the server's connection is now as another one, which a larger pool would give
        connection.execute(text("DEALLOCATE ALL"))
    with pytest.raises(DBAPIError) as raised:
        await write(writer, outbox)
    [note] = raised.value.__notes__
    argument = "prepare_threshold" if proxied.kind == "psycopg" else "statement_cache_size"
    assert "PgBouncer" in note and f'connect_args={{"{argument}"' in note


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
async def test_a_relay_whose_first_statement_is_lost_does_not_start(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.relay.relay.check_isolation", lambda connection: connection.execute(LOST))
    bus = EventBus("memory://")
    bus.include(Outbox(database.engine).relay())
    with pytest.raises(ConfigError, match=r"outbox .eventbus_outbox. cannot use its engine\. A prepared"):
        await bus.start()


async def write(engine: Any, outbox: Outbox) -> None:
    async with transaction(engine, "connection") as connection:
        await awaited(outbox.publish(connection, "orders", "o-1"))


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
async def test_a_record_is_not_to_blame_for_a_lost_statement(database: Database) -> None:
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing", tx=sessionmaker(database.engine), retry=Retry(immediate=0, delays=None))
    def bill(order: str, session: Session) -> None:
        session.execute(LOST)

    async with bus:
        await bus.send("orders", "o-1")
        with pytest.raises(HandlerError, match="not to blame: A prepared statement is not on the connection"):
            await bus.drain()
        assert await DeadLetters(bus).groups() == []
