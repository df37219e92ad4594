"""Records of one key stay in order; records of different partitions do not wait for each other.

Send 100 records with 10 keys to 3 partitions, then show and check the order in which they are read.
"""

from __future__ import annotations

from collections import defaultdict

import anyio

from eventbus import ConsumerRecord, EventBus, log_url

RECORDS, KEYS, PARTITIONS = 100, 10, 3

bus = EventBus(log_url("memory://"))
bus.topic("events", partitions=PARTITIONS, temporary=True)
read: list[ConsumerRecord] = []


@bus.consumer("events", group="reader")
async def remember(record: ConsumerRecord) -> None:
    read.append(record)


async def main() -> None:
    async with bus:
        for number in range(RECORDS):
            await bus.send("events", str(number), key=f"key-{number % KEYS}")
        await bus.drain()


if __name__ == "__main__":
    anyio.run(main)

    partitions: dict[int, list[int]] = defaultdict(list)
    keys: dict[bytes, list[int]] = defaultdict(list)
    homes: dict[bytes, set[int]] = defaultdict(set)
    for record in read:
        number = int(record.value)
        partitions[record.partition].append(number)
        keys[record.key].append(number)
        homes[record.key].add(record.partition)
    for partition, numbers in sorted(partitions.items()):
        print(f"partition {partition}: {numbers[:8]} ... {len(numbers)} records")

    assert len(read) == RECORDS
    assert all(len(home) == 1 for home in homes.values()), "a key lives in one partition"
    assert all(numbers == sorted(numbers) for numbers in keys.values()), "so its records come in the order sent"
    assert all(numbers == sorted(numbers) for numbers in partitions.values()), "as do those of a partition"
    print(f"{KEYS} keys, each in one partition and in the order sent; between partitions there is no order to rely on")
