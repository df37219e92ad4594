"""What ``tx=`` costs: a handler whose rows and offset are one transaction, beside one with a transaction of its own.

Annotations of handlers are names of functions' imports here, so they are evaluated where they stand.
"""

import asyncio
import gc
import statistics
from typing import Any

from bench_failures import Counting
from harness import Figure, Meter, Numbers, case, scratch
from outbox_databases import async_engine_of, database, engine_of
from outbox_writing import business
from work import KEYS, values

PARTITIONS = 4
TURNS = 3
FEW = 1_000


def handlers(engine: Any, counted: Any, *, is_async: bool) -> tuple[Any, Any, Any]:
    """What ``tx=`` takes; a handler that gets a session from it; one that opens its own. All insert a row."""
    from sqlalchemy import insert
    from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
    from sqlalchemy.orm import Session, sessionmaker

    _, orders = business()
    row = insert(orders).inline(), {"customer": "customer042", "amount": 7}
    if is_async:
        async_session_of = async_sessionmaker(engine)

        async def given_async(value: bytes, session: AsyncSession) -> None:
            await session.execute(*row)
            counted()

        async def own_async(value: bytes) -> None:
            async with async_session_of.begin() as session:
                await session.execute(*row)
            counted()

        return async_session_of, given_async, own_async
    session_of = sessionmaker(engine)

    def given(value: bytes, session: Session) -> None:
        session.execute(*row)
        counted()

    def own(value: bytes) -> None:
        with session_of.begin() as session:
            session.execute(*row)
        counted()

    return session_of, given, own


def inbox(name: str, n: int, *, is_async: bool = False) -> Numbers:
    """``n`` records through both, turn about."""
    from eventbus import EventBus

    warm = n // 5
    pool = values(100)

    async def one(url: Any, what: str) -> Meter:
        engine: Any = async_engine_of(url) if is_async else engine_of(url)
        loop = asyncio.get_running_loop()
        counting = Counting(warm, n + warm)
        count = counting if is_async else lambda: loop.call_soon_threadsafe(counting)
        tx, given, own = handlers(engine, count, is_async=is_async)
        with scratch() as folder:
            async with EventBus(f"file://{folder}") as bus:
                await bus.admin.create_topic("log", partitions=PARTITIONS)
                keys = iter([KEYS[number % 1_000] for number in range(n + warm)])
                sent = [pool[number % 1_000] for number in range(n + warm)]
                await bus.send_many("log", sent, key=lambda _: next(keys))
            bus = EventBus(f"file://{folder}")
            if what == "tx":
                bus.consumer("log", group=f"bench{id(bus)}", tx=tx)(given)
            else:
                bus.consumer("log", group="bench")(own)
            async with bus:
                await counting.done.wait()
        await engine.dispose() if is_async else engine.dispose()
        return counting.meter

    meters: dict[str, list[Meter]] = {"tx": [], "own": []}
    with database(name) as url:
        engine = engine_of(url)
        business()[0].create_all(engine)
        engine.dispose()
        for turn in range(TURNS if n > FEW else 1):
            for what in ("tx", "own") if turn % 2 else ("own", "tx"):
                gc.collect()
                meters[what].append(asyncio.run(one(url, what)))
    numbers: Numbers = {}
    for what, found in meters.items():
        numbers[what] = n / statistics.median(meter.wall_s for meter in found)
        numbers[f"{what} cpu"] = n / statistics.median(meter.cpu_s for meter in found)
    return numbers


for _name in ("SQLite", "PostgreSQL", "MariaDB"):
    case(f"inbox {_name}", n=2_000, quick=200)(lambda n, name=_name: inbox(name, n))
case("inbox PostgreSQL asyncpg", n=2_000, quick=200)(lambda n: inbox("PostgreSQL", n, is_async=True))


INBOX_FIGURES = [
    Figure("O6a", "handler with tx= / its own transaction, SQLite", "inbox SQLite:tx", "inbox SQLite:own", None, 0.7),
    Figure("O6b", "PostgreSQL", "inbox PostgreSQL:tx", "inbox PostgreSQL:own", None, 0.7),
    Figure("O6c", "PostgreSQL, asyncpg", "inbox PostgreSQL asyncpg:tx", "inbox PostgreSQL asyncpg:own", None, 0.7),
    Figure("O6d", "MariaDB", "inbox MariaDB:tx", "inbox MariaDB:own", None, 0.7),
]  # fmt: skip
