"""How fast a table is filled: records per second of CPU time, beside a consumer's loop over the same log.

python benchmarks/tables.py [RECORDS]
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import count
from typing import Any

import anyio
import msgspec

from eventbus import EventBus


class Account(msgspec.Struct):
    owner: str
    balance: int
    city: str = "Lisbon"


def add(state: int, account: Account) -> int:
    return state + account.balance


async def filled(url: str, records: int, keys: int, configs: dict[str, Any]) -> None:
    numbers = count()
    async with EventBus(url, fsync="os") as bus:
        await bus.admin.create_topic("accounts", 4, configs=configs)
        values = [msgspec.json.encode(Account(f"owner {number}", number)) for number in range(records)]
        await bus.send_many("accounts", values, key=lambda _: b"account-%d" % (next(numbers) % keys))


async def seconds_of(bus: EventBus) -> float:
    began = time.process_time()
    async with bus:
        return time.process_time() - began


async def measure(name: str, records: int, keys: int, fold: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/log"
        await filled(url, records, keys, {"retention.ms": -1} if fold else {"cleanup.policy": "compact"})
        bus = EventBus(url)
        if fold:
            bus.table("accounts", key=str, value=Account, fold=add, initial=int)
        else:
            bus.table("accounts", key=str, value=Account)
        tell(f"{name}, {keys:,} keys", records, await seconds_of(bus))
        if fold:
            await measure_loop(url, records)


async def measure_loop(url: str, records: int) -> None:
    async with EventBus(url) as bus, bus.new_consumer("accounts", key=str, value=Account) as consumer:
        began, read = time.process_time(), 0
        async for _ in consumer.until_end():
            read += 1
        assert read == records
        tell("a loop over a consumer", records, time.process_time() - began)


def tell(name: str, records: int, seconds: float) -> None:
    print(f"{name:24} {round(records / seconds, -3):9,.0f} records/s")


async def main(records: int) -> None:
    await measure("view", records, records, fold=False)
    await measure("view", records, 10_000, fold=False)
    await measure("fold", records, 10_000, fold=True)


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
