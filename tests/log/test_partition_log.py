"""One partition's log, on both storages: append, read, roll, retain, search by time, close and open again."""

from __future__ import annotations

import contextlib
import errno
import struct
from random import Random

import pytest

from eventbus.errors import CorruptRecord, LogPoisoned, OffsetOutOfRange, StorageError, StorageFull
from eventbus.log import storage as storage_module
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.records import BatchBuilder, iter_batches, read_header
from eventbus.records.batch import write_crc
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full, io_error
from eventbus.types import OffsetAndTimestamp, TimestampType, TopicPartition

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
EVERYTHING = 1 << 62


def offsets(data: bytes) -> list[int]:
    return [batch.header.base_offset for batch in iter_batches(data)]


# -- append and read ---------------------------------------------------------------------------------------------------


def test_offsets_are_given_out_in_order(storage, logs):
    log = logs.open(storage)
    assert logs.append(log, 3) == AppendInfo(0, 2, -1)
    assert logs.append(log) == AppendInfo(3, 3, -1)
    assert log.log_end_offset == 4
    header = read_header(log.read(3, 1000, max_offset=4))
    assert (header.base_offset, header.partition_leader_epoch) == (3, 0)


def test_nothing_is_on_disk_before_the_first_append(storage, logs):
    log = logs.open(storage)
    assert storage.listdir("") in ([], [".lock"])
    assert (log.log_end_offset, log.size_bytes, log.segments) == (0, 0, [])
    assert log.read(0, 100, max_offset=0) == b""
    assert log.apply_retention(NOW_MS) == []
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None
    log.close()
    assert storage.listdir("") in ([], [".lock"])


def test_files_and_names_are_those_of_kafka(storage, logs):
    log = logs.open(storage, segment_bytes=250, index_interval_bytes=1, topic_id="abcdefghijklmnopqrstuv")
    logs.fill(log, 5, value_bytes=30)
    log.close()
    names = storage.listdir("orders-0")
    stem = "00000000000000000000"
    assert {f"{stem}.log", f"{stem}.index", f"{stem}.timeindex", "leader-epoch-checkpoint"} < {*names}
    assert f"{2:020d}.log" in names
    metadata = storage.open("orders-0/partition.metadata")
    assert metadata.pread(0, 100) == b"version: 0\ntopic_id: abcdefghijklmnopqrstuv"
    epochs = storage.open("orders-0/leader-epoch-checkpoint")
    assert epochs.pread(0, 100) == b"0\n1\n0 0\n"


def test_index_entries_are_those_of_kafka(storage, logs):
    log = logs.open(storage, index_interval_bytes=150)
    for number in range(6):
        logs.append(log, 2, timestamp_ms=NOW_MS + 10 * number)
    size = log.segments[0].size_bytes // 6
    log.close()
    index = storage.open("orders-0/00000000000000000000.index")
    entries = list(struct.iter_unpack(">II", index.pread(0, 100)))
    # One entry when more than 150 bytes lie behind the last: the batch's last offset, and where the batch starts.
    assert entries == [(5, 2 * size), (9, 4 * size)]
    times = storage.open("orders-0/00000000000000000000.timeindex")
    entries = list(struct.iter_unpack(">qI", times.pread(0, 100)))
    assert entries == [(NOW_MS + 21, 5), (NOW_MS + 41, 9), (NOW_MS + 51, 11)]


def test_a_read_starts_with_the_batch_that_contains_the_offset(storage, logs):
    log = logs.open(storage)
    for count in (3, 1, 4):
        logs.append(log, count)
    log.high_watermark = 8
    for offset, first in ((0, 0), (1, 0), (2, 0), (3, 3), (4, 4), (7, 4)):
        assert offsets(log.read(offset, 10_000, max_offset=8))[0] == first
    assert offsets(log.read(0, 10_000, max_offset=8)) == [0, 3, 4]


