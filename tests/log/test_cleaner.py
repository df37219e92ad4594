"""Compaction of one log: what stays, what goes and when, and what a crash or a fault in the middle of it leaves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.errors import CorruptRecord, OutOfOrderSequence, StorageError
from eventbus.log.batch_iterator import walk
from eventbus.log.cleaner import Cleaning, LastBatch, Stale, carry_out, cleanable, last_batches
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.segment import Segment
from eventbus.log.storage import FileStorage, MemoryStorage, Storage
from eventbus.records import (
    BatchBuilder,
    ControlType,
    EndTransactionMarker,
    build_marker,
    fetched_records,
    iter_batches,
    read_header,
)
from eventbus.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, pack_batch
from eventbus.records.record import encode_record
from eventbus.testing.storage import CrashStorage, FaultyStorage, SimulatedCrash, disk_full, io_error
from eventbus.types import Compression, OffsetAndTimestamp, TopicPartition
from tests.tiers import quick

NOW_MS = 1_700_000_000_000
TABLE = TopicPartition("table", 0)
SMALL = LogConfig(
    segment_bytes=400, index_interval_bytes=100, cleanup_policy=("compact",), delete_retention_ms=1_000
)  # fmt: skip

Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


@pytest.fixture(autouse=True)
def every_batch_is_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that something can happen in between, small as the logs are."""
    monkeypatch.setattr("eventbus.log.cleaner._SLICE_WORK", 1)


@pytest.fixture(autouse=True)
def nothing_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here but on `CrashStorage`, so real flushes would only be slow; a wrong path still fails."""
    monkeypatch.setattr("eventbus.log.storage._fdatasync", os.fstat)
    monkeypatch.setattr("eventbus.log.storage._sync_directory", lambda path, root: os.stat(path, dir_fd=root))


class Table:
    """A compacted log, what was written to it, and what it must hold."""

    def __init__(self, storage: Storage | None = None, config: LogConfig = SMALL) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.config = config
        self.now_ms = NOW_MS
        self.rows: list[Row] = []
        self.horizons: dict[int, int] = {}
        """Until when the tombstone at an offset is kept, since it was first cleaned."""
        self.cleaned_offset = 0
        self.log = self.open()

    def open(self, **how) -> PartitionLog:
        self.log = PartitionLog.open(self.storage, TABLE, self.config, now_ms=self.now_ms, topic_id="t" * 22, **how)
        return self.log

    def put(self, *records: tuple[bytes, bytes | None], codec: Compression = Compression.NONE, **how) -> int:
        """One batch; returns its first offset."""
        builder = BatchBuilder(codec)
        for key, value in records:
            builder.append(key, value, (), self.now_ms)
        batch = builder.build(**how)
        info = self.log.append(batch, read_header(batch), self.now_ms)
        self.rows += [(info.base_offset + index, *record) for index, record in enumerate(records)]
        return info.base_offset

    def fill(self, count: int, *, keys: int = 5, **how) -> None:
        """Batches of one record, the keys in turn."""
        for _ in range(count):
            number = self.log.log_end_offset
            self.put((b"k%d" % (number % keys), b"value %d" % number), **how)
        self.flush()

    def flush(self) -> None:
        """All of it on disk and to be read."""
        work = self.log.begin_sync()
        for file in work.files:
            file.sync()
        for directory in work.directories:
            self.storage.sync_dir(directory)
        self.log.complete_sync(work)

    def roll(self) -> None:
        """Seal what there is, so that it can be cleaned."""
        self.flush()
        self.log._roll(self.now_ms)
        self.flush()

    def cleaning(self, live: dict[int, LastBatch] | None = None, **how) -> Cleaning:
        plan = cleanable(self.log, self.cleaned_offset, self.now_ms)
        return Cleaning(self.storage, self.log, plan, self.now_ms, live or {}, **how)

    def clean(self, live: dict[int, LastBatch] | None = None, **how) -> Cleaning:
        """Compact, and let the model forget what compaction may."""
        cleaning = self.cleaning(live, **how)
        carry_out(cleaning.run(lambda: None))
        self.cleaned_offset = cleaning.end_offset
        self.expect_cleaned(cleaning.end_offset)
        return cleaning

    def expect_cleaned(self, end_offset: int) -> None:
        """The model's compaction, one row at a time."""
        last = {key: offset for offset, key, _ in self.rows if offset < end_offset}
        kept: list[Row] = []
        for offset, key, value in self.rows:
            if offset < end_offset:
                if last[key] != offset or key is None:
                    continue
                if value is None:
                    if self.now_ms >= self.horizons.get(offset, self.now_ms + 1):
                        continue
                    self.horizons.setdefault(offset, self.now_ms + self.config.delete_retention_ms)
            kept.append((offset, key, value))
        self.rows = kept

    def check(self) -> None:
        """Every offset reads what the model holds from there on, and the log is one chain of offsets."""
        log = self.log
        log.check()
        assert committed_rows(log) == [row for row in self.rows if row[0] < log.last_stable_offset]
        for offset in range(log.log_start_offset, log.last_stable_offset):
            data = log.read(offset, 200, max_offset=log.last_stable_offset)
            fetched = fetched_records(data, *TABLE, offset, aborted=log.aborted_in(data, offset))
            found = list(zip(fetched.offsets, fetched.keys, fetched.values, strict=True))
            assert found == [row for row in self.rows if offset <= row[0] < fetched.next_offset], offset
            assert fetched.next_offset > offset


