"""Power cuts at every call of small transactional workloads: the producers that come back are those of the log.

After each: the state is what the batches that are left tell, whatever became of snapshots and indexes, what was
acknowledged is still known as a duplicate, and recovering once more changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from random import Random

import pytest

from eventbus.log import commit, journal
from eventbus.log import producers as producers_module
from eventbus.log.commit import GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.producer_state import CACHED_BATCHES, ProducerStates
from eventbus.log.producers import LogProducers, replay
from eventbus.log.transaction_index import TransactionIndex, encode_entries
from eventbus.records import BatchBuilder, ControlType, EndTransactionMarker, build_marker, read_header
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from eventbus.types import TopicPartition
from tests.tiers import quick

pytestmark = pytest.mark.system

WHERE, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=100)
NOW_MS = 1_700_000_000_000


class Machine:
    """Two partitions, three transactional producers and one that is only idempotent."""

    def __init__(self) -> None:
        self.storage = CrashStorage()
        self.sequences: dict[tuple[TopicPartition, int], int] = {}
        self.epochs: dict[tuple[TopicPartition, int], int] = {}
        self.unacked: list[tuple[PartitionLog, bytes, int]] = []
        self.acked: dict[TopicPartition, list[tuple[bytes, int]]] = {WHERE: [], OTHER: []}
        self.start(0)

    def start(self, recovery_point: int) -> None:
        storage = self.storage
        storage.lock()
        journal.replay(storage)
        self.commit = GroupCommit(storage)
        self.logs = {
            where: PartitionLog.open(
                storage, where, CONFIG, now_ms=NOW_MS, topic_id=where.topic * 22, recovery_point=recovery_point
            )
            for where in (WHERE, OTHER)
        }

    def send(self, producer_id: int, *, transactional: bool = True, where: TopicPartition = WHERE) -> None:
        log, key = self.logs[where], (where, producer_id)
        builder = BatchBuilder()
        builder.append(b"k", b"%d" % log.log_end_offset, (), NOW_MS)
        sequence = self.sequences.get(key, 0)
        batch = builder.build(
            producer_id=producer_id,
            producer_epoch=self.epochs.get(key, 0),
            base_sequence=sequence,
            is_transactional=transactional,
        )
        sent = bytes(batch)
        info = log.append(batch, read_header(batch), NOW_MS)
        self.commit.appended(log, batch)
        self.sequences[key] = sequence + 1
        self.unacked.append((log, sent, info.base_offset))

    def end(self, producer_id: int, kind: ControlType, *, where: TopicPartition = WHERE) -> None:
        log, key = self.logs[where], (where, producer_id)
        self.epochs[key] = self.epochs.get(key, 0) + 1
        self.sequences[key] = 0
        batch = build_marker(
            EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=self.epochs[key], timestamp_ms=NOW_MS
        )
        log.append(batch, read_header(batch), NOW_MS)
        self.commit.appended(log, batch)

    def flush(self) -> None:
        flush = self.commit.begin()
        flush.run()
        self.commit.complete(flush)
        for log, sent, offset in self.unacked:
            if offset < log.high_watermark:
                self.acked[log.topic_partition].append((sent, offset))
        self.unacked = [each for each in self.unacked if each[2] >= each[0].high_watermark]

    def roll(self) -> None:
        for _ in range(3):
            self.send(9, transactional=False)

    def both(self) -> None:
        self.send(1)
        self.send(1, where=OTHER)
        self.flush()
        self.end(1, ControlType.ABORT)
        self.end(1, ControlType.ABORT, where=OTHER)
        self.flush()

    def close(self) -> None:
        self.commit.close()
        for log in self.logs.values():
            log.close()
        self.storage.unlock()
        self.start(0)

    def check(self) -> None:
        for where, log in self.logs.items():
            log.check()
            states, aborted = ProducerStates(str(where)), TransactionIndex()
            for segment in log.segments:
                replay(segment.file.pread(0, segment.size_bytes), states, aborted)
            assert repr(log.producers.states) == repr(states)
            assert list(log.producers.aborted) == list(aborted)
            check_files(log, self.storage)
            for sent, offset in self.acked[where][-3:]:
                header = read_header(sent)
                producer = log.producers.states.producers[header.producer_id]
                # Batches that were not acknowledged may have survived too. A producer has at most five in flight, so it
                # sends none again that five others follow.
                is_remembered = producer.next_sequence - header.base_sequence <= CACHED_BATCHES
                if producer.producer_epoch == header.producer_epoch and is_remembered:
                    found = log.producers.states.check(header)
                    assert found is not None
                    assert found[2] == offset


def check_files(log: PartitionLog, storage: CrashStorage) -> None:
    """The ``.txnindex`` files, which other processes read, say what the log says; no snapshot is beyond its end."""
    if not log.segments:
        return
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end_offset]
    files = {name: content for name, content in storage.tree().items() if name.startswith(log.directory)}
    for segment, end in zip(log.segments, ends, strict=True):
        entries = log.producers.aborted.between(segment.base_offset, end)
        assert files.pop(f"{segment.stem}.txnindex", b"") == encode_entries(entries)
    assert not [name for name in files if name.endswith(".txnindex")]
    snapshots = [int(name[-29:-9]) for name in files if name.endswith(".snapshot")]
    assert max(snapshots, default=0) <= log.log_end_offset


STEPS: dict[str, Callable[[Machine], object]] = {
    "send": lambda machine: (machine.send(1), machine.send(2), machine.send(9, transactional=False)),
    "commit": lambda machine: (machine.send(1), machine.end(1, ControlType.COMMIT)),
    "abort": lambda machine: (machine.send(2), machine.end(2, ControlType.ABORT)),
    "flush": Machine.flush,
    "roll": Machine.roll,
    "both": Machine.both,
    "close": Machine.close,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 1500)
    monkeypatch.setattr(producers_module, "SNAPSHOT_BYTES", 200)
    monkeypatch.setattr(producers_module, "_SNAPSHOT_RATIO", 0)


def crash_everywhere(workload: tuple[str, ...], survivors_count: int, first_call: int = 1) -> int:
    """Run a workload once for each call from ``first_call`` on, with a power cut there. Return the last of them."""
    for call in itertools.count(first_call):
        machine = Machine()
        for name in ("send", "abort", "flush", "send", "both"):
            STEPS[name](machine)
        machine.storage.crash_at_call = machine.storage.calls_count + call
        done = False
        with contextlib.suppress(SimulatedCrash):
            for step in workload:
                STEPS[step](machine)
            done = True
        storage = machine.storage
        for seed in range(survivors_count):
            machine.storage = storage.crash(Random(seed))
            machine.start(0)
            machine.check()
            before = machine.storage.tree()
            machine.storage.kill()
            machine.start(0)
            assert machine.storage.tree() == before, "a second recovery changed something"
            machine.check()
        if done:
            return call
    raise AssertionError


@pytest.mark.parametrize("survivors", quick([2, 5], 1))  # of each crash
@pytest.mark.parametrize("first", STEPS)
def test_every_crash_point_of_two_steps(first, survivors):
    after = crash_everywhere((first,), survivors)
    calls = [crash_everywhere((first, second), survivors, after) for second in STEPS]
    assert max(calls) > 8, "nothing worth a crash was done"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", STEPS)
def test_every_crash_point_of_three_steps(first):
    for second in STEPS:
        after = crash_everywhere((first, second), 8)
        for third in STEPS:
            crash_everywhere((first, second, third), 8, after)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def leave_snapshots_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def remove_nothing(self: LogProducers, *_: object) -> None:
        names = self._storage.listdir(self._directory)
        self._snapshots = sorted(int(name[:20]) for name in names if name.endswith(".snapshot"))

    monkeypatch.setattr(LogProducers, "_remove_beyond", remove_nothing)
    monkeypatch.setattr(producers_module, "_starts_batch", lambda *_: True)


def believe_the_index_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogProducers, "settle_files", lambda *_: None)


@pytest.mark.parametrize("plant", [leave_snapshots_beyond_the_end, believe_the_index_files])
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        for first in STEPS:
            for second in STEPS:
                crash_everywhere((first, second), 5)
