"""Relays that a test starts, stops and suspends, and a shop that writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
from sqlalchemy import NullPool, select

from eventbus import ConsumerRecord, EventBus
from outbox import Outbox
from outbox.relay.relay import Relay
from tests.databases import Database
from tests.outbox.kill.shop import LARGEST_BYTES, PARTITIONS, Account, Shop, account, wrong
from tests.support import records_of

TOPIC = "orders"


class Scene:
    """A database, a running log, and a shop."""

    def __init__(self, database: Database, outbox: Outbox, bus: EventBus) -> None:
        self.database = database
        self.outbox = outbox
        self.bus = bus
        self.engine = database.new_plain(poolclass=NullPool)
        """The test's own engine, which always opens new connections."""
        self.shop = Shop(self.engine, outbox, TOPIC, Random(1))

    def relay(self, **options: Any) -> Relay:
        """Return a relay that is not started."""
        return self.outbox.relay(
            self.database.engine, **{"listen": False, "batch_size": 3, "poll_ms": (1, 50), **options}
        )

    def expire(self, relay: Relay) -> None:
        """Expire the lease of a relay, as if it had done nothing for a while."""
        assert relay._work is not None and relay._work.keeper.lease is not None
        relays = self.outbox.tables.relays
        with self.engine.begin() as connection:
            mine = relays.update().where(relays.c.token == relay._work.keeper.lease.token)
            assert connection.execute(mine.values(expires_at_ms=0)).rowcount == 1

    def unpublished(self) -> int:
        with self.engine.connect() as connection:
            return len(connection.execute(select(self.outbox.tables.events.c.id)).all())

    async def read(self) -> list[ConsumerRecord]:
        return await records_of(self.bus, TOPIC)

    async def account(self) -> Account:
        return account(self.engine, self.outbox, await self.read())

    async def settled(self, *relays: Relay) -> Account:
        """Wait until everything is published, and check the account."""
        with anyio.fail_after(60):
            while (found := await self.account()).waiting:
                for relay in relays:
                    await relay.drain()
        assert list(wrong(found)) == []
        assert found.is_settled
        return found


class Sleep:
    """Suspends a relay when it reaches a step, until `wake`. It does not renew its lease meanwhile."""

    def __init__(self, relay: Relay, step: str) -> None:
        self._relay = relay
        self._step = step
        self._fallen = anyio.Event()
        self._woken = anyio.Event()
        relay._at = self._at

    async def _at(self, step: str) -> None:
        if step == self._step:
            self._fallen.set()
            await self._woken.wait()

    async def fallen(self) -> None:
        with anyio.fail_after(60):
            await self._fallen.wait()
        assert self._relay._work is not None
        self._renew, self._relay._work.keeper.renew = self._relay._work.keeper.renew, _nothing

    def wake(self) -> None:
        assert self._relay._work is not None
        self._relay._work.keeper.renew = self._renew
        self._woken.set()


async def _nothing() -> None:
    """Replace the renewal of leases, because a suspended process does not renew."""


@asynccontextmanager
async def scene(
    database: Database, bus: EventBus | None = None, prepare: Callable[[EventBus], object] | None = None, **options: Any
) -> AsyncIterator[Scene]:
    outbox = Outbox(database.engine, shards=16, notify=False, **options)
    bus = bus or EventBus("memory://")
    bus.topic(TOPIC, partitions=PARTITIONS, configs={"max.message.bytes": 100 * LARGEST_BYTES})
    if prepare is not None:
        prepare(bus)
    async with bus:
        made = Scene(database, outbox, bus)
        made.shop.open()
        yield made
