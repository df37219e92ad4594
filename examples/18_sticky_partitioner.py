"""Records without a key: the sticky partitioner fills batch after batch, round robin starts a batch per partition.

A short pause between sends does not spread sticky records as it did in Kafka before 3.3: the partition changes after a
number of bytes, not whenever a batch is sent.
"""

from __future__ import annotations

from typing import Literal

import anyio

from eventbus import EventBus, TopicPartition, log_url

PARTITIONS, RECORDS = 3, 30


async def spread(partitioner: Literal["murmur2", "round_robin"], pause_s: float) -> list[int]:
    """Return the number of records per partition."""
    async with EventBus(log_url("memory://"), partitioner=partitioner) as bus:
        await bus.admin.create_topic("clicks", partitions=PARTITIONS, temporary=True)
        for number in range(RECORDS):
            bus.send_nowait("clicks", f"click {number}")
            if pause_s:
                await anyio.sleep(pause_s)
        await bus.flush()
        partitions = [TopicPartition("clicks", number) for number in range(PARTITIONS)]
        ends = await bus.admin.list_offsets(dict.fromkeys(partitions, -1))
        return [ends[partition].offset for partition in partitions]


async def main() -> None:
    for partitioner in ("murmur2", "round_robin"):
        for pause_s in (0, 0.001):
            counts = await spread(partitioner, pause_s)
            print(f"{partitioner:<12} {'with pauses' if pause_s else 'at once':<12} {counts}")
            if partitioner == "round_robin":
                assert counts == [RECORDS // PARTITIONS] * PARTITIONS
            else:
                assert sorted(counts) == [0, 0, RECORDS], "too few bytes for a second batch"


if __name__ == "__main__":
    anyio.run(main)
