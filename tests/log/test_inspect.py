"""Dump and verify: what a human sees of a log."""

from __future__ import annotations

import pytest

from eventbus.errors import ConfigError
from eventbus.log import checkpoints
from eventbus.log.inspect import (
    BatchLine,
    DamageLine,
    OffsetIndexLine,
    ProducerLine,
    TimeIndexLine,
    TransactionIndexLine,
    dump_segment,
    verify,
)
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import FileStorage
from eventbus.types import TopicPartition

from .test_producers import Writer

NOW_MS = 1_700_000_000_000
STEM = "00000000000000000000"


@pytest.fixture
def log(tmp_path, logs) -> PartitionLog:
    """Three batches of two records, with an index entry for the last."""
    log = logs.open(FileStorage(str(tmp_path)), index_interval_bytes=150)
    for number in range(3):
        logs.append(log, 2, timestamp_ms=NOW_MS + 10 * number)
    log.close()
    return log


def test_a_dump_names_position_and_fields_of_each_batch(log, tmp_path):
    size = log.size_bytes // 3
    lines = list(dump_segment(str(tmp_path / "orders-0" / f"{STEM}.log")))
    assert [(line.position, line.header.base_offset, line.crc_is_valid, line.records) for line in lines] == [
        (0, 0, True, None),
        (size, 2, True, None),
        (2 * size, 4, True, None),
    ]
    assert lines[1].header.max_timestamp_ms == NOW_MS + 11


def test_a_dump_may_show_the_records(log, tmp_path):
    lines = list(dump_segment(str(tmp_path / "orders-0" / f"{STEM}.log"), records=True))
    [first, second] = lines[1].records
    assert (first.topic, first.partition, first.offset, first.timestamp_ms) == ("orders", 0, 2, NOW_MS + 10)
    assert (second.offset, second.key) == (3, b"key")
    assert second.value.startswith(b"3")


def test_indexes_are_dumped_too(log, tmp_path):
    size = log.size_bytes // 3
    directory = tmp_path / "orders-0"
    assert list(dump_segment(str(directory / f"{STEM}.index"))) == [OffsetIndexLine(5, 2 * size)]
    assert list(dump_segment(str(directory / f"{STEM}.timeindex"))) == [TimeIndexLine(NOW_MS + 21, 5)]
    (directory / f"{STEM}.index").write_bytes(bytes(11))
    assert list(dump_segment(str(directory / f"{STEM}.index")))[-1] == DamageLine(8, "the file ends inside an entry")


def test_a_dump_goes_on_after_a_wrong_crc_and_ends_where_nothing_makes_sense(log, tmp_path):
    path = tmp_path / "orders-0" / f"{STEM}.log"
    content = bytearray(path.read_bytes())
    size = len(content) // 3
    content[size + 70] ^= 1
    path.write_bytes(content[: 2 * size + 30])
    first, second, third = dump_segment(str(path), records=True)
    assert isinstance(first, BatchLine)
    assert isinstance(second, BatchLine)
    assert (first.crc_is_valid, second.crc_is_valid, second.records) == (True, False, None)
    assert isinstance(third, DamageLine)
    assert third.position == 2 * size
    path.write_bytes(content[: 2 * size + 80])
    assert list(dump_segment(str(path)))[-1] == DamageLine(2 * size, "the file ends inside a batch")


def test_what_is_no_segment_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="is not a segment: name a file like"):
        dump_segment(str(tmp_path / "notes.txt"))
    with pytest.raises(ConfigError, match="there is no file"):
        dump_segment(str(tmp_path / f"{STEM}.log"))
    with pytest.raises(ConfigError, match="there is no directory"):
        verify(str(tmp_path / "nowhere"))


def test_verify_counts_everything(log, tmp_path, logs):
    storage = FileStorage(str(tmp_path))
    other = logs.open(storage, TopicPartition("parcels", 3), segment_bytes=250)
    logs.fill(other, 5)
    other.advance_log_start_offset(2)
    other.apply_retention(NOW_MS)
    other.close()
    checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, {TopicPartition("parcels", 3): 5}, sync=False)
    checkpoints.write_offsets(storage, checkpoints.LOG_START_OFFSETS, {TopicPartition("parcels", 3): 2}, sync=False)
    checkpoints.load_or_create_meta(storage, "cluster")
    report = verify(str(tmp_path))
    assert report.ok
    assert report.warnings == []
    orders, parcels = report.partitions
    assert (orders.batches_count, orders.records_count, orders.log_end_offset, orders.recovery_point) == (3, 6, 6, 0)
    assert (parcels.segments_count, parcels.batches_count, parcels.log_start_offset) == (2, 3, 2)
    assert (parcels.log_end_offset, parcels.recovery_point) == (5, 5)
    assert parcels.size_bytes == other.size_bytes


def test_verify_tells_a_torn_end_from_damage(log, tmp_path):
    path = tmp_path / "orders-0" / f"{STEM}.log"
    path.write_bytes(path.read_bytes()[:-5])
    report = verify(str(tmp_path))
    assert report.ok
    assert f"{STEM}.log at position {log.size_bytes // 3 * 2} (offset 4): the file ends" in report.partitions[0].torn
    storage = FileStorage(str(tmp_path))
    checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, {log.topic_partition: 6}, sync=False)
    report = verify(str(tmp_path))
    assert not report.ok
    assert "(offset 4)" in report.partitions[0].damage


