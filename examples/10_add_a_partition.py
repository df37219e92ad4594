"""A partition is added while a group is reading: it is taken up and read from its beginning; keys may move.

The group needs no restart. A key that hashes elsewhere from now on has old records in one partition and new ones in
another, and nothing orders the two: that is why keyed topics get their partitions before their records.
"""

from __future__ import annotations

from collections import defaultdict

import anyio

from eventbus import ConsumerRecord, EventBus

KEYS = [f"customer-{number}" for number in range(8)]

bus = EventBus("memory://")
bus.topic("visits", partitions=2)
homes: dict[bytes, list[int]] = defaultdict(list)


@bus.consumer("visits", group="counter", start="latest")
async def count(record: ConsumerRecord) -> None:
    if record.partition not in homes[record.key]:
        homes[record.key].append(record.partition)


async def main() -> None:
    async with bus:
        for key in KEYS:
            await bus.send("visits", "before", key=key)
        await bus.drain()
        print("with 2 partitions:", {key.decode(): numbers for key, numbers in homes.items()})

        await bus.admin.add_partitions("visits", 3)
        for key in KEYS:
            await bus.send("visits", "after", key=key)
        await bus.drain()  # also waits for the rebalance that brings the new partition

    moved = [key for key in KEYS if len(homes[key.encode()]) == 2]
    print("with 3 partitions:", {key.decode(): numbers for key, numbers in homes.items()})
    print(f"moved: {', '.join(moved)}")
    assert any(2 in numbers for numbers in homes.values()), "the new one is read, from its first record on"
    assert 0 < len(moved) < len(KEYS), "some keys have a new home, some have not"


if __name__ == "__main__":
    anyio.run(main)
