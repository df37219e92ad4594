"""Produce, fetch, list_offsets: what is let in, what may be read, and when."""

from __future__ import annotations

import struct

import pytest

from eventbus.broker.validation import RecordsWithoutKey
from eventbus.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    OffsetOutOfRange,
    RecordTooLarge,
    UnsupportedCompression,
)
from eventbus.records import BatchBuilder, fetched_records, read_header
from eventbus.records.batch import write_crc
from eventbus.types import Compression, IsolationLevel, OffsetAndTimestamp, TimestampType, TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def orders(world):
    world.create("orders")
    return world


def changed(batch: bytearray, layout: str, position: int, value: int, *, crc: bool = True) -> bytearray:
    struct.pack_into(layout, batch, position, value)
    if crc:
        write_crc(batch)
    return batch


# what is let in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "position", "value", "error", "says"),
    [
        (">b", 16, 1, InvalidRecord, "magic is 1.*version 2"),
        (">b", 16, 3, CorruptRecord, "magic is 3"),
        (">i", 8, 10, CorruptRecord, "batch length 10"),
        (">i", 8, 10_000, CorruptRecord, r"says 10,012 bytes, 8\d came"),
        (">i", 57, 3, InvalidRecord, "last offset delta 1 in a batch of 3 records"),
        (">i", 57, 0, InvalidRecord, "a batch of 0 records"),
        (">i", 23, 7, InvalidRecord, "last offset delta 7 in a batch of 2 records"),
        (">h", 21, 0x20, InvalidRecord, "a control batch"),
        (">h", 21, 0x08, InvalidRecord, "timestamp type LogAppendTime"),
        (">h", 21, 0x10, InvalidRecord, "transactional batch without a producer id"),
        (">h", 21, 5, UnsupportedCompression, "codec 5"),
        (">h", 21, 7, UnsupportedCompression, r"codec 7 is none of none \(0\)"),
        (">q", 43, 9, InvalidRecord, "producer 9 with epoch -1 and sequence -1"),
    ],
)
def test_batches_that_break_a_rule(orders, layout, position, value, error, says) -> None:
    batch = changed(orders.batch(b"a", b"b"), layout, position, value, crc=position > 20)
    with pytest.raises(error, match=f"produce to orders-0: .*{says}"):
        orders.broker.produce(ORDERS, batch, orders.now_ms)
    assert orders.read(ORDERS) == []
    assert orders.broker.list_offsets(ORDERS, -1).offset == 0


def test_no_transaction_is_open(orders) -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", (), 1)
    batch = builder.build(producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True)
    with pytest.raises(InvalidTxnState, match="not open there"):
        orders.broker.produce(ORDERS, batch, orders.now_ms)


@pytest.mark.parametrize("position", [17, 25, 40, 61, 70])
def test_a_flipped_bit_is_found(orders, position: int) -> None:
    batch = orders.batch(b"some value")
    batch[position] ^= 1
    with pytest.raises((CorruptRecord, InvalidRecord), match="produce to orders-0"):
        orders.broker.produce(ORDERS, batch, orders.now_ms)


@pytest.mark.parametrize("length", [0, 1, 60, 61, 70])
def test_a_batch_cut_short(orders, length: int) -> None:
    with pytest.raises(CorruptRecord, match="produce to orders-0"):
        orders.broker.produce(ORDERS, orders.batch(b"some value")[:length], orders.now_ms)


def test_one_batch_at_a_time(orders) -> None:
    with pytest.raises(InvalidRecord, match="bytes after the batch; send one batch at a time"):
        orders.broker.produce(ORDERS, orders.batch(b"a") + orders.batch(b"b"), orders.now_ms)


