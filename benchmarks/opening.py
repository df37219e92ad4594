"""Opening a log after very many transactions or offset commits, after a clean close and after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from core import now_ms, open_broker
from harness import Numbers, case, scratch

NAMES = 200
"""Transactional ids, or groups: they share flushes, and their records are in all 50 partitions."""


def make(folder: Path, kind: str, count: int) -> None:
    """Make that many transactions of a record and an offset each, or commits, and die by SIGKILL."""
    from eventbus.broker import TopicSpec
    from eventbus.records import BatchBuilder
    from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

    broker, topic_partition = open_broker(folder, "commit"), TopicPartition("log", 0)
    broker.create_topics([TopicSpec("log", 1)], now_ms())
    coordinator, names = broker.transactions, [f"name-{number}" for number in range(NAMES)]
    producers = {name: coordinator.init_producer_id(name, 60_000, now_ms()) for name in names}
    for number in range(count):
        at_ms, name = now_ms(), names[number % NAMES]
        offsets = {topic_partition: OffsetAndMetadata(number)}
        if kind == "commits":
            broker.groups.commit_offsets(name, offsets, at_ms)
        else:
            producer = producers[name]
            coordinator.add_partitions(name, producer, [topic_partition], at_ms)
            builder = BatchBuilder()
            builder.append(b"key", b"v" * 50, (), at_ms)
            batch = builder.build(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                is_transactional=True,
            )
            broker.produce(topic_partition, batch, at_ms, trusted=True)
            coordinator.commit_offsets(name, producer, GroupMetadata(name), offsets, at_ms)
            producers[name] = coordinator.end(name, producer, committed=True, now_ms=at_ms).next
        if number % NAMES == NAMES - 1:
            broker.tick(at_ms)
            flush(broker)
    os.kill(os.getpid(), signal.SIGKILL)


def flush(broker: Any) -> None:
    """Until markers, and what waits for them, are on the disk, too."""
    while broker.needs_sync:
        pending = broker.begin_sync()
        pending.run()
        broker.complete_sync(pending)


def timed_open(folder: Path) -> tuple[Any, float]:
    begin = time.process_time()
    broker = open_broker(folder, "commit")
    return broker, time.process_time() - begin


def opening(kind: str, count: int) -> Numbers:
    with scratch() as folder:
        process = subprocess.run([sys.executable, __file__, str(folder), kind, str(count)], check=False)
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError("the process that fills the log failed")
        broker, killed_s = timed_open(folder)
        broker.close(now_ms())
        broker, clean_s = timed_open(folder)
        broker.close(now_ms())
    return {"clean s": clean_s, "killed s": killed_s}


@case("open after transactions", n=1_000_000, quick=20_000, rounds=1)
def after_transactions(n: int) -> Numbers:
    """CPU seconds of opening."""
    return opening("transactions", n)


@case("open after commits", n=1_000_000, quick=20_000, rounds=1)
def after_commits(n: int) -> Numbers:
    """CPU seconds of opening."""
    return opening("commits", n)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