def test_a_read_ends_before_the_bound(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 5)
    assert offsets(log.read(0, 10_000, max_offset=3)) == [0, 1, 2]
    assert log.read(3, 10_000, max_offset=3) == b""
    assert log.read(5, 10_000, max_offset=5) == b""


def test_a_read_returns_whole_batches_and_at_least_one(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 5)
    size = log.size_bytes // 5
    assert offsets(log.read(1, 2 * size + 10, max_offset=5)) == [1, 2]
    assert offsets(log.read(1, 2 * size, max_offset=5)) == [1, 2]
    assert offsets(log.read(1, 10, max_offset=5)) == [1]
    assert offsets(log.read(1, 0, max_offset=5)) == [1]
    assert log.read(1, 10, max_offset=5, min_one_batch=False) == b""
    assert log.read(1, size - 1, max_offset=5, min_one_batch=False) == b""


def test_a_read_outside_the_log_says_what_there_is(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 5)
    log.advance_log_start_offset(2)
    for offset in (-1, 1, 6):
        with pytest.raises(OffsetOutOfRange, match=f"orders-0 holds offsets 2 to 5, not {offset}"):
            log.read(offset, 100, max_offset=5)


@pytest.mark.parametrize("seed", range(30))
def test_any_read_equals_a_list_of_batches(storage, logs, seed):
    """Against the dumbest model: segments, indexes, remembered positions and byte limits must not show."""
    random = Random(seed)
    log = logs.open(
        storage, segment_bytes=random.choice((300, 1000, 5000)), index_interval_bytes=random.choice((1, 300))
    )
    model: list[bytes] = []
    for _ in range(random.randint(1, 60)):
        batch = logs.batch(random.randint(1, 4), value_bytes=random.randint(1, 150))
        log.append(batch, read_header(batch), NOW_MS)
        model.append(bytes(batch))
        if random.random() < 0.4:
            check_read(log, model, random)
    for _ in range(40):
        check_read(log, model, random)


def check_read(log: PartitionLog, model: list[bytes], random: Random) -> None:
    offset = random.randint(0, log.log_end_offset)
    max_bytes = random.choice((0, 200, 1000, 1 << 20))
    bound = random.choice((log.log_end_offset, random.choice(model), random.choice(model)))
    max_offset = read_header(bound).base_offset if isinstance(bound, bytes) else bound
    got = log.read(offset, max_bytes, max_offset=max_offset)
    want = [batch for batch in model if read_header(batch).next_offset > offset]
    want = [batch for batch in want if read_header(batch).base_offset < max_offset] if offset < max_offset else []
    assert b"".join(want).startswith(got)
    assert bool(got) == bool(want)
    if want:
        assert got.startswith(want[0])
        assert len(got) <= max(max_bytes, len(want[0]))


def test_log_append_time_is_stamped(storage, logs):
    log = logs.open(storage, timestamp_type=TimestampType.LOG_APPEND_TIME)
    info = logs.append(log, 2, timestamp_ms=5)
    assert info == AppendInfo(0, 1, NOW_MS)
    header = read_header(log.read(0, 1000, max_offset=2))
    assert (header.timestamp_type, header.max_timestamp_ms) == (TimestampType.LOG_APPEND_TIME, NOW_MS)
    assert log.offset_for_timestamp(NOW_MS) == OffsetAndTimestamp(0, NOW_MS)
    log.update_config(LogConfig())
    assert logs.append(log, timestamp_ms=5).timestamp_ms == -1


