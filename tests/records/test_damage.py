"""Bytes that lie. Whatever they say: CorruptRecord with place and reason, and nothing allocated on their word."""

from __future__ import annotations

import re
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import CorruptRecord
from eventbus.records import (
    HEADER_BYTES,
    RecordBatch,
    check_crc,
    decode,
    fetched_records,
    iter_batches,
    read_header,
    stamp_log_append_time,
)
from eventbus.records.batch import check_base_offset, write_crc
from eventbus.records.columnar import record_arrays
from eventbus.records.varint import encode_varint, read_varint, read_varlong
from eventbus.types import Compression, Record
from tests.support import examples

pytestmark = pytest.mark.system

Build = Callable[..., bytearray]

SAMPLE = [
    Record(b"key", b"value", (), 1000),
    Record(None, b"x" * 70, (), 1200),
    Record(b"h", None, (("name", b"value"), ("null", None), ("long", b"y" * 80)), 900),
    Record(b"", b"", (), 20_000),
]


def read_pure(data: bytes) -> list[tuple[Any, ...]]:
    fetched = decode._decode(data, "topic", 3, 0, False)
    return [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in fetched]


def read_arrays(data: bytes) -> list[tuple[Any, ...]]:
    arrays = record_arrays(data, verify=False)
    headers = map(arrays.headers, range(len(arrays)))
    columns = (arrays.offsets.tolist(), arrays.timestamps_ms.tolist(), arrays.keys(), arrays.values(), headers)
    return list(zip(*columns, strict=True))


def read_batches(data: bytes) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    end = 0
    for batch in iter_batches(data, verify=False):
        check_base_offset(batch.header, end)  # which is for those who walk over a log
        end = batch.header.next_offset
        if not batch.header.is_control:
            columns = batch.columns()
            offsets = zip(columns.offsets, batch.records(), strict=True)
            found += [(offset, r.timestamp_ms, r.key, r.value, r.headers) for offset, r in offsets]
    return found


READERS = [read_pure, read_arrays, read_batches]


def outcomes(data: bytes) -> set[str]:
    """What the three readers, none of which looks at the CRC, make of it: all must agree."""
    seen: set[str] = set()
    for reader in READERS:
        try:
            seen.add(repr(reader(data)))
        except CorruptRecord as error:
            assert "byte" in str(error) or "offset" in str(error), error
            seen.add("corrupt")
    return seen


@pytest.mark.parametrize("compression", list(Compression))
def test_every_flip_in_the_range_of_the_crc_is_noticed(build: Build, compression: Compression) -> None:
    batch = bytes(build(SAMPLE, 7, compression))
    for position in range(17, len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptRecord):
                check_crc(damaged, read_header(damaged))
            if bit == position % 8:
                for reader in (lambda data: fetched_records(data, "topic", 3, 0), record_arrays, read_verified):
                    with pytest.raises(CorruptRecord):
                        reader(bytes(damaged))


def read_verified(data: bytes) -> list[RecordBatch]:
    return list(iter_batches(data))


@pytest.mark.parametrize("compression", list(Compression))
def test_every_flip_without_the_crc(build: Build, compression: Compression) -> None:
    """Undetected it may be, but it never surfaces as anything else, and all readers see the same."""
    batch = bytes(build(SAMPLE, 7, compression)) + bytes(build(SAMPLE, 11))
    for position in range(len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << position % 8
        assert len(outcomes(bytes(damaged))) == 1, (position, outcomes(bytes(damaged)))


mutations = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4)


@settings(max_examples=examples(150, 400), deadline=None)
@given(mutations, st.sampled_from([Compression.NONE, Compression.NONE, Compression.ZSTD]), st.booleans())
def test_random_bytes_behind_a_good_crc(
    build: Build, mutations: list[tuple[int, int]], compression: Compression, at_front: bool
) -> None:
    """A peer may compute the CRC of anything."""
    batch = build(SAMPLE * 3, 7, compression)
    for position, byte in mutations:
        start = HEADER_BYTES if at_front else 16
        batch[start + position % (len(batch) - start)] = byte
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    write_crc(batch)
    good = bytes(build(SAMPLE, 1 << 33))
    assert len(outcomes(bytes(batch))) == 1
    assert len(outcomes(bytes(batch) + good)) == 1
    try:
        fetched_records(batch, "topic", 3, 0)
    except CorruptRecord as error:
        assert str(error).startswith("topic-3, batch at offset 7 (byte 0 of the fetch): ")


