"""What a user would take instead, doing the same work: a plain file, SQLite, Redis, FastStream, the raw disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness import Meter, Numbers, Skip, case, percentile, scratch
from work import paced, pairs, values

LENGTH = struct.Struct(">I")


# -- a plain file ------------------------------------------------------------------------------------------------------


def plain_file(n: int, size_bytes: int) -> Numbers:
    """Length-prefixed keys and values through Python's buffered file: the bound for touching every record."""
    records = pairs(n, size_bytes)
    pack, head = LENGTH.pack, LENGTH.size
    with scratch() as folder:
        path = folder / "records"
        with Meter() as produce, path.open("wb", buffering=65_536) as file:
            write = file.write
            for key, value in records:
                write(pack(len(key)) + key + pack(len(value)) + value)
        count = 0

        async def handle(value: bytes) -> None:
            nonlocal count
            count += 1

        async def read_all() -> None:
            with path.open("rb", buffering=65_536) as file:
                read, unpack = file.read, LENGTH.unpack
                while length := read(head):
                    _key = read(unpack(length)[0])
                    await handle(read(unpack(read(head))[0]))

        with Meter() as consume:
            asyncio.run(read_all())
        assert count == n
        return {
            **produce.rates("produce", n),
            **consume.rates("consume", n),
            "cpu us both": (produce.cpu_s + consume.cpu_s) / n * 1e6,
            "produce B/s": n * size_bytes / produce.wall_s,
            "produce B/s cpu": n * size_bytes / produce.cpu_s,
        }


@case("plain file", n=500_000, quick=100_000)
def plain_file_100(n: int) -> Numbers:
    return plain_file(n, 100)


@case("plain file 1 KB", n=200_000, quick=40_000)
def plain_file_1000(n: int) -> Numbers:
    return plain_file(n, 1_000)


# -- SQLite ------------------------------------------------------------------------------------------------------------


def sqlite(n: int, rows_per_transaction: int, synchronous: str) -> Numbers:
    records = pairs(n)
    insert = "insert into log (key, value) values (?, ?)"
    with scratch() as folder, closing(sqlite3.connect(folder / "log.db", isolation_level=None)) as db:
        db.execute("pragma journal_mode=wal")
        db.execute(f"pragma synchronous={synchronous}")
        db.execute("create table log (id integer primary key, key blob, value blob)")
        with Meter() as produce:
            if rows_per_transaction == 1:
                for record in records:
                    db.execute(insert, record)
            else:
                for start in range(0, n, rows_per_transaction):
                    db.execute("begin")
                    db.executemany(insert, records[start : start + rows_per_transaction])
                    db.execute("commit")
        with Meter() as consume:
            count = sum(1 for _ in db.execute("select id, key, value from log order by id"))
        assert count == n
        return {**produce.rates("produce", n), **consume.rates("consume", n)}


@case("sqlite 1000 rows", n=300_000, quick=60_000)
def sqlite_batch(n: int) -> Numbers:
    return sqlite(n, 1_000, "normal")


@case("sqlite 1000 rows FULL", n=300_000, quick=60_000)
def sqlite_batch_full(n: int) -> Numbers:
    return sqlite(n, 1_000, "full")


@case("sqlite row by row", n=50_000, quick=10_000)
def sqlite_each(n: int) -> Numbers:
    return sqlite(n, 1, "normal")


# -- the raw disk ------------------------------------------------------------------------------------------------------


@case("raw fdatasync", n=5_000, quick=1_000)
def raw_fdatasync(n: int) -> Numbers:
    """Append 181 bytes (one record's batch) and flush, at 1,000 a second: what any durable publish waits for."""
    payload = os.urandom(181)
    flush = getattr(os, "fdatasync", os.fsync)
    took: list[float] = []

    with scratch() as folder:
        file = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        async def write(_: int) -> None:
            begin = time.perf_counter()
            os.write(file, payload)
            flush(file)
            took.append(time.perf_counter() - begin)

        asyncio.run(paced(n, 1_000, write))
        os.close(file)
    return {"p50 us": percentile(took, 0.5) * 1e6, "p99 us": percentile(took, 0.99) * 1e6}