def test_verify_misses_what_is_gone(log, tmp_path):
    (tmp_path / "orders-0" / f"{STEM}.log").write_bytes(b"")
    storage = FileStorage(str(tmp_path))
    checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, {log.topic_partition: 6}, sync=False)
    assert verify(str(tmp_path)).partitions[0].damage == "orders-0 ends at offset 0, but was on disk up to offset 6"


def test_verify_misses_the_first_segment(tmp_path, logs):
    storage = FileStorage(str(tmp_path))
    log = logs.open(storage, segment_bytes=250)
    logs.fill(log, 5)
    log.close()
    for name, offset in ((checkpoints.RECOVERY_POINTS, 5), (checkpoints.LOG_START_OFFSETS, 1)):
        checkpoints.write_offsets(storage, name, {log.topic_partition: offset}, sync=False)
    assert verify(str(tmp_path)).ok
    storage.remove(f"orders-0/{STEM}.log")
    report = verify(str(tmp_path))
    assert not report.ok
    assert report.partitions[0].damage == (
        f"1 offsets (1 to 1) are missing: the log starts at offset 1, and its first segment is orders-0/{2:020d}.log"
    )


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("meta.properties", b"\0\0\0", "meta.properties is damaged"),
        ("meta.properties", b"version=1\ncluster.ie=x\n", "meta.properties is damaged"),
        ("log-start-offset-checkpoint", b"0\n7\n", "log-start-offset-checkpoint is damaged; records that were deleted"),
        ("orders-0/partition.metadata", b"version: 0\ntopic", "orders-0/partition.metadata is damaged or missing"),
    ],
)
def test_verify_reports_damage_in_files_without_records(log, tmp_path, name, content, what):
    storage = FileStorage(str(tmp_path))
    checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, {log.topic_partition: 6}, sync=False)
    checkpoints.write_offsets(storage, checkpoints.LOG_START_OFFSETS, {log.topic_partition: 0}, sync=False)
    checkpoints.load_or_create_meta(storage, "cluster")
    assert verify(str(tmp_path)).ok
    (tmp_path / name).write_bytes(content)
    report = verify(str(tmp_path))
    assert not report.ok
    assert what in "".join([*report.damage, *(partition.damage for partition in report.partitions)])


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_verify_names_indexes_that_lie(log, tmp_path, suffix):
    path = tmp_path / "orders-0" / f"{STEM}.{suffix}"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    [report] = verify(str(tmp_path)).partitions
    assert report.index_damage == [f"orders-0/{STEM}.{suffix}"]
    assert verify(str(tmp_path)).ok


def test_verify_warns_of_a_damaged_checkpoint(log, tmp_path):
    (tmp_path / checkpoints.RECOVERY_POINTS).write_bytes(b"?")
    assert checkpoints.RECOVERY_POINTS in verify(str(tmp_path)).warnings[0]


@pytest.fixture
def transactions(tmp_path, logs) -> Writer:
    writer = Writer(logs.open(FileStorage(str(tmp_path))))
    writer.send(7, 2)
    writer.send(8)
    writer.end(7, committed=False)
    writer.send(9, transactional=False)
    writer.send(9, 2, transactional=False)
    writer.log.close()
    return writer


def test_aborted_transactions_and_producers_are_dumped(transactions, tmp_path):
    directory = tmp_path / "orders-0"
    assert list(dump_segment(str(directory / f"{STEM}.txnindex"))) == [TransactionIndexLine(7, 0, 3, 2)]
    end = f"{transactions.log.log_end_offset:020d}"
    assert list(dump_segment(str(directory / f"{end}.snapshot"))) == [
        ProducerLine(7, 1, 0, -1, NOW_MS, ()),
        ProducerLine(8, 0, -1, 2, NOW_MS, ((0, 0, 2),)),
        ProducerLine(9, 0, -1, -1, NOW_MS, ((0, 0, 4), (1, 2, 5))),
    ]
    (directory / f"{STEM}.txnindex").write_bytes(bytes(3))
    assert list(dump_segment(str(directory / f"{STEM}.txnindex"))) == [DamageLine(0, "the file ends inside an entry")]
    (directory / f"{end}.snapshot").write_bytes(bytes(30))
    [line] = dump_segment(str(directory / f"{end}.snapshot"))
    assert isinstance(line, DamageLine)


def test_verify_misses_an_aborted_transaction_and_a_snapshot(transactions, tmp_path):
    assert verify(str(tmp_path)).partitions[0].index_damage == []
    (tmp_path / "orders-0" / f"{STEM}.txnindex").unlink()
    end = f"{transactions.log.log_end_offset:020d}"
    (tmp_path / "orders-0" / f"{end}.snapshot").write_bytes(b"")
    report = verify(str(tmp_path))
    assert report.ok
    assert report.partitions[0].index_damage == [f"orders-0/{STEM}.txnindex", f"orders-0/{end}.snapshot"]
