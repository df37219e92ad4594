"""The builder against a plain encoder written from the specification, at every boundary of its tables."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eventbus.errors import SerializationError
from eventbus.records import HEADER_BYTES, BatchBuilder, RecordBatch, check_crc, read_header
from eventbus.types import Compression, Record
from tests.support import examples

NOW_MS = 1_700_000_000_000


def varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    encoded = b""
    while rest > 127:
        encoded += bytes([rest & 127 | 128])
        rest >>= 7
    return encoded + bytes([rest])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def plain_encodings(records: list[Record]) -> list[bytes]:
    """Each record of a batch, word for word from Kafka's documentation."""
    encoded: list[bytes] = []
    for index, record in enumerate(records):
        body = b"\0" + varint(record.timestamp_ms - records[0].timestamp_ms) + varint(index)
        body += sized(record.key) + sized(record.value) + varint(len(record.headers))
        for name, value in record.headers:
            body += sized(name.encode()) + sized(value)
        encoded.append(varint(len(body)) + body)
    return encoded


def build(records: list[Record], builder: BatchBuilder | None = None) -> bytearray:
    """Append all, checking offset delta and exact size at each, and the bytes of an uncompressed batch."""
    encoded = plain_encodings(records)
    builder = builder or BatchBuilder()
    size_bytes = HEADER_BYTES
    for index, record in enumerate(records):
        assert builder.append(record.key, record.value, record.headers, record.timestamp_ms) == index
        size_bytes += len(encoded[index])
        assert (builder.count, builder.size_bytes) == (index + 1, size_bytes)
    batch = builder.build()
    if read_header(batch).compression == Compression.NONE:
        assert bytes(batch[HEADER_BYTES:]) == b"".join(encoded)
    return batch


def check(records: list[Record]) -> None:
    batch = build(records)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.crc == crc32c(bytes(batch[21:]))
    assert (header.base_offset, header.partition_leader_epoch, header.attributes) == (0, -1, 0)
    assert (header.records_count, header.last_offset_delta) == (len(records), len(records) - 1)
    assert header.base_timestamp_ms == records[0].timestamp_ms
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


blobs = st.none() | st.binary(max_size=80) | st.integers(0, 9000).map(bytes)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=200)), max_size=3).map(tuple)
times = st.integers(-1, 5) | st.integers(-1, 1 << 45) | st.integers(-(1 << 61), 1 << 61)
some_records = st.lists(st.builds(Record, blobs, blobs, st.just(()) | headers, times), min_size=1, max_size=8)


@pytest.mark.system
@settings(max_examples=examples(60, 200), deadline=None)
@given(some_records)
@example([Record(None, None), Record(b"", b""), Record(b"", None), Record(None, b"")])
@example([Record(b"k", b"v", (("h", b"1"),), 5), Record(b"k", b"v", (), 5), Record(b"k", b"v", (), 5)])
@example([Record(b"k", b"v", (), 5), Record(b"k", b"v", (("h", None),), 5), Record(b"k", b"v", (), 4)])
def test_any_records(records: list[Record]) -> None:
    check(records)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 8180, 8191, 8192, 8193, 20_000, 1_048_576, 2_097_153])
@pytest.mark.parametrize("field", ["key", "value", "name", "header value"])
def test_lengths_around_varint_steps(size: int, field: str) -> None:
    blob = b"x" * size
    record = {
        "key": Record(blob, b"v", (), NOW_MS),
        "value": Record(b"k", blob, (), NOW_MS),
        "name": Record(b"k", b"v", (("x" * size, b""),), NOW_MS),
        "header value": Record(b"k", b"v", (("h", blob),), NOW_MS),
    }[field]
    check([record, record, Record(None, b"after", (), NOW_MS)])


