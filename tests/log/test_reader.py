"""Reading from outside: bounded by what is published, while the owner writes, rolls and deletes."""

from __future__ import annotations

import subprocess
import sys
import threading
from random import Random

import pytest

from eventbus.errors import ConfigError, CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder, fetched_records, iter_batches, read_header
from eventbus.records.aborted import AbortedRanges, committed_batches
from eventbus.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

from .test_producers import SMALL, Writer, flip

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000

WRITE = """
import sys
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder, read_header
from eventbus.types import TopicPartition
storage = FileStorage(sys.argv[1])
storage.lock()
where = TopicPartition("orders", 0)
log = PartitionLog.open(storage, where, LogConfig(segment_bytes=20_000), now_ms=0)
for number in range(3000):
    builder = BatchBuilder()
    builder.append(None, b"%d" % number * (number % 50), (), number)
    batch = builder.build()
    log.append(batch, read_header(batch), 0)
    if number % 10 == 9:
        checkpoints.write_offsets(storage, checkpoints.LAST_STABLE_OFFSETS, {where: number + 1}, sync=False)
        print(number + 1, flush=True)
"""


def publish(storage: FileStorage, *opened: PartitionLog) -> None:
    for name, offsets in (
        (checkpoints.LAST_STABLE_OFFSETS, {log.topic_partition: log.last_stable_offset for log in opened}),
        (checkpoints.LOG_START_OFFSETS, {log.topic_partition: log.log_start_offset for log in opened}),
    ):
        checkpoints.write_offsets(storage, name, offsets, sync=False)


def offsets(chunks) -> list[int]:
    return [batch.header.base_offset for chunk in chunks for batch in iter_batches(chunk)]


@pytest.fixture
def owner(tmp_path) -> FileStorage:
    storage = FileStorage(str(tmp_path))
    storage.lock()
    return storage


def test_topics_partitions_and_offsets(owner, logs):
    opened = [
        logs.open(owner, TopicPartition(topic, partition)) for topic, partition in (("a-b", 0), ("a-b", 2), ("c", 1))
    ]
    for count, log in enumerate(opened):
        logs.fill(log, count + 1)
    opened[0].advance_log_start_offset(1)
    publish(owner, *opened)
    owner.makedirs("not a partition")
    reader = LogReader(owner.root)
    assert reader.topics() == ["a-b", "c"]
    assert reader.partitions("a-b") == [0, 2]
    assert reader.offsets("a-b") == {0: (1, 1), 2: (0, 2)}
    assert reader.offsets("none") == {}


def test_nothing_is_stable_before_it_is_published(owner, logs):
    log = logs.open(owner)
    logs.fill(log, 5)
    reader = LogReader(owner.root)
    assert reader.offsets("orders") == {0: (0, 0)}
    assert list(reader.read("orders", 0, 0, 5)) == []
    assert reader.offset_for_timestamp("orders", 0, 0) is None
    log.high_watermark = 3
    publish(owner, log)
    assert offsets(reader.read("orders", 0, 0, 5)) == [0, 1, 2]
    assert reader.offset_for_timestamp("orders", 0, 0) == OffsetAndTimestamp(0, NOW_MS)


def test_a_range_is_read_in_chunks_of_whole_batches(owner, logs):
    log = logs.open(owner, segment_bytes=1000, index_interval_bytes=200)
    for _ in range(40):
        logs.append(log, 3)
    log.high_watermark = log.log_end_offset
    publish(owner, log)
    reader = LogReader(owner.root)
    assert offsets(reader.read("orders", 0, 0, 120, 400)) == list(range(0, 120, 3))
    assert offsets(reader.read("orders", 0, 31, 62, 400)) == list(range(30, 62, 3))
    chunks = list(reader.read("orders", 0, 0, 120, 400))
    assert all(len(chunk) <= 400 for chunk in chunks)
    assert len(chunks) >= 20
    assert offsets(reader.read("orders", 0, 7, 8, 1)) == [6]
    assert list(reader.read("orders", 0, 7, 7)) == []


