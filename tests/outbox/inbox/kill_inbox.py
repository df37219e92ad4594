"""``python -m tests.outbox.inbox.kill_inbox FOLDER;DATABASE-URL TRIALS SEED``: a service that is killed at work.

Its records fail by plans of their own, so that it is killed on every way that a record can go.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import anyio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.delays.retry_records import attempts_of
from outbox import Inbox
from tests.killed import told_by_killed
from tests.outbox.inbox.given import Hook, handler_of, records_of, rows_of

PLANS = ("0",) * 10 + ("1", "2", "never")
PARTITIONS, PER_TRIAL = 2, 12


def bus_of(folder: Path, url: str, hook: Hook | None = None) -> EventBus:
    is_async = any(driver in url for driver in ("asyncpg", "aiosqlite", "aiomysql"))
    engine: Any = create_async_engine(url) if is_async else create_engine(url)
    bus = EventBus(f"file://{folder}/log?fsync=os")
    bus.topic("t", partitions=PARTITIONS)
    policy = Retry(immediate=1, delays=(0.005,), jitter=False, order="key", budget=None)
    inbox = Inbox(engine, message_ids="event-id")
    bus.consumer("t", group="g", name="handle", tx=inbox, retry=policy, commit_interval_ms=10)(
        handler_of(is_async, hook)
    )
    return bus


def fail_by_plan(record: ConsumerRecord, session: Any) -> None:
    plan, attempt = (record.value or b"").decode(), attempts_of(record).attempt
    if plan == "never" or attempt < int(plan):
        raise ValueError(plan)


def live(folder: Path, url: str, chance: Random, writable: int) -> None:
    def hook(record: ConsumerRecord, session: Any) -> None:
        os.write(writable, b".")
        fail_by_plan(record, session)

    async def main() -> None:
        async with bus_of(folder, url, hook) as bus:
            for n in range(PER_TRIAL):
                headers = (("event-id", f"{chance.randrange(1 << 62):x}".encode()),)
                await bus.send("t", chance.choice(PLANS).encode(), key=b"k%d" % (n % 5), headers=headers)
            await anyio.sleep_forever()

    anyio.run(main)


async def ends(folder: Path, url: str) -> list[str]:
    """What is wrong when all has come to its end."""
    async with bus_of(folder, url, fail_by_plan) as bus:
        recovering = bus.runners[0].recovering
        assert recovering is not None
        with anyio.fail_after(60):
            while True:
                await bus.drain()
                if len(recovering.waiting) == PARTITIONS and not any(map(len, recovering.waiting.values())):
                    break
                await anyio.sleep(0.005)
        sent = await records_of(bus, "t")
        letters = await records_of(bus, "dlq.g")
    dead = Counter(
        (int(dict(one.headers)["__dlq.errors.partition"] or b""), int(dict(one.headers)["__dlq.errors.offset"] or b""))
        for one in letters
    )
    plain = create_engine(url.replace("asyncpg", "psycopg").replace("+aiosqlite", "").replace("aiomysql", "pymysql"))
    done = Counter(rows_of(plain))
    plain.dispose()
    found: list[str] = []
    for record in sent:
        at = record.partition, record.offset
        is_doomed = record.value == b"never"
        if (done[at], dead[at]) != (0, 1) * is_doomed + (1, 0) * (not is_doomed):
            found.append(f"{at} ({record.value!r}): {done[at]} effects, {dead[at]} dead letters")
    found += [f"{at} was never sent" for at in done.keys() - {(one.partition, one.offset) for one in sent}]
    return found


def main() -> int:
    place, trials, seed = sys.argv[1:]
    folder, _, url = place.partition(";")
    chance, told = Random(int(seed)), 0
    for _ in range(int(trials)):
        own = Random(chance.random())
        told += len(
            told_by_killed(
                lambda writable, own=own: live(Path(folder), url, own, writable), chance.uniform(0, 0.04), after_bytes=1
            )
        )
    found = anyio.run(ends, Path(folder), url)
    print(f"{trials} kills, {told} calls in lives that were killed", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
