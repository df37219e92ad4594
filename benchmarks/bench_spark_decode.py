"""Columnar decode for Spark against the per-record path, over the same log bytes.

    python benchmarks/bench_spark_decode.py

About 50,000 records of 100 bytes with keys of 8, in batches of 200 and of 9,000 (a producer's 16 KiB and 1 MiB),
decoded from bytes to the Arrow columns of the source. Rounds are interleaved, CPU time, median of five.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from eventbus.records import BatchBuilder, fetched_records, iter_batches, patch_offsets
from eventbus.types import Record, TopicPartition
from spark_sinks.source.arrow import record_batch
from spark_sinks.source.offsets import OffsetRange

RECORDS = 50_400
ROUNDS = 5
BATCH_SIZES = (200, 9_000)
WHERE = TopicPartition("bench", 0)


def log_bytes(records: int, per_batch: int) -> bytes:
    """A log of ``records`` records as a producer writes it."""
    buffer = bytearray()
    for base_offset in range(0, records, per_batch):
        builder = BatchBuilder()
        for offset in range(base_offset, min(records, base_offset + per_batch)):
            builder.append(b"key%05d" % (offset % 4_044), b"%0100d" % offset, (), 1_700_000_000_000 + offset // 100)
        batch = builder.build()
        patch_offsets(batch, base_offset, 0)
        buffer += batch
    return bytes(buffer)


def columnar(buffer: bytes, count: int) -> pa.RecordBatch:
    """What the source does."""
    return record_batch(buffer, OffsetRange(WHERE, 0, count), verify=True)


def per_record(buffer: bytes, count: int) -> pa.RecordBatch:
    """A source that reads records one by one, as they come from a batch, and hands lists to Arrow."""
    offsets: list[int] = []
    records: list[Record] = []
    for batch in iter_batches(buffer):
        records += batch.records()
        offsets += range(batch.header.base_offset, batch.header.next_offset)
    keys, values = [each.key for each in records], [each.value for each in records]
    return _from_lists(keys, values, offsets, [each.timestamp_ms for each in records])


def consumer_lists(buffer: bytes, count: int) -> pa.RecordBatch:
    """The consumer's decoder, which uses numpy too where it gains, but makes Python objects."""
    records = fetched_records(buffer, *WHERE, 0)
    return _from_lists(records.keys, records.values, records.offsets, records.timestamps_ms)


def _from_lists(
    keys: list[bytes | None], values: list[bytes | None], offsets: list[int], timestamps_ms: list[int]
) -> pa.RecordBatch:
    count = len(offsets)
    columns: list[Any] = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(WHERE.topic), count),
        pa.repeat(pa.scalar(WHERE.partition, pa.int32()), count),
        pa.array(offsets, pa.int64()),
        pa.array([each * 1000 for each in timestamps_ms], pa.timestamp("us", "UTC")),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def seconds(work: Callable[[bytes, int], Any], buffer: bytes) -> float:
    """CPU time of one decode."""
    start = time.process_time()
    work(buffer, RECORDS)
    return time.process_time() - start


def measure(per_batch: int) -> list[float]:
    """Rows per second of each of `WAYS`, interleaved, median of `ROUNDS`."""
    buffer = log_bytes(RECORDS, per_batch)
    first, *others = (work(buffer, RECORDS) for work in WAYS)
    assert all(first.equals(other) for other in others)
    rounds = [[seconds(work, buffer) for work in WAYS] for _ in range(ROUNDS)]
    return [RECORDS / statistics.median(column) for column in zip(*rounds, strict=True)]


WAYS = (columnar, per_record, consumer_lists)


def main() -> None:
    """Print a table."""
    print(f"{'records a batch':>15} {'columnar rows/s':>16} {'per record':>12} {'ratio':>6} {'consumer lists':>15}")
    for per_batch in BATCH_SIZES:
        fast, slow, lists = measure(per_batch)
        print(f"{per_batch:>15,} {fast:>16,.0f} {slow:>12,.0f} {fast / slow:>5.1f}x {lists:>15,.0f}")


if __name__ == "__main__":
    main()
