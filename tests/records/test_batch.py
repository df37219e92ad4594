"""The header view, the CRC, patching in place, walking over batches."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from eventbus.errors import CorruptRecord, UnsupportedCompression
from eventbus.records import (
    HEADER_BYTES,
    RecordBatch,
    check_crc,
    fetched_records,
    iter_batches,
    patch_offsets,
    read_header,
    stamp_log_append_time,
)
from eventbus.types import Compression, Record, TimestampType

Build = Callable[..., bytearray]
THREE = [Record(b"a", b"1", (), 100), Record(None, b"2", (("h", b"x"),), 105), Record(b"c", None, (), 90)]


def set_field(batch: bytearray, code: str, position: int, number: int) -> None:
    struct.pack_into(">" + code, batch, position, number)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_header(build: Build, kind: Any) -> None:
    batch = build(THREE, 1000, producer_id=9, producer_epoch=2, base_sequence=2_147_483_647, is_transactional=True)
    buffer = kind(b"before" + batch + b"after")
    header = read_header(buffer, 6)
    assert header.base_offset == 1000
    assert (header.last_offset, header.next_offset) == (1002, 1003)
    assert header.size_bytes == len(batch)
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert header.is_transactional and not header.is_control
    assert header.last_sequence == 1, "2147483647 is followed by 0"
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (100, 105)
    check_crc(buffer, header, 6)
    assert RecordBatch(buffer, 6).records() == THREE
    assert next(iter_batches(buffer, 6)).columns().offsets == [1000, 1001, 1002]


def test_no_sequence(build: Build) -> None:
    assert read_header(build(THREE)).last_sequence == -1


def test_repr(build: Build) -> None:
    batch = RecordBatch(bytes(build(THREE, 7)))
    assert repr(batch) == f"RecordBatch(offsets 7..9, 3 records, {len(batch.buffer)} bytes, attributes 0x0)"


@pytest.mark.parametrize("size", [0, 1, 12, 60])
def test_too_short_for_a_header(build: Build, size: int) -> None:
    with pytest.raises(CorruptRecord, match=f"at byte 3 needs 61 bytes, {size} are left"):
        read_header(b"abc" + build(THREE)[:size], 3)


@pytest.mark.parametrize(
    ("code", "position", "number", "said"),
    [
        ("b", 16, 1, "magic is 1, only 2 is known"),
        ("b", 16, -1, "magic is -1"),
        ("i", 8, 48, "batch length 48 is shorter than a header"),
        ("i", 8, -5, "batch length -5"),
        ("i", 8, -12, "batch length -12"),
        ("i", 23, -1, "last offset delta -1"),
        ("i", 57, -2, "record count -2"),
    ],
)
def test_header_that_cannot_be(build: Build, code: str, position: int, number: int, said: str) -> None:
    batch = build(THREE)
    set_field(batch, code, position, number)
    with pytest.raises(CorruptRecord, match=f"at byte 0: .*{said}"):
        read_header(batch)
    with pytest.raises(CorruptRecord, match=said):
        list(iter_batches(batch))
    with pytest.raises(CorruptRecord, match=rf"topic-3, batch at offset 0 \(byte 0 of the fetch\): .*{said}"):
        fetched_records(batch, "topic", 3, 0)
    with pytest.raises(CorruptRecord, match=said):
        fetched_records(batch, "topic", 3, 0, check_crcs=False)


def test_unknown_codec(build: Build) -> None:
    batch = build(THREE)
    set_field(batch, "h", 21, 6)
    with pytest.raises(UnsupportedCompression, match="codec 6 is unknown"):
        _ = read_header(batch).compression
    with pytest.raises(CorruptRecord, match="codec 6 is unknown"):
        RecordBatch(batch).records()


def test_crc_of_a_cut_batch(build: Build) -> None:
    batch = build(THREE, 40)
    with pytest.raises(CorruptRecord, match=r"byte 0 \(offset 40\) is cut off: \d+ bytes long, \d+ are left"):
        check_crc(batch[:-1], read_header(batch))
    with pytest.raises(CorruptRecord, match="is cut off"):
        RecordBatch(batch[:-1]).records()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_patching_offsets_keeps_the_crc(build: Build, compression: Compression) -> None:
    batch = build(THREE, 0, compression)
    buffer = bytearray(b"12345") + batch
    before = bytes(buffer)
    patch_offsets(buffer, 1 << 60, 77, 5)
    header = read_header(buffer, 5)
    assert (header.base_offset, header.partition_leader_epoch) == (1 << 60, 77)
    check_crc(buffer, header, 5)
    assert buffer[:5] == before[:5] and buffer[13:17] == before[13:17] and buffer[21:] == before[21:]
    patch_offsets(memoryview(buffer)[5:], 3, 0)
    assert read_header(buffer, 5).base_offset == 3


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_stamping_log_append_time(build: Build, compression: Compression) -> None:
    batch = build(THREE, 10, compression)
    stamp_log_append_time(batch, 777)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.compression is compression
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (100, 777)
    records = RecordBatch(batch).records()
    assert [record.timestamp_ms for record in records] == [777] * 3
    assert [(record.key, record.value, record.headers) for record in records] == [
        (record.key, record.value, record.headers) for record in THREE
    ]


def test_iter_batches_verifies_unless_told_not_to(build: Build) -> None:
    first, second = build(THREE, 0), build(THREE, 3)
    second[-1] ^= 1
    batches = iter_batches(first + second)
    assert next(batches).header.base_offset == 0
    with pytest.raises(CorruptRecord, match=rf"byte {len(first)} \(offset 3\): CRC-32C is 0x\w+, header says 0x\w+"):
        next(batches)
    assert [batch.position for batch in iter_batches(first + second, verify=False)] == [0, len(first)]


def test_an_empty_batch_is_walked_over(build: Build) -> None:
    """Compaction keeps the header of a batch whose records are all gone (for the producer's sequence)."""
    empty = build(THREE, 5)[:HEADER_BYTES]
    set_field(empty, "i", 8, 49)
    set_field(empty, "i", 57, 0)
    stamp_log_append_time(empty, 5)  # a new CRC
    buffer = empty + build(THREE, 8)
    assert RecordBatch(empty).records() == []
    fetched = fetched_records(buffer, "topic", 0, 5)
    assert (fetched.offsets, fetched.next_offset) == ([8, 9, 10], 11)
    assert fetched.timestamp_type is TimestampType.CREATE_TIME
    full = build(THREE, 2)
    fetched = fetched_records(full + empty, "topic", 0, 2)
    assert (fetched.timestamps_ms, fetched.next_offset) == ([100, 105, 90], 8)
    assert fetched.timestamp_type is TimestampType.CREATE_TIME
    fetched = fetched_records(empty, "topic", 0, 5)
    assert (fetched.offsets, fetched.next_offset) == ([], 8)
