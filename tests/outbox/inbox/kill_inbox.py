"""Kill a service that writes to a database: ``python -m tests.outbox.inbox.kill_inbox FOLDER;DATABASE-URL TRIALS
SEED``.

Its records fail by different plans, so that it is killed on every path of a record. With ``FOLDER;DATABASE-URL;SCHEMA``
the tables are in that schema, through a ``schema_translate_map``, the handler adds mapped objects to an ORM session,
transactions are SERIALIZABLE, and the service has a pool of one connection.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.delays.retry_records import attempts_of
from outbox import Inbox
from tests.killed import told_by_killed
from tests.outbox.inbox.given import Hook, handler_of, records_of, row_of, sessions_of

PLANS = ("0",) * 10 + ("1", "2", "never")
PARTITIONS, PER_TRIAL = 2, 12


class Base(DeclarativeBase): ...


class Effect(Base):
    """A row of the ledger."""

    __tablename__ = "ledger"
    id: Mapped[int] = mapped_column(primary_key=True)
    part: Mapped[int]
    off: Mapped[int]
    value: Mapped[str]


class Place(NamedTuple):
    """A folder for the log, and a database."""

    folder: Path
    url: str
    schema: str = ""

    @property
    def is_async(self) -> bool:
        return any(driver in self.url for driver in ("asyncpg", "aiosqlite", "aiomysql"))

    def options(self) -> dict[str, Any]:
        if not self.schema:
            return {}
        return {
            "isolation_level": "SERIALIZABLE",
            "execution_options": {"schema_translate_map": {None: self.schema}},
            "pool_size": 1,
            "max_overflow": 0,
        }

    def plain_engine(self) -> Engine:
        plain = self.url.replace("asyncpg", "psycopg").replace("+aiosqlite", "").replace("aiomysql", "pymysql")
        return create_engine(plain, **self.options())


def bus_of(place: Place, hook: Hook | None = None) -> EventBus:
    engine: Any = (create_async_engine if place.is_async else create_engine)(place.url, **place.options())
    bus = EventBus(f"file://{place.folder}/log?fsync=os")
    bus.topic("t", partitions=PARTITIONS)
    policy = Retry(immediate=1, delays=(0.005,), jitter=False, order="key")
    inbox = Inbox(sessions_of(engine) if place.schema else engine, message_ids="event-id")
    handler = orm_handler_of if place.schema else handler_of
    bus.consumer("t", group="g", name="handle", tx=inbox, retry=policy, commit_interval_ms=10)(
        handler(place.is_async, hook)
    )
    return bus


def orm_handler_of(is_async: bool, hook: Hook | None) -> Callable[..., Any]:
    def plain(record: ConsumerRecord, session: Session) -> None:
        session.add(Effect(**row_of(record)))  # sent with the flush, at the commit
        if hook is not None:
            hook(record, session)

    async def asynchronous(record: ConsumerRecord, session: AsyncSession) -> None:
        session.add(Effect(**row_of(record)))
        if hook is not None:
            hook(record, session)

    return asynchronous if is_async else plain


def fail_by_plan(record: ConsumerRecord, session: Any) -> None:
    plan, attempt = (record.value or b"").decode(), attempts_of(record).attempt
    if plan == "never" or attempt < int(plan):
        raise ValueError(plan)


def live(place: Place, chance: Random, writable: int) -> None:
    def hook(record: ConsumerRecord, session: Any) -> None:
        os.write(writable, b".")
        fail_by_plan(record, session)

    async def main() -> None:
        async with bus_of(place, hook) as bus:
            for n in range(PER_TRIAL):
                headers = (("event-id", f"{chance.randrange(1 << 62):x}".encode()),)
                await bus.send("t", chance.choice(PLANS).encode(), key=b"k%d" % (n % 5), headers=headers)
            await anyio.sleep_forever()

    anyio.run(main)


async def ends(place: Place) -> list[str]:
    """Return what is wrong after everything is settled."""
    async with bus_of(place, fail_by_plan) as bus:
        recovering = bus.context.runners[0].failure_policy
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
    plain = place.plain_engine()
    with plain.connect() as connection:
        done = Counter((part, off) for part, off in connection.execute(select(Effect.part, Effect.off)))
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
    where, trials, seed = sys.argv[1:]
    folder, url, *schema = where.split(";")
    place = Place(Path(folder), url, *schema)
    if place.schema:
        plain = place.plain_engine()
        Base.metadata.create_all(plain)
        plain.dispose()
    chance, told = Random(int(seed)), 0
    for _ in range(int(trials)):
        own = Random(chance.random())
        told += len(
            told_by_killed(lambda writable, own=own: live(place, own, writable), chance.uniform(0, 0.04), after_bytes=1)
        )
    found = anyio.run(ends, place)
    print(f"{trials} kills, {told} calls in lives that were killed", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