def rows_in(data: bytes, offset: int) -> Iterable[Row]:
    fetched = fetched_records(data, *TABLE, offset)
    return zip(fetched.offsets, fetched.keys, fetched.values, strict=True)


def rows(log: PartitionLog, offset: int) -> list[Row]:
    found: list[Row] = []
    while offset < log.high_watermark:
        data = log.read(offset, 1000, max_offset=log.high_watermark)
        found += rows_in(data, offset)
        offset = fetched_records(data, *TABLE, offset).next_offset
    return found


def batches(log: PartitionLog) -> list:
    """The headers of all batches, those without records too."""
    headers = []
    for segment in log.segments:
        headers += [batch.header for batch in iter_batches(segment.file.pread(0, segment.file.size))]
    return headers


# -- what stays --------------------------------------------------------------------------------------------------------


def test_the_last_record_of_each_key_stays_where_it_was(storage):
    table = Table(storage)
    table.fill(50)
    size = table.log.size_bytes
    table.clean()
    table.check()
    assert table.log.size_bytes < size / 2
    ends = [segment.base_offset for segment in table.log.segments[1:]]
    kept_below = [offset for offset, _, _ in table.rows if offset < ends[-1]]
    assert len(kept_below) == 5, "one for each key"


def test_the_active_segment_is_never_touched():
    table = Table()
    table.fill(12)
    active = table.log.segments[-1]
    content = active.file.pread(0, active.file.size)
    table.clean()
    assert table.log.segments[-1] is active
    assert active.file.pread(0, active.file.size) == content


def test_a_log_of_one_segment_has_nothing_to_clean():
    table = Table()
    table.put((b"k", b"1"), (b"k", b"2"))
    table.flush()
    assert cleanable(table.log, 0, NOW_MS).segments == ()


def test_only_what_is_readable_and_on_disk_is_cleaned(tmp_path):
    table = Table(FileStorage(str(tmp_path)))
    for number in range(30):
        table.put((b"k", b"value %d" % number))
    assert cleanable(table.log, 0, NOW_MS).segments == (), "nothing is flushed"
    table.log.high_watermark = table.log.log_end_offset
    assert cleanable(table.log, 0, NOW_MS).segments == (), "readable, but not on disk"
    table.flush()
    assert cleanable(table.log, 0, NOW_MS).end_offset == table.log.segments[-1].base_offset


def test_batches_keep_their_offsets_and_their_codec():
    table = Table(config=LogConfig(cleanup_policy=("compact",), segment_bytes=2_000))
    for codec in Compression:
        table.put((b"a", b"old" * 9), (codec.name.encode(), b"x" * 40), (b"a", b"new" * 9), codec=codec)
    table.roll()
    before = batches(table.log)
    table.clean()
    table.check()
    after = batches(table.log)
    assert [(b.base_offset, b.last_offset, b.compression) for b in after] == [
        (b.base_offset, b.last_offset, b.compression) for b in before
    ]
    assert [b.records_count for b in after] == [1, 1, 1, 1, 2]


def test_headers_and_timestamps_survive_a_rewrite():
    table = Table()
    builder = BatchBuilder()
    builder.append(b"a", b"1", (), NOW_MS)
    builder.append(b"b", b"2", (("trace", b"x"), ("none", None)), NOW_MS - 7_000_000)
    builder.append(b"c", None, (("why", b"gone"),), NOW_MS + 3)
    batch = builder.build()
    table.log.append(batch, read_header(batch), NOW_MS)
    table.put((b"a", b"3"))
    table.roll()
    for _ in range(2):
        carry_out(table.cleaning().run(lambda: None))
        fetched = fetched_records(table.log.read(0, 1000, max_offset=4), *TABLE, 0)
        assert fetched.offsets == [1, 2, 3]
        assert fetched.timestamps_ms == [NOW_MS - 7_000_000, NOW_MS + 3, NOW_MS]
        assert fetched.headers == [(("trace", b"x"), ("none", None)), (("why", b"gone"),), ()]
        assert batches(table.log)[0].max_timestamp_ms == NOW_MS + 3


def test_log_append_time_stays():
    from eventbus.types import TimestampType

    table = Table(config=LogConfig(cleanup_policy=("compact",), timestamp_type=TimestampType.LOG_APPEND_TIME))
    table.now_ms += 5
    table.put((b"a", b"1"), (b"b", None))
    table.now_ms += 5
    table.put((b"a", b"2"))
    table.roll()
    table.now_ms += 50
    table.clean()
    fetched = fetched_records(table.log.read(0, 1000, max_offset=3), *TABLE, 0)
    assert list(zip(fetched.offsets, fetched.timestamps_ms, strict=True)) == [(1, NOW_MS + 5), (2, NOW_MS + 10)]
    assert fetched.timestamp_type is TimestampType.LOG_APPEND_TIME


def test_what_was_dropped_is_one_batch_without_records():
    table = Table()
    table.fill(60, keys=1)
    table.clean()
    sealed = batches(table.log)[: -len(list(iter_batches(table.log.segments[-1].file.pread(0, 9_999))))]
    assert (sealed[0].records_count, sealed[0].size_bytes) == (0, 61)
    assert len(sealed) == 2, "all that was dropped, and the one that stays"
    assert sealed[0].base_offset == 0
    assert table.log.segments[0].base_offset == 0


def test_records_without_a_key_go():
    """They came before the topic was compacted."""
    table = Table()
    table.put((None, b"1"), (b"a", b"2"), (None, b"3"))
    table.roll()
    table.clean()
    assert rows(table.log, 0) == [(1, b"a", b"2")]