def test_offset_and_epoch_of_the_sender_do_not_matter(orders) -> None:
    """Sarama sends epoch 0, franz-go -1; base offsets may be anything. Both lie outside the CRC."""
    batch = changed(orders.batch(b"a"), ">q", 0, -77, crc=False)
    assert orders.broker.produce(ORDERS, changed(batch, ">i", 12, 99, crc=False), orders.now_ms).base_offset == 0
    orders.flush()
    stored = read_header(orders.broker.fetch(ORDERS, 0, 1000).records)
    assert (stored.base_offset, stored.partition_leader_epoch) == (0, 0)


def test_an_idempotent_producers_batch_is_let_in(orders) -> None:
    builder = BatchBuilder()
    builder.append(b"k", b"v", (), 1)
    orders.broker.produce(ORDERS, builder.build(producer_id=5, producer_epoch=0, base_sequence=0), orders.now_ms)


@pytest.mark.parametrize("codec", list(Compression))
def test_codecs_stay_as_they_are(orders, codec: Compression) -> None:
    builder = BatchBuilder(codec)
    for _ in range(20):
        builder.append(b"k", b"the same again and again", (), 1)
    batch = builder.build()
    orders.broker.produce(ORDERS, bytearray(batch), orders.now_ms)
    orders.flush()
    stored = orders.broker.fetch(ORDERS, 0, 1 << 20).records
    assert stored[16:] == batch[16:]
    assert len(orders.read(ORDERS)) == 20


def test_too_large(orders) -> None:
    orders.broker.alter_configs("orders", {"max.message.bytes": 500}, [], orders.now_ms)
    batch = orders.batch(b"x" * 500)
    size = len(batch)
    for trusted in (False, True):
        with pytest.raises(RecordTooLarge, match=rf"{size} bytes for orders-0, .* max\.message\.bytes=500"):
            orders.broker.produce(ORDERS, bytearray(batch), orders.now_ms, trusted=trusted)
    orders.broker.alter_configs("orders", {"max.message.bytes": size}, [], orders.now_ms)
    orders.produce(ORDERS, b"x" * 500)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_compacted_topics_need_keys(world, trusted: bool, codec: Compression) -> None:
    world.create("table", cleanup_policy="compact,delete")
    tp = TopicPartition("table", 0)
    builder = BatchBuilder(codec)
    builder.append(b"", b"an empty key is a key", (), 1)
    builder.append(None, b"v", (), 1)
    with pytest.raises(RecordsWithoutKey, match=r"table-0: record 1 has no key.*cleanup\.policy") as refused:
        world.broker.produce(tp, builder.build(), world.now_ms, trusted=trusted)
    assert refused.value.indexes == [1]
    assert world.read(tp) == []
    world.produce(tp, b"v", None)
    world.broker.alter_configs("table", {"cleanup.policy": "delete"}, [], world.now_ms)
    world.produce(tp, b"v", key=None)


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact"}, {"message_timestamp_type": "LogAppendTime"}])
def test_a_batch_that_lies_in_a_request_is_stored_out_of_it(disk, configs) -> None:
    """By group commit, by the redo journal that several partitions share, and by memory alike."""
    disk.open(fsync="commit")
    disk.create("t", partitions=3, **configs)
    places = [TopicPartition("t", number) for number in range(3)]
    for turn in range(3):
        for place in places:
            request = bytearray(b"before") + disk.batch(b"%d" % turn) + b"after"
            info = disk.broker.produce(place, memoryview(request)[6:-5], disk.now_ms)
            assert info.base_offset == turn
        disk.flush()
    disk.restart(clean=False)
    for place in places:
        assert disk.read(place) == [(0, b"0"), (1, b"1"), (2, b"2")]
    disk.broker.check()


def test_trusted_batches_are_taken_as_they_are(orders) -> None:
    batch = orders.batch(b"a", b"b")
    header = read_header(batch)
    assert orders.broker.produce(ORDERS, bytearray(batch), orders.now_ms, header=header, trusted=True)[:2] == (0, 1)
    assert orders.broker.produce(ORDERS, bytearray(batch), orders.now_ms, trusted=True)[:2] == (2, 3)
    orders.flush()
    assert [offset for offset, _ in orders.read(ORDERS)] == [0, 1, 2, 3]