# -- rolling -----------------------------------------------------------------------------------------------------------


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_segment_ends_at_its_size(storage, logs):
    log = logs.open(storage, segment_bytes=1000)
    size = len(logs.batch())
    logs.fill(log, 25)
    assert all(segment.size_bytes <= 1000 < segment.size_bytes + size for segment in log.segments[:-1])
    assert bases(log) == list(range(0, 25, 1000 // size))


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(storage, logs):
    log = logs.open(storage, segment_bytes=200)
    for value_bytes in (20, 500, 500, 20):
        logs.append(log, value_bytes=value_bytes)
    assert bases(log) == [0, 1, 2, 3]


def test_a_segment_ends_when_its_records_span_segment_ms(storage, logs):
    log = logs.open(storage, segment_ms=1000)
    for timestamp_ms in (5000, 6000, 5500, 6001, 9000, 10_001):
        logs.append(log, timestamp_ms=timestamp_ms)
    assert bases(log) == [0, 3, 4, 5]


def test_records_without_a_time_count_by_the_clock(storage, logs):
    log = logs.open(storage, segment_ms=1000)
    for now_ms in (NOW_MS, NOW_MS + 1000, NOW_MS + 1001, NOW_MS + 1500):
        builder = BatchBuilder()
        builder.append(None, b"v", (), -1)
        batch = builder.build()
        assert read_header(batch).max_timestamp_ms == -1
        log.append(batch, read_header(batch), now_ms)
    assert bases(log) == [0, 2]


def test_a_segment_ends_when_its_index_is_full(storage, logs):
    log = logs.open(storage, index_interval_bytes=1, segment_index_bytes=60)
    logs.fill(log, 20)
    assert bases(log) == [0, 6, 12, 18]


def test_a_segment_ends_before_its_offsets_outgrow_the_index(storage, logs):
    """Compressed to almost nothing, a gigabyte can hold more records than an index entry can count."""
    log = logs.open(storage, index_interval_bytes=1)
    for _ in range(6):
        batch = logs.batch()
        struct.pack_into(">i", batch, 23, (1 << 31) - 2)
        write_crc(batch)
        log.append(batch, read_header(batch), NOW_MS)
    assert bases(log) == [0, 2 * ((1 << 31) - 1), 4 * ((1 << 31) - 1)]
    log.high_watermark = log.log_end_offset
    for base_offset in range(0, log.log_end_offset, (1 << 31) - 1):
        assert read_header(log.read(base_offset + 5, 1, max_offset=EVERYTHING)).base_offset == base_offset
    log.close()


def test_rolling_goes_on_after_a_restart(directory, logs):
    log = logs.open(directory(), segment_ms=1000, segment_bytes=1000)
    logs.append(log, timestamp_ms=5000)
    log.close()
    log = logs.open(directory(), segment_ms=1000, recovery_point=1)
    logs.append(log, timestamp_ms=6000)
    logs.append(log, timestamp_ms=6001)
    assert bases(log) == [0, 2]


def test_other_configs_count_from_the_next_append(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 5)
    log.update_config(LogConfig(segment_bytes=120))
    logs.fill(log, 2)
    assert bases(log) == [0, 5, 6]


def test_a_reader_at_the_end_of_a_segment_goes_on_in_the_next(storage, logs):
    log = logs.open(storage, segment_bytes=250)
    logs.fill(log, 2)
    assert offsets(log.read(0, 1000, max_offset=2)) == [0, 1]  # remembers where offset 2 would be
    logs.fill(log, 1)
    assert bases(log) == [0, 2]
    assert offsets(log.read(2, 1000, max_offset=3)) == [2]


# -- retention ---------------------------------------------------------------------------------------------------------


def test_segments_older_than_retention_ms_go(storage, logs):
    log = logs.open(storage, segment_bytes=120, retention_ms=DAY_MS, timestamp_after_max_ms=5 * DAY_MS)
    for day in range(5):
        logs.fill(log, 1, timestamp_ms=NOW_MS + day * DAY_MS)
    assert log.next_deadline_ms() == NOW_MS + DAY_MS + 1
    assert log.apply_retention(NOW_MS + DAY_MS) == []
    assert log.apply_retention(NOW_MS + DAY_MS + 1) == [0]
    assert log.apply_retention(NOW_MS + 3 * DAY_MS + 1) == [1, 2]
    assert (log.log_start_offset, bases(log)) == (3, [3, 4])
    assert [name for name in storage.listdir("orders-0") if name.startswith("0") and "snapshot" not in name] == [
        f"{base:020d}{suffix}"
        for base in (3, 4)
        for suffix in ((".index", ".log", ".timeindex") if base == 3 else (".log",))
    ]


def test_the_active_segment_goes_only_when_it_is_old_itself_and_no_offset_comes_twice(storage, logs):
    log = logs.open(storage, retention_ms=DAY_MS)
    logs.fill(log, 3)
    assert log.apply_retention(NOW_MS + DAY_MS) == []
    assert log.apply_retention(NOW_MS + DAY_MS + 1) == [0]
    assert (log.log_start_offset, log.log_end_offset, bases(log), log.size_bytes) == (3, 3, [3], 0)
    assert log.apply_retention(NOW_MS + 9 * DAY_MS) == []
    log.close()
    log = logs.open(storage, recovery_point=3, clean_shutdown=True)
    assert logs.append(log).base_offset == 3


def test_the_oldest_segments_go_beyond_retention_bytes(storage, logs):
    log = logs.open(storage, segment_bytes=120, retention_bytes=0)
    size = len(logs.batch())
    logs.fill(log, 5)
    log.update_config(LogConfig(segment_bytes=120, retention_bytes=2 * size + 1))
    assert log.apply_retention(NOW_MS) == [0, 1]
    assert log.size_bytes == 3 * size
    log.update_config(LogConfig(segment_bytes=120, retention_bytes=2 * size))
    assert log.apply_retention(NOW_MS) == [2]
    log.update_config(LogConfig(segment_bytes=120, retention_bytes=0))
    assert log.apply_retention(NOW_MS) == [3], "the active segment stays"


@pytest.mark.parametrize("only", ["remove", "sync_dir"])
def test_a_file_that_cannot_be_removed_leaves_no_hole(storage, logs, only):
    """It goes before those after it do: a start that does not know where the log begins finds one chain."""
    for fail_at in range(1, 8):
        inner = FileStorage(f"{storage.root}/{fail_at}") if isinstance(storage, FileStorage) else MemoryStorage()
        faulty = FaultyStorage(inner, error=io_error, only=(only,))
        log = logs.open(faulty, segment_bytes=120)
        logs.fill(log, 6)
        log.update_config(LogConfig(segment_bytes=120, retention_bytes=3 * len(logs.batch())))
        faulty.fail_at = faulty.calls_count + fail_at
        with contextlib.suppress(StorageError):
            log.apply_retention(NOW_MS)
        faulty.heal()
        log.update_config(LogConfig(segment_bytes=120, retention_bytes=2 * len(logs.batch())))
        assert log.apply_retention(NOW_MS)
        assert log.log_start_offset > 2
        log = logs.open(inner, segment_bytes=120)
        log.check()
        assert log.log_end_offset == 6
        assert offsets(log.read(log.log_start_offset, 1, max_offset=6)) == [log.log_start_offset]


def test_retention_is_off_without_the_delete_policy(storage, logs):
    log = logs.open(storage, segment_bytes=120, retention_ms=1, retention_bytes=1, cleanup_policy=("compact",))
    logs.fill(log, 5)
    assert log.apply_retention(NOW_MS + DAY_MS) == []
    assert log.next_deadline_ms() is None


def test_what_readers_have_not_seen_is_not_deleted(storage, logs):
    log = logs.open(storage, segment_bytes=120, retention_ms=DAY_MS)
    logs.fill(log, 2)
    logs.append(log)
    logs.append(log)
    assert log.high_watermark == 2
    assert log.apply_retention(NOW_MS + 2 * DAY_MS) == [0, 1]


def test_records_deleted_by_request(storage, logs):
    log = logs.open(storage, segment_bytes=250)
    logs.fill(log, 5)
    log.advance_log_start_offset(3)
    assert log.log_start_offset == 3
    log.advance_log_start_offset(1)
    assert log.log_start_offset == 3, "it never goes back"
    assert log.apply_retention(NOW_MS) == [0]
    with pytest.raises(OffsetOutOfRange, match="high watermark is 5"):
        log.advance_log_start_offset(6)
    log.close()
    log = logs.open(storage, log_start_offset=3, recovery_point=5, clean_shutdown=True)
    assert log.log_start_offset == 3


def test_a_segment_that_cannot_be_read_is_kept(storage, logs):
    log = logs.open(storage, segment_bytes=120, retention_ms=DAY_MS)
    logs.fill(log, 3)
    log.close()
    log = PartitionLog.open(
        storage, ORDERS, LogConfig(retention_ms=DAY_MS), now_ms=NOW_MS, recovery_point=3, clean_shutdown=True
    )
    storage.open("orders-0/00000000000000000000.log").pwrite(16, b"\x07")
    for name in storage.listdir("orders-0"):
        if name.endswith("index"):
            storage.remove(f"orders-0/{name}")
    assert log.apply_retention(NOW_MS + 9 * DAY_MS) == []


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True], ids=["running", "reopened"])
@pytest.mark.parametrize("seed", range(8))
def test_search_by_time_equals_a_scan(storage, logs, seed, restart):
    random = Random(seed)
    config = {"segment_bytes": random.choice((300, 2000)), "index_interval_bytes": random.choice((1, 200))}
    log = logs.open(storage, **config)
    model: list[tuple[int, int]] = []
    for _ in range(60):
        count = random.randint(1, 3)
        start = random.randint(0, 100)  # in no order at all
        info = logs.append(log, count, timestamp_ms=start)
        model += [(info.base_offset + index, start + index) for index in range(count)]
    if restart:
        log.close()
        log = logs.open(storage, recovery_point=len(model), clean_shutdown=True, **config)
    for timestamp_ms in range(-1, 106):
        want = next((OffsetAndTimestamp(*entry) for entry in model if entry[1] >= timestamp_ms), None)
        assert log.offset_for_timestamp(timestamp_ms) == want
    largest = max(timestamp_ms for _, timestamp_ms in model)
    assert log.offset_of_max_timestamp() == next(OffsetAndTimestamp(*entry) for entry in model if entry[1] == largest)


