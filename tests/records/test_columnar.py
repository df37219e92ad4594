"""Positions of keys, values and headers over one buffer: for Arrow, and as the quick way to columns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from eventbus.errors import CorruptRecord
from eventbus.records import RecordBatch, columnar, fetched_records, patch_offsets, stamp_log_append_time
from eventbus.records.columnar import RecordArrays, record_arrays
from eventbus.types import Compression, Record

pytestmark = pytest.mark.system

Build = Callable[..., bytearray]
RECORDS = [
    Record(
        None if number % 5 == 0 else b"key %d" % number,
        None if number % 7 == 0 else b"value" * (number % 50),
        (("n", b"%d" % number), ("null", None)) if number % 3 == 0 else (),
        1_700_000_000_000 + number * 977 - (number % 2) * 50_000,
    )
    for number in range(600)
]


def log(build: Build, *codecs: Compression) -> bytes:
    """Batches of 100 records, one codec after the other."""
    bases = range(0, 600, 100)
    batches = [build(RECORDS[base : base + 100], base, codecs[base // 100 % len(codecs)]) for base in bases]
    return b"".join(map(bytes, batches))


def arrow(arrays: RecordArrays) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keys and values through Arrow, as the module's page shows."""
    bounds = arrays.bounds()
    pieces = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(arrays.data)]
    )
    indexes = 4 * np.arange(len(arrays))
    keys = pieces.take(pa.array(indexes, mask=arrays.key_length < 0))
    values = pieces.take(pa.array(indexes + 2, mask=arrays.value_length < 0))
    return keys.to_pylist(), values.to_pylist()


@pytest.mark.parametrize(
    "codecs", [(Compression.NONE,), (Compression.LZ4,), (Compression.NONE, Compression.ZSTD, Compression.NONE)]
)
def test_columns(build: Build, codecs: tuple[Compression, ...]) -> None:
    buffer = log(build, *codecs)
    arrays = record_arrays(buffer)
    assert len(arrays) == 600 and arrays.next_offset == 600
    assert (arrays.data is buffer) == (codecs == (Compression.NONE,)), "nothing is copied unless it must be"
    assert arrays.offsets.tolist() == list(range(600))
    assert arrays.timestamps_ms.tolist() == [record.timestamp_ms for record in RECORDS]
    keys, values = [record.key for record in RECORDS], [record.value for record in RECORDS]
    assert (arrays.keys(), arrays.values()) == (keys, values)
    assert arrow(arrays) == (keys, values)
    assert [arrays.headers(index) for index in range(600)] == [record.headers for record in RECORDS]
    assert arrays.has_headers
    assert (arrays.headers_start >= 0).tolist() == [bool(record.headers) for record in RECORDS]
    assert (np.diff(arrays.bounds()) >= 0).all(), "Arrow needs rising bounds"
    for name in ("offsets", "timestamps_ms", "key_start", "key_length", "value_start", "value_length"):
        assert getattr(arrays, name).dtype == np.int64, name


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.SNAPPY])
@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 600), (0, 1), (5, 5), (5, 99), (50, 250), (100, 200), (599, 600), (250, 10_000)]
)
def test_a_range_of_offsets(build: Build, codec: Compression, start: int, end: int | None) -> None:
    arrays = record_arrays(log(build, codec), start, end)
    stop = min(600, 600 if end is None else end)
    assert arrays.offsets.tolist() == list(range(start, stop))
    assert arrays.values() == [record.value for record in RECORDS[start:stop]]
    assert arrow(arrays)[0] == [record.key for record in RECORDS[start:stop]]
    assert arrays.next_offset == max(stop, start)


def test_time_stamps_of_the_log(build: Build) -> None:
    first, second = build(RECORDS[:3], 0), build(RECORDS[3:5], 3)
    stamp_log_append_time(first, 42)
    arrays = record_arrays(bytes(first + second))
    assert arrays.timestamps_ms.tolist() == [42, 42, 42, RECORDS[3].timestamp_ms, RECORDS[4].timestamp_ms]
    assert arrays.timestamp_types.tolist() == [1, 1, 1, 0, 0]


def test_compaction_gaps(build: Build) -> None:
    first, second = build(RECORDS[:3], 5), build(RECORDS[3:5], 1000)
    arrays = record_arrays(bytes(first + second), 6, 1001)
    assert arrays.offsets.tolist() == [6, 7, 1000]


