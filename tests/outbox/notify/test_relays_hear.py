"""A relay that would look again in ten minutes publishes at once what another process has committed."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from outbox import Outbox
from outbox.relay.relay import Relay
from tests.databases import Database

PATIENCE_SECONDS = 20
NEVER_MS = 600_000


class Steps:
    """Those of a relay, as it tells them."""

    def __init__(self, relay: Relay) -> None:
        relay._at = self  # pyright: ignore[reportPrivateUsage] - its hook is for tests
        self._relay = relay
        self.is_idle = anyio.Event()
        """It has published what there was, and found nothing more: it looks again when it is told to."""

    async def __call__(self, step: str) -> None:
        if step == "begun":
            self.is_idle = anyio.Event()
        elif step == "taken":
            self.is_idle.set()

    async def until_it_listens(self) -> None:
        while self._relay.health().details["listens"] != "listening":  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.005)


@pytest.mark.parametrize("database", ["psycopg", "psycopg-async", "asyncpg"], indirect=True)
async def test_at_once(database: Database) -> None:
    relay = Outbox(database.engine).relay(poll_ms=(NEVER_MS, NEVER_MS), lease_ms=NEVER_MS)
    steps = Steps(relay)
    there = Outbox(database.plain)  # as in another process: its wakes are not those of the relay's
    bus = EventBus("memory://")
    bus.topic("orders")
    bus.include(relay)
    seen = [anyio.Event() for _ in range(20)]

    @bus.consumer("orders", group="g", start="earliest")
    async def handle(value: bytes) -> None:
        seen[int(value)].set()

    async with bus:
        with anyio.fail_after(PATIENCE_SECONDS):
            await steps.until_it_listens()
            for number, event in enumerate(seen):
                await steps.is_idle.wait()
                with database.plain.begin() as connection:
                    there.publish(connection, "orders", b"%d" % number)
                await event.wait()
