"""Add a partition while a group is reading: the group picks it up and reads it from its beginning; keys may move.

The group needs no restart. A key that now hashes to another partition has its old records in one partition and its
new records in another, with no order between them. So create keyed topics with enough partitions before the first
record.
"""

from __future__ import annotations

from collections import defaultdict

import anyio

from eventbus import ConsumerRecord, EventBus, log_url

KEYS = [f"customer-{number}" for number in range(8)]

# On Kafka a member looks for new partitions periodically; the embedded log notifies it at once.
bus = EventBus(log_url("memory://"), topic_metadata_refresh_interval_ms=300)
bus.topic("visits", partitions=2, temporary=True)
homes: dict[str, list[int]] = defaultdict(list)
all_counted = anyio.Event()
counted = 0


@bus.consumer("visits", group="counter")
async def count(record: ConsumerRecord) -> None:
    global counted
    counted += 1
    if record.partition not in homes[record.key.decode()]:
        homes[record.key.decode()].append(record.partition)
    if counted == 2 * len(KEYS):
        all_counted.set()


async def main() -> None:
    async with bus:
        for key in KEYS:
            await bus.send("visits", "before", key=key)
        await bus.drain()
        print("with 2 partitions:", dict(sorted(homes.items())))

        await bus.admin.add_partitions("visits", 3)
        for key in KEYS:
            await bus.send("visits", "after", key=key)
        with anyio.fail_after(30):
            await all_counted.wait()  # the rebalance that assigns the new partition

    moved = [key for key in KEYS if len(homes[key]) == 2]
    print("with 3 partitions:", dict(sorted(homes.items())))
    print(f"moved: {', '.join(moved)}")
    assert any(2 in numbers for numbers in homes.values()), "the new one is read, from its first record on"
    assert 0 < len(moved) < len(KEYS), "some keys have a new home, some have not"


if __name__ == "__main__":
    anyio.run(main)