def test_search_by_time_starts_at_the_log_start(storage, logs):
    log = logs.open(storage)
    for number in range(5):
        logs.fill(log, 1, timestamp_ms=NOW_MS + number)
    log.advance_log_start_offset(3)
    assert log.offset_for_timestamp(NOW_MS) == OffsetAndTimestamp(3, NOW_MS + 3)


# -- failing writes ----------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_trace_and_heals(tmp_path, logs):
    storage = FaultyStorage(FileStorage(str(tmp_path)), only=("append",), error=disk_full, persistent=True)
    log = logs.open(storage)
    logs.fill(log, 2)
    size = log.size_bytes
    storage.fail_at = storage.calls_count + 1
    for _ in range(2):
        with pytest.raises(StorageFull, match=r"orders-0 .*the disk is full"):
            logs.append(log)
    assert (tmp_path / "orders-0" / "00000000000000000000.log").stat().st_size == size
    assert offsets(log.read(0, 1000, max_offset=2)) == [0, 1], "reading goes on"
    storage.heal()
    assert logs.append(log).base_offset == 2


def test_a_full_disk_at_a_roll_heals_too(tmp_path, logs):
    storage = FaultyStorage(FileStorage(str(tmp_path)), only=("open",), error=disk_full)
    log = logs.open(storage, segment_bytes=120)
    logs.fill(log, 2)
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(StorageFull, match="creating a segment of orders-0"):
        logs.append(log)
    assert logs.append(log).base_offset == 2
    assert bases(log) == [0, 1, 2]