def test_log_append_time(world) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    tp = TopicPartition("stamped", 0)
    info = world.broker.produce(tp, world.batch(b"a", b"b", timestamp_ms=5), world.now_ms)
    assert info.timestamp_ms == world.now_ms
    world.flush()
    records = fetched_records(world.broker.fetch(tp, 0, 1000).records, *tp, 0)
    assert records.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert records.timestamps_ms == [world.now_ms] * 2
    world.broker.alter_configs("stamped", {"message.timestamp.type": "CreateTime"}, [], world.now_ms)
    assert world.broker.produce(tp, world.batch(b"c", timestamp_ms=5), world.now_ms).timestamp_ms == -1


# what may be read, and when ------------------------------------------------------------------------------------------


def test_commit_mode_shows_what_is_flushed(disk) -> None:
    broker = disk.open(fsync="commit")
    disk.create("orders")
    disk.advanced.clear()
    disk.produce(ORDERS, b"a", b"b", flush=False)
    assert not broker.is_durable(ORDERS, 1)
    assert broker.fetch(ORDERS, 0, 1000) == broker.fetch(ORDERS, 1, 1000)  # empty, and not out of range
    assert broker.fetch(ORDERS, 2, 1000).records == b""
    assert broker.list_offsets(ORDERS, -1).offset == 0
    assert broker.list_offsets(ORDERS, 0).offset == -1
    with pytest.raises(OffsetOutOfRange):
        broker.fetch(ORDERS, 3, 1000)
    assert disk.advanced == []

    assert broker.needs_sync
    flush = broker.begin_sync()
    assert not broker.needs_sync
    disk.produce(ORDERS, b"c", flush=False)
    flush.run()
    broker.complete_sync(flush)
    assert disk.advanced == [ORDERS]
    assert broker.is_durable(ORDERS, 1)
    assert not broker.is_durable(ORDERS, 2)
    assert disk.read(ORDERS) == [(0, b"a"), (1, b"b")]
    data = broker.fetch(ORDERS, 0, 1000)
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (2, 2, 0)

    disk.flush()
    assert disk.advanced == [ORDERS, ORDERS]
    assert disk.read(ORDERS, 2) == [(2, b"c")]
    assert not broker.needs_sync


@pytest.mark.parametrize("fsync", ["interval", "os"])
def test_weaker_modes_show_it_at_once(disk, fsync) -> None:
    broker = disk.open(fsync=fsync)
    disk.create("orders")
    disk.advanced.clear()
    disk.produce(ORDERS, b"a", flush=False)
    assert disk.advanced == [ORDERS]
    assert broker.is_durable(ORDERS, 0)
    assert disk.read(ORDERS) == [(0, b"a")]
    assert broker.needs_sync is (fsync == "interval")
    disk.flush()
    assert disk.advanced == [ORDERS]
    broker.close(disk.now_ms)


def test_memory_needs_no_flush(orders) -> None:
    if orders.storage.durable:
        orders.restart(fsync="os")
    orders.advanced.clear()
    orders.produce(ORDERS, b"a", flush=False)
    assert orders.advanced == [ORDERS]
    assert orders.read(ORDERS) == [(0, b"a")]
    assert not orders.broker.needs_sync


def test_fetch_gives_whole_batches(orders) -> None:
    orders.produce(ORDERS, b"a", b"b")
    orders.produce(ORDERS, b"c", b"d")
    size = len(orders.batch(b"a", b"b"))
    fetch = orders.broker.fetch
    assert len(fetch(ORDERS, 1, 1).records) == size  # the batch that holds offset 1, whole, larger than asked
    assert len(fetch(ORDERS, 0, 2 * size - 1).records) == size
    assert len(fetch(ORDERS, 0, 2 * size).records) == 2 * size
    assert len(fetch(ORDERS, 2, 10_000).records) == size
    assert orders.read(ORDERS, 1) == [(1, b"b"), (2, b"c"), (3, b"d")]


