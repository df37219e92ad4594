"""Spark's side: reading the log, landing it, what a batch costs, how soon a record is in the table.

What is compared takes turns in one process and one session; a case returns all its numbers. The orders are Avro with
ten fields, 87 bytes, in four partitions and batches of 200 records.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from core import now_ms, open_broker
from figures import Figure
from harness import Numbers, case, percentile, scratch

LANDING_FIGURES = [
    Figure("K1a", "log -> noop / Parquet -> noop", "spark sources:log", "spark sources:parquet", 0.45, 0.6),
    Figure("K2a", "Avro -> dated Parquet, once / Spark's copy", "spark landing:stream", "spark landing:copy", 0.9, 1.3),
    Figure("K2b", "the same, read by the tasks themselves", "spark landing:fused", "spark landing:copy", 1.8, 2.3),
    Figure("K3a", "a batch of 1,000 records", "spark batches:ms", None, 450, 300, True, "ms"),
    Figure("K4a", "append -> committed, p50", "spark latency:p50 ms", None, 600, 300, True, "ms"),
    Figure("K4b", "p95", "spark latency:p95 ms", None, 1_500, 700, True, "ms"),
    Figure("K4c", "sent by a service -> committed, p50", "spark service latency:p50 ms", None, 600, 300, True, "ms"),
    Figure("K5a", "cold process -> first row", "spark cold:seconds", None, 12, 8, True, "s"),
    Figure("K6a", "memory for a backlog of 1 GB", "spark memory:MB", None, 1_500, 1_000, True, "MB"),
]
"""With ``bench.py --spark``."""

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
PER_BATCH = 200
SCHEMA = """{"type": "record", "name": "Order", "fields": [
 {"name": "order_id", "type": "string"}, {"name": "customer", "type": "string"}, {"name": "sku", "type": "string"},
 {"name": "currency", "type": "string"},
 {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["OPEN", "PAID", "SENT"]}},
 {"name": "note", "type": ["null", "string"], "default": null}, {"name": "quantity", "type": "int"},
 {"name": "number", "type": "long"}, {"name": "placed_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
 {"name": "price", "type": "double"}]}"""
DAY_MS = 86_400_000
T0 = 1_709_164_800_000


class OneSchema:
    """A registry with one schema, 1: for a subject, for ids."""

    def __init__(self) -> None:
        from serdes.registry import RegisteredSchema, SchemaText

        self._schema = RegisteredSchema(1, None, SchemaText(SCHEMA), "orders-value", 1)

    def known(self, schema_id: int, subject: str | None = None) -> Any:
        return self._schema

    def by_id(self, schema_id: int, subject: str | None = None) -> Any:
        return self._schema

    def latest(self, subject: str) -> Any:
        return self._schema

    def version(self, subject: str, version: int, *, deleted: bool = False) -> Any:
        return self._schema

    def close(self) -> None:
        pass

    def by_guid(self, guid: str) -> Any:
        raise NotImplementedError

    register = lookup = is_compatible = by_guid


def values(count: int) -> list[bytes]:
    """Different orders, encoded by fastavro."""
    import io

    import fastavro

    schema = fastavro.parse_schema(__import__("json").loads(SCHEMA))
    encoded: list[bytes] = []
    for n in range(count):
        out = io.BytesIO(b"\0\0\0\0\1")
        out.seek(5)
        order = {
            "order_id": f"order-{n:08d}", "customer": f"customer{n % 977:04d}", "sku": f"sku-{n % 131:05d}",
            "currency": "EUR", "status": ("OPEN", "PAID", "SENT")[n % 3], "note": "a gift" if n % 4 == 0 else None,
            "quantity": n % 9 + 1, "number": n * 7919, "placed_at": T0 + n, "price": n / 8,
        }  # fmt: skip
        fastavro.schemaless_writer(out, schema, order)
        encoded.append(out.getvalue())
    return encoded


def write_orders(folder: Path, count: int, *, value_bytes: int | None = None) -> None:
    """``count`` orders over two days, in all partitions."""
    from eventbus.broker import TopicSpec
    from eventbus.records import BatchBuilder
    from eventbus.types import TopicPartition

    pool = values(20_000) if value_bytes is None else [os.urandom(value_bytes) for _ in range(500)]
    broker = open_broker(folder)
    try:
        if not broker.has_topic("orders"):
            broker.create_topics([TopicSpec("orders", PARTITIONS)], now_ms())
        numbers = itertools.count()
        for batch in range(count // PER_BATCH):
            builder = BatchBuilder()
            for n in itertools.islice(numbers, PER_BATCH):
                moment = T0 + n * 2 * DAY_MS // count
                builder.append(b"customer%04d" % (n % 977), pool[n % len(pool)], (), moment)
            broker.produce(TopicPartition("orders", batch % PARTITIONS), builder.build(), now_ms())
        broker.publish_checkpoints(now_ms())
    finally:
        broker.close(now_ms())


@contextmanager
def session(conf: dict[str, str] | None = None) -> Iterator[Any]:
    from spark_sinks import spark_session

    with spark_session("bench", conf=conf, log_level="OFF") as spark:
        yield spark


def seconds_of(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def by_turns(works: dict[str, Callable[[], Any]], count: int, rounds: int) -> Numbers:
    """Rows a second of each: once to warm up, then ``rounds`` times in turn; the median."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = seconds_of(work)
            if number:
                taken[name].append(seconds)
    return {name: count / statistics.median(each) for name, each in taken.items()}


