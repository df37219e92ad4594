"""Batches that compaction rewrote read the same on every path, whatever was taken out of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.records import BatchBuilder, RecordBatch, check_crc, fetched_records, patch_offsets, read_header
from eventbus.records.batch import stamp_log_append_time
from eventbus.records.columnar import record_arrays
from eventbus.records.rewrite import empty_batch, keep_header, keep_records, open_batch
from eventbus.types import Compression, TimestampType
from tests.support import examples

pytestmark = pytest.mark.system

NOW_MS = 1_700_000_000_000
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        HEADERS,
        st.integers(NOW_MS - 10**10, NOW_MS + 10**10),
    ),
    min_size=1,
    max_size=20,
)


def build(records, codec: Compression = Compression.NONE, base_offset: int = 1_000) -> RecordBatch:
    builder = BatchBuilder(codec)
    for record in records:
        builder.append(*record)
    batch = builder.build(producer_id=7, producer_epoch=3, base_sequence=40, is_transactional=True)
    patch_offsets(batch, base_offset, 5)
    return RecordBatch(bytes(batch))


@settings(max_examples=examples(80, 300), deadline=None)
@given(
    records=RECORDS,
    codec=st.sampled_from(Compression),
    choice=st.sets(st.integers(0, 19)),
    horizons=st.lists(st.integers(0, 2 * NOW_MS), max_size=2),
)
def test_what_is_kept_reads_the_same(records, codec, choice, horizons):
    batch = build(records, codec)
    kept = sorted(number for number in choice if number < len(records)) or [len(records) - 1]
    expected = [(1_000 + number, *records[number]) for number in kept]
    rewritten = bytes(keep_records(batch.header, *_opened(batch, kept)))
    for horizon_ms in horizons:
        again = RecordBatch(rewritten)
        content, columns = open_batch(again)
        rewritten = bytes(keep_records(again.header, content, range(len(kept)), columns, horizon_ms))
    header = read_header(rewritten)
    check_crc(rewritten, header)
    assert header.records_count == len(kept)
    assert header.max_timestamp_ms == max(record[-1] for record in expected)
    assert header.delete_horizon_ms == (horizons[-1] if horizons else None)
    unchanged = ("base_offset", "last_offset_delta", "partition_leader_epoch", "producer_id", "producer_epoch")
    for name in (*unchanged, "base_sequence", "last_sequence", "compression", "is_transactional", "is_control"):
        assert getattr(header, name) == getattr(batch.header, name), name
    fetched = fetched_records(rewritten, "t", 0, 0)
    headers = fetched.headers or [()] * len(kept)
    assert list(zip(fetched.offsets, fetched.keys, fetched.values, headers, fetched.timestamps_ms, strict=True)) == (
        expected
    )
    arrays = record_arrays(rewritten)
    assert arrays.offsets.tolist() == fetched.offsets
    assert (arrays.timestamps_ms.tolist(), arrays.keys(), arrays.values()) == (
        fetched.timestamps_ms, fetched.keys, fetched.values,
    )  # fmt: skip
    assert [(each.key, each.value, each.timestamp_ms) for each in RecordBatch(rewritten)] == [
        (key, value, timestamp_ms) for _, key, value, _, timestamp_ms in expected
    ]


def _opened(batch: RecordBatch, kept: list[int]):
    records, columns = open_batch(batch)
    return records, kept, columns


def test_log_append_time_stays_that_of_the_batch():
    builder = BatchBuilder()
    for number in range(3):
        builder.append(b"%d" % number, None, (), NOW_MS + number)
    data = builder.build()
    stamp_log_append_time(data, NOW_MS + 99)
    batch = RecordBatch(bytes(data))
    rewritten = bytes(keep_records(batch.header, *_opened(batch, [1]), NOW_MS + 500))
    fetched = fetched_records(rewritten, "t", 0, 0)
    assert (fetched.offsets, fetched.timestamps_ms) == ([1], [NOW_MS + 99])
    assert fetched.timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize("codec", Compression)
def test_a_header_alone_tells_the_last_sequence(codec):
    batch = build([(b"k", b"v", (), NOW_MS + number) for number in range(5)], codec)
    horizon = bytes(keep_records(batch.header, *_opened(batch, [0, 1]), NOW_MS + 500))
    for source in (batch.header, read_header(horizon)):
        alone = bytes(keep_header(source))
        header = read_header(alone)
        check_crc(alone, header)
        assert (header.size_bytes, header.records_count, header.compression) == (61, 0, Compression.NONE)
        assert (header.base_offset, header.last_offset, header.last_sequence) == (1_000, 1_004, 44)
        assert (header.producer_id, header.producer_epoch, header.is_transactional) == (7, 3, True)
        assert header.delete_horizon_ms is None
        assert (fetched_records(alone, "t", 0, 0).offsets, fetched_records(alone, "t", 0, 0).next_offset) == ([], 1_005)
        assert (len(record_arrays(alone)), record_arrays(alone).next_offset) == (0, 1_005)


def test_an_empty_batch_takes_the_place_of_others():
    batch = bytes(empty_batch(5, 5_000_000_000 - (1 << 32), NOW_MS))
    header = read_header(batch)
    check_crc(batch, header)
    assert (header.base_offset, header.last_offset, header.records_count) == (5, 5_000_000_000 - (1 << 32), 0)
    assert (header.producer_id, header.base_sequence, header.attributes) == (-1, -1, 0)
    assert fetched_records(batch, "t", 0, 7).next_offset == header.next_offset
