"""Producers and transactions of a partition over its whole life: what readers see, and what survives what."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from eventbus.errors import CorruptRecord, InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence, StorageFull
from eventbus.log import producers as producers_module
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.producer_state import ProducerStates
from eventbus.log.producers import LogProducers, replay
from eventbus.log.snapshot import IndexedSegment, decode_snapshot, encode_snapshot
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.log.transaction_index import AbortedEntry, TransactionIndex, decode_entries, encode_entries
from eventbus.records import (
    MAX_SEQUENCE,
    BatchBuilder,
    ControlType,
    EndTransactionMarker,
    build_marker,
    fetched_records,
    read_header,
)
from eventbus.records.crc import crc32c
from eventbus.records.single import BatchSpan, build_single
from eventbus.testing.storage import FaultyStorage, disk_full
from eventbus.types import AbortedTransaction, Compression, TimestampType
from tests.tiers import quick

from .conftest import NOW_MS, ORDERS, Logs

SMALL = {"segment_bytes": 600, "index_interval_bytes": 200}


class Writer:
    """Several producers writing to one log, and what a read-committed reader must find of it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[tuple[int, bytes]]] = {}
        self.committed: list[tuple[int, bytes]] = []
        self.everything: list[tuple[int, bytes]] = []

    def send(self, producer_id: int, count: int = 1, *, transactional: bool = True) -> AppendInfo:
        builder = BatchBuilder()
        for number in range(count):
            builder.append(b"k", b"%d/%d" % (producer_id, self.log.log_end_offset + number), (), NOW_MS)
        sequence = self.sequences.get(producer_id, 0)
        batch = builder.build(
            producer_id=producer_id,
            producer_epoch=self.epochs.setdefault(producer_id, 0),
            base_sequence=sequence,
            is_transactional=transactional,
        )
        info = self.log.append(batch, read_header(batch), NOW_MS)
        assert not info.duplicate
        self.sequences[producer_id] = sequence + count
        records = [(offset, b"%d/%d" % (producer_id, offset)) for offset in range(info.base_offset, info[1] + 1)]
        self.everything += records
        if transactional:
            self.open.setdefault(producer_id, []).extend(records)
        else:
            self.committed += records
        return info

    def end(self, producer_id: int, *, committed: bool) -> AppendInfo:
        """With a new epoch, as the embedded engine does."""
        epoch = self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
        self.sequences[producer_id] = 0
        kind = ControlType.COMMIT if committed else ControlType.ABORT
        batch = build_marker(
            EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp_ms=NOW_MS
        )
        info = self.log.append(batch, read_header(batch), NOW_MS)
        records = self.open.pop(producer_id, [])
        if committed:
            self.committed += records
        return info

    def flush(self) -> None:
        self.log.high_watermark = self.log.recovery_point = self.log.log_end_offset

    def work(self, random: Random, steps: int) -> None:
        for _ in range(steps):
            producer_id = random.choice((1, 2, 3))
            if self.open.get(producer_id) and random.random() < 0.4:
                self.end(producer_id, committed=random.random() < 0.5)
            else:
                self.send(producer_id, random.randint(1, 3))
            if random.random() < 0.3:
                self.send(9, transactional=False)
        self.flush()

    def check(self, log: PartitionLog | None = None, *, start: int = 0) -> None:
        """What readers see of ``log`` is what was committed below its last stable offset, and what was written."""
        log = log or self.log
        stable = log.last_stable_offset
        expected = sorted(each for each in self.committed if start <= each[0] < stable)
        assert committed_records(log, start) == expected
        assert stable == min([log.high_watermark, *(max(each[0][0], start) for each in self.open.values())])
        everything = [each for each in self.everything if each[0] >= start]
        assert read(log, start, log.high_watermark, isolated=False) == everything


def read(log: PartitionLog, start: int, end: int, *, isolated: bool) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = start
    while offset < end:
        data = log.read(offset, 300, max_offset=end)
        aborted = log.aborted_in(data, offset) if isolated else ()
        records = fetched_records(data, *ORDERS, offset, aborted=aborted)
        found += zip(records.offsets, map(bytes, filter(None, records.values)), strict=True)
        offset = records.next_offset
    return found


def committed_records(log: PartitionLog, start: int = 0) -> list[tuple[int, bytes]]:
    return read(log, start, log.last_stable_offset, isolated=True)


def state(log: PartitionLog) -> tuple[str, list[AbortedEntry]]:
    return repr(log.producers.states), list(log.producers.aborted)


