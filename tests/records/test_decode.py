"""Fetched bytes to columns: both paths against a list of records, and against each other."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import CorruptRecord
from eventbus.records import (
    BatchBuilder,
    ControlType,
    EndTransactionMarker,
    build_marker,
    decode,
    fetched_records,
    patch_offsets,
    read_header,
    stamp_log_append_time,
)
from eventbus.records.columnar import record_arrays
from eventbus.types import Compression, ConsumerRecord, FetchedRecords, Record, TimestampType
from tests.support import examples

pytestmark = pytest.mark.system

Build = Callable[..., bytearray]
Decode = Callable[[bytes, int], FetchedRecords]
MARKER = EndTransactionMarker(ControlType.COMMIT, 1)


def pure(data: bytes, fetch_offset: int, check_crcs: bool = True) -> FetchedRecords:
    return decode._decode(data, "topic", 3, fetch_offset, check_crcs)


def with_numpy(data: bytes, fetch_offset: int, check_crcs: bool = True) -> FetchedRecords:
    fetched = decode._decode_with_numpy(data, "topic", 3, fetch_offset, check_crcs)
    assert fetched is not None
    return fetched


@pytest.fixture(params=[pure, with_numpy])
def path(request: pytest.FixtureRequest) -> Decode:
    return request.param


class Piece(NamedTuple):
    """One batch of a log to be built."""

    gap: int
    compression: Compression
    records: list[Record]
    stamp_ms: int | None
    is_marker: bool


def build_log(pieces: list[Piece]) -> tuple[bytes, list[ConsumerRecord], int]:
    """The log's bytes, the records a reader should see, and the end offset."""
    data = bytearray()
    seen: list[ConsumerRecord] = []
    offset = 0
    for gap, compression, records, stamp_ms, is_marker in pieces:
        offset += gap
        if is_marker:
            batch = build_marker(MARKER, producer_id=1, producer_epoch=0, timestamp_ms=5)
        else:
            builder = BatchBuilder(compression)
            for record in records:
                builder.append(record.key, record.value, record.headers, record.timestamp_ms)
            batch = builder.build()
            kind = TimestampType.CREATE_TIME if stamp_ms is None else TimestampType.LOG_APPEND_TIME
            for index, (key, value, headers, timestamp_ms) in enumerate(
                (record.key, record.value, record.headers, record.timestamp_ms) for record in records
            ):
                time = timestamp_ms if stamp_ms is None else stamp_ms
                seen.append(ConsumerRecord("topic", 3, offset + index, time, kind, key, value, headers))
            if stamp_ms is not None:
                stamp_log_append_time(batch, stamp_ms)
        patch_offsets(batch, offset, 0)
        data += batch
        offset = read_header(batch).next_offset
    return bytes(data), seen, offset


def contents(fetched: FetchedRecords) -> list[tuple[Any, ...]]:
    return [(record.offset, record.timestamp_ms, record.key, record.value, record.headers) for record in fetched]


blobs = st.none() | st.binary(max_size=100) | st.sampled_from([b"", bytes(70), bytes(8185), bytes(8193), bytes(17_000)])
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=80)), max_size=3).map(tuple)
times = st.just(1_700_000_000_000) | st.integers(-1, 1 << 44)
all_records = st.lists(st.builds(Record, blobs, blobs, st.just(()) | headers, times), min_size=1, max_size=80)
pieces = st.builds(
    Piece,
    st.integers(0, 2),
    st.sampled_from(Compression),
    all_records,
    st.none() | st.integers(0, 1 << 44),
    st.sampled_from([False, False, False, True]),
)


@settings(max_examples=examples(40, 150), deadline=None)
@given(st.lists(pieces, min_size=1, max_size=5), st.data())
def test_any_log(some: list[Piece], data: st.DataObject) -> None:
    log, seen, end = build_log(some)
    start = data.draw(st.integers(0, end - 1))
    fetched = pure(log, start)
    wanted = [record for record in seen if record.offset >= start]
    assert contents(fetched) == [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in wanted]
    assert fetched.next_offset == end
    assert (fetched.topic, fetched.partition) == ("topic", 3)
    assert (fetched.headers is None) == (not any(record.headers for record in wanted))
    if wanted:
        assert fetched.timestamp_type == wanted[-1].timestamp_type
    assert with_numpy(log, start) == fetched
    assert fetched_records(bytearray(log), "topic", 3, start) == fetched
    assert fetched_records(memoryview(log), "topic", 3, start, check_crcs=False) == fetched


