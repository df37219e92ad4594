"""Power cuts at any moment of random workloads, and at every moment of small ones.

After each: the log is an exact prefix of what was appended, it holds everything that was acknowledged, and recovering
it once more changes nothing. The last tests plant bugs to show that these would be found.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from random import Random

import pytest

from eventbus.errors import CorruptRecord, StorageError
from eventbus.log import checkpoints, commit, journal, leftovers, recovery
from eventbus.log.commit import Flush, GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.metadata import parse_directory
from eventbus.log.partition_log import PartitionLog
from eventbus.log.producer_state import ANY_SEQUENCE, ProducerStates
from eventbus.log.producers import replay
from eventbus.log.transaction_index import TransactionIndex
from eventbus.records import BatchBuilder, ControlType, EndTransactionMarker, build_marker, iter_batches, read_header
from eventbus.testing.storage import CrashFile, CrashStorage, SimulatedCrash
from eventbus.types import TopicPartition
from tests.tiers import of_today, quick

pytestmark = pytest.mark.system

TOPICS = ("a", "b", "c", "d", "e")
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_bytes=600, retention_ms=-1)
NOW_MS = 1_700_000_000_000


class Topic:
    """What a topic must hold: the model."""

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.batches: list[tuple[int, int, bytes]] = []
        """(base offset, next offset, bytes) of everything appended, in order."""
        self.acked_offset = 0


class Machine:
    """A small broker over a `CrashStorage`: what it is told to do, and what it must then hold."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = CrashStorage()
        self.topics: dict[str, Topic] = {}
        """Which topics exist is known from elsewhere (the metadata log), and never wrong."""
        self.numbers = itertools.count()
        self.logs: dict[str, PartitionLog]
        self.commit: GroupCommit
        self.start()

    # life

    def start(self) -> None:
        storage = self.storage
        storage.lock()
        journal.replay(storage)
        leftovers.finish_deletions(storage, lambda *_: True)
        clean = checkpoints.take_clean_shutdown(storage)
        points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS)
        starts = checkpoints.read_offsets(storage, checkpoints.LOG_START_OFFSETS)
        assert points is not None, "a crash damaged a checkpoint"
        assert starts is not None, "a crash damaged a checkpoint"
        self.commit = GroupCommit(storage)
        self.logs = {}
        for name in storage.listdir(""):
            where = parse_directory(name)
            if where is not None and where.topic not in self.topics:
                leftovers.remove_directory(storage, name)
        for name, topic in self.topics.items():
            where = TopicPartition(name, 0)
            self.logs[name] = PartitionLog.open(
                storage,
                where,
                CONFIG,
                now_ms=NOW_MS,
                recovery_point=points.get(where, 0),
                log_start_offset=starts.get(where, 0),
                clean_shutdown=clean,
                topic_id=topic.topic_id,
            )
        self.publish(sync=True)

    def restart(self, storage: CrashStorage) -> None:
        """Start again on what is left, check it, and check that starting twice changes nothing."""
        self.storage = storage
        self.start()
        self.check()
        before = storage.tree()
        ends = {name: log.log_end_offset for name, log in self.logs.items()}
        self.storage.kill()
        self.start()
        assert storage.tree() == before, "a second recovery changed something"
        assert {name: log.log_end_offset for name, log in self.logs.items()} == ends
        for name, log in self.logs.items():
            topic = self.topics[name]
            topic.batches = [batch for batch in topic.batches if batch[1] <= log.log_end_offset]
            topic.acked_offset = log.high_watermark  # readers have seen it

    def check(self) -> None:
        for name, log in self.logs.items():
            topic = self.topics[name]
            log.check()
            assert log.log_end_offset >= topic.acked_offset, f"{name}: acknowledged batches are gone"
            start = log.segments[0].base_offset if log.segments else log.log_start_offset
            expected = [batch for batch in topic.batches if start <= batch[0] and batch[1] <= log.log_end_offset]
            assert read_all(log, start) == [data for _, _, data in expected], f"{name}: not what was appended"
            check_producers(log, [data for _, _, data in expected], from_the_first=start == 0)

    # work

    def create(self, name: str) -> None:
        topic = self.topics[name] = Topic(self.storage.unique_id())
        self.logs[name] = PartitionLog.open(
            self.storage, TopicPartition(name, 0), CONFIG, now_ms=NOW_MS, topic_id=topic.topic_id
        )

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.logs.pop(name).delete()
        try:
            self.publish(sync=True)
        except OSError:
            self.publish(sync=True)  # a new topic of this name must not be measured by the old one's watermark

    def append(self, name: str) -> None:
        if name not in self.topics:
            self.create(name)
        log = self.logs[name]
        if log.poisoned:
            return
        builder = BatchBuilder()
        for _ in range(self.random.randint(1, 3)):
            builder.append(b"k", b"%d." % next(self.numbers) * self.random.randint(1, 12), (), NOW_MS)
        batch = self.stamped(log, builder)
        header = read_header(batch)
        entry = [log.log_end_offset, log.log_end_offset + header.last_offset_delta + 1, b""]
        topic = self.topics[name]
        try:
            log.append(batch, header, NOW_MS)
        except SimulatedCrash:
            entry[2] = bytes(batch)  # patched already; it may or may not be there
            topic.batches.append(tuple(entry))
            raise
        entry[2] = bytes(batch)
        topic.batches.append(tuple(entry))
        self.commit.appended(log, batch)

    def stamped(self, log: PartitionLog, builder: BatchBuilder) -> bytearray:
        """The batch of some producer, in its sequence; now and then the marker of its transaction instead."""
        producer_id = self.random.choice((-1, 1, 2, 3))
        producer = log.producers.states.producers.get(producer_id)
        if producer_id < 0:
            return builder.build()
        epoch, sequence = (producer.producer_epoch, max(producer.next_sequence, 0)) if producer else (0, 0)
        if producer is not None and producer.in_transaction and self.random.random() < 0.4:
            marker = EndTransactionMarker(self.random.choice([*ControlType]), 0)
            return build_marker(marker, producer_id=producer_id, producer_epoch=epoch + 1, timestamp_ms=NOW_MS)
        return builder.build(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=producer_id > 1
        )

    def flush(self) -> None:
        flush = self.commit.begin()
        for _ in range(self.random.choice((0, 0, 1, 3))):
            self.append(self.random.choice(TOPICS))
        error: OSError | None = None
        try:
            flush.run()
        except OSError as failed:
            error = failed
        if self.random.random() < 0.2:
            self.append(self.random.choice(TOPICS))
        self.commit.complete(flush, error)
        for name, log in self.logs.items():
            self.topics[name].acked_offset = max(self.topics[name].acked_offset, log.high_watermark)

    def publish(self, *, sync: bool) -> None:
        points = {log.topic_partition: log.recovery_point for log in self.logs.values()}
        starts = {log.topic_partition: log.log_start_offset for log in self.logs.values()}
        checkpoints.write_offsets(self.storage, checkpoints.RECOVERY_POINTS, points, sync=sync)
        checkpoints.write_offsets(self.storage, checkpoints.LOG_START_OFFSETS, starts, sync=sync)

    def close(self) -> None:
        self.commit.close()
        for log in self.logs.values():
            log.close()
            self.topics[log.topic_partition.topic].acked_offset = log.high_watermark
        self.publish(sync=True)
        if not any(log.poisoned for log in self.logs.values()):
            checkpoints.mark_clean_shutdown(self.storage)
        self.storage.unlock()

    def step(self) -> None:
        """One random thing."""
        dice = self.random.random()
        if dice < 0.55:
            self.append(self.random.choice(TOPICS))
        elif dice < 0.85:
            self.flush()
        elif dice < 0.90:
            with contextlib.suppress(OSError):
                self.publish(sync=self.random.random() < 0.5)
        elif dice < 0.95 and self.logs:
            self.random.choice(list(self.logs.values())).apply_retention(NOW_MS)
        elif dice < 0.97 and self.topics:
            self.delete(self.random.choice(list(self.topics)))
        elif dice < 0.98:
            self.close()
            self.storage.kill()
            self.start()


