"""What an event costs in the business transaction that it belongs to.

Transactions with the event and without it take turns, one by one, in one thread.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from harness import Figure, Numbers, case
from outbox_databases import KINDS, VALUE, async_engine_of, database, engine_of, raw_connection

KEY = b"customer042"
WARM = 50
"""Pairs that are not counted: statements are compiled, and connections made."""

Transaction = Callable[[int], object]


class Taken:
    """What transactions of one sort took, each one by itself."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._cpu: list[float] = []

    def add(self, wall_s: float, cpu_s: float) -> None:
        self._wall.append(wall_s)
        self._cpu.append(cpu_s)

    @property
    def p50_s(self) -> float:
        return statistics.median(self._wall[WARM:])

    def numbers(self, name: str) -> Numbers:
        """By the medians: a disk that is busy with something else stalls a few, and hides what the rest takes."""
        return {name: 1 / self.p50_s, f"{name} cpu": 1 / statistics.median(self._cpu[WARM:])}


def in_pairs(n: int, with_event: Transaction, without: Transaction) -> Numbers:
    """Transactions a second of each, and what the event adds to their median, in ms."""
    event, plain = Taken(), Taken()
    for number in range(n + WARM):
        turns = [(with_event, event), (without, plain)]
        for run, taken in turns if number % 2 else reversed(turns):
            cpu, begin = time.process_time(), time.perf_counter()
            run(number)
            taken.add(time.perf_counter() - begin, time.process_time() - cpu)
    return outcome(event, plain)


async def in_pairs_async(
    n: int, with_event: Callable[[int], Awaitable[object]], without: Callable[[int], Awaitable[object]]
) -> Numbers:
    """The same on an event loop."""
    event, plain = Taken(), Taken()
    for number in range(n + WARM):
        turns = [(with_event, event), (without, plain)]
        for run, taken in turns if number % 2 else reversed(turns):
            cpu, begin = time.process_time(), time.perf_counter()
            await run(number)
            taken.add(time.perf_counter() - begin, time.process_time() - cpu)
    return outcome(event, plain)


def outcome(event: Taken, plain: Taken) -> Numbers:
    added = {"added ms": (event.p50_s - plain.p50_s) * 1_000}
    return {**event.numbers("with"), **plain.numbers("without"), **added}


# -- the business ------------------------------------------------------------------------------------------------------


def business() -> tuple[Any, Any]:
    """A MetaData with a table of orders, and that table."""
    from sqlalchemy import BigInteger, Column, Integer, MetaData, Numeric, String, Table

    metadata = MetaData()
    number = BigInteger().with_variant(Integer(), "sqlite")
    orders = Table(
        "orders",
        metadata,
        Column("id", number, primary_key=True, autoincrement=True),
        Column("customer", String(64), nullable=False),
        Column("amount", Numeric(12, 2, asdecimal=False), nullable=False),
    )
    return metadata, orders


def on_core(name: str, n: int) -> Numbers:
    """One INSERT through SQLAlchemy Core: the least that a business transaction may be."""
    from outbox import Outbox

    metadata, orders = business()
    with database(name) as url:
        engine = engine_of(url)
        outbox = Outbox(metadata)
        metadata.create_all(engine)
        outbox.create_tables(engine)
        insert = orders.insert().inline()

        def without(number: int) -> None:
            with engine.begin() as connection:
                connection.execute(insert, {"customer": "customer042", "amount": number})

        def with_event(number: int) -> None:
            with engine.begin() as connection:
                connection.execute(insert, {"customer": "customer042", "amount": number})
                outbox.publish(connection, "orders", VALUE, key=KEY)

        numbers = in_pairs(n, with_event, without)
        engine.dispose()
    return numbers


def on_session(name: str, n: int) -> Numbers:
    """A mapped object of a Session is read, changed, and another one added: what a service does for a request."""
    from sqlalchemy.orm import registry, sessionmaker

    from outbox import Outbox

    class Order:
        def __init__(self, customer: str, amount: float) -> None:
            self.customer, self.amount = customer, amount

    metadata, orders = business()
    registry().map_imperatively(Order, orders)
    with database(name) as url:
        engine = engine_of(url)
        outbox = Outbox(metadata)
        metadata.create_all(engine)
        outbox.create_tables(engine)
        session_of = sessionmaker(engine)
        with session_of.begin() as session:
            session.add(Order("customer042", 0))

        def without(number: int) -> None:
            with session_of.begin() as session:
                session.get_one(Order, 1).amount += 1  # pyright: ignore
                session.add(Order("customer042", number))

        def with_event(number: int) -> None:
            with session_of.begin() as session:
                session.get_one(Order, 1).amount += 1  # pyright: ignore
                session.add(Order("customer042", number))
                outbox.publish(session, "orders", VALUE, key=KEY)

        numbers = in_pairs(n, with_event, without)
        engine.dispose()
    return numbers


def on_driver(name: str, n: int) -> Numbers:
    """Both rows by the plain driver, by hand: what the database itself takes for one more row."""
    from outbox import Outbox
    from outbox.writing import new_event_id

    metadata, _ = business()
    with database(name) as url:
        engine = engine_of(url)
        outbox = Outbox(metadata)
        metadata.create_all(engine)
        outbox.create_tables(engine)
        engine.dispose()
        connection, mark = raw_connection(url), KINDS[name].mark
        cursor = connection.cursor()
        columns = "event_id, shard, topic, key, value, timestamp_ms"
        if name == "MariaDB":
            columns = columns.replace("key", "`key`")
        order = f"INSERT INTO orders (customer, amount) VALUES ({mark}, {mark})"
        event = f"INSERT INTO {outbox.name} ({columns}) VALUES ({', '.join([mark] * 6)})"

        def without(number: int) -> None:
            cursor.execute(order, ("customer042", number))
            connection.commit()

        def with_event(number: int) -> None:
            now_ms = time.time_ns() // 1_000_000
            cursor.execute(order, ("customer042", number))
            cursor.execute(event, (new_event_id(now_ms), number % 64, "orders", KEY, VALUE, now_ms))
            connection.commit()

        numbers = in_pairs(n, with_event, without)
        connection.close()
    return numbers