def test_small_segments_become_one_up_to_the_limit():
    table = Table()
    table.fill(300, keys=2)
    many = len(table.log.segments)
    table.clean()
    assert many > 30
    assert len(table.log.segments) == 2
    table.check()
    unique = Table()
    unique.fill(60, keys=1_000)
    sizes = [segment.size_bytes for segment in unique.log.segments]
    unique.clean()
    assert [segment.size_bytes for segment in unique.log.segments] == sizes, "nothing to drop, nothing to merge"
    unique.check()


def test_few_segments_are_merged_at_a_time(monkeypatch):
    monkeypatch.setattr("eventbus.log.cleaner._GROUP_SEGMENTS", 8)
    table = Table()
    table.fill(300, keys=2)
    many = len(table.log.segments)
    table.clean()
    assert many // 8 <= len(table.log.segments) <= many // 8 + 2
    table.check()


def test_large_records_end_a_slice_as_many_small_ones_do(monkeypatch):
    monkeypatch.setattr("eventbus.log.cleaner._SLICE_WORK", 1_000)
    table = Table(config=LogConfig(cleanup_policy=("compact",), segment_bytes=8 << 20, max_message_bytes=8 << 20))
    for number in range(6):
        table.put((b"k%d" % number, bytes(4 << 20)))
    table.roll()
    table.put((b"k0", b"new"))
    table.roll()
    slices = list(table.cleaning().run(lambda: None))
    assert len(slices) >= 12, "each batch is read twice, and each time it ends a slice"


def test_nothing_is_written_where_nothing_changed(tmp_path):
    table = Table(FileStorage(str(tmp_path)))
    table.fill(60, keys=1_000)
    segments = list(table.log.segments)
    announced = []
    carry_out(table.cleaning().run(lambda: announced.append(1)))
    assert table.log.segments == segments
    assert not announced
    assert not [name for name in table.storage.listdir(str(TABLE)) if "cleaned" in name or "swap" in name]


def test_a_second_cleaning_changes_nothing():
    table = Table()
    table.fill(80, keys=7)
    table.clean()
    files = [segment.file.pread(0, segment.file.size) for segment in table.log.segments]
    table.clean()
    assert [segment.file.pread(0, segment.file.size) for segment in table.log.segments] == files


def test_more_keys_than_fit_are_cleaned_in_several_passes():
    table = Table()
    table.fill(200, keys=40)
    ends = []
    while not ends or ends[-1] < table.log.segments[-1].base_offset:
        ends.append(table.clean(max_keys=15).end_offset)
        table.check()
        assert len(set(ends)) == len(ends), "each pass gets further"
    assert len(ends) > 5
    assert len([offset for offset, _, _ in table.rows if offset < ends[-1]]) == 40


def test_long_keys_are_told_apart():
    table = Table(config=LogConfig(cleanup_policy=("compact",)))
    keys = [b"x" * 15, b"x" * 16, b"x" * 17, b"x" * 400 + b"1", b"x" * 400 + b"2", b""]
    for value in (b"old", b"new"):
        table.put(*[(key, value) for key in keys])
    table.roll()
    table.clean()
    assert rows(table.log, 0) == [(6 + number, key, b"new") for number, key in enumerate(keys)]


# -- tombstones --------------------------------------------------------------------------------------------------------


def test_a_tombstone_outlives_what_it_deletes_by_the_retention():
    table = Table()
    table.put((b"a", b"1"))
    table.put((b"a", None), (b"b", b"2"))
    table.roll()
    table.now_ms += 50_000  # the age of the tombstone says nothing: readers may not have met it yet
    table.clean()
    assert rows(table.log, 0) == [(1, b"a", None), (2, b"b", b"2")]
    (header,) = [header for header in batches(table.log) if header.records_count]
    assert header.delete_horizon_ms == table.now_ms + 1_000
    table.now_ms += 999
    table.clean()
    assert rows(table.log, 0) == [(1, b"a", None), (2, b"b", b"2")]
    table.now_ms += 1
    table.clean()
    assert rows(table.log, 0) == [(2, b"b", b"2")]
    table.check()


def test_a_longer_retention_set_later_moves_no_horizon():
    table = Table()
    table.put((b"a", None))
    table.roll()
    table.clean()
    table.log.update_config(LogConfig(cleanup_policy=("compact",), delete_retention_ms=99_999_999))
    table.now_ms += 1_000
    table.clean()
    assert rows(table.log, 0) == []


def test_a_tombstone_beyond_what_one_pass_took_in_gets_no_horizon():
    table = Table()
    table.fill(10, keys=10)
    last = table.put((b"k0", None))
    table.roll()
    table.clean(max_keys=3)
    (header,) = [header for header in batches(table.log) if header.base_offset == last]
    assert header.delete_horizon_ms is None
    table.check()


def test_a_value_after_its_tombstone_stays():
    table = Table()
    table.put((b"a", b"1"))
    table.put((b"a", None))
    table.put((b"a", b"2"))
    table.roll()
    table.clean()
    assert rows(table.log, 0) == [(2, b"a", b"2")]


# -- when --------------------------------------------------------------------------------------------------------------


