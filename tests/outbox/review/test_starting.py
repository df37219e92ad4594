"""Relays that start: several at once, and on an event loop that the engine does not know."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from eventbus import EventBus
from eventbus.errors import ConfigError
from outbox import Outbox
from tests.databases import Database

pytestmark = pytest.mark.system


@pytest.mark.parametrize("database", ["sqlite", "psycopg", "mariadb"], indirect=True)
async def test_relays_that_start_at_once_make_the_tables(database: Database) -> None:
    relays = [Outbox(database.new_plain(), notify=False).relay(listen=False) for _ in range(4)]
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for relay in relays:
                tasks.start_soon(relay._prepare)
    assert [relay._trouble for relay in relays] == [""] * 4
    with database.plain.begin() as connection:
        assert relays[0]._outbox.check(connection) == []


def test_an_asynchronous_engine_needs_asyncio(tmp_path: Path) -> None:
    async def run() -> None:
        bus = EventBus("memory://")
        bus.include(Outbox(create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/db"), notify=False).relay(listen=False))
        with pytest.raises(ConfigError, match="take a plain engine"):
            await bus.start()

    anyio.run(run, backend="trio")