def test_every_timestamp_is_found_below_the_stable_offset(owner, logs):
    log = logs.open(owner, segment_bytes=500, index_interval_bytes=100)
    for number in range(20):
        logs.append(log, timestamp_ms=NOW_MS + 10 * number)
    log.high_watermark = 15
    publish(owner, log)
    reader = LogReader(owner.root)
    for number in range(15):
        assert reader.offset_for_timestamp("orders", 0, NOW_MS + 10 * number - 3) == OffsetAndTimestamp(
            number, NOW_MS + 10 * number
        )
    assert reader.offset_for_timestamp("orders", 0, NOW_MS + 145) is None


def test_a_batch_being_written_is_not_seen(owner, logs):
    log = logs.open(owner, index_interval_bytes=1)
    logs.fill(log, 5)
    publish(owner, log)
    log.segments[0].file.append(bytes(logs.batch())[:50])
    reader = LogReader(owner.root)
    assert offsets(reader.read("orders", 0, 0, 99)) == [0, 1, 2, 3, 4]
    assert reader.offset_for_timestamp("orders", 0, NOW_MS) == OffsetAndTimestamp(0, NOW_MS)
    assert reader.offset_for_timestamp("orders", 0, NOW_MS + 1) is None
    logs.opened.clear()


def test_a_log_shorter_than_published_is_no_silent_end(owner, logs):
    log = logs.open(owner)
    logs.fill(log, 5)
    publish(owner, log)
    log.segments[0].file.truncate(log.size_bytes - 3)
    chunks = LogReader(owner.root).read("orders", 0, 0, 5)
    assert offsets([next(chunks)]) == [0, 1, 2, 3]
    with pytest.raises(CorruptRecord, match="the file ends inside a batch"):
        next(chunks)
    log.segments[0].file.truncate(len(logs.batch()))
    chunks = LogReader(owner.root).read("orders", 0, 0, 5)
    next(chunks)
    with pytest.raises(
        CorruptRecord, match=r"ends at offset 1, though offsets up to 5 were published.*open the log once"
    ):
        next(chunks)
    logs.opened.clear()


def test_segments_deleted_before_and_during_a_read(owner, logs):
    log = logs.open(owner, segment_bytes=250, retention_bytes=250)
    logs.fill(log, 10)
    publish(owner, log)
    reader = LogReader(owner.root)
    chunks = reader.read("orders", 0, 0, 10, 1)
    assert offsets([next(chunks)]) == [0]
    log.apply_retention(NOW_MS)
    assert log.log_start_offset > 4
    assert offsets([next(chunks)]) == [1], "the open segment is still there for who has it open"
    with pytest.raises(OffsetOutOfRange, match=r"orders-0 .* begins at offset \d; 2 was deleted by retention"):
        next(chunks)
    with pytest.raises(OffsetOutOfRange, match="0 was deleted by retention"):
        list(reader.read("orders", 0, 0, 10))


def test_a_roll_that_failed_is_passed_over(owner, logs):
    log = logs.open(owner)
    logs.fill(log, 3)
    owner.open(f"orders-0/{3:020d}.log", create=True)
    logs.fill(log, 3)
    publish(owner, log)
    reader = LogReader(owner.root)
    assert offsets(reader.read("orders", 0, 0, 6, 1)) == [0, 1, 2, 3, 4, 5]
    assert offsets(reader.read("orders", 0, 4, 6, 1)) == [4, 5]


def test_what_is_not_there_is_named(owner, logs):
    log = logs.open(owner)
    logs.fill(log, 1)
    reader = LogReader(owner.root)
    with pytest.raises(UnknownTopicOrPartition, match=r"there is no partition orders-7 .*topics there: orders"):
        list(reader.read("orders", 7, 0, 1))
    with pytest.raises(ConfigError, match="there is no log in"):
        LogReader(owner.root + "/nowhere")


