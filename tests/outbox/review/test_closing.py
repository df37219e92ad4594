"""A bus that closes while its database does not answer."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import patch

import anyio
from sqlalchemy import event

from eventbus import EventBus
from tests.databases import Database
from tests.outbox.relay.test_relay import ON_SQLITE, outbox_in


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
                relay._outbox.wakes.wake()
                await anyio.to_thread.run_sync(hung.wait)
        assert not answers.is_set()
    finally:
        answers.set()
