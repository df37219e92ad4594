"""The log's disk is full, at any step of a relay, for as long as it may be: nothing is lost, nothing is put aside."""

from __future__ import annotations

import pytest

from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full
from tests.databases import THREE, Database
from tests.outbox.faults.scenes import Sleep, scene
from tests.support import until
from tests.tiers import quick

pytestmark = pytest.mark.system


@pytest.mark.parametrize("database", quick(THREE, ["psycopg"]), indirect=True)
async def test_a_log_that_is_full_is_waited_for(database: Database) -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with scene(database, bus_on(storage)) as here:
        relay = here.relay()
        await relay.start(here.bus)
        for step in ("taken", "begun", "sent", "receipt", "committed"):
            sleep = Sleep(relay, step)
            here.shop.trade(4)
            await sleep.fallen()
            storage.fail_at = storage.calls_count + 1
            here.shop.trade(4)  # the database is as ever
            sleep.wake()
            await until(lambda: relay.health().status == "degraded", poll_seconds=0.01)
            storage.heal()
            await here.settled(relay)
        assert relay.metrics().quarantined == 0
        await relay.aclose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_the_longer_a_log_is_full_the_less_it_is_asked(database: Database) -> None:
    """Ten failures in a row take a while: each wait is longer than the one before."""
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with scene(database, bus_on(storage)) as here:
        relay = here.relay()
        waits: list[float] = []
        await relay.start(here.bus)
        await relay.drain()
        assert relay._work is not None
        failed = relay._work.pace.failed

        def wait() -> float:
            waits.append(failed())
            return 0.0 if len(waits) < 10 else waits[-1]

        relay._work.pace.failed = wait
        storage.fail_at = storage.calls_count + 1
        here.shop.trade(3)
        await until(lambda: len(waits) == 10, poll_seconds=0.01)
        assert waits[-1] > 8 * max(waits[0], 0.05)
        storage.heal()
        relay._work.pace.failed = failed
        await here.settled(relay)
        await relay.aclose()