def test_young_segments_wait():
    table = Table(config=LogConfig(segment_bytes=400, cleanup_policy=("compact",), min_compaction_lag_ms=1_000))
    table.fill(20)
    table.now_ms += 600
    table.fill(20)
    assert cleanable(table.log, 0, NOW_MS + 999).segments == (), "too young"
    young = cleanable(table.log, 0, NOW_MS + 1_000)
    assert 0 < young.end_offset <= 20
    assert cleanable(table.log, 0, NOW_MS + 1_600).end_offset == table.log.segments[-1].base_offset


def test_what_was_cleaned_before_is_not_dirty():
    table = Table()
    table.fill(50)
    plan = cleanable(table.log, 0, NOW_MS)
    assert (plan.clean_bytes, plan.dirty_ratio) == (0, 1.0)
    table.clean()
    plan = cleanable(table.log, table.cleaned_offset, NOW_MS)
    assert (plan.dirty_bytes, plan.dirty_ratio) == (0, 0.0)
    table.fill(10)
    plan = cleanable(table.log, table.cleaned_offset, NOW_MS)
    assert 0 < plan.dirty_ratio < 1
    assert plan.dirty_bytes + plan.clean_bytes == sum(segment.size_bytes for segment in table.log.segments[:-1])


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_a_checkpoint_that_cannot_be_right_is_not_believed(wrong):
    table = Table()
    table.fill(50)
    assert cleanable(table.log, wrong, NOW_MS).dirty_ratio == 1.0


def test_an_old_dirty_record_makes_a_log_overdue():
    table = Table(config=LogConfig(segment_bytes=400, cleanup_policy=("compact",), max_compaction_lag_ms=5_000))
    table.fill(20)
    assert not cleanable(table.log, 0, NOW_MS + 5_000).is_overdue
    assert cleanable(table.log, 0, NOW_MS + 5_001).is_overdue
    assert not cleanable(table.log, table.log.segments[-1].base_offset, NOW_MS + 5_001).is_overdue


# -- beside readers and retention --------------------------------------------------------------------------------------


@pytest.mark.system
def test_reads_between_the_slices_see_the_old_or_the_new(storage):
    table = Table(storage)
    table.fill(400, keys=3)
    cleaning = table.cleaning()
    positions = {0: 0}
    for pause in cleaning.run(lambda: None):
        if pause is not None:
            pause()
        for reader, offset in list(positions.items()):
            if offset < table.log.high_watermark:
                data = table.log.read(offset, 300, max_offset=table.log.high_watermark)
                assert set(rows_in(data, offset)) <= set(table.rows)
                positions[reader] = next(reversed(list(iter_batches(data)))).header.next_offset
        positions[len(positions)] = len(positions) * 13
        table.put((b"k0", b"meanwhile"))
    table.flush()
    table.cleaned_offset = cleaning.end_offset
    table.expect_cleaned(cleaning.end_offset)
    table.check()


def test_a_reader_goes_on_where_it_stood_in_a_segment_that_was_replaced():
    """The log remembers byte positions of readers; they are of the old file."""
    table = Table()
    table.fill(40, keys=2)
    for offset in range(0, 30, 3):
        table.log.read(offset, 150, max_offset=40)
    table.clean()
    table.check()


@pytest.mark.parametrize("change", ["retention", "close", "policy", "poison"])
def test_a_log_that_changes_under_a_cleaning_ends_it(storage, change):
    table = Table(storage)
    table.fill(300, keys=3)
    cleaning = table.cleaning()
    run = cleaning.run(lambda: None)
    next(run)
    log = table.log
    if change == "retention":
        log._delete_segments(2)
    elif change == "close":
        log.close()
    elif change == "policy":
        log.update_config(LogConfig())
    else:
        log.poison("for a test")
    with pytest.raises(Stale):
        list(run)
    if change != "close":
        log.check()
    assert not [name for name in storage.listdir(str(TABLE)) if "cleaned" in name or "swap" in name]


def test_a_cleaning_that_is_dropped_leaves_nothing_behind(storage):
    table = Table(storage)
    table.fill(100, keys=3)
    run = table.cleaning().run(lambda: None)
    for _ in range(8):
        next(run)
    run.close()
    assert not [name for name in storage.listdir(str(TABLE)) if "cleaned" in name or "swap" in name]
    table.check()


@pytest.mark.system
def test_readers_of_other_processes_meanwhile(tmp_path):
    """At every step of a swap, as the directory stands then."""
    table = Table(FileStorage(str(tmp_path)))
    table.fill(200, keys=3)
    storage, end = table.storage, table.log.segments[-1].base_offset
    before = rows(table.log, 0)
    seen = 0

    def look(*_: object) -> None:
        nonlocal seen
        (tmp_path / "last-stable-offset-checkpoint").write_text(f"0\n1\ntable 0 {table.log.high_watermark}\n")
        reader = LogReader(str(tmp_path))
        for start in (0, 1, 57, end - 1, end):
            found = [
                row
                for data in reader.read("table", 0, start, 200, 300)
                for row in rows_in(data, start)
            ]  # fmt: skip
            newest = {key: offset for offset, key, _ in before if offset < end}
            assert {row[0] for row in found} >= {offset for offset in newest.values() if offset >= start}
            assert set(found) <= set(before)
            seen += 1

    class Watched(FileStorage):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            look()

        def remove(self, path: str) -> None:
            super().remove(path)
            look()

    table.log._storage = table.storage = Watched(str(tmp_path))
    look()
    table.clean()
    look()
    assert seen > 100
    table.check()
    storage.unlock()