@case("spark sources", n=2_000_000, quick=20_000, rounds=1)
def sources(n: int) -> Numbers:
    """The raw columns of the log, and the same columns from Parquet that Spark wrote, to nowhere."""
    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", n)
        log = spark.read.format("eventbus").option("path", str(folder / "log")).option("subscribe", "orders")
        log.load().write.parquet(str(folder / "raw"))

        def drain(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        works = {"log": lambda: drain(log.load()), "parquet": lambda: drain(spark.read.parquet(str(folder / "raw")))}
        return by_turns(works, n, 4)


@case("spark landing", n=2_000_000, quick=20_000, rounds=1)
def landing(n: int) -> Numbers:
    """One trigger: `land` with the tasks reading, `land` with Spark reading, Spark's own copy of the typed rows."""
    from spark_sinks import land
    from spark_sinks.source.origins import FileOrigin

    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", n)

        def to_new_table() -> None:
            shutil.rmtree(folder / "table", ignore_errors=True)
            report: Any = land(
                str(folder / "log"), "orders", str(folder / "table"),
                registry=OneSchema(), max_offsets_per_trigger=n, spark=spark,
            )  # fmt: skip
            assert (report.rows, report.rejected, report.batches) == (n, 0, 1), report

        def through_the_stream() -> None:
            with mock.patch.object(FileOrigin, "directory", None):
                to_new_table()

        def copy() -> None:
            spark.read.parquet(str(folder / "typed")).write.mode("overwrite").parquet(str(folder / "copy"))

        to_new_table()
        (folder / "table").rename(folder / "typed")
        return by_turns({"copy": copy, "stream": through_the_stream, "fused": to_new_table}, n, 4)


@case("spark batches", n=40, quick=3, rounds=1)
def batches(n: int) -> Numbers:
    """Batches of 1,000 records in one run: the median time from one commit to the next."""
    from spark_sinks import land

    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", (n + 2) * 1_000)
        moments: list[float] = []
        land(
            str(folder / "log"), "orders", str(folder / "table"), registry=OneSchema(), max_offsets_per_trigger=1_000,
            spark=spark, progress=lambda _: moments.append(time.perf_counter()),
        )  # fmt: skip
        return {"ms": 1_000 * statistics.median(b - a for a, b in itertools.pairwise(moments[1:]))}


@case("spark latency", n=60, quick=3, rounds=1)
def latency(n: int) -> Numbers:
    """From the moment at which a log has published a record to readers until it is committed in the table."""
    from eventbus.records import BatchBuilder
    from eventbus.types import TopicPartition

    value = values(1)[0]
    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", PER_BATCH)
        with following(folder, spark) as landed_beyond:
            broker = open_broker(folder / "log")

            def append(number: int) -> None:
                builder = BatchBuilder()
                builder.append(b"k", value, (), T0)
                broker.produce(TopicPartition("orders", number % PARTITIONS), builder.build(), now_ms())
                broker.publish_checkpoints(now_ms())

            taken = one_by_one(n, append, landed_beyond)
            broker.close(now_ms())
    return {"p50 ms": 1_000 * percentile(taken, 0.5), "p95 ms": 1_000 * percentile(taken, 0.95)}


@case("spark service latency", n=40, quick=2, rounds=1)
def service_latency(n: int) -> Numbers:
    """From the ack of a service's send: its log tells other processes of new records once a second."""
    from eventbus import EventBus

    value = values(1)[0]
    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", PER_BATCH)
        with following(folder, spark) as landed_beyond, EventBus(f"file://{folder}/log").blocking() as bus:
            taken = one_by_one(n, lambda number: bus.send("orders", value, key=b"k%d" % number), landed_beyond)
    return {"p50 ms": 1_000 * percentile(taken, 0.5)}


@contextmanager
def following(folder: Path, spark: Any) -> Iterator[Callable[[int], None]]:
    """A landing at once (``every=0``) of the log in ``folder``; yields what waits for more rows than so many."""
    from spark_sinks import land

    stop, committed, rows = threading.Event(), threading.Semaphore(0), 0

    def progress(landed: Any) -> None:
        nonlocal rows
        rows = landed.rows
        committed.release()

    def landed_beyond(count: int) -> None:
        while rows <= count:
            assert committed.acquire(timeout=60), f"{rows} rows are landed, and not more than {count}"

    def follow() -> None:
        land(
            str(folder / "log"), "orders", str(folder / "table"), registry=OneSchema(), every=0, stop=stop, spark=spark,
            progress=progress,
        )  # fmt: skip

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        landed_beyond(PER_BATCH - 1)
        yield landed_beyond
    finally:
        stop.set()
        thread.join()


def one_by_one(n: int, append: Callable[[int], Any], landed_beyond: Callable[[int], None]) -> list[float]:
    """Seconds from the return of each ``append`` of one record until it is landed."""
    taken: list[float] = []
    for number in range(n):
        append(number)
        begin = time.perf_counter()
        landed_beyond(PER_BATCH + number)
        taken.append(time.perf_counter() - begin)
        time.sleep((number * 37 % 100) / 100)  # in step with neither the query's rounds nor the log's
    return taken


@case("spark cold", n=3, quick=1, rounds=1)
def cold(n: int) -> Numbers:
    """``eventbus spark land`` in a new process, the class cache warm, until it has ended with a first row landed."""
    command = Path(sys.executable).with_name("eventbus")
    taken: list[float] = []
    subprocess.run([command, "spark", "warmup"], check=True, capture_output=True)
    with scratch() as folder:
        (folder / "log").mkdir()
        write_orders(folder / "log", PER_BATCH)
        for number in range(n):
            arguments = ["spark", "land", str(folder / "log"), "orders", str(folder / f"table{number}")]
            taken.append(
                seconds_of(lambda told=arguments: subprocess.run([command, *told], check=True, capture_output=True))
            )
            assert list((folder / f"table{number}").rglob("*.parquet"))
    return {"seconds": statistics.median(taken)}


@case("spark memory", n=1_000_000, quick=20_000, rounds=1)
def memory(n: int) -> Numbers:
    """Values of 1 kB: the proportional memory of all processes of a landing, at its highest."""
    from spark_sinks import land

    with scratch() as folder, session() as spark:
        (folder / "log").mkdir()
        write_orders(folder / "log", n, value_bytes=1_000)
        peak, done = 0.0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.2):
                peak = max(peak, proportional_bytes(os.getpid()))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            report: Any = land(str(folder / "log"), "orders", str(folder / "table"), spark=spark)
        finally:
            done.set()
            thread.join()
        assert report.rows == n
        return {"MB": peak / 1e6}


def proportional_bytes(pid: int) -> float:
    """The memory of a process and of all below it; what several share counts once (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                parent = int((entry / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
        except (OSError, IndexError):
            continue  # it has ended
    total, waiting = 0.0, [pid]
    while waiting:
        each = waiting.pop()
        waiting += children.get(each, [])
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text("utf-8").splitlines()
        except OSError:
            continue
        total += sum(1_024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total
