"""From the return of a commit until a read-committed handler has the event: in one process, and between two."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from harness import Figure, Numbers, case, percentile, scratch
from outbox_databases import VALUE, database, engine_of, raw_connection, until

RATE = 1_000
SLOW_RATE = 200
"""Commits a second, where a raw loop is beside it."""
WARM = 0.2
"""Of the events: they are not counted."""
PATIENCE_S = 60


def of_number(number: int) -> bytes:
    return b"%08d%b" % (number, VALUE)


class Seen:
    """When each event was handled, by the machine's steady clock, which all its processes share."""

    def __init__(self, n: int) -> None:
        self.at = [0.0] * n
        self.done = asyncio.Event()
        self._left = n

    def add(self, value: bytes) -> None:
        self.at[int(value[:8])] = time.monotonic()
        self._left -= 1
        if not self._left:
            self.done.set()

    def after(self, committed: list[float]) -> Numbers:
        """Percentiles, in ms."""
        start = int(len(committed) * WARM)
        late = [max(0.0, seen - done) for seen, done in zip(self.at[start:], committed[start:], strict=True)]
        return {"p50": percentile(late, 0.5) * 1e3, "p99": percentile(late, 0.99) * 1e3, "max": max(late) * 1e3}


def commit_paced(engine: Any, outbox: Any, n: int, rate: float, committed: list[float], first: int, step: int) -> None:
    """Every ``step``-th event, each in a transaction of its own, at a steady pace; late ones are not waited for."""
    begin = time.monotonic()
    for number in range(first, n, step):
        ahead = begin + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # so many a second, by the clock
        with engine.begin() as connection:
            outbox.publish(connection, "log", of_number(number), key=b"customer%03d" % (number % 1_000))
        committed[number] = time.monotonic()


@asynccontextmanager
async def handled(url: Any, outbox: Any, n: int) -> AsyncGenerator[tuple[Any, Seen]]:
    """A bus with a relay and a handler that notes the time; it listens, where there is something to listen to."""
    from eventbus import EventBus

    seen = Seen(n)
    engine = engine_of(url)
    outbox.create_tables(engine)
    relay = outbox.relay(engine)
    with scratch() as folder:
        async with EventBus(f"file://{folder}") as bus:
            await bus.admin.create_topic("log", partitions=4)
        bus = EventBus(f"file://{folder}")

        @bus.consumer("log", group="bench")
        async def handle(value: bytes) -> None:
            seen.add(value)

        bus.include(relay)
        async with bus:
            await relay.drain()
            await until(lambda: relay.health().details["listens"] != "connecting")
            yield engine, seen
    engine.dispose()


def new_outbox() -> Any:
    from sqlalchemy import MetaData

    from outbox import Outbox

    return Outbox(MetaData())


def in_process(name: str, n: int, writers: int) -> Numbers:
    """Threads commit, the relay and the handler are on the loop beside them: one interpreter for all."""

    async def run(url: Any) -> Numbers:
        outbox, committed = new_outbox(), [0.0] * n
        async with handled(url, outbox, n) as (engine, seen):
            threads = [
                threading.Thread(target=commit_paced, args=(engine, outbox, n, RATE, committed, first, writers))
                for first in range(writers)
            ]
            for thread in threads:
                thread.start()
            async with asyncio.timeout(PATIENCE_S):
                await seen.done.wait()
            for thread in threads:
                thread.join()
        return seen.after(committed)

    with database(name) as url:
        return asyncio.run(run(url))


@case("commit to handler SQLite", n=5_000, quick=500)
def in_process_on_sqlite(n: int) -> Numbers:
    return in_process("SQLite", n, writers=1)


@case("commit to handler PostgreSQL", n=5_000, quick=500)
def in_process_on_postgresql(n: int) -> Numbers:
    """Two writers: one cannot flush a thousand commits a second beside everything else."""
    return in_process("PostgreSQL", n, writers=2)


# -- between processes -------------------------------------------------------------------------------------------------


def other_process(url: Any, n: int, rate: float, committed: Any, by_driver: bool) -> None:
    """What the writing process does."""
    times = [0.0] * n
    if by_driver:
        notify_paced(url, n, rate, times)
    else:
        engine = engine_of(url)
        commit_paced(engine, new_outbox(), n, rate, times, 0, 1)
        engine.dispose()
    committed.put(times)


