"""Group commit: what is acknowledged when, what a failed flush does, and when the journal is used."""

from __future__ import annotations

import errno
import itertools

import pytest

from eventbus.errors import ConfigError, LogPoisoned, StorageError
from eventbus.log import commit, journal
from eventbus.log import storage as storage_module
from eventbus.log.commit import GroupCommit
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import FileStorage, MemoryStorage, OutOfDescriptors
from eventbus.records import read_header
from eventbus.testing.storage import CrashStorage, FaultyStorage
from eventbus.types import TopicPartition

NOW_MS = 1_700_000_000_000


class World:
    """Logs on one storage and their group commit."""

    def __init__(self, storage, logs, count: int, mode: str = "commit", **config) -> None:
        self.storage = storage
        self.make = logs
        self.commit = GroupCommit(storage, mode)
        self.logs = [logs.open(storage, TopicPartition("t", number), **config) for number in range(count)]

    def append(self, *numbers: int, value_bytes: int = 20) -> None:
        for number in numbers:
            batch = self.make.batch(value_bytes=value_bytes)
            self.logs[number].append(batch, read_header(batch), NOW_MS)
            self.commit.appended(self.logs[number], batch)

    def append_lazily(self, number: int) -> None:
        batch = self.make.batch()
        self.logs[number].append(batch, read_header(batch), NOW_MS)
        self.commit.appended_lazily(self.logs[number], batch)

    def flush(self) -> list[PartitionLog]:
        flush = self.commit.begin()
        try:
            flush.run()
        except OSError as error:
            return self.commit.complete(flush, error)
        return self.commit.complete(flush)

    def settle(self) -> None:
        """The first flush of each log names its files; after it the journal may be used."""
        self.append(*range(len(self.logs)))
        self.flush()

    @property
    def high_watermarks(self) -> list[int]:
        return [log.high_watermark for log in self.logs]

    @property
    def recovery_points(self) -> list[int]:
        return [log.recovery_point for log in self.logs]


@pytest.fixture
def disk() -> CrashStorage:
    return CrashStorage()


# -- when a record counts ----------------------------------------------------------------------------------------------


def test_readers_see_a_record_once_it_is_on_disk(disk, logs):
    world = World(disk, logs, 1)
    assert not world.commit.needs_sync
    world.append(0)
    assert (world.high_watermarks, world.commit.needs_sync) == ([0], True)
    flush = world.commit.begin()
    assert not world.commit.needs_sync, "one flush at a time"
    flush.run()
    assert world.high_watermarks == [0]
    assert world.commit.complete(flush) == world.logs
    assert (world.high_watermarks, world.recovery_points) == ([1], [1])
    assert world.logs[0].last_stable_offset == 1
    assert not world.commit.needs_sync


def test_what_arrives_during_a_flush_waits_for_the_next(disk, logs):
    world = World(disk, logs, 1)
    world.append(0)
    flush = world.commit.begin()
    world.append(0, 0)
    flush.run()
    world.append(0)
    world.commit.complete(flush)
    assert (world.high_watermarks, world.commit.needs_sync) == ([1], True)
    world.flush()
    assert world.high_watermarks == [4]


def test_many_appends_share_one_flush(disk, logs):
    world = World(disk, logs, 1)
    world.settle()
    world.append(*[0] * 50)
    syncs = disk.syncs_count
    world.flush()
    assert disk.syncs_count == syncs + 1


@pytest.mark.parametrize("count", [1, 3])
def test_what_nobody_waits_for_asks_for_no_flush_and_is_taken_along(disk, logs, count):
    world = World(disk, logs, count)
    world.settle()
    world.append_lazily(0)
    assert not world.commit.needs_sync
    world.append(*range(1, count), 0)
    assert world.commit.needs_sync
    world.append_lazily(0)
    assert world.commit.needs_sync, "what is waited for before it is not forgotten"
    world.flush()
    assert world.high_watermarks == [4, *[2] * (count - 1)]
    assert not world.commit.needs_sync
    world.append_lazily(0)
    world.commit.close()
    assert world.recovery_points[0] == 5


def test_what_a_failed_flush_did_not_reach_is_waited_for_again(logs):
    storage = FaultyStorage(CrashStorage(), only=("sync",))
    world = World(storage, logs, 2)
    world.append(0, 1)
    flush = world.commit.begin()
    world.append_lazily(1)
    assert not world.commit.needs_sync
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(OSError, match="Input/output error") as failed:
        flush.run()
    world.commit.complete(flush, failed.value)
    assert world.logs[0].poisoned
    assert world.commit.needs_sync
    world.flush()
    assert world.high_watermarks == [0, 2]


