"""The log removes from its directory only what it created and what its metadata records as deleted."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path

import pytest

from eventbus.log.storage import FileStorage
from eventbus.types import TopicPartition

ORDERS = TopicPartition("orders", 0)
UNIQUE_ID = "0123456789012345678901"


def topic_with_records(world, name: str = "orders") -> None:
    world.create(name)
    world.produce(TopicPartition(name, 0), b"a", b"b")


def delete(world, name: str = "orders") -> None:
    assert world.broker.delete_topics([name], world.now_ms) == {name: None}


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def names(world, prefix: str) -> list[str]:
    return [name for name in entries(world.directory) if name.startswith(prefix)]


def test_a_partition_that_is_a_link_is_deleted_with_its_records(disk, tmp_path) -> None:
    disk.open()
    topic_with_records(disk)
    disk.broker.close(0)
    elsewhere = tmp_path / "disk2"
    shutil.move(disk.directory / "orders-0", elsewhere)
    (disk.directory / "orders-0").symlink_to(elsewhere)
    disk.open()
    delete(disk)
    assert names(disk, "orders") == []
    assert list(elsewhere.iterdir()) == []
    disk.restart()
    disk.broker.close(0)


@pytest.mark.parametrize("call", ["rename", "remove"])
def test_what_cannot_be_removed_does_not_keep_the_log_closed(disk, monkeypatch, caplog, call: str) -> None:
    """A mount point, say: it can be neither renamed nor removed."""
    original = getattr(FileStorage, call)

    def refuse(storage: FileStorage, path: str, *others: str) -> None:
        if path.startswith("orders-0"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        original(storage, path, *others)

    disk.open()
    topic_with_records(disk)
    monkeypatch.setattr(FileStorage, call, refuse)
    delete(disk)
    disk.kill()
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert disk.broker.list_topics() == []
    [left] = names(disk, "orders")
    assert f"{left} in {disk.directory}" in caplog.text
    assert "Device or resource busy" in caplog.text
    disk.broker.close(0)


def test_a_restored_partition_of_a_deleted_topic_is_kept_aside(disk, tmp_path, caplog) -> None:
    disk.open()
    topic_with_records(disk)
    disk.broker.close(0)
    shutil.copytree(disk.directory / "orders-0", tmp_path / "backup")
    disk.open()
    delete(disk)
    disk.kill()
    shutil.copytree(tmp_path / "backup", disk.directory / "orders-0")
    with caplog.at_level(logging.WARNING):
        disk.open()
    [aside] = names(disk, "orders-0")
    assert aside.endswith("-stray")
    assert f"kept aside as {aside}" in caplog.text
    assert entries(disk.directory / aside) == entries(tmp_path / "backup")
    disk.broker.close(0)


def test_a_finished_deletion_of_another_incarnation_is_no_reason_to_delete(disk, caplog) -> None:
    """The directory was renamed for deletion, then the metadata was restored from a backup in which the topic lives."""
    disk.open()
    topic_with_records(disk)
    disk.broker.close(0)
    doomed = f"orders-0.{UNIQUE_ID}-delete"
    (disk.directory / "orders-0").rename(disk.directory / doomed)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (disk.directory / name).unlink()
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert names(disk, "orders") == [doomed]
    assert f"{doomed} in {disk.directory} belongs to no topic that was deleted here" in caplog.text
    disk.broker.close(0)


def test_folders_of_users_are_left_alone_and_named(disk, caplog) -> None:
    disk.open()
    for topic in ("orders", "export"):
        topic_with_records(disk, topic)
        delete(disk, topic)
    disk.broker.close(0)
    own = ["export-2026", "old-delete", f"orders-0.{UNIQUE_ID}-delete", "orders-007", "reports"]
    for name in own:
        (disk.directory / name).mkdir()
        (disk.directory / name / "mine.csv").write_text("mine")
    with caplog.at_level(logging.WARNING):
        disk.open()
    for name in own:
        assert (disk.directory / name / "mine.csv").exists(), name
        assert name in caplog.text
    disk.broker.close(0)


def test_topics_with_the_longest_names_are_deleted_too(disk) -> None:
    """The name of a directory that is being deleted has 31 characters more, and file systems take 255 bytes."""
    disk.open()
    name = "t" * 249
    topic_with_records(disk, name)
    delete(disk, name)
    assert names(disk, "ttt") == []
    disk.restart()
    disk.broker.close(0)


def test_retention_and_expiry_log_what_they_deleted_and_why(world, caplog) -> None:
    world.open()
    world.create("orders", **{"retention.ms": 1000, "internal.segment.bytes": 100})
    for _ in range(3):
        world.produce(ORDERS, b"x" * 60)
    world.now_ms += 60_000
    with caplog.at_level(logging.INFO):
        world.broker.tick(world.now_ms)
    assert "orders-0: deleting 3 segment(s), offsets 0 to 2, " in caplog.text
    assert "older than retention.ms=1000" in caplog.text
