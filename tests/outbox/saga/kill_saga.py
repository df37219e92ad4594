"""Kill the shop of examples/26_saga.py repeatedly: each order ends packed or undone, and all totals are right.

Run as a program: ``python -m tests.outbox.saga.kill_saga FOLDER TRIALS SEED``. The folder has three SQLite databases.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Generator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import create_engine, event, func, insert, select
from sqlalchemy.orm import sessionmaker

from dlq import Retry
from eventbus import EventBus
from tests.killed import told_by_killed
from tests.outbox.bank.kill_bank import never_wait_for_the_disk
from tests.outbox.examples import example

saga: Any = example("26_saga")

CUSTOMERS, ITEMS, PRICE = ("ada", "bob"), ("bike", "car"), 10
MONEY, COUNT = 150, 12
"""The money of each customer and the stock of each item. Both run out."""
LEASE_MS = 1_000
PATIENCE_S = 30
OVER = ("packed", "cancelled: no money", "cancelled: sold out", "cancelled: too late")


class Shop:
    """A folder with a log and three databases."""

    def __init__(self, folder: Path) -> None:
        self.log = f"file://{folder}/log"
        names = ("orders", "payments", "stock")
        self.engines = [create_engine(f"sqlite:///{folder}/{name}.db") for name in names]
        for engine in self.engines:
            event.listen(engine, "connect", never_wait_for_the_disk)
        self.orders, self.payments, self.stock = self.engines

    def bus(self) -> EventBus:
        bus = EventBus(self.log)
        for topic in ("orders", "payments", "stock"):
            bus.topic(topic)
        saga.shop(bus, *self.engines, Retry(immediate=1, delays=["5ms", "10ms"]), lease_ms=LEASE_MS)
        return bus

    def fill(self) -> None:
        for engine, table, names, count in (
            (self.payments, saga.accounts, CUSTOMERS, MONEY),
            (self.stock, saga.stock, ITEMS, COUNT),
        ):
            saga.metadata.create_all(engine)
            with engine.begin() as connection:
                connection.execute(insert(table), [{"name": name, "count": count} for name in names])
        saga.metadata.create_all(self.orders)

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()


async def live(folder: Path, seed: int, pipe: int) -> None:
    """Run the child: the shop and its customers, until killed."""
    chance = random.Random(seed)
    shop = Shop(folder)

    def order() -> None:
        with sessionmaker(shop.orders).begin() as session:
            id = (session.scalar(select(func.max(saga.orders.c.id))) or 0) + 1
            patience = timedelta(milliseconds=chance.choice([10, 100, 1_500]))
            saga.place(session, saga.Order(id, chance.choice(CUSTOMERS), chance.choice(ITEMS), PRICE, patience))
        os.write(pipe, b"o")

    async with shop.bus():
        for _ in range(30):
            await anyio.to_thread.run_sync(order)
            await anyio.sleep(chance.uniform(0, 0.01))
        await anyio.sleep_forever()


async def finish(folder: Path) -> Shop:
    """Run until each order is over, and no event is in flight."""
    shop = Shop(folder)
    async with shop.bus() as bus:
        with anyio.fail_after(PATIENCE_S):
            await saga.until(lambda: is_over(shop))
        await bus.drain()
    return shop


def is_over(shop: Shop) -> bool:
    with shop.orders.connect() as connection:
        waiting = connection.scalar(select(func.count()).select_from(saga.outbox.tables.later))
    return not waiting and set(saga.rows(shop.orders, saga.orders).values()) <= set(OVER)


def wrong(shop: Shop, told: int) -> Generator[str]:
    states = list(saga.rows(shop.orders, saga.orders).values())
    packed = states.count("packed")
    money, items = [
        sum(saga.rows(engine, table).values())
        for engine, table in ((shop.payments, saga.accounts), (shop.stock, saga.stock))
    ]
    if len(states) < told:
        yield f"{told} orders were placed, {len(states)} are there"
    if money != MONEY * len(CUSTOMERS) - PRICE * packed:
        yield f"{packed} orders are packed, and {money} is left of the money"
    if items != COUNT * len(ITEMS) - packed:
        yield f"{packed} orders are packed, and {items} items are left"


def main(folder: Path, trials: int, seed: int) -> int:
    logging.disable(logging.CRITICAL)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    shop, told = Shop(folder), 0
    shop.fill()
    shop.close()
    for _ in range(trials):
        work = partial(anyio.run, live, folder, chance.randrange(1 << 30))
        told += len(told_by_killed(work, chance.uniform(0, 0.1), chance.randint(1, 10)))
    shop = anyio.run(finish, folder)
    failures = list(wrong(shop, told))
    states = list(saga.rows(shop.orders, saga.orders).values())
    shop.close()
    print(*failures, sep="\n")
    print(f"{trials} kills, {', '.join(f'{states.count(state)} {state}' for state in OVER)}, {len(failures)} failures")
    return 1 if failures or not told else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
