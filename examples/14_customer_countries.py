"""Count the customers per country: a consumer with local state.

The table is in memory. It keeps the last known country of each customer, so that a customer who moves is counted
once. The state ends with the process; the next process reads the compacted topic from its beginning.
"""

from __future__ import annotations

from collections import Counter

import anyio

from eventbus import EventBus, log_url

MOVES = [
    ("ada", "Portugal"), ("ben", "Brazil"), ("cleo", "Portugal"), ("ada", "Brazil"), ("dov", "Chile"), ("cleo", None),
]  # fmt: skip


async def count(bus: EventBus, expected: int) -> Counter[str]:
    countries: Counter[str] = Counter()
    home: dict[str | None, str] = {}
    async with bus.new_consumer("customers", key=str, value=str, start="earliest") as consumer:
        read = 0
        while read < expected:
            for record in await consumer.poll():
                read += 1
                if record.key in home:
                    countries[home.pop(record.key)] -= 1
                if record.value is not None:  # a tombstone: the customer was deleted
                    home[record.key] = record.value
                    countries[record.value] += 1
                print(f"{record.key} -> {record.value}: {dict(+countries)}")
    return +countries


async def main() -> None:
    async with EventBus(log_url("memory://")) as bus:
        await bus.admin.create_topic("customers", configs={"cleanup.policy": "compact"}, temporary=True)
        for customer, country in MOVES:
            await bus.send("customers", country, key=customer)
        first = await count(bus, len(MOVES))
        print("a new process counts again:")
        assert first == await count(bus, len(MOVES)) == {"Brazil": 2, "Chile": 1}


if __name__ == "__main__":
    anyio.run(main)