@settings(max_examples=examples(100, 300), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 40), st.integers(0, 3))
def test_random_records(build: Build, junk: bytes, count: int, codec: int) -> None:
    batch = build([Record(b"k", b"v")], 7)[:HEADER_BYTES] + junk
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, 100)
    struct.pack_into(">i", batch, 57, count)
    assert len(outcomes(bytes(batch))) == 1


@settings(max_examples=examples(100, 300), deadline=None)
@given(st.binary(max_size=200))
def test_random_buffers(data: bytes) -> None:
    assert len(outcomes(data)) == 1
    for head in (b"\0" * 16 + b"\x02", b"\0" * 8 + b"\0\0\0\x40" + b"\0" * 4 + b"\x02"):
        assert len(outcomes(head + data)) == 1


def one_record(body: bytes, length: bytes | None = None, count: int = 1) -> bytearray:
    """A batch with a good CRC around one encoded record."""
    records = (encode_varint(len(body)) if length is None else length) + body
    batch = bytearray(struct.pack(">qiibIhiqqqhii", 7, 49 + len(records), 0, 2, 0, 0, 9, 5, 5, -1, -1, -1, count))
    batch += records
    write_crc(batch)
    return batch


HUGE, TOO_LONG = encode_varint((1 << 31) - 1), b"\xff" * 11
GOOD = b"\0\0\0\x02k\x02v\0"


LIES = [
    (one_record(GOOD, encode_varint(9)), "record at byte 61: length 9, but 8 bytes are left"),
    (one_record(GOOD, encode_varint(7)), "varint at byte 69 is cut off at byte 69"),
    (one_record(GOOD, encode_varint(-1)), "record at byte 61: length -1, but 8 bytes are left"),
    (one_record(GOOD, encode_varint(5)), "record at byte 61: length 5, but"),
    (one_record(GOOD, HUGE), "record at byte 61: length 2147483647, but 8 bytes are left"),
    (one_record(GOOD, TOO_LONG), "varint at byte 61 is longer than 5 bytes"),
    (one_record(GOOD, b"\xff\xff\xff\xff\x1f"), "varint at byte 61 is too large"),
    (one_record(b"\0" + TOO_LONG + GOOD), "varint at byte 63 is longer than 10 bytes"),
    (one_record(b"\0" + b"\xff" * 9 + b"\x7f" + GOOD), "varint at byte 63 is too large"),
    (one_record(b"\0\0" + TOO_LONG + GOOD), "varint at byte 64 is longer than 5 bytes"),
    (one_record(b"\0\0\x01\x02k\x02v\0"), "record at byte 61 has offset delta -1, which is not in 0..9"),
    (one_record(b"\0\0\x14\x02k\x02v\0"), "offset delta 10, which is not in 0..9"),
    (one_record(b"\0\0" + HUGE + b"\x02k\x02v\0"), "offset delta 2147483647, which is not in 0..9"),
    (one_record(b"\0\0\0" + HUGE + b"k\x02v\0"), "key length 2147483647 at byte 65, but 4 bytes are left"),
    (one_record(b"\0\0\0\x03k\x02v\0"), "key length -2 at byte 65"),
    (one_record(b"\0\0\0\x02k" + HUGE + b"v\0"), "value length 2147483647 at byte 67, but 2 bytes are left"),
    (one_record(b"\0\0\0\x02k\x03v\0"), "value length -2 at byte 67"),
    (one_record(b"\0\0\0\x02k\x04v\0"), "varint at byte 70 is cut off at byte 70"),
    (one_record(b"\0\0\0\x02k\x02v\x01"), "header count -1 at byte 69"),
    (one_record(b"\0\0\0\x02k\x02v" + HUGE), "header count 2147483647 at byte 69, but 0 bytes are left"),
    (one_record(b"\0\0\0\x02k\x02v\x02\x01\x00"), "header at byte 70 has a null name"),
    (one_record(b"\0\0\0\x02k\x02v\x02\x02n\x06vv"), "header value length 3 at byte 72, but 2 bytes are left"),
    (one_record(b"\0\0\0\x02k\x02v\x02\x02n\x03v"), "header value length -2 at byte 72"),
    (one_record(b"\0\0\0\x02k\x02v\x02\x0cn\x02v"), "header name length 6 at byte 70, but 3 bytes are left"),
    (one_record(GOOD + b"more"), "record at byte 61: ends at byte 70, but its length says 74"),
    (one_record(GOOD, count=2), "2 records cannot fit in the 9 bytes at byte 61"),
    (one_record(GOOD + b"\0" * 40, encode_varint(8), count=3), "record at byte 70: length 0, but"),
    (one_record(GOOD, count=0), "0 records end at byte 61, but the batch ends at byte 70"),
    (one_record(GOOD, count=(1 << 31) - 1), "2147483647 records cannot fit"),
]