@pytest.mark.parametrize("mode", ["interval", "os"])
def test_weaker_modes_do_not_wait(disk, logs, mode):
    world = World(disk, logs, 1, mode)
    world.append(0)
    assert world.high_watermarks == [1]
    assert world.recovery_points == [0]
    assert world.commit.needs_sync is (mode == "interval")


def test_interval_mode_is_flushed_in_the_background(disk, logs):
    world = World(disk, logs, 4, "interval")
    world.settle()
    world.append(*range(4))
    world.flush()
    assert world.recovery_points == [2] * 4
    assert not disk.exists(journal.JOURNAL), "nobody waits, so no byte is written twice"


def test_interval_mode_flushes_what_follows_on_what_nobody_waits_for(disk, logs):
    world = World(disk, logs, 1, "interval")
    world.settle()
    world.append_lazily(0)
    assert not world.commit.needs_sync
    world.append(0)
    assert world.commit.needs_sync
    world.flush()
    assert world.recovery_points == [3]


def test_os_mode_flushes_what_is_sealed_so_that_restarts_stay_short(disk, logs):
    world = World(disk, logs, 1, "os", segment_bytes=250)
    world.append(0, 0)
    assert not world.commit.needs_sync
    world.append(0)
    assert world.commit.needs_sync
    world.flush()
    assert world.recovery_points == [3]


def test_memory_never_waits(logs):
    world = World(MemoryStorage(), logs, 5)
    world.append(*range(5))
    assert (world.high_watermarks, world.commit.needs_sync) == ([1] * 5, False)


def test_an_unknown_mode_is_refused_by_name(disk):
    with pytest.raises(ConfigError, match="fsync='always' is unknown; choose one of commit, interval, os"):
        GroupCommit(disk, "always")


# -- what is flushed ---------------------------------------------------------------------------------------------------


def test_sealed_segments_and_new_names_are_flushed_before_the_ack(disk, logs):
    world = World(disk, logs, 1, segment_bytes=330)
    world.settle()
    world.append(0, 0, 0)
    flush = world.commit.begin()
    [work] = flush.direct
    *files, snapshot = work.files
    assert [file.size for file in files] == [segment.size_bytes for segment in world.logs[0].segments]
    assert snapshot in work.caches, "the producers at the roll"
    assert work.directories == ("t-0",)
    flush.run()
    world.commit.complete(flush)
    world.append(0)
    flush = world.commit.begin()
    assert (len(flush.direct[0].files), flush.direct[0].directories) == (1, ())
    flush.run()
    world.commit.complete(flush)


def test_a_log_deleted_during_its_flush_is_left_out(tmp_path, logs):
    world = World(FileStorage(str(tmp_path)), logs, 2)
    world.append(0, 1)
    flush = world.commit.begin()
    world.logs[0].delete()
    flush.run()
    assert world.commit.complete(flush) == [world.logs[1]]
    world.append(1)
    world.flush()
    assert world.high_watermarks[1] == 2


def test_a_log_deleted_before_its_flush_is_left_out(disk, logs):
    world = World(disk, logs, 2)
    world.append(0, 1)
    world.logs[0].delete()
    assert world.flush() == [world.logs[1]]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_flush_is_final(disk, logs):
    storage = FaultyStorage(disk, only=("sync",))
    world = World(storage, logs, 1)
    world.settle()
    world.append(0)
    storage.fail_at = storage.calls_count + 1
    assert world.flush() == []
    assert world.high_watermarks == [1]
    with pytest.raises(LogPoisoned, match=r"t-0 takes no more writes: its flush to disk failed .*open it again"):
        world.append(0)
    assert not world.commit.needs_sync, "never retried"
    syncs = disk.syncs_count
    world.commit.close()
    world.logs[0].close()
    assert disk.syncs_count == syncs
    assert world.logs[0].read(0, 100, max_offset=1), "what was durable is still read"