def test_a_write_that_cannot_be_undone_is_the_end(tmp_path, logs):
    storage = FaultyStorage(FileStorage(str(tmp_path)), only=("append", "truncate"), persistent=True)
    log = logs.open(storage)
    logs.fill(log, 2)
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(StorageError, match="Input/output error"):
        logs.append(log)
    storage.heal()
    with pytest.raises(LogPoisoned, match=r"orders-0 takes no more writes: .*could not be undone"):
        logs.append(log)
    assert offsets(log.read(0, 1000, max_offset=2)) == [0, 1]
    log.close()
    log = logs.open(FileStorage(str(tmp_path)))
    assert logs.append(log).base_offset == 2


def test_an_index_that_cannot_be_written_is_no_error(tmp_path, logs):
    inner = FileStorage(str(tmp_path))
    storage = FaultyStorage(inner, only=("open",), error=disk_full, persistent=True)
    log = logs.open(storage, index_interval_bytes=1)
    logs.fill(log, 1)
    storage.fail_at = storage.calls_count + 1
    logs.fill(log, 200)
    assert not (tmp_path / "orders-0" / "00000000000000000000.index").exists()
    storage.heal()
    log.close()
    assert (tmp_path / "orders-0" / "00000000000000000000.index").stat().st_size == 200 * 8