def test_null_is_not_empty(build: Build, path: Decode) -> None:
    four = [Record(None, None), Record(b"", b""), Record(b"", None), Record(None, b"")]
    fetched = path(bytes(build(four)), 0)
    assert fetched.keys == [None, b"", b"", None]
    assert fetched.values == [None, b"", None, b""]


@pytest.mark.parametrize("start", [0, 1, 63, 64, 99, 100, 150, 299])
def test_from_the_middle(build: Build, path: Decode, start: int) -> None:
    records = [Record(None, b"%d" % number, (("n", b"%d" % number),), number) for number in range(300)]
    log = b"".join(bytes(build(records[base : base + 100], base)) for base in (0, 100, 200))
    fetched = path(log, start)
    assert fetched.offsets == list(range(start, 300))
    assert fetched.values == [b"%d" % number for number in range(start, 300)]
    assert fetched.headers == [(("n", b"%d" % number),) for number in range(start, 300)]
    assert fetched.timestamps_ms == list(range(start, 300))


def test_beyond_the_end(build: Build, path: Decode) -> None:
    fetched = path(bytes(build([Record(b"k", b"v")], 7)), 50)
    assert (fetched.offsets, fetched.next_offset) == ([], 50)


def test_nothing(path: Decode) -> None:
    fetched = path(b"", 12)
    assert (fetched.offsets, fetched.headers, fetched.next_offset) == ([], None, 12)


def test_only_control_batches(path: Decode) -> None:
    batch = build_marker(MARKER, producer_id=1, producer_epoch=0, timestamp_ms=5)
    patch_offsets(batch, 4, 0)
    fetched = path(bytes(batch), 4)
    assert (fetched.offsets, fetched.next_offset) == ([], 5)


def test_compaction_gaps(vectors: Any, path: Decode) -> None:
    (vector,) = [each for each in vectors if each.name == "aiokafka_compacted"]
    batch = bytearray(vector.data)
    patch_offsets(batch, 1000, 0)
    assert path(bytes(batch), 0).offsets == [1000, 1001, 1005, 1064, 10_000]
    fetched = path(bytes(batch), 1006)
    assert (fetched.offsets, fetched.next_offset) == ([1064, 10_000], 10_001)
    assert fetched.values == [record.value for record in vector.records[3:]]


@pytest.mark.parametrize("key", [None, b"", b"k", bytes(70)])
@pytest.mark.parametrize("value", [None, b"", b"v", bytes(70)])
def test_lengths_around_three_bytes(build: Build, path: Decode, key: bytes | None, value: bytes | None) -> None:
    """A three-byte length cut to two can make sense too: a long key and an empty value, one byte earlier."""
    for size in range(8110, 8200):
        records = [Record(bytes(size), value), Record(key, bytes(size)), Record(b"k", b"v")]
        fetched = path(bytes(build(records)), 0)
        assert fetched.keys == [record.key for record in records], size
        assert fetched.values == [record.value for record in records], size


@pytest.mark.parametrize("count", [63, 64, 65, 8192, 8193, 16_500])
def test_large_batches(build: Build, path: Decode, count: int) -> None:
    records = [Record(b"%d" % number, None, (), number * 1000) for number in range(count)]
    fetched = path(bytes(build(records, 5)), 0)
    assert fetched.offsets == list(range(5, 5 + count))
    assert fetched.keys == [record.key for record in records]
    assert fetched.timestamps_ms == [record.timestamp_ms for record in records]


