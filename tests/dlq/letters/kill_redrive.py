"""Kill a redrive repeatedly and start it again: ``python -m tests.dlq.letters.kill_redrive LOG KILLS SEED``.

More kills get more letters. Raises AssertionError unless every letter was sent exactly once, and is marked as sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from random import Random

from dlq import redrive
from dlq.dead_letters import DeadLetters, Selection
from eventbus import EventBus
from tests.dlq.letters.making import TOPIC, letter, put, topics
from tests.killed import told_by_killed
from tests.support import records_of

PARTITIONS = 4


async def prepare(url: str, count: int) -> None:
    async with EventBus(url) as bus:
        await topics(bus, TOPIC, "retry.billing", partitions=PARTITIONS)
        for begin in range(0, count, 1_000):
            some = [letter(n, key=b"%d" % n) for n in range(begin, min(begin + 1_000, count))]
            await put(bus, *some, partition=begin // 1_000 % PARTITIONS)


async def send(url: str, writable: int) -> None:
    """Redrive all letters, and write a byte for each batch and four at the end."""
    async with EventBus(url) as bus:
        await DeadLetters(bus).redrive(Selection(), on_progress=lambda _: os.write(writable, b"."))
    os.write(writable, b"done")


async def check(url: str, count: int) -> None:
    async with EventBus(url) as bus:
        ids = Counter(
            tuple(json.loads(record.header("eb-redrive-of") or b""))
            for record in await records_of(bus, "retry.billing")
        )
        assert len(ids) == count, f"{count - len(ids)} letters were not sent"
        assert set(ids.values()) == {1}, f"sent more than once: {ids.most_common(3)}"
        (found,) = await DeadLetters(bus).topics()
        assert found.statuses == {"redriven": count}, found


def main(url: str, kills: int, seed: int, count: int) -> None:
    random = Random(seed)
    redrive._BATCH = max(count // (8 * kills), 1)
    asyncio.run(prepare(url, count))
    for _ in range(kills):
        told_by_killed(lambda pipe: asyncio.run(send(url, pipe)), random.uniform(0, 0.05), random.randint(1, 4))
    asyncio.run(send(url, os.open(os.devnull, os.O_WRONLY)))
    asyncio.run(check(url, count))
    print(f"{count} letters, {kills} kills: each was sent once")


if __name__ == "__main__":
    log, kills, seed = sys.argv[1:]
    main(f"file://{log}", int(kills), int(seed), count=2_500 * int(kills))