def test_a_reader_of_another_process_in_the_middle_of_a_segment_that_is_replaced(tmp_path):
    table = Table(FileStorage(str(tmp_path)))
    table.fill(200, keys=3)
    (tmp_path / "last-stable-offset-checkpoint").write_text("0\n1\ntable 0 200\n")
    written = list(table.rows)
    reading = LogReader(str(tmp_path)).read("table", 0, 0, 200, 100)
    found = [*rows_in(next(reading), 0), *rows_in(next(reading), 0)]
    table.clean()
    for data in reading:
        found += rows_in(data, 0)
    assert set(found) <= set(written)
    assert set(table.rows) <= set(found)
    assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})


# -- by time -----------------------------------------------------------------------------------------------------------


def test_search_by_time_finds_what_is_left(storage):
    table = Table(storage)
    for number in range(60):
        table.now_ms = NOW_MS + 10 * number
        table.put((b"k%d" % (number % 4), b"value %d" % number))
    table.flush()
    table.clean()
    times = {offset: NOW_MS + 10 * offset for offset, _, _ in table.rows}
    for moment in range(NOW_MS - 5, NOW_MS + 605, 5):
        expected = next(
            (OffsetAndTimestamp(offset, when) for offset, when in times.items() if when >= moment), None
        )  # fmt: skip
        assert table.log.offset_for_timestamp(moment) == expected, moment
    assert table.log.offset_of_max_timestamp() == OffsetAndTimestamp(59, NOW_MS + 590)


@pytest.mark.parametrize("last", [b"k0", b"k1"])
def test_the_newest_record_is_one_that_is_there(storage, last):
    """The newest of all was replaced by one with an older timestamp; a marker is no record."""
    table = Table(storage)
    table.now_ms = NOW_MS + 9_000
    table.put((b"k0", b"newest"))
    table.now_ms = NOW_MS + 10
    table.put((b"k0", b"older"), (b"k1", b"older"))
    table.put((last, b"as old"))
    table.now_ms = NOW_MS + 99_000
    produce(table, P1, (b"k2", b"never"), sequence=0, transactional=True)
    end(table, P1, committed=False)
    table.roll()
    table.clean()
    table.clean()
    first = min(offset for offset, _, _ in table.rows)
    assert table.log.offset_of_max_timestamp() == OffsetAndTimestamp(first, NOW_MS + 10)
    table.roll()
    table.log.close()
    again = table.open(recovery_point=table.log.log_end_offset)
    assert again.offset_of_max_timestamp() == OffsetAndTimestamp(first, NOW_MS + 10)


# -- faults and crashes ------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("error", [disk_full, io_error], ids=["full", "io"])
def test_a_fault_at_any_call_loses_nothing(error):
    """What a failed cleaning leaves reads as before or as after, at once and after opening it again."""
    finished = False
    number = 0
    while not finished:
        number += 1
        inner = CrashStorage()
        table = Table(FaultyStorage(inner, error=error))
        table.fill(60, keys=3)
        storage = table.storage
        newest = {key: offset for offset, key, _ in table.rows if offset < table.log.segments[-1].base_offset}
        storage.calls_count, storage.fail_at = 0, number
        try:
            carry_out(table.cleaning().run(lambda: None))
            finished = storage.failures_count == 0
        except (OSError, StorageError, CorruptRecord):
            pass
        storage.heal()
        for again in (False, True):
            if again:
                inner.kill()
                table.open(recovery_point=60)
            if again or not table.log.poisoned:
                table.log.check()
                found = rows(table.log, 0)
                assert set(found) <= set(table.rows)
                assert {row[0] for row in found} >= set(newest.values())
    assert number > 12


def crash_table(crash_at: int, seed: int) -> tuple[Table, list[Row], bool]:
    """A table whose machine stops at the n-th call of a cleaning; the storage that is left; whether it got that far."""
    storage = CrashStorage()
    table = Table(storage)
    if seed % 3 == 2:
        for number in range(18):
            produce(table, P1, (b"k%d" % (number % 4), b"value"), sequence=number, transactional=True)
            end(table, P1, committed=number % 3 != 1)
        table.roll()
    table.fill(45, keys=3)
    if seed % 2:
        for _ in range(3):
            table.clean(last_batches(table.log))
            table.now_ms += 1_000
        table.fill(30, keys=4)
    storage.sync_dir("")
    before = list(table.rows)
    storage.crash_at_call = storage.calls_count + crash_at
    try:
        carry_out(table.cleaning().run(lambda: None))
        done = True
    except SimulatedCrash:
        done = False
    storage.stopped = False
    return table, before, done


@pytest.mark.system
@pytest.mark.parametrize("seed", quick(range(12), [5]))  # compacted before, and with transactions
def test_a_crash_at_any_call_leaves_the_old_or_the_new(seed):
    done = False
    crash_at = 0
    while not done:
        crash_at += 1
        table, before, done = crash_table(crash_at, seed)
        storage = table.storage.crash(Random(seed))
        end = table.log.log_end_offset
        table.storage = storage
        log = table.open(recovery_point=end)
        log.check()
        found = committed_rows(log)
        table.expect_cleaned(log.segments[-1].base_offset)
        assert set(table.rows) <= set(found) <= set(before), (crash_at, seed)
        tree = storage.tree()
        assert not [name for name in tree if "cleaned" in name or "swap" in name]
        again = table.open(recovery_point=end)
        assert storage.tree() == tree, "a second recovery changed something"
        assert committed_rows(again) == found
        assert not again.producers.states.has_open
        table.rows = found
        table.cleaned_offset = 0
        table.clean(last_batches(table.log))
        table.check()
    assert crash_at > 15