def names(storage, suffix: str) -> list[str]:
    return [name for name in storage.listdir("orders-0") if name.endswith(suffix)]


@pytest.fixture
def writer(storage, logs: Logs) -> Writer:
    return Writer(logs.open(storage, **SMALL))


# -- append ------------------------------------------------------------------------------------------------------------


def single(sequence: int, *, epoch: int = 0, transactional: bool = False) -> tuple[bytearray, BatchSpan]:
    batch = build_single(b"k", b"v", (), NOW_MS, Compression.NONE, 5, epoch, sequence, transactional)
    return batch, BatchSpan(0, NOW_MS, 5, epoch, sequence, transactional)


def test_a_duplicate_is_stored_once_and_answered_alike(storage, logs):
    log = logs.open(storage)
    infos = [log.append(*single(sequence), NOW_MS) for sequence in range(7)]
    for sequence in (6, 2):
        again = log.append(*single(sequence), NOW_MS)
        assert again == infos[sequence]._replace(duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        log.append(*single(1), NOW_MS)
    assert log.log_end_offset == 7
    assert log.append(*single(7), NOW_MS) == AppendInfo(7, 7, -1)


def test_a_duplicate_is_answered_with_the_time_it_was_appended(storage, logs):
    log = logs.open(storage, timestamp_type=TimestampType.LOG_APPEND_TIME)
    first = log.append(*single(0), NOW_MS + 5)
    assert log.append(*single(0), NOW_MS + 99) == first._replace(duplicate=True)


def test_a_refused_batch_changes_nothing(writer):
    writer.send(5)
    before = state(writer.log), writer.log.log_end_offset
    for arguments, error in (
        ((9,), OutOfOrderSequence),
        ((1,), InvalidTxnState),
    ):
        with pytest.raises(error):
            writer.log.append(*single(*arguments), NOW_MS)
    writer.end(5, committed=True)
    with pytest.raises(InvalidProducerEpoch):
        writer.log.append(*single(1, transactional=True), NOW_MS)
    assert before[1] == 1
    assert writer.log.log_end_offset == 2


def test_the_wrap_of_sequences(storage, logs):
    log = logs.open(storage)
    for sequence in (MAX_SEQUENCE - 1, MAX_SEQUENCE, 0, 1):
        assert not log.append(*single(sequence), NOW_MS).duplicate
    assert log.append(*single(MAX_SEQUENCE), NOW_MS) == AppendInfo(1, 1, -1, duplicate=True)


def test_a_full_disk_changes_no_sequence(logs):
    storage = FaultyStorage(MemoryStorage(), only=("append",), error=disk_full)
    log = logs.open(storage)
    log.append(*single(0), NOW_MS)
    storage.fail_at = storage.calls_count + 1
    with pytest.raises(StorageFull):
        log.append(*single(1), NOW_MS)
    storage.heal()
    assert log.append(*single(1), NOW_MS) == AppendInfo(1, 1, -1)


# -- what readers see --------------------------------------------------------------------------------------------------


def test_interleaved_transactions(writer):
    writer.send(1, 2)
    writer.send(2)
    writer.send(9, transactional=False)
    writer.send(1)
    writer.flush()
    assert writer.log.last_stable_offset == 0
    writer.end(1, committed=False)
    assert writer.log.last_stable_offset == 0, "the marker is beyond the high watermark"
    writer.flush()
    assert writer.log.last_stable_offset == 2
    writer.send(1)
    writer.end(2, committed=True)
    writer.flush()
    assert writer.log.last_stable_offset == 6
    assert writer.log.aborted_transactions(0, 100) == (AbortedTransaction(1, 0, 5),)
    assert writer.log.aborted_transactions(6, 100) == ()
    writer.check()
    writer.end(1, committed=True)
    writer.flush()
    writer.check()


@pytest.mark.parametrize("seed", quick(range(30), 6))
def test_only_what_was_committed(storage, logs, seed):
    writer = Writer(logs.open(storage, **SMALL))
    random = Random(seed)
    for _ in range(8):
        writer.work(random, 10)
        writer.check()
        start = random.randint(0, writer.log.last_stable_offset)
        assert committed_records(writer.log, start) == sorted(
            each for each in writer.committed if start <= each[0] < writer.log.last_stable_offset
        )


def test_of_many_aborted_transactions_only_those_in_the_fetch(storage, logs):
    writer = Writer(logs.open(storage))
    for _ in range(500):
        writer.send(1)
        writer.end(1, committed=False)
    writer.flush()
    data = writer.log.read(700, 330, max_offset=1000)
    assert fetched_records(data, *ORDERS, 700).next_offset == 704
    assert writer.log.aborted_in(data, 700) == (AbortedTransaction(1, 700, 701), AbortedTransaction(1, 702, 703))


# -- restarts ----------------------------------------------------------------------------------------------------------


def reopened(log: PartitionLog, storage, logs: Logs, *, clean: bool) -> PartitionLog:
    end, start = log.log_end_offset, log.log_start_offset
    if clean:
        log.close()
    log.closed = True
    return logs.open(storage, recovery_point=end, log_start_offset=start, clean_shutdown=clean, **SMALL)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("seed", range(10))
def test_the_state_survives_a_restart(directory, logs, clean, seed):
    writer = Writer(logs.open(directory(), **SMALL))
    random = Random(seed)
    for _ in range(4):
        writer.work(random, 15)
        before = state(writer.log)
        writer.log = reopened(writer.log, directory(), logs, clean=clean)
        assert state(writer.log) == before
        writer.check()


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_retry_after_a_restart_is_still_a_duplicate(directory, logs, clean):
    log = logs.open(directory())
    infos = [log.append(*single(sequence), NOW_MS) for sequence in range(6)]
    log = reopened(log, directory(), logs, clean=clean)
    for sequence in range(1, 6):
        assert log.append(*single(sequence), NOW_MS) == infos[sequence]._replace(duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        log.append(*single(0), NOW_MS)


def spoil_nothing(path: Path) -> None: ...


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(34))


def flip(position: int) -> Callable[[Path], None]:
    def flip_one(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[position % len(data)] ^= 0x04
        path.write_bytes(data)

    flip_one.__name__ = f"flip {position}"
    return flip_one


@pytest.mark.parametrize("suffix", [".snapshot", ".txnindex"])
@pytest.mark.parametrize(
    "which",
    [
        pytest.param(slice(-1, None), id="newest"),
        pytest.param(slice(None), id="all"),
        pytest.param(slice(0, 1), id="oldest", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "spoil",
    [
        *(spoil_nothing, remove, empty, cut, extend, *map(flip, (0, 8, 20, -1))),
        *(pytest.param(flip(position), marks=pytest.mark.slow) for position in (2, 3, 12, 17, 33, 40, 60, -9)),
    ],
    ids=lambda spoil: spoil.__name__,
)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_spoilt_files_are_made_anew_from_the_log(tmp_path, directory, logs, suffix, which, spoil, clean):
    writer = Writer(logs.open(directory(), **SMALL))
    writer.work(Random(3), 60)
    before = state(writer.log)
    end = writer.log.log_end_offset
    if clean:
        writer.log.close()
    writer.log.closed = True
    index_files = {path: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.txnindex")}
    assert len(index_files) > 3
    for path in sorted((tmp_path / "orders-0").glob("*" + suffix))[which]:
        spoil(path)
    writer.log = logs.open(directory(), recovery_point=end, clean_shutdown=clean, **SMALL)
    assert state(writer.log) == before
    assert {path: path.read_bytes() for path in (tmp_path / "orders-0").glob("*.txnindex")} == index_files
    writer.check()
    writer.work(Random(4), 20)
    writer.check()


def test_a_directory_from_before_snapshots_is_read_once(tmp_path, directory, logs, monkeypatch):
    monkeypatch.setattr(producers_module, "SNAPSHOT_BYTES", 2000)
    writer = Writer(logs.open(directory(), **SMALL))
    writer.work(Random(5), 80)
    before = state(writer.log)
    writer.log.close()
    for path in [*(tmp_path / "orders-0").glob("*.snapshot"), *(tmp_path / "orders-0").glob("*.txnindex")]:
        path.unlink()
    end = writer.log.log_end_offset
    log = logs.open(directory(), recovery_point=end, clean_shutdown=True, **SMALL)
    assert state(log) == before
    assert names(FileStorage(str(tmp_path)), ".snapshot") == [f"{end:020d}.snapshot"]
    log.closed = True  # killed
    reads: list[int] = []
    monkeypatch.setattr(producers_module, "replay", lambda data, *rest: reads.append(len(data)))
    log = logs.open(directory(), recovery_point=end, **SMALL)
    assert state(log) == before
    assert reads == []


def test_a_snapshot_of_what_a_crash_took_is_gone_before_anything_is_appended(tmp_path, directory, logs):
    """Or another batch at its offset would meet sequences of batches that are not there."""
    log = logs.open(directory())
    log.append(*single(0), NOW_MS)
    log.recovery_point = log.high_watermark = 1
    log.append(*single(1), NOW_MS)
    log.close()
    path = tmp_path / "orders-0" / f"{0:020d}.log"
    assert (tmp_path / "orders-0" / f"{2:020d}.snapshot").exists()
    path.write_bytes(path.read_bytes()[:-5])
    log = logs.open(directory(), recovery_point=1)
    assert names(FileStorage(str(tmp_path)), ".snapshot") == []
    assert log.append(*single(1), NOW_MS) == AppendInfo(1, 1, -1)


def test_a_snapshot_that_is_not_of_this_log_is_not_believed(tmp_path, directory, logs):
    writer = Writer(logs.open(directory()))
    writer.send(1, 3)
    writer.end(1, committed=True)
    before = state(writer.log)
    writer.log.close()
    folder = tmp_path / "orders-0"
    (folder / f"{4:020d}.snapshot").rename(folder / f"{2:020d}.snapshot")  # within the first batch
    log = logs.open(directory(), recovery_point=4)
    assert state(log) == before


def test_few_snapshots_are_kept(storage, logs, monkeypatch):
    monkeypatch.setattr(producers_module, "SNAPSHOT_BYTES", 500)
    writer = Writer(logs.open(storage, segment_bytes=1 << 20, index_interval_bytes=100))
    for number in range(40):
        writer.work(Random(number), 10)
        assert len(names(storage, ".snapshot")) <= 6
    snapshots = names(storage, ".snapshot")
    assert len(snapshots) == 4, "none was flushed yet"
    assert int(snapshots[-1][:20]) > writer.log.log_end_offset - 100
    work = writer.log.begin_sync()
    for file in work.files:
        file.sync()
    writer.log.complete_sync(work)
    writer.work(Random(1), 200)
    assert len([name for name in names(storage, ".snapshot") if int(name[:20]) <= work.end_offset]) == 2


def test_a_start_after_a_kill_reads_few_of_many_small_transactions(tmp_path, directory, logs, monkeypatch):
    """A marker takes ten times as long to read as a batch, and a hundred partitions may be full of them."""
    writer = Writer(logs.open(directory()))
    for _ in range(1_500):
        writer.send(1)
        writer.end(1, committed=True)
    writer.flush()
    before, end = state(writer.log), writer.log.log_end_offset
    writer.log.closed = True  # killed
    replayed: list[int] = []

    def counted(data, *rest, replay=replay) -> None:
        replayed.append(len(data))
        replay(data, *rest)

    monkeypatch.setattr(producers_module, "replay", counted)
    log = logs.open(directory(), recovery_point=end)
    assert state(log) == before
    assert 0 < sum(replayed) < log.size_bytes / 2
    log.closed = True  # killed again before it wrote anything
    for path in (tmp_path / "orders-0").glob("*.snapshot"):
        path.unlink()
    logs.open(directory(), recovery_point=end).closed = True
    replayed.clear()
    assert state(logs.open(directory(), recovery_point=end)) == before
    assert not replayed, "what a start had to read in full it has written down"


def test_opening_reads_no_log_after_a_clean_close(tmp_path, logs, monkeypatch):
    log = logs.open(FileStorage(str(tmp_path)), segment_bytes=50_000)
    for sequence in range(3000):
        log.append(*single(sequence), NOW_MS)
    log.close()
    monkeypatch.setattr(producers_module, "replay", None)
    log = logs.open(FileStorage(str(tmp_path)), segment_bytes=50_000, recovery_point=3000, clean_shutdown=True)
    assert log.append(*single(2999), NOW_MS).duplicate


# -- retention, deletion -----------------------------------------------------------------------------------------------


def test_producers_outlive_their_records(directory, logs):
    writer = Writer(logs.open(directory(), retention_ms=1000, **SMALL))
    writer.work(Random(6), 60)
    for producer_id in [*writer.open]:
        writer.end(producer_id, committed=False)
    writer.flush()
    states = repr(writer.log.producers.states)
    writer.log.apply_retention(NOW_MS + 10_000)
    end = writer.log.log_end_offset
    assert writer.log.log_start_offset == end
    assert (repr(writer.log.producers.states), list(writer.log.producers.aborted)) == (states, [])
    writer.log = reopened(writer.log, directory(), logs, clean=False)
    assert repr(writer.log.producers.states) == states
    assert names(writer.log._storage, ".txnindex") == []
    writer.send(1)


def test_retention_takes_the_aborted_transactions_of_what_it_deletes(tmp_path, directory, logs):
    writer = Writer(logs.open(directory(), retention_bytes=1500, **SMALL))
    writer.work(Random(7), 100)
    writer.log.apply_retention(NOW_MS)
    start = writer.log.log_start_offset
    assert start > 50
    writer.check(start=start)
    assert all(entry.last_offset >= start for entry in writer.log.producers.aborted)
    assert all(int(name[:20]) >= writer.log.segments[0].base_offset for name in names(writer.log._storage, ".txnindex"))
    before = state(writer.log)
    writer.log = reopened(writer.log, directory(), logs, clean=False)
    assert state(writer.log) == before
    writer.check(start=start)
    for path in (tmp_path / "orders-0").glob("*.snapshot"):
        path.unlink()
    writer.log = reopened(writer.log, directory(), logs, clean=False)
    left = {key: [each for each in records if each[0] >= start] for key, records in writer.open.items()}
    writer.open = {key: records for key, records in left.items() if records}  # of the others nothing is left to hide
    writer.check(start=start)


def test_deleting_records_of_an_open_transaction_leaves_the_rest_open(directory, logs):
    writer = Writer(logs.open(directory(), **SMALL))
    writer.send(1, 3)
    writer.send(2, 3)
    writer.flush()
    writer.log.advance_log_start_offset(2)
    assert writer.log.last_stable_offset == 2
    writer.log = reopened(writer.log, directory(), logs, clean=True)
    assert writer.log.last_stable_offset == 2
    writer.end(1, committed=True)
    writer.flush()
    assert writer.log.last_stable_offset == 3
    writer.end(2, committed=False)
    writer.flush()
    assert committed_records(writer.log, 2) == [(2, b"1/2")]


def test_offsets_that_start_over_begin_without_producers(directory, logs):
    """Only without fsync: records were deleted by request up to an offset whose tail was then lost."""
    log = logs.open(directory())
    log.append(*single(0), NOW_MS)
    log.close()
    log = logs.open(directory(), log_start_offset=5)
    assert names(log._storage, ".snapshot") == []
    assert log.append(*single(9), NOW_MS).base_offset == 5


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_index_that_cannot_be_written_holds_other_processes_back(logs):
    inner = MemoryStorage()
    storage = FaultyStorage(inner, only=("open",), error=disk_full)
    writer = Writer(logs.open(storage, **SMALL))
    writer.send(9, transactional=False)
    writer.send(1)
    storage.fail_at = storage.calls_count + 1
    writer.end(1, committed=False)
    writer.flush()
    storage.heal()
    assert writer.log.last_stable_offset == 3
    assert writer.log.published_offset == 1
    writer.send(1)
    writer.end(1, committed=False)
    writer.flush()
    assert writer.log.published_offset == 1
    work = writer.log.begin_sync()
    writer.log.complete_sync(work)
    assert writer.log.published_offset == 5
    data = bytes(inner.open(f"orders-0/{0:020d}.txnindex").data)
    assert decode_entries(data) == list(writer.log.producers.aborted)


def test_a_flush_takes_the_index_along_and_the_journal_does_not(directory, logs):
    log = logs.open(directory())
    writer = Writer(log)
    writer.send(1)
    log.complete_sync(log.begin_sync())
    assert log.journal([bytearray(1)], []) is not None
    writer.end(1, committed=False)
    assert log.journal([bytearray(1)], []) is None
    work = log.begin_sync()
    assert [file.size for file in work.caches] == [34]
    assert work.directories == ("orders-0",)
    log.take_back(work)
    again = log.begin_sync()
    assert again.caches == work.caches
    log.complete_sync(again)
    assert log.begin_sync().caches == []


def test_the_layout_of_a_snapshot():
    """As org.apache.kafka.storage.internals.log.ProducerStateManager has it."""
    states = ProducerStates("orders-0")
    log = FakeBatches()
    states.append(log.batch(producer_id=300, epoch=2, sequence=MAX_SEQUENCE, delta=1), 10, 1111)
    states.append(log.batch(producer_id=5, epoch=0, sequence=7, delta=2, transactional=True), 20, 2222)
    states.append_marker(8, 3, EndTransactionMarker(ControlType.COMMIT, 4), 30, 3333)
    data = encode_snapshot(states, [IndexedSegment(0, 2, 99)])
    entries = [
        (8, 3, -1, -1, 0, 3333, 4, -1),
        (300, 2, 0, 11, 1, 1111, -1, -1),
        (5, 0, 9, 22, 2, 2222, -1, 20),
    ]
    kafkas = struct.pack(">i", 3) + b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    assert data[6 : 6 + len(kafkas)] == kafkas
    assert data[:6] == struct.pack(">hI", 1, crc32c(data[6:]))
    told = decode_snapshot(data)
    assert told is not None
    assert told.segments == [IndexedSegment(0, 2, 99)]
    restored = ProducerStates("orders-0")
    for producer_id, producer in told.producers.items():
        restored.restore(producer_id, producer)
    restored.check_consistency()
    assert repr(restored) == repr(states)
    assert restored.last_stable_offset(100) == 20
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 0x10
        assert decode_snapshot(spoilt) is None
        assert decode_snapshot(data[:position]) is None
    only_kafkas = struct.pack(">hI", 1, crc32c(kafkas)) + kafkas
    assert decode_snapshot(only_kafkas) is None, "it does not know all five batches, nor the indexes"


class FakeBatches:
    def batch(self, *, producer_id: int, epoch: int, sequence: int, delta: int, transactional: bool = False):
        return BatchSpan(delta, 0, producer_id, epoch, sequence, transactional)


def test_the_layout_of_a_transaction_index():
    """As org.apache.kafka.storage.internals.log.AbortedTxn has it."""
    entries = [AbortedEntry(7, 10, 12, 11), AbortedEntry(8, 11, 20, 21)]
    data = encode_entries(entries)
    assert data == struct.pack(">hqqqqhqqqq", 0, 7, 10, 12, 11, 0, 8, 11, 20, 21)
    assert decode_entries(data) == entries
    for spoilt in (data[:-1], data[34:] + data[:34], data[:2] + bytes(8) + data[10:18] + bytes(50)):
        assert decode_entries(spoilt) is None


def test_the_search_for_aborted_transactions_stops_where_no_other_can_overlap():
    random = Random(1)
    for _ in range(200):
        states, index, everything, offset = ProducerStates(""), TransactionIndex(), [], 0
        for _ in range(40):
            producer_id = random.randint(1, 4)
            if random.random() < 0.5:
                span = BatchSpan(random.randint(0, 2), 0, producer_id, 0, -1, True)
                states.append(span, offset, 0)
                offset += span.last_offset_delta + 1
            else:
                kind = random.choice([*ControlType])
                ended = states.append_marker(producer_id, 0, EndTransactionMarker(kind, 0), offset, 0)
                offset += 1
                if ended is not None and ended.is_aborted:
                    index.add(AbortedEntry(ended[0], ended[1], ended[2], ended.last_stable_offset))
                    everything.append(AbortedTransaction(*ended[:3]))
        for _ in range(20):
            start = random.randint(0, offset)
            end = random.randint(start, offset)
            expected = [each for each in everything if each.last_offset >= start and each.first_offset < end]
            assert list(index.overlapping(start, end)) == expected


def test_damage_in_the_log_is_not_taken_for_state(directory, tmp_path, logs):
    writer = Writer(logs.open(directory(), **SMALL))
    writer.work(Random(8), 60)
    writer.log.close()
    for path in (tmp_path / "orders-0").glob("*.snapshot"):
        path.unlink()
    flip(70)(tmp_path / "orders-0" / f"{0:020d}.log")
    with pytest.raises(CorruptRecord, match="orders-0 is damaged"):
        logs.open(directory(), recovery_point=writer.log.log_end_offset, clean_shutdown=True, **SMALL)


def test_replaying_the_golden_batches_of_other_clients():
    vectors = Path(__file__).parents[1] / "vectors"
    states, aborted = ProducerStates(""), TransactionIndex()
    for name in ("aiokafka_transactional", "aiokafka_control_abort", "kafka_python_transactional"):
        replay((vectors / f"{name}.bin").read_bytes(), states, aborted)
    assert states.producers
    states.check_consistency()


def test_nothing_is_written_for_a_log_that_was_never_appended_to(storage, logs):
    logs.open(storage).close()
    assert not storage.exists("orders-0")
    assert LogProducers(storage, "orders-0").published_offset(7) == 7
