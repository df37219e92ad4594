"""What the log's tests share: batches to append, and an invariant check of every log a test has opened."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from eventbus.log.config import LogConfig
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.storage import FileStorage, MemoryStorage, Storage
from eventbus.records import BatchBuilder, read_header
from eventbus.types import TopicPartition
from tests.descriptors import few_descriptors as few_descriptors

ORDERS = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000


class Logs:
    """Opens logs, appends to them, and checks them all at the end."""

    def __init__(self) -> None:
        self.opened: list[PartitionLog] = []
        self._numbers = itertools.count()

    def open(
        self, storage: Storage, where: TopicPartition = ORDERS, *, now_ms: int = NOW_MS, **arguments
    ) -> PartitionLog:
        """``arguments`` are those of `PartitionLog.open`, or fields of `LogConfig`."""
        known = {name: arguments.pop(name) for name in _OPEN_ARGUMENTS & arguments.keys()}
        log = PartitionLog.open(storage, where, LogConfig(**arguments), now_ms=now_ms, **known)
        self.opened.append(log)
        return log

    def batch(self, records_count: int = 1, *, timestamp_ms: int = NOW_MS, value_bytes: int = 20) -> bytearray:
        """A batch like no other."""
        builder = BatchBuilder()
        for index in range(records_count):
            value = f"{next(self._numbers)}".encode().ljust(value_bytes, b".")
            builder.append(b"key", value, (), timestamp_ms + index)
        return builder.build()

    def append(self, log: PartitionLog, *arguments, now_ms: int = NOW_MS, **settings) -> AppendInfo:
        batch = self.batch(*arguments, **settings)
        return log.append(batch, read_header(batch), now_ms)

    def fill(self, log: PartitionLog, count: int, **settings) -> list[AppendInfo]:
        """Append batches and let readers see them, as a flush would."""
        infos = [self.append(log, **settings) for _ in range(count)]
        log.high_watermark = log.log_end_offset
        return infos


_OPEN_ARGUMENTS = {"recovery_point", "log_start_offset", "clean_shutdown", "topic_id"}


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs()
    yield logs
    for log in logs.opened:
        if not log.closed:
            log.check()


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path) -> Iterator[Storage]:
    """Both storages: whatever holds for one holds for the other."""
    storage = MemoryStorage() if request.param == "memory" else FileStorage(str(tmp_path))
    storage.lock()
    yield storage
    storage.unlock()


@pytest.fixture
def directory(tmp_path) -> Callable[[], FileStorage]:
    """Opens the same directory again and again, as one process after another does."""
    opened: list[FileStorage] = []

    def reopen() -> FileStorage:
        for storage in opened:
            storage.unlock()
        opened.append(FileStorage(str(tmp_path)))
        opened[-1].lock()
        return opened[-1]

    return reopen