def test_ordinary_logs_are_read_all_at_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The careful reader gives the same, so only its absence shows that the quick one copes."""
    monkeypatch.delattr(columnar, "_read_each")
    spread = [Record(b"k", bytes(9000 * (number % 2)), (), 1000 * number**2) for number in range(3000)]
    for buffer, records in ((log(build, Compression.NONE), RECORDS), (bytes(build(spread)), spread)):
        arrays = record_arrays(buffer)
        assert arrays.timestamps_ms.tolist() == [record.timestamp_ms for record in records]
        assert arrays.values() == [record.value for record in records]
    gap = bytes(build(spread[:5], 10)) + bytes(build(spread[:5], 100))
    assert record_arrays(gap).offsets.tolist() == [10, 11, 12, 13, 14, 100, 101, 102, 103, 104]


def many(build: Build, seed: int, batches: int = 100) -> tuple[list[bytes], list[Record]]:
    """Batches of 1 to 40 records, and one that is much longer; lengths of records take one to four bytes."""
    random = Random(seed)
    counts = [random.randrange(1, 40) for _ in range(batches - 1)] + [600]
    random.shuffle(counts)
    sizes = (0, 20, 100, 9_000)
    every = [
        Record(b"k", bytes(random.choice(sizes) + random.randrange(60)), (), number) for number in range(sum(counts))
    ]
    ends = list(itertools.accumulate(counts))
    parts = [bytes(build(every[end - count : end], end - count)) for end, count in zip(ends, counts, strict=True)]
    return parts, every


@pytest.mark.parametrize("seed", range(3))
def test_many_batches_are_read_side_by_side(build: Build, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, every = many(build, seed)
    monkeypatch.delattr(columnar, "_read_each")
    arrays = record_arrays(b"".join(parts))
    assert arrays.offsets.tolist() == list(range(len(every)))
    assert arrays.values() == [record.value for record in every]
    assert (np.diff(arrays.record_end) > 0).all()


@pytest.mark.parametrize("length", [b"\x00", b"\x01", b"\x7f", b"\xff\xff\xff\xff\x0f", b"\xff" * 9, b"\xfe\xff\x7f"])
@pytest.mark.parametrize("at", [0, 50, 99])
def test_a_length_that_lies_among_many_batches_is_told_with_its_batch(build: Build, length: bytes, at: int) -> None:
    parts, _ = many(build, 0)
    base = RecordBatch(parts[at]).header.base_offset
    parts[at] = parts[at][:61] + length + parts[at][61 + len(length) :]
    with pytest.raises(CorruptRecord, match=f"batch at offset {base}: "):
        record_arrays(b"".join(parts), verify=False)


def test_nothing() -> None:
    arrays = record_arrays(b"", 7)
    assert (len(arrays), arrays.next_offset, arrays.keys(), arrays.has_headers) == (0, 7, [], False)
    assert arrays.bounds().tolist() == [0]


def test_slice(build: Build) -> None:
    part = record_arrays(log(build, Compression.NONE)).slice(10, 13)
    assert part.offsets.tolist() == [10, 11, 12]
    assert part.keys() == [record.key for record in RECORDS[10:13]]
    assert part.headers(2) == RECORDS[12].headers


@pytest.mark.parametrize("size", [8184, 8191, 16_384, 2_097_152])
def test_long_records(build: Build, size: int) -> None:
    records = [
        Record(b"k", b"v"),
        Record(bytes(size), b"v"),
        Record(b"k", bytes(size)),
        Record(b"k", b"v", (("h", bytes(size)),)),
    ]
    arrays = record_arrays(bytes(build(records)))
    assert arrays.keys() == [record.key for record in records]
    assert arrays.values() == [record.value for record in records]
    assert arrays.headers(3) == records[3].headers


@pytest.mark.parametrize("step", [0, 1, 64, 1 << 13, 1 << 20, 1 << 34, 1 << 50, 1 << 55, (1 << 63) // 3])
def test_timestamp_deltas_of_every_length(build: Build, step: int) -> None:
    """The longest are beyond numpy's path; the careful reader takes over."""
    times = [0, step, -step, 2 * step, -1]
    arrays = record_arrays(bytes(build([Record(b"k", b"v", (), time) for time in times])))
    assert arrays.timestamps_ms.tolist() == times


def test_errors_name_the_batch(build: Build) -> None:
    good, bad = build(RECORDS[:3], 0), build(RECORDS[3:5], 3)
    bad[61] ^= 0x40
    with pytest.raises(CorruptRecord, match=r"offset 3\): CRC-32C"):
        record_arrays(bytes(good + bad))
    stamp_log_append_time(bad, 5)  # the CRC is right again
    with pytest.raises(CorruptRecord, match="batch at offset 3: "):
        record_arrays(bytes(good + bad))
    compressed = build(RECORDS[:9], 0, Compression.ZSTD)
    compressed[61:65] = bytes(4)
    stamp_log_append_time(compressed, 5)
    patch_offsets(compressed, 77, 0)
    with pytest.raises(CorruptRecord, match="batch at offset 77: zstd block is damaged"):
        record_arrays(bytes(compressed))


def test_damaged_headers_are_found_when_looked_at(build: Build) -> None:
    batch = build([Record(b"k", b"v", (("name", b"value"),), 5)] * 500)
    position = batch.rindex(b"\x08name")
    batch[position] = 0x7E
    stamp_log_append_time(batch, 5)
    arrays = record_arrays(bytes(batch))
    assert arrays.headers(0) == (("name", b"value"),)
    with pytest.raises(CorruptRecord, match="header name length 63"):
        arrays.headers(499)
    with pytest.raises(CorruptRecord, match="header name length 63"):
        fetched_records(batch, "topic", 0, 0)