def test_nothing_is_written_and_no_lock_is_taken(owner, logs, tmp_path):
    log = logs.open(owner, index_interval_bytes=100)
    logs.fill(log, 50)
    publish(owner, log)
    log.segments[0].save_indexes()
    (tmp_path / "orders-0" / "00000000000000000000.index").write_bytes(b"\xff" * 24)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    reader = LogReader(owner.root)
    assert len(offsets(reader.read("orders", 0, 0, 50))) == 50
    assert offsets(reader.read("orders", 0, 33, 34)) == [33]
    assert reader.offset_for_timestamp("orders", 0, NOW_MS) is not None
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_seek_does_not_scan_the_segment(owner, logs, monkeypatch):
    log = logs.open(owner)
    logs.fill(log, 5000, value_bytes=100)
    log.close()
    publish(owner, log)
    read: list[int] = []
    original = FileStorage.open

    def opening(storage: FileStorage, path: str, create: bool = False):
        file = original(storage, path, create)
        if path.endswith(".log"):
            pread = file.pread

            class Watched:
                def __getattr__(self, name: str):
                    return getattr(file, name)

                def pread(self, position: int, length: int) -> bytes:
                    data = pread(position, length)
                    read.append(len(data))
                    return data

            return Watched()
        return file

    monkeypatch.setattr(FileStorage, "open", opening)
    assert offsets(LogReader(owner.root).read("orders", 0, 4000, 4001, 1000)) == [4000]
    assert sum(read) < 20_000 < log.size_bytes / 10


@pytest.mark.system
def test_another_process_writes_and_rolls_meanwhile(tmp_path):
    """Whatever has been published can be read at once, whole and in order."""
    writer = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    next_offset = 0
    with writer:
        for line in writer.stdout:
            published = int(line)
            reader = LogReader(str(tmp_path))
            stable = reader.offsets("orders")[0][1]
            assert stable >= published
            got = offsets(reader.read("orders", 0, next_offset, stable, 10_000))
            assert got == list(range(next_offset, stable))
            next_offset = stable
    assert writer.returncode == 0
    assert next_offset == 3000


@pytest.mark.system
def test_a_thread_that_deletes_never_yields_wrong_records(owner, logs):
    """Readers racing retention get the records of the offsets they asked for, or are told that they are gone."""
    log = PartitionLog.open(
        owner, ORDERS, LogConfig(segment_bytes=2000, retention_bytes=6000, index_interval_bytes=200), now_ms=0
    )
    done = threading.Event()

    def write() -> None:
        for number in range(4000):
            builder = BatchBuilder()
            builder.append(None, b"%d" % number, (), number)
            batch = builder.build()
            log.append(batch, read_header(batch), 0)
            if not number % 20:
                log.high_watermark = log.log_end_offset
                log.apply_retention(0)
                publish(owner, log)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    told = read = 0
    try:
        while not done.is_set():
            if not owner.exists(checkpoints.LAST_STABLE_OFFSETS):
                continue
            reader = LogReader(owner.root)
            first, stable = reader.offsets("orders").get(0, (0, 0))
            try:
                for chunk in reader.read("orders", 0, max(first - 5 * (read % 2), 0), stable, 500):
                    for batch in iter_batches(chunk):
                        [record] = batch.records()
                        assert record.value == b"%d" % batch.header.base_offset
                        read += 1
            except OffsetOutOfRange:
                told += 1
    finally:
        thread.join()
    assert read > 0
    log.close()


# -- transactions ------------------------------------------------------------------------------------------------------


