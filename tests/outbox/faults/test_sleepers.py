"""A relay stands still past its lease at each of its steps, another goes on for it, and it wakes up: without effect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outbox.relay.relay import Relay
from tests.databases import THREE, Database
from tests.outbox.faults.scenes import Scene, Sleep, scene
from tests.outbox.kill.shop import wrong
from tests.tiers import quick

pytestmark = pytest.mark.system

STEPS = (
    "entered", "fenced", "renewed", "settled", "looked", "shared", "taken", "begun", "sent", "receipt", "committed",
    "deleting", "deleted",
)  # fmt: skip


@asynccontextmanager
async def started(scene: Scene, *relays: Relay) -> AsyncIterator[None]:
    for relay in relays:
        await relay.start(scene.bus)
    yield
    for relay in relays:
        await relay.aclose()


async def looks(relay: Relay) -> None:
    """It looks for the others now, and is done with what follows."""
    assert relay._work is not None
    relay._work.keeper.look_at = 0.0
    await relay.drain()


async def look_until_empty(scene: Scene, *relays: Relay) -> None:
    """Look in turns, twenty times at most: a look may have begun before, and a shard on its way is nobody's for one."""
    for relay in relays * 20:
        await looks(relay)
        if scene.unpublished() == 0:
            break


HOW = ((database, is_known) for database in THREE for is_known in (False, True))
QUICK = [("sqlite", False), ("psycopg", True)]


@pytest.mark.parametrize(
    ("database", "is_known"),
    quick(HOW, QUICK),
    ids=lambda value: value if isinstance(value, str) else "reaped" if value else "replaced",
    indirect=["database"],
)
async def test_who_sleeps_past_the_lease_has_no_effect(database: Database, is_known: bool) -> None:
    """The heir takes the sleeper's slot, or has one of its own and finds that the sleeper's lease is over."""
    async with scene(database) as here:
        for step in STEPS:
            here.shop.trade(4)
            sleeper, heir = here.relay(), here.relay()
            sleep = Sleep(sleeper, step)
            async with started(here, sleeper):
                await sleep.fallen()
                if not is_known:
                    here.expire(sleeper)
                async with started(here, heir):
                    if is_known:
                        await heir.drain()
                        here.expire(sleeper)
                    await look_until_empty(here, heir)
                    assert here.unpublished() == 0, step
                    sleep.wake()
                    await sleeper.drain()
                    assert list(wrong(await here.account())) == [], step
                    here.shop.trade(2)
                    await look_until_empty(here, heir, sleeper)
                    assert here.unpublished() == 0, step
        last = here.relay()
        async with started(here, last):
            await here.settled(last)
