"""What compaction, repair, retention and damage do to a log must not be undone by something that is kept next to it."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import pytest

from eventbus.errors import PartitionOffline
from eventbus.log import checkpoints, repair
from eventbus.log.storage import FileStorage, Storage
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.broker.conftest import World


@pytest.mark.parametrize("recreated", [True, False])
def test_an_offset_whose_tombstone_was_compacted_away_stays_deleted(disk: World, recreated: bool) -> None:
    """Compaction drops a tombstone after its retention; an older saved state must not bring its key back."""
    orders, other = TopicPartition("orders", 0), TopicPartition("other", 0)
    disk.open(offsets_topic_num_partitions=1, offsets_topic_segment_bytes=1024)
    disk.create("orders")
    disk.create("other")

    def commit_often() -> None:
        for offset in range(30):
            disk.broker.groups.commit_offsets("busy", {other: OffsetAndMetadata(offset)}, disk.now_ms)
            disk.flush()

    disk.broker.groups.commit_offsets("g", {orders: OffsetAndMetadata(5)}, disk.now_ms)
    disk.broker.groups.commit_offsets("kept", {other: OffsetAndMetadata(1)}, disk.now_ms)
    disk.flush()
    disk.broker.close(disk.now_ms)
    disk.open()
    if recreated:
        disk.broker.delete_topics(["orders"], disk.now_ms)
        disk.create("orders")
    else:
        disk.broker.groups.delete_offsets("g", [orders], disk.now_ms)
    commit_often()
    disk.broker.clean_now(disk.now_ms)
    disk.now_ms += 3 * 86_400_000
    commit_often()
    disk.broker.clean_now(disk.now_ms)
    commit_often()
    live = repr(disk.broker.groups)
    disk.kill()
    disk.open()
    assert repr(disk.broker.groups) == live
    disk.broker.check()


def test_repair_forgets_the_saved_state(disk: World) -> None:
    """It was saved from a log that repair has changed: what is reported as lost must not live on in a cache."""
    orders = TopicPartition("orders", 0)
    disk.open(offsets_topic_num_partitions=1)
    disk.create("orders")
    for group in ("lost", "kept"):
        disk.broker.groups.commit_offsets(group, {orders: OffsetAndMetadata(1)}, disk.now_ms)
        disk.flush()
    disk.broker.close(disk.now_ms)
    segment = disk.directory / "__consumer_offsets-0" / f"{0:020}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[70] ^= 1
    segment.write_bytes(damaged)
    storage = FileStorage(str(disk.directory))
    storage.lock()
    repair.execute(storage, {})
    storage.unlock()
    disk.open()
    assert "lost" not in repr(disk.broker.groups) and "kept" in repr(disk.broker.groups)
    disk.broker.check()


def test_a_partition_that_cannot_delete_does_not_keep_others_from_it(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.open()
    for name in ("first", "second"):
        disk.create(name, **{"internal.segment.bytes": "1048", "retention.ms": "1000"})
        for _ in range(60):
            disk.produce(TopicPartition(name, 0), b"x" * 500)
    remove = disk.storage.remove

    def refuse(path: str) -> None:
        if path.startswith("first-0/") and path.endswith(".log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        remove(path)

    monkeypatch.setattr(disk.storage, "remove", refuse)
    for _ in range(12):
        disk.now_ms += 400_000
        disk.broker.tick(disk.now_ms)
    assert len(list((disk.directory / "second-0").glob("*.log"))) == 1


def test_a_damaged_partition_stays_offline_though_its_recovery_point_is_old(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean close on a full disk writes no checkpoints. The second start must not take the damage for a torn tail."""
    partition = TopicPartition("orders", 0)
    disk.open()
    disk.create("orders")
    disk.produce(partition, b"x" * 50)
    disk.broker.publish_checkpoints(disk.now_ms)
    for _ in range(10):
        disk.produce(partition, b"y" * 50)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", full)
        disk.broker.close(disk.now_ms)
    segment = disk.directory / "orders-0" / f"{0:020}.log"
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    disk.open()
    disk.restart(clean=False)
    assert segment.read_bytes() == damaged
    with pytest.raises(PartitionOffline):
        disk.broker.end_offset(partition)


def test_a_checkpoint_that_was_only_written_is_synced_when_that_is_required(
    disk: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content has not changed since, but a power cut could still bring the previous content back."""
    disk.open()
    disk.create("orders")
    disk.produce(TopicPartition("orders", 0), b"x")
    synced: list[str] = []
    write = checkpoints.write_offsets

    def watch(storage: Storage, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool) -> None:
        if sync:
            synced.append(name)
        write(storage, name, offsets, sync=sync)

    disk.broker.publish_checkpoints(disk.now_ms)
    monkeypatch.setattr(checkpoints, "write_offsets", watch)
    disk.broker.close(disk.now_ms)
    assert {checkpoints.HIGH_WATERMARKS, checkpoints.RECOVERY_POINTS} <= set(synced)