def values(chunks, start: int, end: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for chunk in chunks:
        records = fetched_records(chunk, *ORDERS, start)
        found += [
            (offset, value) for offset, value in zip(records.offsets, records.values, strict=True) if offset < end
        ]
    return found


@pytest.mark.parametrize("seed", range(10))
def test_neither_aborted_nor_open_transactions_are_read(owner, logs, seed):
    writer = Writer(logs.open(owner, **SMALL))
    random = Random(seed)
    for _ in range(6):
        writer.work(random, 15)
        publish(owner, writer.log)
        reader = LogReader(owner.root)
        stable = writer.log.last_stable_offset
        assert reader.offsets("orders") == {0: (0, stable)}
        for _ in range(5):
            start = random.randint(0, stable)
            end = random.randint(start, stable + 5)
            expected = sorted(each for each in writer.committed if start <= each[0] < min(end, stable))
            assert values(reader.read("orders", 0, start, end, 300), start, end) == expected


def test_all_of_the_log_can_be_read_with_what_was_aborted_told_apart(owner, logs):
    writer = Writer(logs.open(owner, **SMALL))
    writer.work(Random(3), 60)
    publish(owner, writer.log)
    reader, stable = LogReader(owner.root), writer.log.last_stable_offset
    everything = list(reader.read("orders", 0, 0, stable, 300, isolation=IsolationLevel.READ_UNCOMMITTED))
    ranges = AbortedRanges(reader.aborted("orders", 0, 0, stable))
    kept = [committed_batches(data, ranges) for data in everything]
    committed = list(reader.read("orders", 0, 0, stable, 300))
    expected = sorted(each for each in writer.committed if each[0] < stable)
    assert values(kept, 0, stable) == values(committed, 0, stable) == expected
    assert len(b"".join(everything)) > len(b"".join(kept))


def test_a_merged_index_serves_the_segments_that_are_gone(owner, logs, tmp_path):
    """As compaction leaves it for a moment."""
    writer = Writer(logs.open(owner, **SMALL))
    writer.work(Random(1), 60)
    publish(owner, writer.log)
    paths = sorted((tmp_path / "orders-0").glob("*.txnindex"))
    expected = sorted(each for each in writer.committed if each[0] < writer.log.last_stable_offset)
    paths[0].write_bytes(paths[0].read_bytes() + paths[1].read_bytes())
    reader = LogReader(owner.root)
    assert values(reader.read("orders", 0, 0, 1000), 0, 1000) == expected


@pytest.mark.parametrize("name", ["first", "last"])
@pytest.mark.parametrize("position", [None, 1, 2, 9, 17, 25, 33])
def test_an_index_that_lies_is_not_believed(owner, logs, tmp_path, name, position):
    writer = Writer(logs.open(owner, **SMALL))
    writer.work(Random(1), 60)
    for producer_id in (1, 2, 3):
        writer.send(producer_id)
        writer.end(producer_id, committed=False)
    writer.flush()
    publish(owner, writer.log)
    path = sorted((tmp_path / "orders-0").glob("*.txnindex"))[0 if name == "first" else -1]
    if position is None:
        path.unlink()
    else:
        flip(position)(path)
    expected = sorted(writer.committed)
    reader = LogReader(owner.root)
    try:
        found = values(reader.read("orders", 0, 0, 1000), 0, 1000)
    except CorruptRecord as error:
        assert "Open the log once" in str(error)
        return
    assert (name, position) in (("last", None), ("last", 33)), "what a snapshot covers is checked in full"
    assert position is None or found == expected


@pytest.mark.parametrize("how", ["deleted by request", "lost its index"])
def test_what_is_left_of_the_aborted_transactions_is_read(owner, logs, tmp_path, how):
    """The file of the segment that is left, the snapshot and what the owner knows tell the same."""
    writer = Writer(logs.open(owner, **SMALL))
    writer.send(2, 3)
    while len(writer.log.segments) == 1:
        writer.send(1, 3)
    for producer_id in (2, 1):
        writer.send(producer_id, 1)
        writer.end(producer_id, committed=False)
    writer.flush()
    if how == "deleted by request":  # beyond the marker of the first
        writer.log.advance_log_start_offset(writer.log.log_end_offset - 2)
    else:
        writer.log.advance_log_start_offset(writer.log.segments[1].base_offset)
    assert writer.log.apply_retention(NOW_MS) == [0]
    while len(writer.log.segments) == 1:  # when it rolls, a snapshot is taken
        writer.send(9, transactional=False)
    writer.flush()
    if how == "lost its index":  # made anew from a log that has lost where the first one began
        writer.log.close()
        next((tmp_path / "orders-0").glob("*.txnindex")).unlink()
        writer.log = logs.open(owner, recovery_point=writer.log.recovery_point, **SMALL)
    publish(owner, writer.log)
    start, stable = writer.log.log_start_offset, writer.log.last_stable_offset
    expected = [each for each in sorted(writer.committed) if each[0] >= start]
    assert values(LogReader(owner.root).read("orders", 0, start, stable), start, stable) == expected
    assert len(expected) > 1