def read_all(log: PartitionLog, start: int) -> list[bytes]:
    """Every batch of a log, from a segment's start on."""
    found: list[bytes] = []
    offset, log_start_offset = start, log.log_start_offset
    log.log_start_offset = start
    while offset < log.log_end_offset:
        for batch in iter_batches(log.read(offset, 300, max_offset=log.log_end_offset)):
            end = batch.position + batch.header.size_bytes
            found.append(bytes(batch.buffer[batch.position : end]))
            offset = batch.header.next_offset
    log.log_start_offset = log_start_offset
    return found


def check_producers(log: PartitionLog, batches: list[bytes], *, from_the_first: bool) -> None:
    """The producers are those of the batches; of what retention took, more may be known."""
    states, aborted = ProducerStates(log.directory), TransactionIndex()
    replay(b"".join(batches), states, aborted)
    if from_the_first:
        assert repr(log.producers.states) == repr(states)
        assert list(log.producers.aborted) == list(aborted)
        return
    for producer_id, producer in states.producers.items():
        known = log.producers.states.producers[producer_id]
        assert known.producer_epoch == producer.producer_epoch
        assert known.next_sequence == producer.next_sequence or producer.next_sequence == ANY_SEQUENCE
        assert known.in_transaction or not producer.in_transaction
    told = {(entry.producer_id, entry.last_offset) for entry in log.producers.aborted}
    assert told >= {(entry.producer_id, entry.last_offset) for entry in aborted}