@pytest.mark.system
def test_each_group_of_segments_is_old_or_new_as_a_whole():
    """Freeze one swap of many segments into one at every call: never some of the old ones beside the new one."""
    for crash_at in range(1, 200):
        for seed in range(8):
            storage = CrashStorage()
            table = Table(storage)
            table.fill(60, keys=2)
            storage.sync_dir("")
            old = table.log.segments[:-1]
            before = [rows_in_segment(segment) for segment in old]
            storage.crash_at_call = storage.calls_count + crash_at
            try:
                carry_out(table.cleaning().run(lambda: None))
                return
            except SimulatedCrash:
                pass
            storage.stopped = False
            table.storage = storage.crash(Random(seed))
            log = table.open(recovery_point=60)
            sealed = [rows_in_segment(segment) for segment in log.segments[:-1]]
            assert sealed in (before, [[row for part in before for row in part][-2:]]), (crash_at, seed)


def rows_in_segment(segment: Segment) -> list[Row]:
    return list(rows_in(segment.file.pread(0, segment.file.size), 0))


def test_a_damaged_swap_is_an_error_and_changes_nothing(tmp_path):
    table = Table(FileStorage(str(tmp_path)))
    table.fill(60, keys=2)
    table.log.close()
    directory = tmp_path / "table-0"
    (directory / f"{0:020d}.swap.log").write_bytes(b"\0" * 100)
    names = sorted(path.name for path in directory.iterdir())
    with pytest.raises(CorruptRecord, match=r"swap\.log"):
        table.open(recovery_point=60)
    assert sorted(path.name for path in directory.iterdir()) == names


@pytest.mark.parametrize("part", ["nothing", "half", "more"])
def test_a_swap_that_does_not_cover_the_segments_it_would_replace_replaces_nothing(tmp_path, part):
    """A file that a user copied there, or that was cut: whole batches, but not the offsets of whole segments."""
    table = Table(FileStorage(str(tmp_path)))
    table.fill(60, keys=2)
    bases = [segment.base_offset for segment in table.log.segments]
    table.log.close()
    directory = tmp_path / "table-0"
    first, second = [(directory / f"{base:020d}.log").read_bytes() for base in bases[:2]]
    size = walk(first, 0, 0, 1, check_crcs=True, gaps=False).position
    content = {"nothing": b"", "half": first[:size], "more": first + second[:size]}[part]
    (directory / f"{0:020d}.swap.log").write_bytes(content)
    with pytest.raises(CorruptRecord, match="are not those of the segments it would replace"):
        table.open(recovery_point=60)
    assert [(directory / f"{base:020d}.log").read_bytes() for base in bases[:2]] == [first, second]


# -- transactions and producers ----------------------------------------------------------------------------------------

P1, P2 = 7, 8


def produce(
    table: Table, producer_id: int, *records, sequence: int, transactional: bool = False, epoch: int = 0
) -> int:
    return table.put(
        *records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )


def end(table: Table, producer_id: int, *, committed: bool, epoch: int = 0) -> int:
    """Write a marker; returns its offset. What was aborted never was, for the model."""
    log = table.log
    first = log.producers.states.producers[producer_id].transaction_start_offset
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    marker = build_marker(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp_ms=table.now_ms
    )
    offset = log.append(marker, read_header(marker), table.now_ms).base_offset
    if not committed:
        gone = {
            number
            for header in batches(log)
            if header.producer_id == producer_id and header.is_transactional and header.base_offset >= first
            for number in range(header.base_offset, header.next_offset)
        }
        table.rows = [row for row in table.rows if row[0] not in gone]
    return offset


def committed_rows(log: PartitionLog) -> list[Row]:
    """What a read-committed reader gets."""
    found: list[Row] = []
    offset = log.log_start_offset
    while offset < log.last_stable_offset:
        data = log.read(offset, 1000, max_offset=log.last_stable_offset)
        fetched = fetched_records(data, *TABLE, offset, aborted=log.aborted_in(data, offset))
        found += zip(fetched.offsets, fetched.keys, fetched.values, strict=True)
        offset = fetched.next_offset
    return found


def test_records_of_an_aborted_transaction_go_and_replace_nothing(storage):
    table = Table(storage)
    table.put((b"a", b"1"))
    produce(table, P1, (b"a", b"never"), (b"b", b"never"), sequence=0, transactional=True)
    end(table, P1, committed=False)
    produce(table, P1, (b"b", b"2"), sequence=2, transactional=True)
    end(table, P1, committed=True)
    table.roll()
    table.clean()
    assert rows(table.log, 0) == committed_rows(table.log) == [(0, b"a", b"1"), (4, b"b", b"2")]
    table.log.check()


def test_a_marker_stays_as_long_as_records_of_its_transaction():
    table = Table()
    produce(table, P1, (b"a", b"1"), (b"b", b"1"), sequence=0, transactional=True)
    marker = end(table, P1, committed=True)
    table.roll()
    for _ in range(3):
        table.now_ms += 100_000
        table.clean()
        (header,) = [header for header in batches(table.log) if header.is_control]
        assert (header.base_offset, header.delete_horizon_ms) == (marker, None)
    table.put((b"a", b"2"), (b"b", b"2"))
    table.roll()
    table.clean()  # the records go; the marker was theirs until now
    assert [header.delete_horizon_ms for header in batches(table.log) if header.is_control] == [None]
    table.clean()
    assert [h.delete_horizon_ms for h in batches(table.log) if h.is_control] == [table.now_ms + 1_000]
    table.now_ms += 1_000
    table.clean()
    assert [header for header in batches(table.log) if header.is_control] == []
    assert rows(table.log, 0) == committed_rows(table.log) == [(3, b"a", b"2"), (4, b"b", b"2")]