@pytest.mark.parametrize("isolation", list(IsolationLevel))
def test_fetch_out_of_range(orders, isolation) -> None:
    orders.produce(ORDERS, b"a")
    assert orders.broker.fetch(ORDERS, 1, 100, isolation).records == b""
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange, match=f"orders-0.*not {offset}"):
            orders.broker.fetch(ORDERS, offset, 100, isolation)


def test_list_offsets(orders) -> None:
    def at(when: int) -> OffsetAndTimestamp:
        found = {orders.broker.list_offsets(ORDERS, when, isolation) for isolation in IsolationLevel}
        assert len(found) == 1
        return found.pop()

    assert at(-1) == (0, -1)
    assert at(-2) == (0, -1)
    assert at(-3) == (-1, -1)
    assert at(0) == (-1, -1)
    orders.produce(ORDERS, b"a", b"b", b"c", timestamp_ms=100)
    orders.produce(ORDERS, b"late", timestamp_ms=50)
    orders.produce(ORDERS, b"d", b"e", timestamp_ms=200)
    assert at(-1) == (6, -1)
    assert at(-2) == (0, -1)
    assert at(-3) == (5, 201)
    assert at(0) == (0, 100)
    assert at(101) == (1, 101)  # inside a batch: the record, not the batch
    assert at(103) == (4, 200)
    assert at(201) == (5, 201)
    assert at(202) == (-1, -1)
    with pytest.raises(InvalidRequest, match="list_offsets of orders-0 at -9"):
        at(-9)


def test_retention_runs_by_the_clock(world) -> None:
    world.restart(log_retention_check_interval_ms=1000)
    world.create("orders", retention_ms=5000, internal_segment_bytes=1)
    for value in (b"a", b"b", b"c"):
        world.produce(ORDERS, value)
    deadline = world.now_ms + 1000
    assert world.broker.next_deadline_ms() <= deadline
    world.broker.tick(deadline)
    assert len(world.read(ORDERS)) == 3
    world.now_ms += 4000
    world.produce(ORDERS, b"young")
    world.now_ms += 2000
    world.broker.tick(world.now_ms)
    assert world.read(ORDERS, 3) == [(3, b"young")]
    assert world.broker.list_offsets(ORDERS, -2).offset == 3
    with pytest.raises(OffsetOutOfRange, match="holds offsets 3 to 4, not 0"):
        world.broker.fetch(ORDERS, 0, 100)
    for clean in (True, False):
        world.restart(clean=clean)
        assert world.broker.list_offsets(ORDERS, -2).offset == 3
    world.now_ms += 60_000
    world.broker.tick(world.now_ms)
    assert world.read(ORDERS, 4) == []
    assert world.produce(ORDERS, b"next") == 4  # no offset is given out twice


def test_checkpoints_tell_other_processes_how_far_to_read(disk) -> None:
    from eventbus.log import checkpoints

    def published() -> dict[TopicPartition, int]:
        offsets = checkpoints.read_offsets(disk.storage, checkpoints.LAST_STABLE_OFFSETS)
        assert offsets is not None
        return offsets

    broker = disk.open(checkpoint_interval_ms=500)
    disk.create("orders")
    disk.produce(ORDERS, b"a", b"b")
    disk.produce(ORDERS, b"not flushed", flush=False)
    assert ORDERS not in published()
    broker.tick(disk.now_ms + 99)
    assert ORDERS not in published()
    assert broker.next_deadline_ms() == disk.now_ms + 100, "a fifth of the time until the checkpoints"
    broker.tick(disk.now_ms + 100)
    assert published()[ORDERS] == 2
    assert ORDERS not in checkpoints.read_offsets(disk.storage, checkpoints.RECOVERY_POINTS)
    broker.tick(disk.now_ms + 500)
    assert checkpoints.read_offsets(disk.storage, checkpoints.RECOVERY_POINTS)[ORDERS] == 2
    broker.close(disk.now_ms)
    assert published()[ORDERS] == 3