@case("cold read", n=1 << 30, quick=1 << 27, rounds=3)
def cold_read(n: int) -> Numbers:
    """Read a file of ``n`` bytes that is not in the page cache: the disk's own speed."""
    if not hasattr(os, "posix_fadvise"):
        raise Skip("no posix_fadvise here, so the page cache cannot be emptied for one file")
    chunk = os.urandom(1 << 20)
    with scratch() as folder:
        path = folder / "cold"
        with path.open("wb") as file:
            for _ in range(n >> 20):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        forget(path)
        with Meter() as read, path.open("rb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass
    return {"B/s": n / read.wall_s}


def forget(path: Path) -> None:
    """Drop a file (or a folder's files) from the page cache; they must have been flushed."""
    for file in [path] if path.is_file() else (found for found in path.rglob("*") if found.is_file()):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


# -- Redis -------------------------------------------------------------------------------------------------------------


@contextmanager
def redis_server() -> Iterator[int]:
    """A Redis of its own on a loopback port, in a folder of its own, flushing every second; the port."""
    program = shutil.which("redis-server")
    if program is None:
        raise Skip("no redis-server on this machine")
    try:
        import redis
    except ImportError:
        raise Skip("the redis client is missing: pip install redis") from None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with scratch() as folder:
        settings = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync everysec --save  --dir {folder}"
        server = subprocess.Popen([program, *settings.split(" ")], stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(port=port)
            for _ in range(500):
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.01)
            client.close()
            yield port
        finally:
            server.terminate()
            server.wait()


@case("redis awaited XADD", n=10_000, quick=2_000)
def redis_awaited(n: int) -> Numbers:
    records = pairs(n)

    async def publish(port: int) -> Meter:
        import redis.asyncio

        client = redis.asyncio.Redis(port=port)
        with Meter() as meter:
            for key, value in records:
                await client.xadd("log", {b"k": key, b"v": value})
        await client.aclose()
        return meter

    with redis_server() as port:
        return asyncio.run(publish(port)).rates("produce", n)


@case("redis stream latency", n=5_000, quick=1_000)
def redis_latency(n: int) -> Numbers:
    """XADD at 1,000 a second to a reader that blocks in XREADGROUP, both in one process."""
    pool = values(100)
    took: list[float] = []

    async def run(port: int) -> None:
        import redis.asyncio

        writer, reader = redis.asyncio.Redis(port=port), redis.asyncio.Redis(port=port)
        await writer.xgroup_create("log", "group", mkstream=True)
        sent: list[float] = []

        async def publish(number: int) -> None:
            sent.append(time.perf_counter())
            await writer.xadd("log", {b"v": pool[number % 1_000]})

        async def consume() -> None:
            while len(took) < n:
                for _, entries in await reader.xreadgroup("group", "me", {"log": ">"}, count=1_000, block=5_000):
                    now = time.perf_counter()
                    took.extend([now - at for at in sent[len(took) : len(took) + len(entries)]])
                    await reader.xack("log", "group", *[entry for entry, _ in entries])

        consumer = asyncio.create_task(consume())
        await asyncio.sleep(0.1)
        await paced(n, 1_000, publish)
        await consumer
        await writer.aclose()
        await reader.aclose()

    with redis_server() as port:
        asyncio.run(run(port))
    return {"p50 us": percentile(took, 0.5) * 1e6, "p99 us": percentile(took, 0.99) * 1e6}


# -- FastStream --------------------------------------------------------------------------------------------------------


@case("faststream TestKafkaBroker", n=5_000, quick=1_000)
def faststream_in_memory(n: int) -> Numbers:
    """FastStream's in-memory broker: a publish runs the handler."""
    try:
        from faststream.kafka import KafkaBroker, TestKafkaBroker
    except ImportError:
        raise Skip("FastStream is missing: pip install 'faststream[kafka]'") from None
    records, seen = pairs(n), 0
    broker = KafkaBroker(logger=None)

    @broker.subscriber("log")
    async def handle(body: bytes) -> None:
        nonlocal seen
        seen += 1

    async def run() -> Meter:
        async with TestKafkaBroker(broker):
            with Meter() as meter:
                for key, value in records:
                    await broker.publish(value, "log", key=key)
        return meter

    meter = asyncio.run(run())
    assert seen == n, seen
    return meter.rates("publish to handler", n)


# -- imports -----------------------------------------------------------------------------------------------------------


TIMED_IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def import_ms(statement: str, repeat: int) -> Numbers:
    """Milliseconds that an import takes in a fresh interpreter; the best of ``repeat``."""
    command = [sys.executable, "-c", TIMED_IMPORT.format(statement=statement)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(repeat)]
    if runs[0].returncode:
        raise Skip(f"{statement} fails: {runs[0].stderr.strip().splitlines()[-1]}")
    wall, cpu = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    return {"ms": min(wall) * 1e3, "cpu ms": min(cpu) * 1e3}


@case("import faststream.kafka", n=3, quick=1)
def import_faststream(n: int) -> Numbers:
    return import_ms("from faststream.kafka import KafkaBroker", n)


@case("import eventbus", n=5, quick=3)
def import_eventbus(n: int) -> Numbers:
    return import_ms("from eventbus import EventBus, consumer, producer", n)  # the facade alone loads nothing
