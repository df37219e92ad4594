"""Refused events are put back and dropped while relays publish: each is published once, and a key in its order."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest

from eventbus import ConsumerRecord, EventBus
from outbox.database import Database
from outbox.quarantine import Choice, Quarantine
from tests.databases import NewDatabase
from tests.outbox.cli.conftest import Shop

pytestmark = pytest.mark.system

SMALL, LARGE = b"", b"x" * 5_000
KEYS = ("a", "b", None)
ROUNDS = 30


@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "mariadb"])
async def test_the_order_of_a_key_is_kept(kind: str, new_database: NewDatabase) -> None:
    draw, mending, shop = random.Random(7), random.Random(8), Shop(new_database(kind))
    quarantine = Quarantine(Database(shop.database.engine), shop.tables)
    bus = EventBus("memory://")
    bus.topic("orders", configs={"max.message.bytes": 2_000})
    relays = [shop.outbox.relay(poll_ms=(1, 5), lease_ms=500) for _ in range(2)]
    bus.include(*relays)
    written: list[tuple[str | None, int]] = []
    dropped: set[int] = set()
    published: list[tuple[str | None, int]] = []

    @bus.consumer("orders", group="reader", start="earliest")
    async def read(record: ConsumerRecord) -> None:
        assert record.value is not None
        published.append((record.key and record.key.decode(), int(record.value[:8])))

    async def write() -> None:
        for number in range(ROUNDS + 1):
            key = draw.choice(KEYS)
            is_large = number == ROUNDS or draw.random() < 0.2
            value = b"%08d" % number + (LARGE if is_large else SMALL)
            await Database(shop.database.engine).run(shop.outbox.publish, "orders", value, key=key)
            written.append((key, number))

    async def mend() -> None:
        while len(written) < ROUNDS:  # so the last one, which is large, is not dropped
            refused = await quarantine.events(Choice(), limit=5)
            if refused:
                one = mending.choice(refused)
                choice = Choice(ids=(one.id,))
                content = await quarantine.content(one.id)
                if mending.random() < 0.3 and content is not None and content.value is not None:
                    if (await quarantine.drop(choice)).refused:
                        dropped.add(int(content.value[:8]))
                else:
                    await quarantine.retry(choice)
            await anyio.lowlevel.checkpoint()

    async with bus:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            tasks.start_soon(mend)
        await bus.drain()
        assert shop.refused(), "else this tests nothing"
        await bus.admin.alter_configs("orders", {"max.message.bytes": "1000000"})
        while shop.refused() or shop.waiting():
            await quarantine.retry(Choice())
            await bus.drain()
    assert sorted(number for _, number in published) == [number for _, number in written if number not in dropped]
    for key in ("a", "b"):
        numbers = [number for its, number in published if its == key]
        assert numbers == sorted(numbers)
