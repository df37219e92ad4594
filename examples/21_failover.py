"""Kill a broker while records are sent and handled: producers and handlers continue, nothing is lost or duplicated.

A cluster of three brokers runs on this machine (it needs Java 17 and, the first time, Maven). Customers order into a
topic with three replicas, and a service bills each order exactly once. Then the broker that leads is killed with
SIGKILL.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from eventbus import EventBus, Transaction
from eventbus.testing import RealKafka

CUSTOMERS = [f"customer-{number}" for number in range(12)]
BEGIN = time.monotonic()


class Order(msgspec.Struct):
    customer: str
    number: int


class Shop:
    """Customers who send their next order as soon as the previous order is stored, until the shop closes."""

    def __init__(self) -> None:
        self.is_open = True
        self.acked: Counter[str] = Counter()

    async def customer(self, bus: EventBus, name: str) -> None:
        while self.is_open:
            await bus.send("orders", Order(name, self.acked[name]), key=name)
            self.acked[name] += 1

    async def everybody_is_served(self) -> None:
        before = self.acked.copy()

        async def is_so() -> bool:
            return all(self.acked[name] > before[name] + 1 for name in CUSTOMERS)

        await until(is_so)


def billing(url: str) -> EventBus:
    bus = EventBus(url)

    @bus.consumer("orders", group="billing", exactly_once=True)
    async def bill(order: Order, tx: Transaction) -> None:
        tx.send_nowait("invoices", order, key=order.customer)

    return bus


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGIN:5.1f} s  {text}", flush=True)


async def show(url: str, *options: str) -> None:
    """Print the topic as the command line shows it."""
    words = ["topics", "describe", "--topic", "orders", *options]
    say(f"$ eventbus {' '.join(words)}")
    done = await anyio.run_process([sys.executable, "-m", "eventbus", *words, "--url", url], stderr=subprocess.PIPE)
    print(done.stdout.decode().expandtabs(2) or "(none)\n", end="", flush=True)


async def in_sync(bus: EventBus) -> bool:
    [topic] = await bus.admin.describe_topics(["orders"])
    return all(len(part.isr) == 3 for part in topic.partitions)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds."""
    while True:
        if await holds():
            return
        await anyio.sleep(0.1)


async def exercise(kafka: RealKafka) -> None:
    shop = Shop()
    async with EventBus(kafka.url) as bus, billing(kafka.url), anyio.create_task_group() as customers:
        for name in CUSTOMERS:
            customers.start_soon(shop.customer, bus, name)
        await shop.everybody_is_served()
        await show(kafka.url)

        [topic] = await bus.admin.describe_topics(["orders"])
        leader = topic.partitions[0].leader
        kafka.node(leader).kill()
        killed = time.monotonic()
        say(f"kill -9 of broker {leader}, the leader of partition 0, after {shop.acked.total():,} orders")
        await shop.everybody_is_served()
        say(f"all customers are served again, {time.monotonic() - killed:.1f} s after the kill")
        await show(kafka.url, "--under-replicated-partitions")

        await anyio.to_thread.run_sync(kafka.node(leader).start)
        say(f"broker {leader} is back, and reads what it missed")
        await until(partial(in_sync, bus))
        say("its replicas are in sync again")
        await show(kafka.url)
        await shop.everybody_is_served()
        shop.is_open = False
    say(f"{shop.acked.total():,} orders are acknowledged")
    await prove(kafka.url, shop.acked)


async def prove(url: str, acked: Counter[str]) -> None:
    """Check that each customer's orders and bills are 0, 1, 2 ...: none lost, duplicated or reordered."""
    async with billing(url) as bills:
        await bills.drain()
        for topic in ("orders", "invoices"):
            found: dict[str, list[int]] = {name: [] for name in CUSTOMERS}
            async with bills.new_consumer(topic, value=Order) as consumer:
                async for record in consumer.until_end():
                    assert record.value is not None  # no customer sends a tombstone
                    found[record.value.customer].append(record.value.number)
            assert found == {name: list(range(acked[name])) for name in CUSTOMERS}
            say(f"{topic}: {sum(map(len, found.values())):,} records: 0 lost, 0 twice, each customer's in order")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="failover-") as folder, RealKafka(Path(folder), nodes=3) as kafka:
        say(f"three brokers are up: {kafka.bootstrap}")
        async with EventBus(kafka.url) as bus:
            for topic in ("orders", "invoices"):
                await bus.admin.create_topic(topic, partitions=3, replication_factor=3)
        await exercise(kafka)


if __name__ == "__main__":
    logging.disable()  # this example prints its own messages instead of the warnings
    anyio.run(main)