def test_a_failed_flush_of_one_log_is_not_that_of_others(disk, logs, monkeypatch):
    monkeypatch.setattr(commit, "JOURNAL_FROM_FILES", 99)
    storage = FaultyStorage(disk, only=("sync",))
    world = World(storage, logs, 2)
    world.settle()
    world.append(0, 1)
    storage.fail_at = storage.calls_count + 1
    assert world.flush() == []
    assert [bool(log.poisoned) for log in world.logs] == [True, False]
    assert world.commit.needs_sync
    assert world.flush() == [world.logs[1]]
    assert world.high_watermarks == [1, 2]


def test_a_failed_flush_of_a_directory_counts(disk, logs):
    storage = FaultyStorage(disk, only=("sync_dir",), fail_at=1)
    world = World(storage, logs, 1)
    world.append(0)
    assert world.flush() == []
    assert world.logs[0].poisoned


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 2, 100])
def test_want_of_descriptors_is_not_a_failed_flush(tmp_path, logs, monkeypatch, count):
    """The flush of many files opens each for itself; one that cannot be opened was not tried."""
    monkeypatch.setattr(commit, "_HOLD_FILES", 0)
    monkeypatch.setattr(commit, "JOURNAL_FROM_FILES", 2 if count == 2 else 1000)
    world = World(FileStorage(str(tmp_path)), logs, count)
    world.append(*range(count))
    original, calls = storage_module.os.open, itertools.count()

    def refuse(path, *arguments, **keywords):
        if next(calls) >= count // 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return original(path, *arguments, **keywords)

    monkeypatch.setattr(storage_module.os, "open", refuse)
    flush = world.commit.begin()
    with pytest.raises(OutOfDescriptors) as refused:
        flush.run()
    monkeypatch.undo()
    done = world.commit.complete(flush, refused.value)
    assert len(done) < count
    assert not any(log.poisoned for log in world.logs)
    assert world.commit.needs_sync
    world.flush()
    assert world.high_watermarks == [1] * count


def test_closing_flushes_what_is_left(disk, logs):
    world = World(disk, logs, 4)
    world.settle()
    world.append(0, 1, 2)
    world.flush()
    world.append(3)
    world.commit.close()
    assert world.recovery_points == [2] * 4
    assert disk.open(journal.JOURNAL).size == 0


def test_closing_says_what_it_could_not_flush(disk, logs):
    storage = FaultyStorage(disk, only=("sync",))
    world = World(storage, logs, 1)
    world.settle()
    world.append(0)
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(StorageError, match="the last flush of crash-storage"):
        world.commit.close()
    assert world.logs[0].poisoned


# -- the journal -------------------------------------------------------------------------------------------------------


def test_many_small_files_are_one_flush(disk, logs):
    world = World(disk, logs, 20)
    world.settle()
    world.append(*range(20), 3, 3)
    syncs = disk.syncs_count
    assert world.flush() == world.logs
    assert disk.syncs_count == syncs + 2, "the journal, and once its name"
    assert world.high_watermarks == [2, 2, 2, 4] + [2] * 16
    world.append(*range(20))
    syncs = disk.syncs_count
    world.flush()
    assert disk.syncs_count == syncs + 1
    assert world.recovery_points == [1] * 20, "not yet in their own files"
    assert [log.high_watermark for log in world.logs] == [log.log_end_offset for log in world.logs]


def test_few_files_are_flushed_themselves(disk, logs):
    world = World(disk, logs, commit.JOURNAL_FROM_FILES - 1)
    world.settle()
    world.append(*range(len(world.logs)))
    world.flush()
    assert not disk.exists(journal.JOURNAL)


def test_large_batches_are_not_written_twice(disk, logs):
    world = World(disk, logs, 4)
    world.settle()
    world.append(0, 1, 2, 3, value_bytes=commit.JOURNAL_MEAN_BYTES)
    world.flush()
    assert not disk.exists(journal.JOURNAL)
    assert world.recovery_points == [2] * 4


def test_new_files_are_flushed_themselves_others_journaled(disk, logs):
    world = World(disk, logs, 6)
    world.append(0, 1, 2, 3)
    world.flush()
    world.append(0, 1, 2, 3, 4, 5)
    flush = world.commit.begin()
    assert [entry.log for entry in flush.journaled] == world.logs[:4]
    assert [work.log for work in flush.direct] == world.logs[4:]
    flush.run()
    world.commit.complete(flush)
    assert world.recovery_points == [1, 1, 1, 1, 1, 1]
    assert world.high_watermarks == [2, 2, 2, 2, 1, 1]