def test_a_failing_read_names_what_was_read(tmp_path, logs):
    storage = FaultyStorage(FileStorage(str(tmp_path)), only=("pread",))
    log = logs.open(storage)
    logs.fill(log, 2)
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(StorageError, match="reading orders-0 at offset 1"):
        log.read(1, 100, max_offset=2)
    assert offsets(log.read(1, 100, max_offset=2)) == [1]


def test_a_closed_log_takes_nothing(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 1)
    log.close()
    log.close()
    with pytest.raises(StorageError, match="orders-0 is closed"):
        logs.append(log)


def test_a_deleted_log_leaves_nothing(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 1)
    log.delete()
    assert storage.listdir("") in ([], [".lock"])
    logs.open(storage).delete()


# -- closing and opening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_what_was_written_is_there_again(directory, logs, clean):
    log = logs.open(directory(), segment_bytes=500)
    logs.fill(log, 20)
    want = log.read(0, 1 << 20, max_offset=20)
    if clean:
        log.close()
    again = logs.open(directory(), segment_bytes=500, recovery_point=20 if clean else 0, clean_shutdown=clean)
    log.closed = True
    assert (again.log_end_offset, again.high_watermark, again.recovery_point) == (20, 20, 20)
    assert again.read(0, 1 << 20, max_offset=20) == want
    assert logs.append(again).base_offset == 20


