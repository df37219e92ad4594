"""Every promise on both embedded storages, none left out; and the kit finds a backend that breaks one."""

from __future__ import annotations

import copy
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus, TopicPartition
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import MemoryStorage
from eventbus.testing.conformance import PROMISES, Promise, Target, promises_for

START_MS = 1_700_000_000_000
SETTINGS: dict[str, Any] = {
    # The housekeeping looks at the clock that often, so that what is due after a jump happens soon.
    "checkpoint_interval_ms": 10,
    "log_retention_check_interval_ms": 10,
    "log_cleaner_backoff_ms": 10,
}
_names = itertools.count()


class EmbeddedTarget(Target):
    can = frozenset({"restart", "kill", "clock", "damage"})

    def __init__(self) -> None:
        self._now_ms = START_MS

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        self._now_ms += milliseconds


class Memory(EmbeddedTarget):
    """The storage is the test's own, so that it outlives the engine on it."""

    def __init__(self) -> None:
        super().__init__()
        self._move(MemoryStorage())

    def _move(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._name = f"memory://conformance-{next(_names)}"

    def open(self) -> EventBus:
        settings, storage, name = broker_config(SETTINGS), self._storage, self._name

        def make() -> Engine:
            return Engine(name, storage, settings, self.now_ms, new_id)

        backend = EmbeddedBackend(name, lambda: Engine.shared(name, settings, make))
        return EventBus(name, backend=backend, clock=self.now_ms)

    async def kill(self) -> None:
        self._move(copy.deepcopy(self._storage))

    async def damage(self, partition: TopicPartition) -> None:
        [name] = [name for name in self._storage.listdir(str(partition)) if name.endswith(".log")]
        file = self._storage.open(f"{partition}/{name}")
        file.pwrite(file.size - 1, bytes([file.pread(file.size - 1, 1)[0] ^ 1]))
        file.close()


class File(EmbeddedTarget):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._bus_run = 0

    def open(self) -> EventBus:
        return EventBus(f"file://{self._path()}", clock=self.now_ms, **SETTINGS)

    def _path(self) -> Path:
        return self._directory / f"life-{self._bus_run}"

    async def kill(self) -> None:
        """What a killed process has written is there; the one that goes on does so elsewhere."""
        before = self._path()
        self._bus_run += 1
        shutil.copytree(before, self._path())

    async def damage(self, partition: TopicPartition) -> None:
        [segment] = self._path().glob(f"{partition}/*.log")
        stored = segment.read_bytes()
        segment.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))


@pytest.mark.parametrize("event_loop", ["asyncio", pytest.param("trio", marks=pytest.mark.system)])
@pytest.mark.parametrize("promise", promises_for(Memory), ids=repr)
def test_memory(promise: Promise, event_loop: str) -> None:
    promise.check(Memory(), event_loop)


@pytest.mark.parametrize("promise", promises_for(File), ids=repr)
def test_file(promise: Promise, tmp_path: Path) -> None:
    promise.check(File(tmp_path))


def test_no_promise_is_left_out() -> None:
    assert promises_for(Memory) == promises_for(File) == PROMISES
    assert len({repr(promise) for promise in PROMISES}) == len(PROMISES) > 100


# backends that break a promise ----------------------------------------------------------------------------------------


def broken(patience_seconds: float = 0.5) -> set[str]:
    """Return the promises that are broken. One that hangs is, after ``patience_seconds``."""
    found: set[str] = set()
    for promise in promises_for(Memory):
        if promise.area in ("records", "transactions", "fencing", "groups"):
            try:
                promise.check(Memory(), patience_seconds=patience_seconds)
            except Exception:
                found.add(promise.name)
    return found


@pytest.mark.system
def test_a_backend_that_keeps_its_promises_breaks_none() -> None:
    assert broken(patience_seconds=60) == set()


@pytest.mark.system
def test_a_backend_that_shows_open_transactions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))
    found = broken()
    assert {"a_commit_shows_all_partitions_and_topics", "readers_stop_at_the_oldest_open_transaction"} <= found
    assert "a_partition_keeps_the_order_of_sends" not in found


@pytest.mark.system
def test_a_backend_that_shows_aborted_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "aborted_in", lambda *_: ())
    assert {
        "nothing_of_an_aborted_transaction_is_ever_committed",
        "interleaved_transactions_end_each_in_its_own_way",
        "a_second_producer_fences_the_first_and_aborts_what_it_left",
    } <= broken()


@pytest.mark.system
def test_a_backend_that_lets_anybody_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.coordinator.groups.GroupsShard._check_commit", lambda *_, **__: None)
    assert {"an_offset_outside_the_group_spoils_the_transaction", "a_group_at_work_is_left_alone"} <= broken()
