"""Opening goes on from the saved latest records of a shard, whatever became of their file."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import GroupsShard, TopicsShard, TransactionsShard
from eventbus.log.checkpoints import COORDINATOR_STATE
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.broker.conftest import World

pytestmark = pytest.mark.usefixtures("latest_records_are_saved_often")

ORDERS = TopicPartition("orders", 0)
IDS = ("a", "b", "c")


def transactions(world: World, count: int) -> None:
    """Transactions of offsets alone, by a few producers; every fifth one is aborted, the last one stays open."""
    coordinator, group = world.broker.transactions, GroupMetadata("g")
    producers = {name: coordinator.init_producer_id(name, 60_000, world.now_ms) for name in IDS}
    for number in range(count):
        world.now_ms += 1
        name = IDS[number % len(IDS)]
        offsets = {ORDERS: OffsetAndMetadata(number)}
        coordinator.commit_offsets(name, producers[name], group, offsets, world.now_ms)
        if number + 1 < count:
            committed = number % 5 != 0
            end = coordinator.end(name, producers[name], committed=committed, now_ms=world.now_ms)
            producers[name] = end.next
            world.flush()


def begin(world: World) -> None:
    world.open(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    world.create("orders")


def saved_files(world: World) -> list[Path]:
    assert world.directory is not None
    return sorted(world.directory.glob(f"*/{COORDINATOR_STATE}"))


@pytest.mark.parametrize("clean", [True, False])
def test_opening_replays_live_state_and_not_history(disk: World, monkeypatch: pytest.MonkeyPatch, clean: bool) -> None:
    begin(disk)
    transactions(disk, 200)
    for number in range(100):
        disk.broker.topic_admin.allocate_producer_ids(disk.now_ms)
        disk.broker.groups.commit_offsets("plain", {ORDERS: OffsetAndMetadata(number)}, disk.now_ms)
    disk.flush()
    live = repr(disk.broker)
    replayed: list[bytes] = []
    for shard in (GroupsShard, TopicsShard, TransactionsShard):

        def replay(self, key: bytes, value: bytes | None, replay=shard.replay) -> None:
            replayed.append(key)
            replay(self, key, value)

        monkeypatch.setattr(shard, "replay", replay)
    read: list[int] = []

    def read_log(self, latest, read_log=ShardLog._read_log) -> None:
        read.append(self.log.log_end_offset - self._replayed_offset)
        read_log(self, latest)

    monkeypatch.setattr(ShardLog, "_read_log", read_log)
    disk.restart(clean=clean)
    assert repr(disk.broker) == live
    assert len(replayed) < 20, "one record a key"
    assert sum(read) <= (0 if clean else 3 * 12), "what was written after the last save, of three shards"
    disk.broker.check()
    disk.broker.close(disk.now_ms)


def test_a_damaged_file_is_never_believed(disk: World) -> None:
    begin(disk)
    transactions(disk, 20)
    live = repr(disk.broker)
    disk.broker.close(disk.now_ms)
    files = saved_files(disk)
    assert [path.parent.name for path in files] == [
        "__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0"
    ]  # fmt: skip
    random = Random(1)
    for path in files:
        good = path.read_bytes()
        cut = random.randrange(len(good))
        flipped = bytearray(good)
        flipped[cut] ^= 1 << random.randrange(8)
        for bad in (b"", good[:cut], bytes(flipped), good + b"x"):
            path.write_bytes(bad)
            disk.open()
            assert repr(disk.broker) == live, (path, cut)
            disk.broker.check()
            disk.broker.close(disk.now_ms)


def test_a_file_beyond_the_end_of_the_log_is_removed_before_the_log_gets_there_again(disk: World) -> None:
    begin(disk)
    commit = disk.broker.groups.commit_offsets
    commit("g", {ORDERS: OffsetAndMetadata(1)}, disk.now_ms)
    disk.flush()
    disk.broker.publish_checkpoints(disk.now_ms)
    for number in range(2, 5):
        commit("g", {ORDERS: OffsetAndMetadata(number)}, disk.now_ms)
    disk.kill()
    assert disk.directory is not None
    log = disk.directory / "__consumer_offsets-0" / "00000000000000000000.log"
    with log.open("r+b") as file:  # a power cut takes what no flush had covered
        file.truncate(log.stat().st_size // 2)
    saved = log.parent / COORDINATOR_STATE
    assert saved.exists()
    disk.open()
    assert not saved.exists()
    assert disk.broker.groups.fetch_offsets("g")[ORDERS].offset < 3
    disk.broker.check()
    disk.broker.close(disk.now_ms)


def test_a_file_of_another_log_is_not_believed(tmp_path: Path) -> None:
    """A partition was restored from a copy, and has gone on in another way."""
    worlds = [World(tmp_path / name) for name in ("one", "two")]
    for number, world in enumerate(worlds):
        begin(world)
        for offset in range(8):
            world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(offset + number)}, world.now_ms)
        world.broker.close(world.now_ms)
    ours, theirs = (world.directory / "__consumer_offsets-0" / COORDINATOR_STATE for world in worlds if world.directory)
    ours.write_bytes(theirs.read_bytes())
    world = worlds[0]
    world.open()
    assert world.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(7)}
    world.broker.check()
    world.broker.close(world.now_ms)


def test_a_disk_without_room_for_the_file_changes_nothing(disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(disk)

    def no_room(storage: object, path: str, *args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device", path)

    monkeypatch.setattr("eventbus.broker.shard_log.write_atomic", no_room)
    transactions(disk, 20)
    live = repr(disk.broker)
    disk.restart()
    assert repr(disk.broker) == live
    assert not saved_files(disk)
    monkeypatch.undo()
    disk.restart(clean=False)
    assert repr(disk.broker) == live
    disk.broker.check()
    disk.broker.close(disk.now_ms)


def test_a_commit_writes_no_large_state_at_close(disk: World) -> None:
    """A process that starts, commits once and ends must not pay for all the groups there are."""
    begin(disk)
    for number in range(400):
        disk.broker.groups.commit_offsets(f"g{number}", {ORDERS: OffsetAndMetadata(1)}, disk.now_ms)
    disk.restart()
    path = next(path for path in saved_files(disk) if path.parent.name.startswith("__consumer_offsets"))
    before = path.stat().st_mtime_ns, path.stat().st_ino
    disk.broker.groups.commit_offsets("g1", {ORDERS: OffsetAndMetadata(2)}, disk.now_ms)
    disk.restart()
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert disk.broker.groups.fetch_offsets("g1") == {ORDERS: OffsetAndMetadata(2)}
    disk.broker.close(disk.now_ms)


def test_compaction_between_a_save_and_a_kill(disk: World) -> None:
    """The batch that the file ends with may be gone: then the log is read, which has become short."""
    begin(disk)
    disk.restart(offsets_topic_num_partitions=1, offsets_topic_segment_bytes=300)
    for number in range(30):
        disk.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(number)}, disk.now_ms)
        disk.flush()
        disk.broker.clean_now(disk.now_ms)
        if number % 7 == 3:
            disk.restart(clean=False)
            assert disk.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(number)}
            disk.broker.check()
    disk.broker.close(disk.now_ms)


def test_nothing_is_saved_of_a_log_in_memory(world: World) -> None:
    begin(world)
    for number in range(20):
        world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(number)}, world.now_ms)
    shard_log = world.broker.groups.load(0, world.now_ms)
    assert (shard_log._latest is not None) == world.storage.durable
    assert world.storage.exists(f"__consumer_offsets-0/{COORDINATOR_STATE}") == world.storage.durable
