"""A relay that would look again in ten minutes publishes at once what another process has committed."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from outbox import Outbox
from outbox.relay.relay import Relay
from tests.databases import Database
from tests.tiers import quick

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 20
NEVER_MS = 600_000


async def until_it_waits(relay: Relay) -> None:
    """It has deleted what it published, found nothing more, and looks again when it is told to."""
    while True:
        work, wake = relay._work, relay._wake  # pyright: ignore[reportPrivateUsage] - nobody is told of it
        is_clean = work is not None and not work.cleaner.open
        if is_clean and wake.statistics().tasks_waiting and relay.health().details["listens"] == "listening":
            return
        await anyio.sleep(0.002)


@pytest.mark.parametrize("database", quick(["psycopg", "asyncpg", "psycopg-async"], 2), indirect=True)
async def test_at_once(database: Database) -> None:
    relay = Outbox(database.engine).relay(poll_ms=(NEVER_MS, NEVER_MS), lease_ms=NEVER_MS)
    there = Outbox(database.plain)  # as in another process: its wakes are not those of the relay's
    bus = EventBus("memory://")
    bus.topic("orders")
    bus.include(relay)
    seen = [anyio.Event() for _ in range(3)]

    @bus.consumer("orders", group="g", start="earliest")
    async def handle(value: bytes) -> None:
        seen[int(value)].set()

    async with bus:
        with anyio.fail_after(PATIENCE_SECONDS):
            for number, event in enumerate(seen):
                await until_it_waits(relay)
                with database.plain.begin() as connection:
                    there.publish(connection, "orders", b"%d" % number)
                await event.wait()