def live_and_die(seed: int) -> None:
    """Up to three lives of one machine, each ended by a power cut, a killed process, or a failed flush and a kill."""
    random = Random(seed)
    commit.JOURNAL_FROM_FILES = random.choice((2, 2, 4, 99))
    commit.JOURNAL_LIMIT_BYTES = random.choice((400, 1500))
    machine = Machine(random)
    for _ in range(random.randint(1, 3)):
        ending = random.randrange(4)
        storage = machine.storage
        if ending == 0:
            storage.crash_at_call = storage.calls_count + random.randint(1, 150)
        elif ending == 1:
            storage.crash_at_sync = storage.syncs_count + random.randint(1, 40)
        elif ending == 2:
            storage.fail_sync = storage.syncs_count + random.randint(1, 30)
        with contextlib.suppress(SimulatedCrash, StorageError, OSError):
            for _ in range(random.randint(5, 60)):
                machine.step()
        if ending == 2 or random.random() < 0.4:
            # The process dies, the machine does not. What its next life acknowledges must survive the crash after it.
            with contextlib.suppress(SimulatedCrash, StorageError, OSError):
                machine.restart(storage.kill())
                for _ in range(random.randint(0, 25)):
                    machine.step()
        machine.restart(machine.storage.crash(random))


@pytest.fixture(autouse=True)
def small_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the journal be emptied within a test; and undo what `live_and_die` sets."""
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 1500)
    monkeypatch.setattr(commit, "JOURNAL_FROM_FILES", commit.JOURNAL_FROM_FILES)


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            live_and_die(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("block", quick(range(10), 1))
def test_any_crash_leaves_an_exact_prefix_with_everything_acknowledged(block):
    run_seeds(range(block * 125, (block + 1) * 125))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(4))
def test_many_crashes(block):
    run_seeds(of_today(range(10_000 + block * 5_000, 10_000 + (block + 1) * 5_000)))


# -- every crash point of small workloads ------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Machine], object]] = {
    "append": lambda machine: machine.append("a"),
    "flush": Machine.flush,
    "commit to three": lambda machine: ([machine.append(name) for name in "abc"], machine.flush()),
    "publish": lambda machine: machine.publish(sync=False),
    "retain": lambda machine: [log.apply_retention(NOW_MS) for log in machine.logs.values()],
    "delete": lambda machine: machine.delete("a") if "a" in machine.topics else None,
    "restart": lambda machine: (machine.close(), machine.storage.kill(), machine.start()),
}


def crash_everywhere(workload: tuple[str, ...], survivors_count: int, first_call: int = 1) -> int:
    """Run a workload once for each call from ``first_call`` on, with a power cut there. Return the last of them."""
    for call in itertools.count(first_call):
        machine = Machine(Random(0))
        for name in "abc" + 11 * "a":  # enough for retention to find something
            machine.append(name)
        machine.flush()
        machine.storage.crash_at_call = machine.storage.calls_count + call
        done = False
        with contextlib.suppress(SimulatedCrash):
            for step in workload:
                STEPS[step](machine)
            done = True
        topics = copy.deepcopy(machine.topics)
        storage = machine.storage
        for seed in range(survivors_count):
            machine.topics = copy.deepcopy(topics)
            machine.restart(storage.crash(Random(seed)))
        if done:
            return call
    raise AssertionError


@pytest.mark.parametrize("survivors", quick([1, 3], 1))  # of each crash
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
        after = crash_everywhere((first, second), 12)
        for third in STEPS:
            crash_everywhere((first, second, third), 12, after)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def acknowledge_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(flush: Flush) -> None:
        flush.reached = len(flush.direct)

    monkeypatch.setattr(Flush, "run", run)


def never_sync_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrashStorage, "sync_dir", lambda storage, path: storage.syncing())


def never_replay_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(storage: CrashStorage) -> None:
        if storage.exists(journal.JOURNAL):
            storage.remove(journal.JOURNAL)

    monkeypatch.setattr(journal, "replay", forget)


def replay_into_a_new_topic_of_the_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def file(targets, path: str, topic_id: str):
        return targets._storage.open(path) if targets._storage.exists(path) else None

    monkeypatch.setattr(journal._Targets, "_file", file)


def empty_the_journal_before_the_files_are_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Flush.run

    def run(flush: Flush) -> None:
        if flush.empties_journal:
            flush._journal.reset()
        original(flush)

    monkeypatch.setattr(Flush, "run", run)


def journal_what_has_a_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.journal

    def journal_it(log: PartitionLog, batches: list[bytearray], parts: list[bytes]):
        log._unsynced_names = ()
        return original(log, batches, parts)

    monkeypatch.setattr(PartitionLog, "journal", journal_it)


def forget_what_a_flush_did_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "take_back", lambda log, work: None)


def trust_pages_after_a_failed_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrashFile, "pwrite", sync_only(CrashFile.pwrite))


def sync_only(pwrite):
    """A write that is skipped where the bytes are there already, as far as can be seen."""

    def write(file: CrashFile, position: int, data: bytes) -> None:
        if file.pread(position, len(data)) != bytes(data):
            pwrite(file, position, data)

    return write


def keep_segments_that_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery._Recovery, "_drop_from", lambda task, number, why: None)


def delete_old_segments_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionLog._delete_segments

    def delete(log: PartitionLog, count: int) -> list[int]:
        storage = log._storage
        storage.sync_dir(log.directory)
        storage.sync_dir = lambda path: None
        try:
            return original(log, count)
        finally:
            del storage.sync_dir

    monkeypatch.setattr(PartitionLog, "_delete_segments", delete)


def rename_checkpoints_before_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_GUIDES", ())


def never_sync_the_name_of_an_empty_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.__init__

    def init(log: PartitionLog, *arguments) -> None:
        original(log, *arguments)
        log._unsynced_names = ()

    monkeypatch.setattr(PartitionLog, "__init__", init)


FIRST_SEEDS = {
    empty_the_journal_before_the_files_are_flushed: 1_900,
    forget_what_a_flush_did_not_reach: 200,
    never_sync_the_name_of_an_empty_segment: 340,
}
"""Where to begin looking for what few seeds find. A change of the test moves them: then it takes longer."""


@pytest.mark.parametrize(
    "plant",
    [
        acknowledge_before_the_flush,
        never_sync_a_directory,
        never_replay_the_journal,
        pytest.param(replay_into_a_new_topic_of_the_old_name, marks=pytest.mark.slow),  # many seeds do not find it
        empty_the_journal_before_the_files_are_flushed,
        journal_what_has_a_new_name,
        pytest.param(forget_what_a_flush_did_not_reach, marks=pytest.mark.slow),
        trust_pages_after_a_failed_flush,
        keep_segments_that_do_not_join,
        pytest.param(delete_old_segments_in_any_order, marks=pytest.mark.slow),
        rename_checkpoints_before_they_are_written,
        never_sync_the_name_of_an_empty_segment,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant, monkeypatch):
    """The test above with a broken product: it must fail, and before it has run through."""
    plant(monkeypatch)
    first = FIRST_SEEDS.get(plant, 0)
    with pytest.raises((AssertionError, CorruptRecord)):
        run_seeds(range(first, first + 5_000))
