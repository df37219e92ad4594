"""Restarts of every kind: what was promised is there, what is damaged is said, nothing is reset in silence."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from eventbus.broker import Broker, BrokerConfig
from eventbus.broker.broker import _METADATA
from eventbus.broker.partitions import Writes
from eventbus.errors import CorruptRecord, LogLocked, LogPoisoned, PartitionOffline, StorageError, StorageFull
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder
from eventbus.types import IsolationLevel, OffsetAndMetadata, TopicPartition

ORDERS = TopicPartition("orders", 0)
LOG = "00000000000000000000.log"


def log_file(world, tp: TopicPartition | str) -> Path:
    return world.directory / str(tp) / LOG


def truncate(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-by])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def commit(world, offset: int):
    return world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(offset)}, world.now_ms).topic_partition


@pytest.mark.parametrize("fsync", ["commit", "interval", "os"])
@pytest.mark.parametrize("clean", [True, False])
def test_everything_acknowledged_is_there(world, fsync: str, clean: bool) -> None:
    world.restart(fsync=fsync)
    world.create("orders", 5)
    partitions = [TopicPartition("orders", number) for number in range(5)]
    expected = {}
    for turn in range(4):
        for tp in partitions:
            world.produce(tp, b"%d" % turn, flush=False)
        world.flush()  # five logs at once
        expected = {tp: [(n, b"%d" % n) for n in range(turn + 1)] for tp in partitions}
        commit(world, turn)
        world.flush()
        if turn == 1:
            world.broker.publish_checkpoints(world.now_ms)
        world.restart(clean=clean)
        assert {tp: world.read(tp) for tp in partitions} == expected
        assert world.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(turn)}
        world.broker.check()


def test_a_torn_commit_is_cut_and_the_ones_before_it_stay(disk, caplog) -> None:
    disk.open()
    disk.create("orders")
    offsets_log = commit(disk, 1)
    disk.flush()
    disk.broker.publish_checkpoints(disk.now_ms)
    commit(disk, 2)
    disk.kill()
    truncate(log_file(disk, offsets_log), 5)
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert "cutting" in caplog.text
    assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(1)}
    commit(disk, 3)
    disk.flush()
    disk.broker.check()
    disk.restart()
    assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(3)}
    disk.broker.close(0)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", ["offsets", "metadata"])
def test_damage_in_internal_topics_is_an_error_for_a_human(disk, which: str, clean: bool) -> None:
    disk.open()
    disk.create("orders")
    offsets_log = commit(disk, 1)
    commit(disk, 2)
    disk.flush()
    disk.broker.publish_checkpoints(disk.now_ms)
    if clean:
        disk.broker.close(disk.now_ms)
    else:
        disk.kill()
    damaged = log_file(disk, offsets_log if which == "offsets" else _METADATA)
    good = damaged.read_bytes()
    for position in (3, 17, 30, 70, len(good) - 1):
        flip(damaged, position)
        for _ in range(2):  # the first refusal changed nothing, so the second says the same
            with pytest.raises(CorruptRecord) as caught:
                disk.open()
            assert damaged.parent.name in str(caught.value)
        damaged.write_bytes(good)
    disk.open()
    assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(2)}
    disk.broker.close(0)


def test_a_lost_tail_of_metadata_is_damage_not_a_torn_write(disk) -> None:
    """Each change of topics was flushed and its watermark published, so a shorter file is a broken promise."""
    disk.open()
    disk.create("one")
    disk.create("two")
    disk.kill()
    truncate(log_file(disk, _METADATA), 3)
    with pytest.raises(CorruptRecord, match="__cluster_metadata-0"):
        disk.open()


def test_a_missing_metadata_log(disk) -> None:
    disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"x")
    disk.broker.close(disk.now_ms)
    (disk.directory / "__cluster_metadata-0").rename(disk.directory / "elsewhere")
    with pytest.raises(CorruptRecord, match=r"holds 1 partition\(s\) \(orders-0.*but not __cluster_metadata-0"):
        disk.open()
    (disk.directory / "elsewhere").rename(disk.directory / "__cluster_metadata-0")
    disk.open()
    assert disk.read(ORDERS) == [(0, b"x")]
    disk.broker.close(0)


def test_a_missing_partition(disk) -> None:
    disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"x")
    disk.broker.close(disk.now_ms)
    (disk.directory / "orders-0").rename(disk.directory / "elsewhere")
    disk.open()
    with pytest.raises(PartitionOffline, match="should hold offsets up to 1, but its directory has no segment"):
        disk.read(ORDERS)
    disk.broker.close(0)
    (disk.directory / "elsewhere").rename(disk.directory / "orders-0")
    disk.open()
    assert disk.read(ORDERS) == [(0, b"x")]
    disk.broker.close(0)


def test_directories_of_nobody_are_left_alone(disk, caplog) -> None:
    disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"x")
    disk.broker.close(disk.now_ms)
    for stray in ("stranger-0", "orders-7"):
        (disk.directory / stray).mkdir()
    (disk.directory / "notes").write_text("mine")
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert "stranger-0 belongs to no topic known here" in caplog.text
    assert "orders-7 belongs to no topic known here" in caplog.text
    assert disk.broker.list_topics() == ["orders"]
    disk.broker.close(0)
    assert (disk.directory / "stranger-0").exists()
    assert (disk.directory / "notes").exists()


def test_metadata_of_a_newer_version(disk) -> None:
    disk.open()
    disk.create("orders")
    builder = BatchBuilder()
    builder.append(b'{"type":"topic","name":"orders"}', b'{"version":9}', (), 0)
    Writes(disk.broker._logs).append(disk.broker._metadata.log, builder.build(), 0)
    disk.broker.close(0)
    with pytest.raises(CorruptRecord, match=r"__cluster_metadata-0, offset 1: metadata of version 9.*a newer version"):
        disk.open()


def test_offsets_that_are_missing_at_the_start_are_counted(disk, caplog) -> None:
    disk.open()
    disk.create("orders", **{"internal.segment.bytes": 100})
    for _ in range(3):
        disk.produce(ORDERS, b"x" * 60)
    disk.broker.close(disk.now_ms)
    log_file(disk, ORDERS).unlink()
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert f"orders-0 in {disk.directory}: 1 offsets (0 to 0) are missing" in caplog.text
    disk.broker.close(0)


def test_what_retention_deleted_just_before_a_crash_is_not_missing(disk, caplog) -> None:
    disk.open()
    disk.create("orders", **{"internal.segment.bytes": 100, "retention.bytes": 100})
    for _ in range(3):
        disk.produce(ORDERS, b"x" * 60)
    disk.broker.publish_checkpoints(disk.now_ms)
    disk.broker._logs.publish = lambda **_: None  # killed before it could
    disk.broker._logs.apply_retention(disk.now_ms)
    disk.kill()
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert disk.broker.log_start_offset(ORDERS) == 2
    assert "missing" not in caplog.text
    disk.broker.close(0)


@pytest.mark.parametrize("content", [None, b"0\n9\n"])
def test_a_lost_checkpoint_of_log_starts_is_no_secret(disk, caplog, content) -> None:
    disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"a", b"b")
    disk.broker.delete_records(ORDERS, 1, disk.now_ms)
    disk.broker.close(disk.now_ms)
    path = disk.directory / "log-start-offset-checkpoint"
    path.unlink() if content is None else path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert f"{path.name} is {'missing' if content is None else 'damaged'}" in caplog.text
    assert "can be read again: delete them again" in caplog.text
    disk.broker.close(0)


# a damaged partition -------------------------------------------------------------------------------------------------

BAD, GOOD = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def damaged(disk):
    """Two partitions, a transaction in both; the first one is damaged where it was on disk."""
    disk.open()
    disk.create("orders", 2)
    disk.produce(BAD, b"a")
    disk.produce(GOOD, b"a")
    transactions = disk.broker.transactions
    producer = transactions.init_producer_id("tx", 60_000, disk.now_ms)
    transactions.add_partitions("tx", producer, (BAD, GOOD), disk.now_ms)
    for tp in (BAD, GOOD):
        builder = BatchBuilder()
        builder.append(None, b"b", (), disk.now_ms)
        how = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "base_sequence": 0}
        disk.broker.produce(tp, builder.build(is_transactional=True, **how), disk.now_ms)
    disk.flush()
    disk.broker.publish_checkpoints(disk.now_ms)
    disk.kill()
    disk.good = log_file(disk, BAD).read_bytes()
    flip(log_file(disk, BAD), 70)
    return disk


def test_a_damaged_partition_is_offline_and_the_others_work(damaged, caplog) -> None:
    broker = damaged.open()
    assert "orders-0 is offline: orders-0 is damaged" in caplog.text
    assert broker.trouble.startswith("1 partition(s) are offline (orders-0): orders-0 is damaged: ")
    producer = damaged.broker.transactions.init_producer_id(None, 0, 0)
    calls = [
        lambda: damaged.produce(BAD, b"x"),
        lambda: broker.fetch(BAD, 0, 1000),
        lambda: broker.list_offsets(BAD, -1),
        lambda: broker.delete_records(BAD, 1, 0),
        lambda: broker.transactions.write_marker(BAD, producer, True, 0, 0),
    ]
    for call in calls:
        with pytest.raises(PartitionOffline, match=r"at position 0 \(offset 0\).*eventbus log repair"):
            call()
    assert damaged.produce(GOOD, b"c") == 2
    assert commit(damaged, 1)
    broker.close(0)


@pytest.mark.parametrize("clean", [True, False])
def test_nothing_of_an_offline_partition_is_changed_or_forgotten(damaged, clean) -> None:
    """Restored from a backup, it is as it was: its checkpoints are kept, and its transaction waits for its marker."""
    damaged.open()
    damaged.broker.transactions.abort_all(damaged.now_ms)
    damaged.produce(GOOD, b"c")
    damaged.broker.publish_checkpoints(damaged.now_ms)
    damaged.restart(clean=clean)
    assert damaged.broker.transactions.describe("tx").state == "PrepareAbort"
    damaged.restart(clean=clean)
    damaged.broker.close(0)
    log_file(damaged, BAD).write_bytes(damaged.good)
    damaged.open()
    assert damaged.broker.trouble == ""
    fetched = damaged.broker.fetch(BAD, 0, 1 << 20, IsolationLevel.READ_COMMITTED)
    assert [aborted.first_offset for aborted in fetched.aborted] == [1]
    assert damaged.broker.transactions.describe("tx").state == "CompleteAbort"
    damaged.broker.check()
    damaged.broker.close(0)


def test_the_topic_of_an_offline_partition_can_be_deleted(damaged) -> None:
    damaged.open()
    assert damaged.broker.delete_topics(["orders"], damaged.now_ms) == {"orders": None}
    assert damaged.broker.trouble == ""
    assert "orders-0" not in damaged.files()
    damaged.restart()
    damaged.create("orders", 2)
    assert damaged.produce(BAD, b"new") == 0
    damaged.broker.close(0)


# deletions that were interrupted -------------------------------------------------------------------------------------


def interrupted_deletion(world, monkeypatch) -> None:
    world.create("orders", 2)
    world.produce(ORDERS, b"old", b"old", b"old")
    commit(world, 3)
    world.flush()
    world.broker.publish_checkpoints(world.now_ms)
    with monkeypatch.context() as patched:
        patched.setattr(Broker, "_finish_deletion", lambda *_: (_ for _ in ()).throw(StorageFull("disk full")))
        error = world.broker.delete_topics(["orders"], world.now_ms)["orders"]
    assert isinstance(error, StorageFull)


def test_the_next_start_finishes_a_deletion(world, monkeypatch) -> None:
    interrupted_deletion(world, monkeypatch)
    world.restart(clean=False)
    assert "orders-0" not in world.files()
    assert [listing.group for listing in world.broker.groups.list()] == []
    world.create("orders")
    assert world.read(ORDERS) == []
    world.restart(clean=False)
    assert world.broker.groups.fetch_offsets("g") == {}
    assert world.produce(ORDERS, b"new") == 0


def test_so_does_the_next_creation_of_the_name(world, monkeypatch) -> None:
    interrupted_deletion(world, monkeypatch)
    world.create("orders")
    assert world.read(ORDERS) == []
    assert [listing.group for listing in world.broker.groups.list()] == []
    assert world.produce(ORDERS, b"new") == 0
    world.restart(clean=False)
    assert world.read(ORDERS) == [(0, b"new")]
    assert world.broker.groups.fetch_offsets("g") == {}


def test_topics_change_while_a_flush_is_under_way(disk) -> None:
    broker = disk.open()
    disk.create("orders")
    disk.create("other")
    other = TopicPartition("other", 0)
    disk.produce(ORDERS, b"old", flush=False)
    disk.produce(other, b"kept", flush=False)
    commit(disk, 1)
    flush = broker.begin_sync()
    broker.delete_topics(["orders"], disk.now_ms)
    disk.create("orders")
    disk.produce(ORDERS, b"new", flush=False)
    error: OSError | None = None
    try:
        flush.run()
    except OSError as caught:
        error = caught
    broker.complete_sync(flush, error)
    disk.flush()
    broker.check_healthy()
    for _ in range(2):
        assert disk.read(ORDERS) == [(0, b"new")]
        assert disk.read(other) == [(0, b"kept")]
        assert disk.broker.groups.fetch_offsets("g") == {}
        disk.broker.check()
        disk.restart(clean=False)
    disk.broker.close(0)


# the disk refuses ----------------------------------------------------------------------------------------------------


def refuse(monkeypatch, function: str, number: int) -> pytest.MonkeyPatch:
    def fail(*_: object) -> int:
        raise OSError(number, "the disk refuses")

    monkeypatch.setattr(f"eventbus.log.storage.{function}", fail)
    return monkeypatch


def test_a_failed_flush_is_final(disk, monkeypatch) -> None:
    broker = disk.open()
    disk.create("orders", 2)
    disk.produce(ORDERS, b"safe")
    broker.publish_checkpoints(disk.now_ms)
    disk.produce(ORDERS, b"unknown", flush=False)
    flush = broker.begin_sync()
    with monkeypatch.context() as patched:
        refuse(patched, "_fdatasync", errno.EIO)
        with pytest.raises(OSError, match="the disk refuses") as caught:
            flush.run()
    broker.complete_sync(flush, caught.value)

    assert broker.is_durable(ORDERS, 0)
    with pytest.raises(LogPoisoned, match="orders-0"):
        broker.is_durable(ORDERS, 1)
    with pytest.raises(LogPoisoned):
        broker.check_healthy()
    with pytest.raises(LogPoisoned):
        disk.produce(ORDERS, b"more", flush=False)
    assert disk.read(ORDERS) == [(0, b"safe")]  # reading goes on
    disk.produce(TopicPartition("orders", 1), b"other logs, too")
    broker.close(disk.now_ms)
    assert not (disk.directory / ".kafka_cleanshutdown").exists()
    disk.open()
    assert disk.read(ORDERS)[0] == (0, b"safe")
    disk.broker.check_healthy()
    disk.broker.close(0)


def test_metadata_that_cannot_be_flushed(disk, monkeypatch) -> None:
    broker = disk.open()
    disk.create("orders")
    with monkeypatch.context() as patched:
        refuse(patched, "_fdatasync", errno.EIO)
        with pytest.raises(StorageError, match="flushing __cluster_metadata-0"):
            disk.create("fresh")
    with pytest.raises(LogPoisoned, match="__cluster_metadata-0"):
        broker.check_healthy()
    disk.produce(ORDERS, b"records go on")
    disk.kill()
    disk.open()
    assert disk.read(ORDERS) == [(0, b"records go on")]
    disk.create("another")
    disk.broker.close(0)


def test_a_full_disk_changes_nothing_and_heals(disk, monkeypatch) -> None:
    broker = disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"before")
    commit(disk, 1)
    disk.flush()
    before = repr(broker)
    with monkeypatch.context() as patched:
        refuse(patched, "_pwrite", errno.ENOSPC)
        for call in (
            lambda: disk.produce(ORDERS, b"x"),
            lambda: commit(disk, 2),
            lambda: disk.create("fresh"),
            lambda: broker.add_partitions("orders", 2, disk.now_ms),
            lambda: broker.alter_configs("orders", {"retention.ms": 1}, [], disk.now_ms),
        ):
            with pytest.raises(StorageFull, match="disk is full"):
                call()
            assert repr(broker) == before
        assert disk.read(ORDERS) == [(0, b"before")]
        broker.tick(disk.now_ms + 3_600_000)  # checkpoints cannot be written; that is no reason to fail
    disk.produce(ORDERS, b"after")
    commit(disk, 2)
    disk.create("fresh")
    broker.check()
    disk.flush()
    disk.restart(clean=False)
    assert disk.read(ORDERS) == [(0, b"before"), (1, b"after")]
    assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(2)}
    disk.broker.close(0)


# one owner -----------------------------------------------------------------------------------------------------------


def test_the_directory_has_one_owner(disk) -> None:
    disk.open()
    disk.create("orders")
    with pytest.raises(LogLocked, match="eventbus serve"):
        Broker.open(FileStorage(str(disk.directory)), BrokerConfig(), now_ms=0, new_id=disk.new_id)
    disk.produce(ORDERS, b"x")
    disk.broker.close(disk.now_ms)
    second = Broker.open(FileStorage(str(disk.directory)), BrokerConfig(), now_ms=0, new_id=disk.new_id)
    assert second.list_topics() == ["orders"]
    second.close(0)


def test_a_damaged_checkpoint_is_not_believed(disk, caplog) -> None:
    disk.open()
    disk.create("orders")
    disk.produce(ORDERS, b"a", b"b")
    commit(disk, 2)
    disk.flush()
    disk.broker.publish_checkpoints(disk.now_ms)
    disk.kill()
    for path in disk.directory.glob("*-checkpoint"):
        path.write_bytes(b"0\n9\nnonsense")
    with caplog.at_level(logging.WARNING):
        disk.open()
    assert "is damaged" in caplog.text
    assert disk.read(ORDERS) == [(0, b"a"), (1, b"b")]
    assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(2)}
    disk.broker.check()
    disk.broker.close(0)