def on_loop(name: str, n: int) -> Numbers:
    """One INSERT through an AsyncConnection."""
    from outbox import Outbox

    async def run(url: Any) -> Numbers:
        engine = async_engine_of(url)
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        outbox = Outbox(engine)
        await outbox.create_tables_async()

        async def without(number: int) -> None:
            async with engine.begin() as connection:
                await connection.execute(insert, {"customer": "customer042", "amount": number})

        async def with_event(number: int) -> None:
            async with engine.begin() as connection:
                await connection.execute(insert, {"customer": "customer042", "amount": number})
                await outbox.publish(connection, "orders", VALUE, key=KEY)

        numbers = await in_pairs_async(n, with_event, without)
        await engine.dispose()
        return numbers

    metadata, orders = business()
    insert = orders.insert().inline()
    with database(name) as url:
        return asyncio.run(run(url))


for _name in KINDS:
    case(f"core {_name}", n=2_000, quick=100)(lambda n, name=_name: on_core(name, n))
    case(f"driver {_name}", n=2_000, quick=100)(lambda n, name=_name: on_driver(name, n))
for _name in ("SQLite", "PostgreSQL"):
    case(f"session {_name}", n=1_000, quick=100)(lambda n, name=_name: on_session(name, n))
case("core PostgreSQL asyncpg", n=2_000, quick=100)(lambda n: on_loop("PostgreSQL", n))


# -- the function itself -----------------------------------------------------------------------------------------------


@case("publish many", n=50_000, quick=2_000)
def publish_many(n: int) -> Numbers:
    """`publish_many` of a thousand events to a transaction, on SQLite, beside ``executemany`` of the same rows."""
    from outbox import Outbox
    from outbox.writing import new_event_id

    batch = 1_000
    values = [VALUE] * batch
    columns = "event_id, shard, topic, key, value, timestamp_ms"
    times: dict[str, list[float]] = {"many": [], "driver": []}
    with database("SQLite") as url:
        engine = engine_of(url)
        outbox = Outbox(engine)
        outbox.create_tables()
        connection = raw_connection(url)
        statement = f"INSERT INTO {outbox.name} ({columns}) VALUES (?, ?, ?, ?, ?, ?)"

        def by_outbox() -> None:
            with engine.begin() as connection:
                outbox.publish_many(connection, "orders", values, key=lambda _: KEY)

        def by_driver() -> None:
            now_ms = time.time_ns() // 1_000_000
            rows = [(new_event_id(now_ms), 42, "orders", KEY, value, now_ms) for value in values]
            connection.executemany(statement, rows)
            connection.commit()

        for _ in range(n // batch):
            for name, run in (("many", by_outbox), ("driver", by_driver)):
                begin = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - begin)
        connection.close()
        engine.dispose()
    return {name: batch / statistics.median(taken) for name, taken in times.items()}


WRITING_FIGURES = [
    Figure("O1a", "with the event / without, SQLite", "core SQLite:with", "core SQLite:without", 0.75, 0.85),
    Figure("O1b", "PostgreSQL", "core PostgreSQL:with", "core PostgreSQL:without", 0.75, 0.85),
    Figure("O1c", "PostgreSQL, asyncpg", "core PostgreSQL asyncpg:with", "core PostgreSQL asyncpg:without", 0.75, 0.85),
    Figure("O1d", "MariaDB", "core MariaDB:with", "core MariaDB:without", 0.75, 0.85),
    Figure("O1e", "a Session's, SQLite", "session SQLite:with", "session SQLite:without", 0.75, 0.85),
    Figure("O1f", "a Session's, PostgreSQL", "session PostgreSQL:with", "session PostgreSQL:without", 0.75, 0.85),
    Figure("O1g", "both rows by the driver / one, SQLite", "driver SQLite:with", "driver SQLite:without", None, 0.85),
    Figure("O1h", "PostgreSQL", "driver PostgreSQL:with", "driver PostgreSQL:without", None, 0.85),
    Figure("O1i", "MariaDB", "driver MariaDB:with", "driver MariaDB:without", None, 0.85),
    Figure("O1j", "added to a transaction, p50, SQLite", "core SQLite:added ms", None, None, 0.1, True, "ms"),
    Figure("O1k", "PostgreSQL", "core PostgreSQL:added ms", None, None, 0.1, True, "ms"),
    Figure("O1l", "MariaDB", "core MariaDB:added ms", None, None, 0.1, True, "ms"),
    Figure("O1m", "added by the driver alone, SQLite", "driver SQLite:added ms", None, None, 0.1, True, "ms"),
    Figure("O1n", "PostgreSQL", "driver PostgreSQL:added ms", None, None, 0.1, True, "ms"),
    Figure("O1o", "MariaDB", "driver MariaDB:added ms", None, None, 0.1, True, "ms"),
    Figure("O1p", "publish_many of 1,000 / the driver, SQLite", "publish many:many", "publish many:driver", None, 0.4),
]  # fmt: skip
