"""A log on a disk that is completely full: it opens, is read, closes, and can be emptied."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import SimpleNamespace

import pytest

from eventbus.errors import StorageFull
from eventbus.log.reserve import RESERVE, RESERVE_BYTES
from eventbus.log.storage import FileStorage, NoInodes
from eventbus.testing.storage import FaultyStorage, disk_full
from eventbus.types import OffsetAndMetadata, TopicPartition

ORDERS = TopicPartition("orders", 0)
BIG = TopicPartition("big", 0)


class FullDisk(FaultyStorage):
    """No byte can be appended to any file until something is removed."""

    def __init__(self, directory: str) -> None:
        super().__init__(FileStorage(directory), error=disk_full, persistent=True, only=("append",))

    def fill(self) -> None:
        self.calls_count, self.fail_at = 0, 1

    def remove(self, path: str) -> None:
        gives_room = path.endswith(".log") or (path == RESERVE and self.inner.open(path).size == RESERVE_BYTES)
        super().remove(path)
        if gives_room:
            self.heal()


@pytest.fixture
def full_disk(disk):
    """A log with records, killed; its disk is full."""
    disk.storage = FullDisk(str(disk.directory))
    disk.open()
    for topic in ("orders", "big"):
        disk.create(topic, **{"internal.segment.bytes": 100, "retention.bytes": 100})
    for _ in range(3):
        disk.produce(ORDERS, b"x" * 60)
        disk.produce(BIG, b"x" * 60)
    disk.broker.groups.commit_offsets("g", {BIG: OffsetAndMetadata(1)}, disk.now_ms)
    disk.flush()
    disk.storage.unlock()
    disk.storage = FullDisk(str(disk.directory))
    disk.storage.fill()
    return disk


def test_it_opens_is_read_and_closes(full_disk, caplog) -> None:
    for _ in range(2):
        full_disk.open()
        assert len(full_disk.read(ORDERS)) == 3
        with pytest.raises(StorageFull):
            full_disk.produce(ORDERS, b"y")
        with suppress(FileNotFoundError):
            full_disk.storage.inner.remove(RESERVE)  # spent before
        with caplog.at_level(logging.WARNING):
            full_disk.broker.close(full_disk.now_ms)
        assert "the next start reads the ends of the logs, as after a crash" in caplog.text


def test_a_topic_can_be_deleted(full_disk) -> None:
    full_disk.open()
    assert full_disk.broker.delete_topics(["big"], full_disk.now_ms) == {"big": None}
    full_disk.produce(ORDERS, b"y")
    full_disk.restart()
    assert full_disk.broker.list_topics() == ["__consumer_offsets", "orders"]
    assert full_disk.broker.groups.fetch_offsets("g") == {}
    assert full_disk.storage.inner.open(RESERVE).size > 0, "it is filled again"
    full_disk.broker.close(0)


def test_records_can_be_deleted_and_retention_works(full_disk) -> None:
    full_disk.open()
    assert full_disk.broker.delete_records(ORDERS, 1, full_disk.now_ms) == 1
    full_disk.storage.fill()
    full_disk.now_ms += 60_000
    full_disk.broker.tick(full_disk.now_ms)
    assert full_disk.broker.log_start_offset(BIG) == 2
    assert full_disk.produce(BIG, b"y") == 3
    full_disk.broker.close(0)


def test_a_deletion_that_finds_no_room_for_the_offsets_does_not_keep_the_log_closed(full_disk) -> None:
    """Killed after the topic was deleted and before the groups' offsets were: every start tries again."""
    full_disk.open()
    full_disk.broker.topic_admin.delete("big", full_disk.now_ms)
    full_disk.storage.unlock()
    full_disk.storage = FullDisk(str(full_disk.directory))
    full_disk.storage.fill()
    full_disk.storage.remove = full_disk.storage.inner.remove
    full_disk.open()
    assert full_disk.broker.list_topics() == ["__consumer_offsets", "orders"]
    full_disk.broker.close(0)


def test_a_file_system_without_inodes_is_named(disk, monkeypatch) -> None:
    disk.open()
    disk.create("orders")

    def refuse(*_: object, **__: object) -> int:
        raise disk_full()

    status = SimpleNamespace(f_files=100, f_favail=0, f_bavail=5, f_frsize=1000)
    monkeypatch.setattr("eventbus.log.storage.os.statvfs", lambda _: status)
    monkeypatch.setattr("eventbus.log.storage.os.open", refuse)
    with pytest.raises(StorageFull, match="no free inodes, though it has 5,000 free bytes") as caught:
        disk.produce(ORDERS, b"x")
    assert isinstance(caught.value.__cause__, NoInodes)
    monkeypatch.undo()
    assert disk.produce(ORDERS, b"x") == 0
    disk.broker.close(0)
