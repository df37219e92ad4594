"""Kill a writing process with SIGKILL again and again, reopen its log each time, and account for every record.

Run as a program: ``python -m tests.faults.kill_writer DIRECTORY TRIALS SEED``. Each trial forks a child (so that
imports are paid once) in which eight tasks publish numbered records and report each acknowledged one through a pipe.
The parent kills it after a random time, opens the log itself, reads what came since the last trial, and checks: every
acknowledged record is there exactly once, and each task's records are in order. Prints one line per failure, and a
summary.
"""

from __future__ import annotations

import os
import random
import struct
import sys

import anyio

from eventbus import EventBus, TopicPartition
from tests.killed import told_by_killed

SENDERS = 8
PARTITIONS = 3
ACK = struct.Struct("<HIB")  # trial, number, sender


async def write(url: str, trial: int, pipe: int) -> None:
    """The child: publish until killed."""
    async with EventBus(url) as bus:

        async def sender(which: int) -> None:
            number = 0
            while True:
                value = b"%d/%d/%d" % (trial, which, number)
                if which % 2:
                    await bus.send("t", value, partition=which % PARTITIONS)
                else:
                    await bus.send_nowait("t", value, partition=which % PARTITIONS)
                os.write(pipe, ACK.pack(trial, number, which))
                number += 1

        async with anyio.create_task_group() as tasks:
            for which in range(SENDERS):
                tasks.start_soon(sender, which)


def run_child(url: str, trial: int, lifetime_seconds: float) -> set[tuple[int, int]]:
    """Fork, let it write, kill it. Return the (sender, number) pairs that it saw acknowledged.

    Every fourth lifetime begins with the process, so that it may end while the log is being opened; the others begin
    with the first acknowledgement, however long a busy machine takes until then.
    """
    after_bytes = ACK.size if trial % 4 else 0
    received = told_by_killed(lambda pipe: anyio.run(write, url, trial, pipe), lifetime_seconds, after_bytes)
    whole = len(received) // ACK.size * ACK.size
    return {(which, number) for _, number, which in ACK.iter_unpack(received[:whole])}


async def check(url: str, trial: int, acked: set[tuple[int, int]], positions: dict[int, int]) -> list[str]:
    """Read on from where the last trial ended; what is wrong, in words."""
    wrong: list[str] = []
    seen: dict[tuple[int, int], int] = {}
    last: dict[int, int] = {}
    async with EventBus(url) as bus:
        partitions = [TopicPartition("t", p) for p in range(PARTITIONS)]
        ends = await bus.admin.list_offsets(dict.fromkeys(partitions, -1))
        async with bus.new_consumer() as consumer:
            await consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, positions.get(partition.partition, 0))
            left = sum(ends[p].offset - positions.get(p.partition, 0) for p in partitions)
            while left > 0:
                for record in await consumer.poll(max_records=100_000):
                    left -= 1
                    if record.offset != positions.get(record.partition, 0):
                        wrong.append(f"trial {trial}: {record.topic_partition} jumps to offset {record.offset}")
                    positions[record.partition] = record.offset + 1
                    of_trial, which, number = map(int, record.value.split(b"/"))
                    if of_trial != trial:
                        wrong.append(f"trial {trial}: a record of trial {of_trial} appears late")
                        continue
                    seen[(which, number)] = seen.get((which, number), 0) + 1
                    if number <= last.get(which, -1):
                        wrong.append(f"trial {trial}: sender {which}: {number} after {last[which]}")
                    last[which] = number
    wrong += [f"trial {trial}: acknowledged {missing} is lost" for missing in sorted(acked - seen.keys())]
    wrong += [f"trial {trial}: {pair} is there {count} times" for pair, count in seen.items() if count > 1]
    return wrong


async def prepare(url: str) -> None:
    async with EventBus(url) as bus:
        await bus.admin.create_topic("t", partitions=PARTITIONS, configs={"internal.segment.bytes": 65536})


def main(directory: str, trials: int, seed: int) -> int:
    url = f"file://{directory}"
    anyio.run(prepare, url)
    rng = random.Random(seed)
    positions: dict[int, int] = {}
    acked_total = 0
    failures: list[str] = []
    for trial in range(trials):
        acked = run_child(url, trial, rng.uniform(0.02, 0.12))
        acked_total += len(acked)
        failures += anyio.run(check, url, trial, acked, positions)
    for failure in failures[:20]:
        print(failure)
    print(f"{trials} kills, {acked_total} acknowledged, {sum(positions.values())} stored, {len(failures)} failures")
    return 1 if failures or not acked_total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