@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, 16_383, 16_384, 1 << 20, 1 << 27, 1 << 34, 1 << 41, 1 << 62])
@pytest.mark.parametrize("sign", [1, -1])
def test_timestamp_deltas_around_varint_steps(delta: int, sign: int) -> None:
    times = [0, sign * delta, sign * delta, sign * (delta + 1), 0, -1]
    check([Record(b"k", b"v", (), time) for time in times])


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 16_384, 16_390])
def test_counts_around_varint_steps(count: int) -> None:
    records = [Record(b"%d" % index, None, (), NOW_MS + index // 100) for index in range(count)]
    build(records)


def test_headers_everywhere_in_the_batch() -> None:
    """A record without headers leaves its header count to the next one; every neighbourhood must come out right."""
    for pattern in range(1 << 6):
        records = [
            Record(b"k", b"v", (("h", b"%d" % bit),) if pattern >> bit & 1 else (), NOW_MS + bit % 2)
            for bit in range(6)
        ]
        check(records)


@pytest.mark.parametrize("count", [1, 2, 127, 128, 200])
def test_many_headers(count: int) -> None:
    check([Record(b"k", b"v", tuple((f"name {index}", b"") for index in range(count)), NOW_MS)])


def test_builds_again() -> None:
    """Another sequence gives the same records; so does going on after building."""
    builder = BatchBuilder()
    for index in range(100):
        builder.append(b"k", b"%d" % index, (("h", b""),) if index == 99 else (), NOW_MS)
    first = builder.build(producer_id=7, producer_epoch=1, base_sequence=10)
    second = builder.build(producer_id=7, producer_epoch=2, base_sequence=0, is_transactional=True)
    assert first[HEADER_BYTES:] == second[HEADER_BYTES:]
    header = read_header(second)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
    assert header.is_transactional and not read_header(first).is_transactional
    for _ in range(2):
        builder.append(b"k", b"more", (), NOW_MS)
        assert builder.build() == builder.build()
        assert RecordBatch(bytes(builder.build())).records()[-1] == Record(b"k", b"more", (), NOW_MS)
    assert builder.count == 102


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("count", [1, 700])
def test_compressed(compression: Compression, count: int) -> None:
    records = [Record(b"%d" % index, b"value " * 30, (("h", b"x"),), NOW_MS + index) for index in range(count)]
    builder = BatchBuilder(compression)
    batch = build(records, builder)
    header = read_header(batch)
    check_crc(batch, header)
    assert header.compression == compression
    assert header.size_bytes == len(batch)
    if compression and count > 1:
        assert len(batch) < builder.size_bytes / 3
    assert RecordBatch(bytes(batch)).records() == records


@pytest.mark.parametrize(
    ("key", "value", "headers", "said"),
    [
        (5, b"v", (), "record 0"),
        (b"k", 5, (), "record 0"),
        (b"k", b"v", (("h", 5),), "record 0"),
        (b"k", b"v", (("h", "text"),), "record 0"),
        (b"k", b"v", ((b"h", b"v"),), "record 0"),
        (b"k", b"v", (("\ud800", b"v"),), "surrogates not allowed"),
        (b"k", b"v", ("h",), "record 0"),
    ],
)
def test_not_bytes(key: Any, value: Any, headers: Any, said: str) -> None:
    builder = BatchBuilder()
    with pytest.raises(SerializationError, match=said):
        builder.append(key, value, headers, NOW_MS)
    assert (builder.count, builder.size_bytes) == (0, HEADER_BYTES), "the record that failed left nothing behind"
    builder.append(b"k", b"v", (), 5)
    assert RecordBatch(bytes(builder.build())).records() == [Record(b"k", b"v", (), 5)]


def test_text_is_found_out_at_the_latest_when_building() -> None:
    builder = BatchBuilder()
    builder.append("text", b"v", (), NOW_MS)  # type: ignore[arg-type]  it has a length: checking its type would cost
    with pytest.raises(SerializationError, match="not bytes"):
        builder.build()


def test_an_empty_batch_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="needs a record"):
        BatchBuilder().build()