def test_the_timestamp_type_of_nothing(vectors: Any, path: Decode) -> None:
    """Compaction removed all records from the fetch offset on: what was skipped says nothing."""
    (vector,) = [each for each in vectors if each.name == "aiokafka_log_append_time"]
    batch = bytearray(vector.data)
    struct.pack_into(">i", batch, 23, 20)  # the last offset delta: records up to 20 are gone
    stamp_log_append_time(batch, 5)
    assert path(bytes(batch), 0).timestamp_type is TimestampType.LOG_APPEND_TIME
    fetched = path(bytes(batch), 15)
    assert (fetched.offsets, fetched.next_offset) == ([], 21)
    assert fetched.timestamp_type is TimestampType.CREATE_TIME


def test_a_batch_out_of_order(build: Build) -> None:
    """No CRC covers the base offset: an order that cannot be is all that shows its damage."""
    log = bytes(build([Record(b"k", b"v")] * 3, 10)) + bytes(build([Record(b"k", b"v")], 12))
    with pytest.raises(
        CorruptRecord, match=r"topic-3, batch at offset 12 \(byte 88 of the fetch\): .* cannot follow offset 12"
    ):
        pure(log, 0)
    assert decode._decode_with_numpy(log, "topic", 3, 0, True) is None, "the pure path names it"
    with pytest.raises(CorruptRecord, match="cannot follow"):
        record_arrays(log)


@pytest.mark.parametrize("base_offset", [-1, (1 << 63) - 1])
def test_base_offsets_that_cannot_be(build: Build, base_offset: int) -> None:
    with pytest.raises(CorruptRecord, match=f"offset {base_offset} cannot"):
        pure(bytes(build([Record(b"k", b"v")] * 2, base_offset)), 0)


def test_compressed_batches_growing_without_end_are_read_in_turns(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch keeps its own limit, but a fetch of many must not fill the memory at once."""
    records = [Record(None, bytes(200))] * 3
    log = b"".join(bytes(build(records, base, Compression.ZSTD)) for base in range(0, 300, 3))
    log += bytes(build(records, 300))
    monkeypatch.setattr("eventbus.records.decode.limit_bytes", lambda size: 5000)
    turns, offset = [], 0
    while offset < 303:
        fetched = pure(log, offset)
        assert fetched == with_numpy(log, offset)
        assert fetched.offsets == list(range(offset, fetched.next_offset))
        turns.append(len(fetched))
        offset = fetched.next_offset
    assert turns == [24] * 12 + [15]


class TestChoice:
    """Which path is taken."""

    @pytest.fixture
    def taken(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        paths: list[str] = []
        for name in ("_decode", "_decode_with_numpy"):
            original = getattr(decode, name)
            monkeypatch.setattr(
                decode, name, lambda *args, name=name, original=original: (paths.append(name), original(*args))[1]
            )
        return paths

    def test_numpy_for_many_records(self, build: Build, taken: list[str]) -> None:
        log = bytes(build([Record(None, b"x" * 100)] * 500))
        assert len(fetched_records(log, "topic", 3, 0)) == 500
        assert taken == ["_decode_with_numpy"]

    @pytest.mark.parametrize(("count", "size"), [(1, 100), (50, 10), (90, 1000)])
    def test_pure_for_few(self, build: Build, taken: list[str], count: int, size: int) -> None:
        assert len(fetched_records(build([Record(None, bytes(size))] * count), "topic", 3, 0)) == count
        assert taken == ["_decode"]

    def test_numpy_is_not_imported_for_a_middling_fetch(
        self, build: Build, taken: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "numpy")
        fetched_records(build([Record(None, bytes(100))] * 5000), "topic", 3, 0)
        assert taken == ["_decode"]

    def test_without_numpy(self, build: Build, taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "eventbus.records.columnar", None)
        assert len(fetched_records(build([Record(None, bytes(100))] * 500), "topic", 3, 0)) == 500
        assert taken == ["_decode_with_numpy", "_decode"]

    def test_damage_is_named_by_the_pure_path(self, build: Build, taken: list[str]) -> None:
        log = build([Record(None, bytes(100))] * 500, 20)
        log[-5] ^= 1
        with pytest.raises(CorruptRecord, match=r"topic-3, batch at offset 20 \(byte 0 of the fetch\): .*: CRC-32C"):
            fetched_records(log, "topic", 3, 0)
        assert taken == ["_decode_with_numpy", "_decode"]
