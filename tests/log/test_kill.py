"""kill -9 of a writing process: whatever it had acknowledged is there, once and in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from eventbus.log import checkpoints, journal
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import FileStorage
from eventbus.records import iter_batches
from eventbus.types import TopicPartition

pytestmark = pytest.mark.system

PARTITIONS = 4
CONFIG = LogConfig(segment_bytes=20_000)

WRITE = """
import sys
from eventbus.log import checkpoints, journal
from eventbus.log.commit import GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder, read_header
from eventbus.types import TopicPartition
storage = FileStorage(sys.argv[1])
storage.lock()
journal.replay(storage)
points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS)
commit = GroupCommit(storage)
logs = []
for number in range(4):
    where = TopicPartition("t", number)
    config = LogConfig(segment_bytes=20_000)
    logs.append(PartitionLog.open(storage, where, config, now_ms=0, recovery_point=points.get(where, 0)))
print("open", *[log.log_end_offset for log in logs], flush=True)
for turn in range(1_000_000):
    for log in logs[turn % 4:] if turn % 3 else logs:
        builder = BatchBuilder()
        builder.append(None, b"%d" % log.log_end_offset * 9, (), 0)
        batch = builder.build()
        log.append(batch, read_header(batch), 0)
        commit.appended(log, batch)
    flush = commit.begin()
    flush.run()
    commit.complete(flush)
    print("acked", *[log.high_watermark for log in logs], flush=True)
    if turn % 20 == 0:
        points = {log.topic_partition: log.recovery_point for log in logs}
        checkpoints.write_offsets(storage, checkpoints.RECOVERY_POINTS, points, sync=False)
"""


def kill_again_and_again(directory: Path, times: int) -> None:
    random = Random(times)
    acked = [0] * PARTITIONS
    for _ in range(times):
        writer = subprocess.Popen([sys.executable, "-c", WRITE, directory], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer:
            lines = random.randint(1, 60)
            for number, line in enumerate(writer.stdout):
                word, *offsets = line.split()
                if not line.endswith("\n"):
                    break  # the kill tore it: it was never said
                if word == "open":
                    assert all(int(offset) >= least for offset, least in zip(offsets, acked, strict=True))
                acked = [int(offset) for offset in offsets]
                if number == lines:
                    writer.kill()
        assert writer.returncode == -9
    check(directory, acked)


def check(directory: Path, acked: list[int]) -> None:
    storage = FileStorage(str(directory))
    storage.lock()
    journal.replay(storage)
    points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS)
    assert points is not None
    for number, least in enumerate(acked):
        where = TopicPartition("t", number)
        log = PartitionLog.open(storage, where, CONFIG, now_ms=0, recovery_point=points.get(where, 0))
        assert log.log_end_offset >= least
        log.check()
        offset = 0
        while offset < log.log_end_offset:
            for batch in iter_batches(log.read(offset, 1 << 16, max_offset=log.log_end_offset)):
                assert [record.value for record in batch.records()] == [b"%d" % offset * 9]
                offset += 1
    storage.unlock()


def test_a_killed_writer_loses_nothing_acknowledged(tmp_path):
    kill_again_and_again(tmp_path, 6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_kills(tmp_path):
    kill_again_and_again(tmp_path, 200)
