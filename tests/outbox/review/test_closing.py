"""A bus that closes while its database does not answer."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy import event

from eventbus import EventBus
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import ON_SQLITE, outbox_in

pytestmark = pytest.mark.system


@ON_SQLITE
async def test_a_bus_closes_while_the_database_does_not_answer(database: Database) -> None:
    engine = database.new_plain()
    relay = outbox_in(database).relay(engine, listen=False)
    bus = EventBus("memory://")
    bus.include(relay)
    hung, answers = threading.Event(), threading.Event()

    def hang(_: Any) -> None:
        hung.set()
        answers.wait(60)

    try:
        with anyio.fail_after(30), patch("outbox.relay.relay._CLOSE_SECONDS", 0.05):
            async with bus:
                event.listen(engine, "begin", hang)
                relay._outbox.listeners.wake()
                await anyio.to_thread.run_sync(hung.wait)
        assert not answers.is_set()
    finally:
        answers.set()


@pytest.mark.parametrize("database", THREE, indirect=True)
async def test_a_relay_that_is_closed_has_no_connection(database: Database) -> None:
    """Its user disposes of the engine then: what comes back to the pool after that stays open until it is collected."""
    relay = outbox_in(database).relay(listen=False)
    begun, goes_on, finished, closed = threading.Event(), threading.Event(), anyio.Event(), anyio.Event()
    engines = set[Any]()

    def look(connection: Any, *_: Any) -> None:
        engines.add(connection.engine)
        begun.set()
        goes_on.wait(60)

    async def close() -> None:
        await relay.aclose()
        closed.set()

    try:
        async with EventBus("memory://") as bus, anyio.create_task_group() as tasks:
            with patch("outbox.watch._FIRST_SECONDS", 0.0), patch("outbox.watch._see", look):
                await relay.start(bus)
                await anyio.to_thread.run_sync(begun.wait)
            work = relay._work
            assert work is not None
            finish = work.finish

            async def finish_and_tell() -> None:
                await finish()
                finished.set()

            with patch.object(work, "finish", finish_and_tell):
                tasks.start_soon(close)
                await finished.wait()
            for _ in range(1_000):
                await anyio.lowlevel.checkpoint()
            assert not closed.is_set()
            goes_on.set()
            await closed.wait()
            [engine] = engines
            assert engine.pool.checkedout() == 0
    finally:
        goes_on.set()
