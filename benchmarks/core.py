"""The floors below the client: batch bytes, opening a log, recovery, many partitions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from harness import Meter, Numbers, Skip, case, percentile, scratch
from peers import forget
from work import pairs

BATCH_BYTES = 65_536


def batches(n: int, size_bytes: int = 100, per_batch: int | None = None) -> list[bytearray]:
    """``n`` records encoded into batches of 64 KiB, or of ``per_batch`` records."""
    from eventbus.records import BatchBuilder

    built: list[bytearray] = []
    builder = BatchBuilder()
    for key, value in pairs(n, size_bytes):
        builder.append(key, value, (), 1_700_000_000_000)
        if builder.count == per_batch or builder.size_bytes >= BATCH_BYTES:
            built.append(builder.build())
            builder = BatchBuilder()
    if builder.count:
        built.append(builder.build())
    return built


# -- records -----------------------------------------------------------------------------------------------------------


@case("encode", n=500_000, quick=100_000)
def encode(n: int) -> Numbers:
    """Records into 64 KiB batches, CRC and all; CPU time."""
    from eventbus.records import BatchBuilder

    records, size = pairs(n), 0
    with Meter() as meter:
        builder = BatchBuilder()
        append = builder.append
        for key, value in records:
            append(key, value, (), 1_700_000_000_000)
            if builder.size_bytes >= BATCH_BYTES:
                size += len(builder.build())
                builder = BatchBuilder()
                append = builder.append
        size += len(builder.build())
    return {**meter.rates("records", n), "bytes per record": size / n}


@case("decode", n=500_000, quick=100_000)
def decode(n: int) -> Numbers:
    """Fetched bytes (1 MiB a fetch) into columns of keys, values, offsets and timestamps, CRC checked; CPU time."""
    from eventbus.records import decode as decoder

    fetches = fetched(n)
    count = 0
    with Meter() as meter:
        for base_offset, buffer in fetches:
            columns = decoder.fetched_records(buffer, "log", 0, base_offset)
            count += len(columns.values)
    assert count == n, count
    return meter.rates("records", n)


def fetched(n: int) -> list[tuple[int, bytes]]:
    """What fetches of 1 MiB return: whole batches, offsets set."""
    from eventbus.records import patch_offsets, read_header

    answers: list[tuple[int, bytes]] = []
    chunk, chunk_offset, offset = bytearray(), 0, 0
    for batch in batches(n):
        patch_offsets(batch, offset, 0)
        chunk += batch
        offset += read_header(batch).records_count
        if len(chunk) >= 1 << 20:
            answers.append((chunk_offset, bytes(chunk)))
            chunk, chunk_offset = bytearray(), offset
    if chunk:
        answers.append((chunk_offset, bytes(chunk)))
    return answers


# -- opening and recovery ----------------------------------------------------------------------------------------------


def open_broker(folder: Path, fsync: str = "os"):
    from eventbus.broker import Broker, BrokerConfig
    from eventbus.log.storage import FileStorage

    config = BrokerConfig(fsync=fsync)  # type: ignore[arg-type]
    return Broker.open(FileStorage(str(folder)), config, now_ms=now_ms(), new_id=lambda: uuid.uuid4().bytes)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fill(folder: Path, size_bytes: int, tail_bytes: int, tiny: bool, clean: bool) -> None:
    """Write a log of ``size_bytes``, let its checkpoints catch up, then ``tail_bytes`` more. Runs in its own process,
    which is killed (or, if ``clean``, closes the log)."""
    from eventbus.broker import TopicSpec
    from eventbus.types import TopicPartition

    broker = open_broker(folder, "commit")
    broker.create_topics([TopicSpec("log", 1)], now_ms())
    log = TopicPartition("log", 0)
    pool = batches(1_000, per_batch=1) if tiny else batches(20_000)

    def write(target_bytes: int, *, flushed: bool) -> None:
        written = number = unflushed = 0
        while written < target_bytes:
            batch = bytearray(pool[number % len(pool)])
            broker.produce(log, batch, now_ms(), trusted=True)
            written += len(batch)
            unflushed += len(batch)
            number += 1
            if flushed and unflushed >= 1 << 24:
                flush()
                unflushed = 0

    def flush() -> None:
        pending = broker.begin_sync()
        pending.run()
        broker.complete_sync(pending, None)
        broker.publish_checkpoints(now_ms())

    write(size_bytes, flushed=True)
    flush()
    write(tail_bytes, flushed=False)
    if clean:
        flush()
        broker.close(now_ms())
        return
    print("written", flush=True)
    signal.pause()


def filled(folder: Path, size_bytes: int, tail_bytes: int = 0, *, tiny: bool = False, clean: bool = False) -> None:
    """A log of that size in ``folder``, left by a process that was killed (or closed it)."""
    arguments = [str(folder), str(size_bytes), str(tail_bytes), str(int(tiny)), str(int(clean))]
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as output:
        if not clean and output.readline() != "written\n":
            raise RuntimeError("the process that fills the log failed")
        if not clean:
            process.kill()
    if clean and process.returncode:
        raise RuntimeError("the process that fills the log failed")


@case("open after a clean stop", n=1 << 30, quick=1 << 27, rounds=3)
def open_clean(n: int) -> Numbers:
    with scratch() as folder:
        filled(folder, n, clean=True)
        with Meter() as meter:
            broker = open_broker(folder)
        broker.close(now_ms())
    return {"s": meter.wall_s}


def open_killed(n: int, tail_bytes: int) -> Numbers:
    with scratch() as folder:
        filled(folder, n, tail_bytes)
        with Meter() as meter:
            broker = open_broker(folder)
        broker.close(now_ms())
    return {"s": meter.wall_s, "bytes": n + tail_bytes}


@case("open after SIGKILL", n=1 << 31, quick=1 << 28, rounds=3)
def open_after_kill(n: int) -> Numbers:
    """A log of 2 GiB of which the last 64 MiB were written after the last checkpoint."""
    return open_killed(n, 1 << 26)


@case("open after SIGKILL, a tenth", n=(1 << 31) // 10, quick=(1 << 28) // 10, rounds=3)
def open_after_kill_small(n: int) -> Numbers:
    """The same tail after a tenth of the log."""
    return open_killed(n, 1 << 26)


@case("full verify, cold", n=1 << 30, quick=1 << 27, rounds=3)
def verify_cold(n: int) -> Numbers:
    """What ``eventbus log verify`` does: every CRC of a log that is not in the page cache."""
    from eventbus.log.inspect import verify

    if not hasattr(os, "posix_fadvise"):
        raise Skip("no posix_fadvise here, so the page cache cannot be emptied for one folder")
    with scratch() as folder:
        filled(folder, n, clean=True)
        forget(folder)
        with Meter() as meter:
            verify(str(folder))
    return {"B/s": n / meter.wall_s}


@case("recovery of tiny batches", n=300_000, quick=60_000, rounds=3)
def recovery(n: int) -> Numbers:
    """A killed process left ``n`` batches of one record after the last checkpoint; microseconds per batch."""
    with scratch() as folder:
        batch_bytes = len(batches(1)[0])
        filled(folder, 0, n * batch_bytes, tiny=True)
        with Meter() as opening:
            broker = open_broker(folder)
        broker.close(now_ms())
    return {"us per batch": opening.wall_s / n * 1e6, "cpu us per batch": opening.cpu_s / n * 1e6}


# -- Spark -------------------------------------------------------------------------------------------------------------


def arrow_decode(n: int, work: str) -> Numbers:
    """Bytes of the log into the Arrow columns of the Spark source, in batches of 64 KiB; the best of five."""
    try:
        import bench_spark_decode as spark
    except ImportError as error:
        raise Skip(f"{error.name} is missing: pip install 'eventbus-log[spark]'") from None
    buffer, took = spark.log_bytes(n, 550), []
    for _ in range(5):
        with Meter() as meter:
            getattr(spark, work)(buffer, n)
        took.append(meter.cpu_s)
    return {"records cpu": n / min(took)}


@case("spark columnar", n=100_000, quick=50_000)
def spark_columnar(n: int) -> Numbers:
    return arrow_decode(n, "columnar")


@case("spark by record", n=100_000, quick=50_000)
def spark_by_record(n: int) -> Numbers:
    return arrow_decode(n, "per_record")


# -- many partitions ---------------------------------------------------------------------------------------------------


@case("flush 100 files one by one", n=50, quick=10)
def flush_one_by_one(n: int) -> Numbers:
    """Append one record's batch to each of 100 files and flush each: the naive durable commit."""
    payload = os.urandom(181)
    flush = getattr(os, "fdatasync", os.fsync)
    took: list[float] = []
    with scratch() as folder:
        files = [os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND) for number in range(100)]
        for _ in range(n):
            begin = time.perf_counter()
            for file in files:
                os.write(file, payload)
            for file in files:
                flush(file)
            took.append(time.perf_counter() - begin)
        for file in files:
            os.close(file)
    return {"p50 us": percentile(took, 0.5) * 1e6}


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    size, tail, tiny_batches, closes = map(int, numbers)
    fill(Path(place), size, tail, bool(tiny_batches), bool(closes))