def test_a_marker_of_a_later_version_stays_and_decides_nothing():
    table = Table()
    table.put((b"a", b"1"))
    produce(table, P1, (b"a", b"never"), sequence=0, transactional=True)
    unknown = pack_batch(
        encode_record(b"\0\0\0\x09", b"\0\0\0\0\0\0"),
        count=1,
        base_timestamp_ms=NOW_MS,
        max_timestamp_ms=NOW_MS,
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT,
        producer_id=P1,
        producer_epoch=0,
    )
    table.log.append(unknown, read_header(unknown), NOW_MS)
    end(table, P1, committed=False)
    table.roll()
    for _ in range(4):
        table.clean()
        table.now_ms += 1_000
    (left,) = [header for header in batches(table.log) if header.is_control]
    assert (left.base_offset, left.delete_horizon_ms) == (2, None)
    assert committed_rows(table.log) == [(0, b"a", b"1")]


def test_an_abort_marker_goes_with_its_entry_in_the_index(storage):
    """A reader that goes by entries and markers would wait for the end of that transaction for ever."""
    table = Table(storage)
    produce(table, P1, (b"a", b"never"), sequence=0, transactional=True)
    marker = end(table, P1, committed=False)
    table.fill(20)
    table.roll()
    table.clean()
    assert [entry.last_offset for entry in table.log.producers.aborted] == [marker]
    table.clean()
    table.now_ms += 1_000
    table.clean()
    assert not [header for header in batches(table.log) if header.is_control]
    assert len(table.log.producers.aborted) == 0
    assert not [name for name in storage.listdir(str(TABLE)) if name.endswith(".txnindex")]
    table.log.close()
    again = table.open(recovery_point=table.log.log_end_offset)
    assert len(again.producers.aborted) == 0
    assert committed_rows(again) == table.rows


def test_entries_move_with_their_markers_into_a_merged_segment(storage):
    table = Table(storage)
    for number in range(12):
        produce(table, P1, (b"k", b"x" * 60), sequence=number, transactional=True)
        end(table, P1, committed=number % 2 == 0)
    table.roll()
    before = [(entry.first_offset, entry.last_offset) for entry in table.log.producers.aborted]
    table.log.update_config(LogConfig(segment_bytes=4_000, cleanup_policy=("compact",)))
    table.clean()
    assert len(table.log.segments) == 2
    assert [(entry.first_offset, entry.last_offset) for entry in table.log.producers.aborted] == before
    names = {name for name in storage.listdir(str(TABLE)) if name.endswith(".txnindex")}
    assert names <= {f"{segment.base_offset:020d}.txnindex" for segment in table.log.segments}
    table.log.close()
    again = table.open(recovery_point=table.log.log_end_offset)
    found = [(entry.first_offset, entry.last_offset) for entry in again.producers.aborted]
    assert set(found) <= set(before), "an entry is of use only while records of its transaction are there"
    assert committed_rows(again) == table.rows


@pytest.mark.system
def test_a_reader_of_another_process_beside_a_compaction_of_transactions(tmp_path):
    """At every change of a name in the directory it meets no aborted record, and every committed one that counts."""
    table = Table(FileStorage(str(tmp_path)))
    for number in range(20):
        produce(table, P1, (b"k%d" % (number % 3), b"x" * 20), sequence=number, transactional=True)
        end(table, P1, committed=number % 3 != 1)
    table.roll()
    stop = table.log.last_stable_offset
    (tmp_path / "last-stable-offset-checkpoint").write_text(f"0\n1\ntable 0 {stop}\n")
    committed = set(table.rows)
    newest = {offset for offset in {key: offset for offset, key, _ in table.rows}.values()}
    looks = 0

    class Watched(FileStorage):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            look()

        def remove(self, path: str) -> None:
            super().remove(path)
            look()

    def look() -> None:
        nonlocal looks
        looks += 1
        reader = LogReader(str(tmp_path))
        for start in (0, 11):
            found = {row for data in reader.read("table", 0, start, stop) for row in rows_in(data, start)}
            assert found <= committed
            assert {row[0] for row in found} >= {offset for offset in newest if offset >= start}

    look()
    table.log._storage = table.storage = Watched(str(tmp_path))
    table.log.producers._storage = table.storage
    for _ in range(3):
        table.clean(last_batches(table.log))
        table.now_ms += 1_000
        look()
    assert looks > 30
    table.check()


def test_nothing_at_or_beyond_an_open_transaction_is_cleaned():
    table = Table()
    table.fill(20, keys=1)
    first = produce(table, P1, (b"k0", b"open"), sequence=0, transactional=True)
    table.fill(20, keys=1)
    table.roll()
    plan = cleanable(table.log, 0, NOW_MS)
    assert 0 < plan.end_offset <= first
    end(table, P1, committed=True)
    table.roll()
    assert cleanable(table.log, 0, NOW_MS).end_offset == table.log.segments[-1].base_offset


