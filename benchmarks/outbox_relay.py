"""The relay at work: from the table into a ``file://`` log, exactly once, until its rows are deleted.

Beside it, in the same process and in turns, the plain driver takes 500 rows of the same table and deletes them, and
publishes nothing.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from harness import Figure, Meter, Numbers, case, scratch
from outbox_databases import KINDS, analyze, async_engine_of, database, engine_of, fill, raw_connection, until
from outbox_proxy import Proxy

PARTITIONS = 4
TAKEN = 500
TURNS = 3
FEW = 10_000
"""Rows: so many only show that it runs, and one turn does."""


@asynccontextmanager
async def relaying(engine: Any, outbox: Any, **options: Any) -> AsyncGenerator[Any]:
    """A bus over an empty log, with a relay that runs; afterwards the log has as many events as it says."""
    from eventbus import EventBus, TopicPartition

    with scratch() as folder:
        relay = outbox.relay(engine, **options)
        bus = EventBus(f"file://{folder}")
        async with bus:
            await bus.admin.create_topic("log", partitions=PARTITIONS)
        bus = EventBus(f"file://{folder}")
        bus.include(relay)
        async with bus:
            yield relay
            places = [TopicPartition("log", number) for number in range(PARTITIONS)]
            async with bus.new_consumer() as reader:
                ends = await reader.end_offsets(*places)
        count = relay.metrics().published
        assert sum(ends.values()) >= count > 0, (ends, count)  # more: transactions have an entry for their end


async def relayed(engine: Any, outbox: Any, n: int, **options: Any) -> Meter:
    """Until ``n`` rows are through; the first batch, and what it takes to begin, are left out."""
    async with relaying(engine, outbox, **options) as relay:
        await until(lambda: relay.metrics().published)
        meter = Meter()
        before = relay.metrics().published
        with meter:
            await relay.drain()
        assert relay.metrics().published == n, relay.metrics()
    meter.wall_s *= n / (n - before)
    meter.cpu_s *= n / (n - before)
    return meter


def raw_loop(url: Any, table: str, n: int) -> Meter:
    """Take 500, delete those, commit: until there is nothing."""
    connection = raw_connection(url)
    key = "`key`" if url.get_backend_name() == "mysql" else '"key"'
    mark = "?" if url.get_backend_name() == "sqlite" else "%s"
    take = (
        f"SELECT id, event_id, topic, {key}, value, headers, partition, timestamp_ms, expires_at_ms "
        f"FROM {table} ORDER BY id LIMIT {TAKEN}"
    ).replace("partition", "`partition`" if "`" in key else "partition")
    delete = f"DELETE FROM {table} WHERE id BETWEEN {mark} AND {mark}"
    cursor, count = connection.cursor(), 0
    with Meter() as meter:
        while True:
            cursor.execute(take)
            rows = cursor.fetchall()
            if not rows:
                break
            cursor.execute(delete, (rows[0][0], rows[-1][0]))
            connection.commit()
            count += len(rows)
    connection.close()
    assert count == n, (count, n)
    return meter


def relay_beside_loop(name: str, n: int, *, is_async: bool = False) -> Numbers:
    """Rows a second of both."""
    from sqlalchemy import MetaData

    from outbox import Outbox

    meters: dict[str, list[Meter]] = {"relay": [], "loop": []}
    with database(name) as url:
        engine = engine_of(url)
        outbox = Outbox(MetaData())
        outbox.create_tables(engine)

        def loop() -> Meter:
            return raw_loop(url, outbox.name, n)

        def relay() -> Meter:
            return asyncio.run(publish())

        async def publish() -> Meter:
            chosen = async_engine_of(url) if is_async else engine
            meter = await relayed(chosen, outbox, n)
            if is_async:
                await chosen.dispose()
            return meter

        for turn in range(TURNS if n > FEW else 1):
            pair = (("relay", relay), ("loop", loop))
            for what, run in pair if turn % 2 else reversed(pair):
                fill(url, outbox, n)
                gc.collect()
                meters[what].append(run())
        engine.dispose()
    numbers: Numbers = {}
    for what, found in meters.items():
        numbers[what] = n / statistics.median(meter.wall_s for meter in found)
        numbers[f"{what} cpu"] = n / statistics.median(meter.cpu_s for meter in found)
    return numbers


for _name in KINDS:
    case(f"relay {_name}", n=30_000, quick=2_000)(lambda n, name=_name: relay_beside_loop(name, n))
case("relay PostgreSQL asyncpg", n=30_000, quick=2_000)(lambda n: relay_beside_loop("PostgreSQL", n, is_async=True))


# -- a backlog ---------------------------------------------------------------------------------------------------------


def backlog(name: str, n: int) -> Numbers:
    """``n`` rows have gathered; beside a table that a twentieth of them is in."""
    from sqlalchemy import MetaData

    from outbox import Outbox

    small = n // 20
    with database(name) as url:
        engine = engine_of(url)
        outbox = Outbox(MetaData())
        outbox.create_tables(engine)

        def rate(count: int) -> float:
            fill(url, outbox, count)
            gc.collect()
            return count / asyncio.run(relayed(engine, outbox, count)).wall_s

        before = [rate(small) for _ in range(2)]
        large = rate(n)
        analyze(engine)
        numbers = {"large": large, "small": statistics.median([*before, rate(small)])}
        engine.dispose()
    return numbers


for _name in ("SQLite", "PostgreSQL"):
    case(f"backlog {_name}", n=1_000_000, quick=20_000, rounds=1)(lambda n, name=_name: backlog(name, n))


# -- what the database is asked ----------------------------------------------------------------------------------------


def questions(engine: Any) -> list[str]:
    """Fills with the statements that are executed from now on."""
    from sqlalchemy import event

    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda c, cursor, statement, *_: asked.append(statement))
    return asked


def idle_relay(name: str, n: int) -> Numbers:
    """Queries a second, over ``n`` seconds, of a relay that found nothing for six seconds."""
    from sqlalchemy import MetaData

    from outbox import Outbox

    async def run(url: Any) -> Numbers:
        engine = engine_of(url)
        outbox = Outbox(MetaData())
        outbox.create_tables(engine)
        fill(url, outbox, 10)
        async with relaying(engine, outbox) as relay:
            await relay.drain()
            await asyncio.sleep(min(6, n))
            asked, begin = questions(engine), time.perf_counter()
            await asyncio.sleep(n)
            numbers = {"queries": len(asked) / (time.perf_counter() - begin)}
        engine.dispose()
        return numbers

    with database(name) as url:
        return asyncio.run(run(url))


for _name in ("SQLite", "PostgreSQL"):
    case(f"idle relay {_name}", n=12, quick=2, rounds=1)(lambda n, name=_name: idle_relay(name, n))


def round_trips(name: str, n: int) -> Numbers:
    """How often an event makes the relay wait for the server, with 100 rows to a batch; seen on the wire."""
    from sqlalchemy import MetaData

    from outbox import Outbox

    async def run(url: Any) -> Numbers:
        outbox = Outbox(MetaData())
        engine = engine_of(url)
        outbox.create_tables(engine)
        fill(url, outbox, n)
        engine.dispose()
        with Proxy(url.host, url.port) as proxy:
            engine = engine_of(url.set(port=proxy.port))
            async with relaying(engine, outbox, batch_size=100) as relay:
                await until(lambda: relay.metrics().published)
                before, trips = relay.metrics().published, proxy.trips
                await relay.drain()
                numbers = {"trips": (proxy.trips - trips) / (n - before)}
            engine.dispose()
        return numbers

    with database(name) as url:
        return asyncio.run(run(url))


for _name in ("PostgreSQL", "MariaDB"):
    case(f"trips {_name}", n=20_000, quick=2_000)(lambda n, name=_name: round_trips(name, n))


RELAY_FIGURES = [
    Figure("O2a", "relay, exactly once, SQLite", "relay SQLite:relay", None, None, 20_000),
    Figure("O2b", "PostgreSQL", "relay PostgreSQL:relay", None, None, 10_000),
    Figure("O2c", "PostgreSQL, asyncpg", "relay PostgreSQL asyncpg:relay", None, None, 10_000),
    Figure("O2d", "MariaDB", "relay MariaDB:relay", None, None, 10_000),
    Figure("O2e", "relay / take and delete, SQLite", "relay SQLite:relay", "relay SQLite:loop", 0.2, 0.4),
    Figure("O2f", "PostgreSQL", "relay PostgreSQL:relay", "relay PostgreSQL:loop", 0.2, 0.4),
    Figure("O2g", "PostgreSQL, asyncpg", "relay PostgreSQL asyncpg:relay", "relay PostgreSQL asyncpg:loop", 0.2, 0.4),
    Figure("O2h", "MariaDB", "relay MariaDB:relay", "relay MariaDB:loop", 0.2, 0.4),
    Figure("O4a", "1,000,000 rows waiting / 50,000, SQLite", "backlog SQLite:large", "backlog SQLite:small", None, 0.7),
    Figure("O4b", "PostgreSQL", "backlog PostgreSQL:large", "backlog PostgreSQL:small", None, 0.7),
    Figure("O5a", "idle relay, queries, SQLite", "idle relay SQLite:queries", None, None, 1, True),
    Figure("O5b", "PostgreSQL", "idle relay PostgreSQL:queries", None, None, 1, True),
    Figure("O5c", "round trips an event, PostgreSQL", "trips PostgreSQL:trips", None, None, 0.05, True, "trips"),
    Figure("O5d", "MariaDB", "trips MariaDB:trips", None, None, 0.05, True, "trips"),
]  # fmt: skip