class CountingStorage(FileStorage):
    """Counts the bytes read."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.bytes_read = 0

    def open(self, path: str, create: bool = False):
        file = super().open(path, create)
        storage = self

        class Counting(type(file)):
            __slots__ = ()

            def pread(self, position: int, length: int) -> bytes:
                data = super().pread(position, length)
                storage.bytes_read += len(data)
                return data

        file.__class__ = Counting
        return file


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_opening_reads_the_tail_however_long_the_log_is(tmp_path, logs, clean):
    """Restart does not grow with the log (G2): sealed segments are not read, of the active one only the end."""
    read: list[int] = []
    for count in (300, 3000):
        root = str(tmp_path / str(count))
        log = logs.open(FileStorage(root), segment_bytes=40_000)
        logs.fill(log, count)
        log.recovery_point = count  # as if flushed
        logs.fill(log, 50)
        if clean:
            log.close()
        log.closed = True
        storage = CountingStorage(root)
        opened = logs.open(
            storage,
            segment_bytes=40_000,
            recovery_point=count + 50 if clean else count,
            clean_shutdown=clean,
        )
        read.append(storage.bytes_read)
        assert opened.log_end_offset == count + 50
    assert read[1] <= 1.3 * read[0] + 5000, read
    assert read[1] < 3 * 40_000  # after a kill twice: for what is whole, and for the producers in it


def test_another_topic_of_the_name_does_not_get_the_old_records(storage, logs):
    log = logs.open(storage, topic_id="a" * 22)
    logs.fill(log, 3)
    log.close()
    log = logs.open(storage, topic_id="b" * 22)
    assert log.log_end_offset == 0
    logs.fill(log, 1)
    [aside] = [name for name in storage.listdir("") if name.endswith("-stray")]
    assert f"{aside}/00000000000000000000.log", "nothing is deleted silently"
    assert storage.exists(f"{aside}/00000000000000000000.log")


def test_a_missing_directory_is_missed(storage, logs):
    with pytest.raises(CorruptRecord, match=r"orders-0 in .* should hold offsets up to 7"):
        logs.open(storage, recovery_point=7)


def test_offsets_go_on_where_records_were_deleted_by_request_and_then_lost(storage, logs):
    """Only without fsync: the log start was published, the tail was not written."""
    log = logs.open(storage)
    logs.fill(log, 3)
    log.close()
    log = logs.open(storage, log_start_offset=5)
    assert logs.append(log).base_offset == 5


def test_left_over_files_are_removed(storage, logs):
    log = logs.open(storage)
    logs.fill(log, 3)
    log.close()
    for name in (
        "00000000000000000007.index",
        "00000000000000000007.timeindex",
        "partition.metadata.tmp",
        "00000000000000000000.log.deleted",
    ):
        storage.open(f"orders-0/{name}", create=True)
    for name in ("notes.txt", "notes.tmp", "7.index"):
        storage.open(f"orders-0/{name}", create=True)
    logs.open(storage, recovery_point=3)
    names = [name for name in storage.listdir("orders-0") if not name.startswith("0" * 20)]
    assert names == [
        "00000000000000000003.snapshot", "7.index", "leader-epoch-checkpoint",
        "notes.tmp", "notes.txt", "partition.metadata",
    ]  # fmt: skip


def test_an_empty_segment_among_others_is_forgotten(storage, logs):
    """A roll on a full disk may leave one behind, and the log went on in the old segment."""
    log = logs.open(storage)
    logs.fill(log, 2)
    storage.open(f"orders-0/{2:020d}.log", create=True)
    logs.fill(log, 2)
    log.closed = True
    for clean in (True, False):
        log = logs.open(storage, recovery_point=4, clean_shutdown=clean)
        assert (log.log_end_offset, bases(log)) == (4, [0])


def test_check_finds_a_broken_invariant(logs):
    storage = MemoryStorage()
    log = logs.open(storage)
    logs.fill(log, 3)
    log.check()
    storage.open("orders-0/00000000000000000000.log").pwrite(70, b"\xff")
    with pytest.raises(AssertionError, match="the CRC does not match"):
        log.check()
    logs.opened.clear()


def test_a_segment_without_index_entries_has_an_index_file_all_the_same(storage, logs):
    """Kafka's dump tool opens it beside the time index, and gives up where it is missing."""
    log = logs.open(storage)
    logs.fill(log, 1)
    log.close()
    assert storage.open("orders-0/00000000000000000000.index").size == 0
    assert logs.open(storage).log_end_offset == 1


def test_an_append_without_a_descriptor_leaves_the_log_as_it_was(tmp_path, logs):
    storage = FileStorage(str(tmp_path))
    log = logs.open(storage)
    logs.append(log)
    storage.close_idle_files()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage_module.os, "open", _no_descriptor)
        with pytest.raises(StorageError, match="Too many open files"):
            logs.append(log)
    assert not log.poisoned
    assert logs.append(log).base_offset == 1


def _no_descriptor(*arguments, **keywords):
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_second_segment_never_outlives_a_first_one_that_no_flush_covered() -> None:
    """Otherwise the log would seem to start there, and its producer's earlier batches would count as out of order."""
    where, config = TopicPartition("a", 0), LogConfig(segment_bytes=300)
    for seed in range(100):
        storage = CrashStorage()
        log = PartitionLog.open(storage, where, config, now_ms=NOW_MS, topic_id="a-topic")
        while len(log.segments) < 2:
            builder = BatchBuilder()
            builder.append(b"k", b"v" * 100, (), NOW_MS)
            batch = builder.build()
            log.append(batch, read_header(batch), NOW_MS)
        found = PartitionLog.open(storage.crash(Random(seed)), where, config, now_ms=NOW_MS, topic_id="a-topic")
        assert found.log_start_offset == 0, f"seed {seed}"
