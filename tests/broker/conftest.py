"""One world for the broker's tests: a storage, a broker on it, a clock of our own, and ways to die."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import KafkaError
from eventbus.log.storage import FileStorage, MemoryStorage, Storage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.types import IsolationLevel, TopicPartition
from tests.disks import nothing_waits_for_the_disk

__all__ = ["nothing_waits_for_the_disk"]

START_MS = 1_700_000_000_000


@pytest.fixture
def latest_records_are_saved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save them after four records, so that a short life has files of them in every state."""
    monkeypatch.setattr("eventbus.broker.shard_log.SAVE_RECORDS", 4)


class World:
    """``world.broker`` over ``world.storage`` at ``world.now_ms``."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.storage = self._new_storage()
        self.now_ms = START_MS
        self.ids = itertools.count(2)
        self.advanced: list[TopicPartition] = []
        self.config = BrokerConfig()
        self.broker: Broker

    def _new_storage(self) -> Storage:
        return MemoryStorage() if self.directory is None else FileStorage(str(self.directory))

    def new_id(self) -> bytes:
        return next(self.ids).to_bytes(16, "big")

    def open(self, **settings) -> Broker:
        if settings:
            self.config = BrokerConfig(**settings)
        self.broker = Broker.open(self.storage, self.config, now_ms=self.now_ms, new_id=self.new_id)
        self.broker.on_advance = self.advanced.append
        return self.broker

    def restart(self, *, clean: bool = True, **settings) -> Broker:
        """Close in order, or die as a killed process does: what was written is there, nothing else is said."""
        if clean:
            self.broker.close(self.now_ms)
        else:
            self.kill()
        return self.open(**settings)

    def kill(self) -> None:
        if self.directory is not None:
            self.storage.unlock()
            self.storage = self._new_storage()

    def create(self, name: str, partitions: int = 1, **configs) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        result = self.broker.create_topics([TopicSpec(name, partitions, configs=configs)], self.now_ms)[name]
        if isinstance(result, KafkaError):
            raise result

    def batch(self, *values: bytes | None, key: bytes | None = b"key", timestamp_ms: int | None = None) -> bytearray:
        """One batch; its records are 1 ms apart."""
        builder = BatchBuilder()
        first_ms = self.now_ms if timestamp_ms is None else timestamp_ms
        for number, value in enumerate(values):
            builder.append(key, value, (), first_ms + number)
        return builder.build()

    def produce(self, tp: TopicPartition, *values: bytes, flush: bool = True, **how) -> int:
        """Base offset of one batch."""
        info = self.broker.produce(tp, self.batch(*values, **how), self.now_ms)
        if flush:
            self.flush()
        return info.base_offset

    def flush(self) -> None:
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)

    def read(self, tp: TopicPartition, offset: int = 0) -> list[tuple[int, bytes | None]]:
        """Everything readable from an offset on: (offset, value)."""
        found: list[tuple[int, bytes | None]] = []
        while True:
            data = self.broker.fetch(tp, offset, 1 << 20, IsolationLevel.READ_COMMITTED)
            if not data.records:
                return found
            records = fetched_records(data.records, *tp, offset)
            found += zip(records.offsets, records.values, strict=True)
            offset = records.next_offset

    def files(self, path: str = "") -> list[str]:
        return [name for name in self.storage.listdir(path) if not name.startswith(".")]


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest, tmp_path: Path):
    """Over both storages; every invariant is checked at the end."""
    world = World(tmp_path / "log" if request.param == "file" else None)
    world.open()
    yield world
    world.broker.check()
    world.broker.close(world.now_ms)


@pytest.fixture
def disk(tmp_path: Path):
    """On disk, for what only a disk can do; the broker is not open yet, and need not be at the end."""
    world = World(tmp_path / "log")
    yield world
    world.storage.unlock()