@pytest.mark.parametrize(("batch", "said"), LIES, ids=[said for _, said in LIES])
@pytest.mark.parametrize("reader", READERS)
def test_lies(batch: bytearray, said: str, reader: Callable[[bytes], Any]) -> None:
    check_crc(batch, read_header(batch))
    with pytest.raises(CorruptRecord, match=re.escape(said)):
        reader(bytes(batch))


@pytest.mark.parametrize("reader", READERS)
def test_nothing_is_allocated_for_a_lie(build: Build, reader: Callable[[bytes], Any]) -> None:
    lies = [bytes(one_record(GOOD, count=(1 << 31) - 1)), bytes(one_record(b"\0\0\0" + HUGE + b"k\x02v\0"))]
    batch = build([Record(b"k", b"v")])
    struct.pack_into(">i", batch, 8, (1 << 31) - 1)
    for lie in [*lies, bytes(batch)]:
        tracemalloc.start()
        try:
            outcome = reader(lie)
            assert outcome == [], "a batch that claims 2 GiB counts as not yet complete"
        except CorruptRecord:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize(("base_ms", "delta"), [((1 << 63) - 1, 1), (-(1 << 63), -1), (5, (1 << 63) - 1)])
@pytest.mark.parametrize("reader", READERS)
def test_timestamps_must_fit(reader: Callable[[bytes], Any], base_ms: int, delta: int) -> None:
    for delta_now, fits in ((delta, False), (0, True)):
        batch = one_record(b"\0" + encode_varint(delta_now) + b"\0\x02k\x02v\0")
        struct.pack_into(">q", batch, 27, base_ms)
        write_crc(batch)
        if fits:
            assert reader(bytes(batch)) == [(7, base_ms, b"k", b"v", ())]
        else:
            with pytest.raises(CorruptRecord, match=f"timestamp {base_ms + delta} of a record does not fit 64 bits"):
                reader(bytes(batch))


def test_offsets_must_rise() -> None:
    first = b"\0\0\x04\x02k\x02v\0"
    second = b"\0\0\x04\x02k\x02v\0"
    for reader in READERS:
        with pytest.raises(CorruptRecord, match=r"offset delta 2, which is not in 3\.\.9"):
            reader(bytes(one_record(first + b"\x10" + second, b"\x10", count=2)))


def test_records_that_reach_into_the_next_batch(build: Build) -> None:
    """The length of the last record, taken at its word, would end where a record of the next batch does."""
    first, second = build([Record(b"k", b"v" * 20)], 7), build([Record(b"k", b"v" * 20)], 8)
    size = len(first) - HEADER_BYTES
    first[HEADER_BYTES] += 2 * (HEADER_BYTES + size)
    value_length = HEADER_BYTES + 6
    first[value_length : value_length + 1] = encode_varint(20 + HEADER_BYTES + size)
    stamp_log_append_time(first, 5)
    struct.pack_into(">i", first, 8, len(first) - 12)
    write_crc(first)
    assert outcomes(bytes(first + second)) == {"corrupt"}


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_varints_cut_off(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match=f"varint at byte 0 is cut off at byte {len(data)}"):
        read_varint(data, 0, len(data))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varints(number: int) -> None:
    encoded = encode_varint(number)
    assert read_varlong(b"x" + encoded + b"y", 1, 1 + len(encoded)) == (number, 1 + len(encoded))
    if -(1 << 31) <= number < 1 << 31:
        assert read_varint(encoded, 0, len(encoded)) == (number, len(encoded))
    else:
        with pytest.raises(CorruptRecord, match=r"longer than 5 bytes|too large"):
            read_varint(encoded, 0, len(encoded))