def notify_paced(url: Any, n: int, rate: float, committed: list[float]) -> None:
    """An INSERT and a NOTIFY in each transaction."""
    connection = raw_connection(url)
    cursor, begin = connection.cursor(), time.monotonic()
    for number in range(n):
        ahead = begin + number / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)  # so many a second, by the clock
        cursor.execute("INSERT INTO queue (value) VALUES (%s)", (of_number(number),))
        cursor.execute("NOTIFY queue")
        connection.commit()
        committed[number] = time.monotonic()
    connection.close()


async def written_elsewhere(url: Any, n: int, rate: float, seen: Seen, *, by_driver: bool = False) -> Numbers:
    """Have another process write, and wait until all is seen."""
    context = multiprocessing.get_context("spawn")
    committed = context.Queue()
    process = context.Process(target=other_process, args=(url, n, rate, committed, by_driver))
    process.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await seen.done.wait()
            return seen.after(await asyncio.to_thread(committed.get))
    finally:
        process.kill()
        process.join()


def from_outside(n: int, rate: float) -> Numbers:
    """PostgreSQL says that something was committed in another process."""

    async def run(url: Any) -> Numbers:
        outbox = new_outbox()
        async with handled(url, outbox, n) as (_, seen):
            return await written_elsewhere(url, n, rate, seen)

    with database("PostgreSQL") as url:
        return asyncio.run(run(url))


@case("from outside, PostgreSQL", n=5_000, quick=500)
def from_another_process(n: int) -> Numbers:
    return from_outside(n, RATE)


@case("outside slowly, PostgreSQL", n=1_500, quick=200)
def slowly_from_another_process(n: int) -> Numbers:
    return from_outside(n, SLOW_RATE)


@case("raw NOTIFY, PostgreSQL", n=1_500, quick=200)
def raw_listen_and_notify(n: int) -> Numbers:
    """A loop of the plain driver: it is told, and takes and deletes what there is; there is no log behind it."""

    async def run(url: Any) -> Numbers:
        seen, loop = Seen(n), asyncio.get_running_loop()
        with raw_connection(url) as connection:
            connection.execute("CREATE TABLE queue (id bigserial PRIMARY KEY, value bytea)")
        listening = threading.Event()
        thread = threading.Thread(
            target=listen, args=(url, n, listening, lambda v: loop.call_soon_threadsafe(seen.add, v))
        )
        thread.start()
        await asyncio.to_thread(listening.wait)
        numbers = await written_elsewhere(url, n, SLOW_RATE, seen, by_driver=True)
        thread.join()
        return numbers

    with database("PostgreSQL") as url:
        return asyncio.run(run(url))


def listen(url: Any, n: int, listening: threading.Event, tell: Any) -> None:
    """Until ``n`` rows are taken."""
    connection = raw_connection(url)
    connection.autocommit = True
    connection.execute("LISTEN queue")
    listening.set()
    count = 0
    while count < n:
        list(connection.notifies(timeout=1, stop_after=1))
        rows = connection.execute("DELETE FROM queue RETURNING value").fetchall()
        for (value,) in rows:
            tell(value)
        count += len(rows)
    connection.close()


LATENCY_FIGURES = [
    Figure("O3a", "commit to handler, 1,000/s, SQLite: p50", "commit to handler SQLite:p50", None, None, 5, True, "ms"),
    Figure("O3b", "p99", "commit to handler SQLite:p99", None, None, 25, True, "ms"),
    Figure("O3c", "the same, PostgreSQL: p50", "commit to handler PostgreSQL:p50", None, None, 5, True, "ms"),
    Figure("O3d", "p99", "commit to handler PostgreSQL:p99", None, None, 25, True, "ms"),
    Figure("O3e", "from another process, PostgreSQL: p50", "from outside, PostgreSQL:p50", None, None, 5, True, "ms"),
    Figure("O3f", "p99", "from outside, PostgreSQL:p99", None, None, 25, True, "ms"),
    Figure("O3g", "p50 at 200/s", "outside slowly, PostgreSQL:p50", "raw NOTIFY, PostgreSQL:p50", 3, 1.5, True, "ms"),
]  # fmt: skip
