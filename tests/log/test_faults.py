"""Every call to the storage fails once, each in its turn: transiently, or until somebody heals the disk.

Whatever fails: only our own errors come out, nothing is acknowledged that is not on disk, a batch is in the log whole
or not at all, and when the disk works again so does the log, in the same process unless a flush had failed.
"""

from __future__ import annotations

import contextlib
import itertools
from random import Random

import pytest

from eventbus.errors import EventBusError, LogPoisoned, StorageFull
from eventbus.log import checkpoints, commit, journal
from eventbus.log.commit import GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import storage_error
from eventbus.records import iter_batches, read_header
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full, io_error
from eventbus.types import TopicPartition

pytestmark = pytest.mark.system

NAMES = ("a", "b", "c", "d")
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_bytes=900, retention_ms=-1)
NOW_MS = 1_700_000_000_000


class Script:
    """The same work every time, over a disk that may refuse any of it; counts what was appended and acknowledged."""

    def __init__(self, storage: FaultyStorage, batches) -> None:
        self.storage = storage
        self.batches = batches
        self.logs: dict[str, PartitionLog] = {}
        self.appended: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self.acked_offsets = dict.fromkeys(NAMES, 0)
        self.errors: list[Exception] = []

    def run(self) -> None:
        with self.tolerating():
            self.open()
        if len(self.logs) < len(NAMES):
            return
        for _ in range(3):
            for name in NAMES:
                self.append(name)
            self.flush()
        self.append("a")
        self.flush()
        with self.tolerating():
            self.publish()
        for name in NAMES:
            with self.tolerating():
                self.logs[name].apply_retention(NOW_MS)
        for name in NAMES:
            self.append(name)
            with self.tolerating():
                self.read_all(name)
        with self.tolerating():
            self.logs["b"].offset_for_timestamp(NOW_MS)
        self.flush()
        self.close()

    @contextlib.contextmanager
    def tolerating(self):
        try:
            yield
        except EventBusError as error:
            self.errors.append(error)

    def open(self) -> None:
        try:
            journal.replay(self.storage)
            points = checkpoints.read_offsets(self.storage, checkpoints.RECOVERY_POINTS)
            starts = checkpoints.read_offsets(self.storage, checkpoints.LOG_START_OFFSETS)
        except OSError as error:
            raise storage_error(error, "opening") from error
        assert points is not None
        assert starts is not None
        self.commit = GroupCommit(self.storage)
        for name in NAMES:
            where = TopicPartition(name, 0)
            self.logs[name] = PartitionLog.open(
                self.storage,
                where,
                CONFIG,
                now_ms=NOW_MS,
                recovery_point=points.get(where, 0),
                log_start_offset=starts.get(where, 0),
            )

    def append(self, name: str) -> None:
        batch = self.batches(2, value_bytes=30)
        with self.tolerating():
            self.logs[name].append(batch, read_header(batch), NOW_MS)
            self.appended[name].append(bytes(batch))
            self.commit.appended(self.logs[name], batch)

    def flush(self) -> None:
        if not self.commit.needs_sync:
            return
        flush = self.commit.begin()
        try:
            flush.run()
        except OSError as error:
            self.commit.complete(flush, error)
        else:
            self.commit.complete(flush)
        for name, log in self.logs.items():
            self.acked_offsets[name] = log.high_watermark

    def publish(self) -> None:
        points = {log.topic_partition: log.recovery_point for log in self.logs.values()}
        starts = {log.topic_partition: log.log_start_offset for log in self.logs.values()}
        try:
            checkpoints.write_offsets(self.storage, checkpoints.RECOVERY_POINTS, points, sync=True)
            checkpoints.write_offsets(self.storage, checkpoints.LOG_START_OFFSETS, starts, sync=False)
        except OSError as error:
            raise storage_error(error, "publishing") from error

    def close(self) -> None:
        with self.tolerating():
            self.commit.close()
        for log in self.logs.values():
            with self.tolerating():
                log.close()

    def read_all(self, name: str) -> list[bytes]:
        log = self.logs[name]
        found: list[bytes] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            for batch in iter_batches(log.read(offset, 300, max_offset=log.log_end_offset)):
                found.append(bytes(batch.buffer[batch.position : batch.position + batch.header.size_bytes]))
                offset = batch.header.next_offset
        return found

    def check(self, *, prefix: bool) -> None:
        """Each log holds what was appended, or after a crash the beginning of it, from its start offset on."""
        for name, log in self.logs.items():
            log.check()
            assert log.log_end_offset >= self.acked_offsets[name], "acknowledged records are gone"
            end = log.log_end_offset
            want = [
                batch
                for batch in self.appended[name]
                if (header := read_header(batch)).base_offset >= log.log_start_offset and header.next_offset <= end
            ]
            assert self.read_all(name) == want
            assert prefix or not want or read_header(want[-1]).next_offset == end


def survive(fail_at: int, error, persistent: bool, batches) -> int:
    """Run the script with one failure; returns how many calls failed."""
    disk = CrashStorage()
    faulty = FaultyStorage(disk, fail_at=fail_at, error=error, persistent=persistent)
    script = Script(faulty, batches)
    script.run()
    failures = faulty.failures_count
    for raised in script.errors:
        if error is disk_full and not isinstance(raised, LogPoisoned):
            assert isinstance(raised, StorageFull), raised
    faulty.heal()
    healthy = {name: log for name, log in script.logs.items() if not log.poisoned and not log.closed}
    for name in healthy:
        script.append(name)
        assert read_header(script.appended[name][-1]).next_offset == healthy[name].log_end_offset, "it did not heal"
    for survivor in (disk.crash(Random(fail_at)), disk.kill()):
        again = Script(FaultyStorage(survivor), batches)
        again.appended = {name: [*appended] for name, appended in script.appended.items()}
        again.acked_offsets = {**script.acked_offsets}
        again.open()
        again.check(prefix=survivor is not disk)
        for name, log in again.logs.items():
            again.appended[name] = [
                batch for batch in again.appended[name] if read_header(batch).next_offset <= log.log_end_offset
            ]
            again.append(name)
        again.flush()
        again.check(prefix=survivor is not disk)
    return failures


@pytest.fixture(autouse=True)
def small_journal(monkeypatch):
    monkeypatch.setattr(commit, "JOURNAL_LIMIT_BYTES", 900)


@pytest.mark.parametrize(
    ("error", "persistent"),
    [
        pytest.param(io_error, False, id="EIO-once"),
        pytest.param(io_error, True, id="EIO-forever", marks=pytest.mark.slow),
        pytest.param(disk_full, False, id="ENOSPC-once", marks=pytest.mark.slow),
        pytest.param(disk_full, True, id="ENOSPC-forever"),
    ],
)
def test_the_nth_call_fails(error, persistent, logs):
    for fail_at in itertools.count(1):
        try:
            if not survive(fail_at, error, persistent, logs.batch):
                break
        except Exception as problem:
            problem.add_note(f"call {fail_at}")
            raise
    assert fail_at > 100