def test_a_transaction_whose_marker_lies_beyond_the_cleaned_part():
    """It is decided; only another one, begun later, keeps the part with its marker from being cleaned."""
    for committed in (True, False):
        table = Table()
        table.put((b"a", b"old"))
        produce(table, P1, (b"a", b"new"), sequence=0, transactional=True)
        table.roll()
        produce(table, P2, (b"z", b"open"), sequence=0, transactional=True)
        end(table, P1, committed=committed)
        table.roll()
        cleaning = table.clean()
        assert cleaning.end_offset == 2
        expected = (1, b"a", b"new") if committed else (0, b"a", b"old")
        assert committed_rows(table.log) == [expected]


def test_an_idempotent_producer_goes_on_after_everything_it_wrote_was_compacted(storage):
    table = Table(storage)
    for number in range(30):
        produce(table, P1, (b"a", b"1"), sequence=number)
    table.put((b"a", b"2"))
    table.roll()
    table.clean(last_batches(table.log))
    assert rows(table.log, 0) == [(30, b"a", b"2")]
    (last,) = [header for header in batches(table.log) if header.producer_id == P1]
    assert (last.records_count, last.base_sequence, last.last_sequence, last.base_offset) == (0, 29, 29, 29)
    for name in [name for name in storage.listdir(str(TABLE)) if name.endswith(".snapshot")]:
        storage.remove(f"{TABLE}/{name}")
    table.open(recovery_point=31)
    duplicate = BatchBuilder()
    duplicate.append(b"a", b"1", (), NOW_MS)
    batch = duplicate.build(producer_id=P1, producer_epoch=0, base_sequence=29)
    assert table.log.append(batch, read_header(batch), NOW_MS)[:2] == (29, 29), "stored before"
    assert produce(table, P1, (b"a", b"3"), sequence=30) == 31
    with pytest.raises(OutOfOrderSequence):
        produce(table, P1, (b"a", b"4"), sequence=32)


def test_of_a_forgotten_producer_nothing_is_kept():
    table = Table()
    produce(table, P1, (b"a", b"1"), sequence=0)
    table.put((b"a", b"2"))
    table.roll()
    table.clean({})
    assert [header.producer_id for header in batches(table.log)] == [-1, -1]


def test_the_last_marker_of_a_live_producer_stays_for_its_epoch():
    table = Table()
    produce(table, P1, (b"a", b"never"), sequence=0, transactional=True)
    marker = end(table, P1, committed=False, epoch=1)
    table.put((b"a", b"1"))
    table.roll()
    for _ in range(4):
        table.clean(last_batches(table.log))
        table.now_ms += 1_000
    (header,) = [header for header in batches(table.log) if header.producer_id == P1]
    assert (header.base_offset, header.is_control, header.records_count, header.producer_epoch) == (marker, True, 0, 1)
    assert committed_rows(table.log) == [(2, b"a", b"1")]
    assert len(table.log.producers.aborted) == 0


def test_a_snapshot_of_what_was_compacted_is_not_gone_back_to(storage):
    """It knows of an open transaction, and its marker is not in the log any more."""
    table = Table(storage)
    produce(table, P1, (b"a", b"never"), sequence=0, transactional=True)
    table.roll()
    end(table, P1, committed=False)
    table.put((b"a", b"1"))
    table.roll()
    table.put((b"a", b"2"))
    table.roll()
    for _ in range(3):
        table.clean({})
        table.now_ms += 1_000
    assert not [header for header in batches(table.log) if header.is_control]
    names = sorted(name for name in storage.listdir(str(TABLE)) if name.endswith(".snapshot"))
    storage.remove(f"{TABLE}/{names[-1]}")  # as if a crash had taken it
    again = table.open(recovery_point=table.log.log_end_offset)
    assert not again.producers.states.has_open
    assert again.last_stable_offset == again.log_end_offset


# -- the model ---------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"a long key, of which a digest is remembered", b""])
VALUES = st.one_of(st.none(), st.binary(max_size=30))
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), RECORDS, st.sampled_from(Compression)),
        st.tuples(st.just("produce"), st.sampled_from([P1, P2]), RECORDS),
        st.tuples(st.just("send"), st.sampled_from([P1, P2]), RECORDS),
        st.tuples(st.just("end"), st.sampled_from([P1, P2]), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("clean"), st.sampled_from([1, 3, 1_000])),
        st.tuples(st.just("wait"), st.integers(1, 1_500)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("forget")),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.system
@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_any_history_reads_as_the_model(steps):
    table = Table()
    sequences = {P1: 0, P2: 0}
    for step in steps:
        producers = table.log.producers.states.producers
        match step:
            case ("produce" | "send", producer_id, records):
                transactional = step[0] == "send"
                known = producers.get(producer_id)
                if transactional or known is None or not known.in_transaction:
                    sequence = sequences[producer_id]
                    produce(table, producer_id, *records, sequence=sequence, transactional=transactional)
                    sequences[producer_id] += len(records)
            case ("end", producer_id, committed):
                if producer_id in producers and producers[producer_id].in_transaction:
                    end(table, producer_id, committed=committed)
            case ("put", records, codec):
                table.put(*records, codec=codec)
            case ("roll",):
                if table.log.segments and table.log.segments[-1].file.size:
                    table.roll()
            case ("clean", max_keys):
                table.flush()
                if cleanable(table.log, table.cleaned_offset, table.now_ms).segments:
                    table.clean(last_batches(table.log), max_keys=max_keys)
            case ("wait", milliseconds):
                table.now_ms += milliseconds
            case ("reopen",):
                table.log.close()
                table.open(recovery_point=table.log.log_end_offset)
            case ("forget",):
                table.cleaned_offset = 0  # the checkpoint is only a cache
    table.flush()
    table.check()