def test_the_journal_is_emptied_when_it_has_grown(disk, logs, monkeypatch):
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 2000)
    world = World(disk, logs, 4)
    world.settle()
    sizes = []
    for _ in range(30):
        world.append(*range(4))
        world.flush()
        sizes.append(disk.open(journal.JOURNAL).size)
    assert max(sizes) < 3000
    assert sizes.count(0) >= 3
    assert world.high_watermarks == [31] * 4
    assert min(world.recovery_points) > 20


def test_a_checkpoint_covers_logs_that_have_nothing_new(disk, logs, monkeypatch):
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 1)
    world = World(disk, logs, 4)
    world.settle()
    world.append(0, 1, 2, 3)
    world.flush()
    assert world.recovery_points == [1] * 4
    world.append(0)
    world.flush()
    assert world.recovery_points == [3, 2, 2, 2]
    assert disk.open(journal.JOURNAL).size == 0


def test_deleted_logs_do_not_stay_with_the_journal(disk, logs, monkeypatch):
    world = World(disk, logs, 4)
    world.settle()
    world.append(0, 1, 2, 3)
    world.flush()
    world.logs[3].delete()
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 1)
    world.append(0)
    world.flush()
    assert not world.commit._journaled
    assert disk.open(journal.JOURNAL).size == 0


def test_a_flush_of_its_own_takes_a_log_out_of_the_journal(disk, logs):
    world = World(disk, logs, 4)
    world.settle()
    world.append(0, 1, 2, 3)
    world.flush()
    world.append(1)
    world.flush()
    assert world.recovery_points == [1, 3, 1, 1]


def test_a_full_disk_for_the_journal_is_no_failure(disk, logs):
    storage = FaultyStorage(disk, only=("append",))
    world = World(storage, logs, 4)
    world.settle()
    world.append(0, 1, 2, 3)
    storage.fail_at = storage.calls_count + 1
    assert world.flush() == world.logs
    assert world.high_watermarks == [2] * 4
    assert disk.open(journal.JOURNAL).size == 0
    world.append(0, 1, 2, 3)
    assert world.flush() == world.logs
    assert disk.open(journal.JOURNAL).size > 0


def test_a_failed_flush_of_the_journal_poisons_what_is_in_it(disk, logs):
    storage = FaultyStorage(disk, only=("sync",))
    world = World(storage, logs, 5)
    world.settle()
    world.append(1, 2, 3, 4)
    world.flush()
    world.append(0, 1, 2)
    storage.fail_at = storage.calls_count + 1
    assert world.flush() == []
    assert [bool(log.poisoned) for log in world.logs] == [True] * 5
    fresh = logs.open(storage, TopicPartition("fresh", 0))
    batch = logs.batch()
    fresh.append(batch, read_header(batch), NOW_MS)
    world.commit.appended(fresh, batch)
    assert world.flush() == [fresh], "other logs go on, without the journal"


def test_a_journal_that_was_not_replayed_is_not_overwritten(disk, logs):
    world = World(disk, logs, 3)
    world.settle()
    world.append(0, 1, 2)
    world.flush()
    again = World(disk, logs, 3)
    again.append(0, 1, 2)
    again.flush()
    again.append(0, 1, 2)
    with pytest.raises(AssertionError, match="was not replayed"):
        again.flush()
    journal.replay(disk)
    logs.opened.clear()


@pytest.mark.system
def test_more_logs_than_descriptors(tmp_path, logs):
    storage = FileStorage(str(tmp_path), max_open_files=8)
    world = World(storage, logs, 100)
    for _ in range(3):
        world.append(*range(100))
        world.flush()
    world.commit.close()
    assert world.recovery_points == [3] * 100
    for log in world.logs:
        log.close()


def test_a_flush_of_more_files_than_descriptors_ends(tmp_path, logs, few_descriptors):
    """Each of the new partitions has two files, and its directory has to be flushed too."""
    world = World(FileStorage(str(tmp_path)), logs, 30)
    few_descriptors(tmp_path, 20)
    for _ in range(2):
        world.append(*range(30))
        flush = world.commit.begin()
        try:
            flush.run()
        except OutOfDescriptors as error:
            world.commit.complete(flush, error)  # the cached ones are closed: now there is room
            world.flush()
        else:
            world.commit.complete(flush)
    assert world.high_watermarks == [2] * 30
    assert not any(log.poisoned for log in world.logs)
    for log in world.logs:
        log.close()
