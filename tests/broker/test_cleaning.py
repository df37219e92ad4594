"""Compaction as the broker drives it: which log, when, beside what else; DeleteRecords; and all of it in a crash."""

from __future__ import annotations

import contextlib
import itertools
from random import Random

import pytest

from eventbus.backends.cleaning import clean_next
from eventbus.backends.engine import Engine
from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.broker import EARLIEST, LATEST
from eventbus.broker.logs import Logs
from eventbus.errors import (
    InvalidTopic,
    KafkaError,
    OffsetOutOfRange,
    PolicyViolation,
    StorageError,
    UnknownTopicOrPartition,
)
from eventbus.log import swap
from eventbus.log.cleaner import Cleaning, carry_out
from eventbus.log.segment import Damage
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.records import BatchBuilder, fetched_records, iter_batches
from eventbus.testing.storage import CrashStorage, FaultyStorage, SimulatedCrash, disk_full
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.tiers import of_today, quick

from .conftest import START_MS, World

TABLE = TopicPartition("table", 0)
OTHER = TopicPartition("other", 0)


@pytest.fixture(autouse=True)
def every_batch_is_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that something can happen in between, small as the logs are."""
    monkeypatch.setattr("eventbus.log.cleaner._SLICE_WORK", 1)


def create(world: World, name: str = "table", **configs) -> None:
    world.create(name, **{"cleanup_policy": "compact", "internal_segment_bytes": 500, **configs})


def fill(world: World, tp: TopicPartition = TABLE, count: int = 40, keys: int = 3) -> None:
    for number in range(count):
        world.produce(tp, b"value %d" % number, key=b"k%d" % (number % keys), flush=False)
    world.flush()


def keys_and_offsets(world: World, tp: TopicPartition) -> dict[bytes | None, int]:
    """The last record of each key that can be read."""
    found: dict[bytes | None, int] = {}
    offset = world.broker.list_offsets(tp, EARLIEST).offset
    while data := world.broker.fetch(tp, offset, 1 << 20).records:
        records = fetched_records(data, *tp, offset)
        found.update(zip(records.keys, records.offsets, strict=True))
        offset = records.next_offset
    return found


def clean(world: World) -> list[TopicPartition]:
    """Carry out what is due, as the shell does."""
    cleaned: list[TopicPartition] = []
    while (cleaning := world.broker.next_cleaning(world.now_ms)) is not None:
        carry_out(world.broker.run_cleaning(cleaning))
        world.broker.complete_cleaning(cleaning)
        cleaned.append(cleaning.log.topic_partition)
    return cleaned


# -- which log, when ---------------------------------------------------------------------------------------------------


def test_only_compacted_topics_are_cleaned(world) -> None:
    create(world)
    create(world, "other", cleanup_policy="delete")
    fill(world)
    fill(world, OTHER)
    assert clean(world) == [TABLE]
    assert len(world.read(OTHER)) == 40
    assert len(world.read(TABLE)) < 12
    assert keys_and_offsets(world, TABLE) == {b"k0": 39, b"k1": 37, b"k2": 38}


def test_the_log_with_the_largest_dirty_part_comes_first(world) -> None:
    create(world, **{"min_cleanable_dirty_ratio": 0.1})
    create(world, "other", **{"min_cleanable_dirty_ratio": 0.1})
    fill(world, count=80, keys=50)
    assert clean(world) == [TABLE]
    fill(world, count=20, keys=5)
    fill(world, OTHER)
    assert clean(world) == [OTHER, TABLE]


def test_a_log_waits_until_enough_of_it_is_dirty(world) -> None:
    create(world)
    fill(world, count=300, keys=200)
    assert clean(world) == [TABLE]
    fill(world, count=30, keys=200)
    assert clean(world) == []
    world.broker.alter_configs("table", {"min.cleanable.dirty.ratio": 0.05}, [], world.now_ms)
    assert clean(world) == [TABLE]


def test_an_old_record_does_not_wait_for_others(world) -> None:
    create(world, **{"max_compaction_lag_ms": 60_000})
    fill(world, count=300, keys=200)
    assert clean(world) == [TABLE]
    fill(world, count=30, keys=200)
    world.now_ms += 60_000
    assert clean(world) == []
    world.now_ms += 1
    assert clean(world) == [TABLE]


def test_one_cleaning_at_a_time(world) -> None:
    create(world)
    create(world, "other")
    fill(world)
    fill(world, OTHER)
    cleaning = world.broker.next_cleaning(world.now_ms)
    assert world.broker.next_cleaning(world.now_ms) is None
    world.broker.complete_cleaning(cleaning, KafkaError("cancelled, say"))
    assert world.broker.next_cleaning(world.now_ms).log is cleaning.log, "nothing was cleaned, so it is due again"


def test_how_far_a_log_is_clean_survives_a_restart(disk) -> None:
    disk.open()
    create(disk)
    fill(disk)
    assert clean(disk) == [TABLE]
    disk.restart()
    assert clean(disk) == []
    disk.broker.close(disk.now_ms)
    disk.storage.remove("cleaner-offset-checkpoint")
    disk.open()
    assert clean(disk) == [TABLE], "it is only a cache"
    assert keys_and_offsets(disk, TABLE) == {b"k0": 39, b"k1": 37, b"k2": 38}


def test_a_new_topic_of_an_old_name_is_not_clean(disk) -> None:
    disk.open()
    create(disk)
    fill(disk)
    clean(disk)
    disk.broker.delete_topics(["table"], disk.now_ms)
    create(disk)
    fill(disk)
    assert clean(disk) == [TABLE]
    disk.broker.delete_topics(["table"], disk.now_ms)
    disk.restart(clean=False)
    create(disk)
    fill(disk)
    assert clean(disk) == [TABLE]


# -- beside everything else --------------------------------------------------------------------------------------------


def test_a_log_that_is_no_longer_compacted_reads_on(disk) -> None:
    disk.open()
    create(disk)
    fill(disk)
    clean(disk)
    left = disk.read(TABLE)
    disk.broker.alter_configs("table", {"cleanup.policy": "delete"}, [], disk.now_ms)
    assert disk.read(TABLE) == left
    for how in (True, False):
        disk.restart(clean=how)
        assert disk.read(TABLE) == left
        disk.broker.check()


def test_retention_takes_compacted_segments_too(world) -> None:
    create(world, cleanup_policy="compact,delete", retention_ms=10_000)
    fill(world, keys=1_000)
    world.now_ms += 5_000
    fill(world)
    clean(world)
    world.now_ms += 5_001
    while world.broker._logs.apply_retention(world.now_ms):
        pass
    assert 30 < world.broker.list_offsets(TABLE, EARLIEST).offset <= 40
    assert keys_and_offsets(world, TABLE).items() >= {b"k0": 79, b"k1": 77, b"k2": 78}.items()
    assert len(keys_and_offsets(world, TABLE)) < 13
    world.now_ms += 90_000
    while world.broker._logs.apply_retention(world.now_ms):
        pass
    assert keys_and_offsets(world, TABLE) == {}
    world.broker.clean_now(world.now_ms)


def test_a_topic_deleted_under_its_cleaning(world) -> None:
    create(world)
    fill(world, count=200)
    cleaning = world.broker.next_cleaning(world.now_ms)
    run = world.broker.run_cleaning(cleaning)
    next(run)
    world.broker.delete_topics(["table"], world.now_ms)
    with pytest.raises(Exception, match="no longer to be cleaned") as ended:
        list(run)
    world.broker.complete_cleaning(cleaning, ended.value)
    create(world)
    fill(world)
    assert clean(world) == [TABLE]


def test_offsets_and_times_after_compaction(world) -> None:
    create(world)
    for number in range(60):
        world.now_ms += 10
        world.produce(TABLE, b"%d" % number, key=b"k%d" % (number % 3), flush=False)
    world.flush()
    clean(world)
    left = {offset for offset, _ in world.read(TABLE)}
    for number in range(60):
        expected = min(offset for offset in left if offset >= number)
        found = world.broker.list_offsets(TABLE, START_MS + 10 * (number + 1))
        assert found == (expected, START_MS + 10 * (expected + 1))
    assert world.broker.list_offsets(TABLE, EARLIEST).offset == 0
    assert world.broker.list_offsets(TABLE, LATEST).offset == 60


def test_a_full_disk_stops_a_cleaning_and_nothing_else(tmp_path) -> None:
    world = World(tmp_path / "log")
    world.storage = FaultyStorage(world.storage, error=disk_full, only=["append"], persistent=True)
    world.open()
    create(world)
    fill(world)
    before = world.read(TABLE)
    world.storage.fail_at = world.storage.calls_count + 1
    with pytest.raises(StorageError, match="the disk is full"):
        world.broker.clean_now(world.now_ms)
    assert world.read(TABLE) == before
    world.storage.heal()
    assert clean(world) == [TABLE]
    world.broker.check()
    world.broker.close(world.now_ms)


def test_damage_ends_the_cleaning_of_that_log_alone(tmp_path, caplog) -> None:
    world = World(tmp_path / "log")
    world.open()
    create(world)
    create(world, "other")
    fill(world)
    fill(world, OTHER)
    path = tmp_path / "log" / "table-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        cleaning = world.broker.next_cleaning(world.now_ms)
        try:
            carry_out(world.broker.run_cleaning(cleaning))
            world.broker.complete_cleaning(cleaning)
        except Exception as error:
            world.broker.complete_cleaning(cleaning, error)
    assert world.broker.next_cleaning(world.now_ms) is None, "not again and again"
    assert "table-0 is damaged" in caplog.text
    assert len(world.read(OTHER)) < 12
    assert path.read_bytes() == content
    world.broker.close(world.now_ms)


# -- the log's own topics ----------------------------------------------------------------------------------------------


def test_committed_offsets_are_the_same_after_compaction(world) -> None:
    world.restart(offsets_topic_num_partitions=1, offsets_topic_segment_bytes=700)
    world.create("orders", 4)
    for number in range(200):
        tp = TopicPartition("orders", number % 4)
        world.broker.groups.commit_offsets(f"g{number % 3}", {tp: OffsetAndMetadata(number)}, world.now_ms)
    world.broker.groups.delete("g2", world.now_ms)
    world.flush()
    told = {group: world.broker.groups.fetch_offsets(group) for group in ("g0", "g1", "g2")}
    size = world.broker.describe_topics(["__consumer_offsets"])[0].partitions[0].size_bytes
    assert clean(world) == [TopicPartition("__consumer_offsets", 0)]
    assert world.broker.describe_topics(["__consumer_offsets"])[0].partitions[0].size_bytes < size / 3
    world.broker.check()
    for how in (True, False):
        if world.directory is None:
            break
        world.restart(clean=how)
        assert {group: world.broker.groups.fetch_offsets(group) for group in told} == told
    world.now_ms += 86_400_001
    for _ in range(2):
        world.broker.clean_now(world.now_ms)
        world.broker.check()
        world.now_ms += 86_400_001
    assert {group: world.broker.groups.fetch_offsets(group) for group in told} == told


def settle(world: World, pending) -> None:
    """Flush until a transaction's end is complete."""
    for _ in range(4):
        world.flush()
        world.broker.tick(world.now_ms)
    assert pending.markers, "the transaction is not over"


@pytest.mark.system
def test_transactions_and_their_offsets_are_the_same_after_compaction(world) -> None:
    world.restart(
        offsets_topic_num_partitions=1,
        offsets_topic_segment_bytes=700,
        transaction_state_log_num_partitions=1,
        transaction_state_log_segment_bytes=700,
    )
    create(world)
    create(world, "orders", cleanup_policy="delete")
    orders, transactions = TopicPartition("orders", 0), world.broker.transactions
    producer = transactions.init_producer_id("id", 60_000, world.now_ms)
    for number in range(30):
        transactions.add_partitions("id", producer, [TABLE], world.now_ms)
        builder = BatchBuilder()
        builder.append(b"k%d" % (number % 3), b"value %d" % number, (), world.now_ms)
        batch = builder.build(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        world.broker.produce(TABLE, batch, world.now_ms, trusted=True)
        group = GroupMetadata("g")
        transactions.commit_offsets("id", producer, group, {orders: OffsetAndMetadata(number)}, world.now_ms)
        world.flush()
        ended = transactions.end("id", producer, committed=number % 4 != 1, now_ms=world.now_ms)
        settle(world, ended)
        producer = ended.next
    told = world.broker.groups.fetch_offsets("g")
    assert told[orders].offset == 28
    before = keys_and_committed(world)
    described = transactions.describe("id")
    sizes = sum(topic.partitions[0].size_bytes for topic in world.broker.describe_topics())
    for _ in range(4):
        world.broker.clean_now(world.now_ms)
        world.broker.check()
        assert world.broker.groups.fetch_offsets("g") == told
        assert keys_and_committed(world) == before
        if world.directory is not None:
            world.restart(clean=False)
            assert world.broker.transactions.describe("id") == described
        world.now_ms += 86_400_001
    assert sum(topic.partitions[0].size_bytes for topic in world.broker.describe_topics()) < sizes / 2


def keys_and_committed(world: World) -> dict[bytes | None, tuple[int, bytes | None]]:
    """The last committed record of each key."""
    found: dict[bytes | None, tuple[int, bytes | None]] = {}
    offset = 0
    while (data := world.broker.fetch(TABLE, offset, 1 << 20, 1)).records:
        records = fetched_records(data.records, *TABLE, offset, aborted=data.aborted)
        for key, at, value in zip(records.keys, records.offsets, records.values, strict=True):
            found[key] = at, value
        offset = records.next_offset
    return found


# -- DeleteRecords -----------------------------------------------------------------------------------------------------


def test_records_are_deleted_up_to_an_offset(world) -> None:
    create(world, cleanup_policy="delete")
    world.produce(TABLE, *[b"%d" % number for number in range(10)])  # one batch: the offset may land inside
    fill(world, count=30)
    for offset in (4, 4, 2, 17, 40):
        start = max(offset, world.broker.list_offsets(TABLE, EARLIEST).offset)
        assert world.broker.delete_records(TABLE, offset, world.now_ms) == start
        assert [at for at, _ in world.read(TABLE, start)] == list(range(start, 40))
        with pytest.raises(OffsetOutOfRange):
            world.broker.fetch(TABLE, start - 1, 100)
    assert world.broker.describe_topics(["table"])[0].partitions[0].size_bytes > 0
    while world.broker._logs.apply_retention(world.now_ms):
        pass
    world.produce(TABLE, b"next")
    assert world.read(TABLE, 40) == [(40, b"next")]


def test_minus_one_stands_for_the_high_watermark(world) -> None:
    create(world, cleanup_policy="compact,delete")
    fill(world, count=7)
    if world.directory is not None:
        world.produce(TABLE, b"not flushed", flush=False)
    assert world.broker.delete_records(TABLE, -1, world.now_ms) == 7


def test_what_cannot_be_deleted_says_why(world) -> None:
    create(world)
    create(world, "other", cleanup_policy="delete")
    fill(world, OTHER, count=5)
    world.broker.groups.commit_offsets("g", {OTHER: OffsetAndMetadata(1)}, world.now_ms)
    for tp, offset, error, says in [
        (TABLE, 0, PolicyViolation, "cleanup.policy is compact"),
        (OTHER, 6, OffsetOutOfRange, "the high watermark is 5"),
        (OTHER, -2, OffsetOutOfRange, "the high watermark is 5"),
        (world.broker.groups.partition_of("g"), 0, InvalidTopic, "internal"),
        (TopicPartition("othre", 0), 0, UnknownTopicOrPartition, "othre"),
    ]:
        with pytest.raises(error, match=says):
            world.broker.delete_records(tp, offset, world.now_ms)
    assert len(world.read(OTHER)) == 5


def test_a_log_is_compacted_though_its_start_is_beyond_an_undecided_part(world) -> None:
    """A transaction goes on behind the part to be cleaned, and everything up to somewhere in it was deleted."""
    create(world, cleanup_policy="compact,delete", retention_ms=-1)
    producer = world.broker.transactions.init_producer_id("x", 60_000, world.now_ms)
    world.broker.transactions.add_partitions("x", producer, [TABLE], world.now_ms)
    builder = BatchBuilder()
    builder.append(b"k0", b"open", (), world.now_ms)
    batch = builder.build(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    world.broker.produce(TABLE, batch, world.now_ms)
    fill(world, count=19)
    world.broker.transactions.end("x", producer, committed=False, now_ms=world.now_ms)
    world.flush()
    world.broker.delete_records(TABLE, LATEST, world.now_ms)
    world.broker.clean_now(world.now_ms)
    fill(world, count=20)
    world.broker.clean_now(world.now_ms)
    assert keys_and_offsets(world, TABLE) == {b"k0": 39, b"k1": 40, b"k2": 38}


def test_deleted_records_stay_deleted(disk) -> None:
    disk.open()
    create(disk, cleanup_policy="delete")
    fill(disk)
    disk.broker.delete_records(TABLE, 17, disk.now_ms)
    for how in (False, True, False):
        disk.restart(clean=how)
        assert disk.broker.list_offsets(TABLE, EARLIEST).offset == 17
        assert disk.read(TABLE, 17)[0][0] == 17


def test_nothing_is_deleted_where_the_disk_cannot_remember_it(tmp_path) -> None:
    world = World(tmp_path / "log")
    world.storage = FaultyStorage(world.storage, error=disk_full, only=["append"], persistent=True)
    world.open()
    create(world, cleanup_policy="delete")
    fill(world)
    world.storage.fail_at = world.storage.calls_count + 1
    with pytest.raises(StorageError, match="log-start-offset-checkpoint"):
        world.broker.delete_records(TABLE, 17, world.now_ms)
    assert len(world.read(TABLE)) == 40
    world.storage.heal()
    assert world.broker.delete_records(TABLE, 17, world.now_ms) == 17
    world.broker.close(world.now_ms)


# -- the shell ---------------------------------------------------------------------------------------------------------


def engine_on(storage, **settings) -> Engine:
    ids = itertools.count(2)
    config = BrokerConfig(log_defaults={"internal.segment.bytes": 500}, **settings)
    return Engine("test", storage, config, lambda: START_MS, lambda: next(ids).to_bytes(16, "big"))


@pytest.mark.parametrize("fsync", ["commit", "interval", "os", "memory"])
async def test_the_shell_cleans_what_is_due_while_others_work(tmp_path, fsync: str) -> None:
    storage = MemoryStorage() if fsync == "memory" else FileStorage(str(tmp_path))
    engine = engine_on(storage, fsync="commit" if fsync == "memory" else fsync)
    engine.attach()
    broker = engine.broker
    broker.create_topics([TopicSpec("table", 1, configs={"cleanup.policy": "compact"})], START_MS)

    async def produce(count: int) -> None:
        for number in range(count):
            builder = BatchBuilder()
            builder.append(b"k%d" % (number % 3), b"x" * 50, (), START_MS)
            info = broker.produce(TABLE, builder.build(), START_MS)
        await engine.flushes.wait_durable(TABLE, info.last_offset)

    try:
        await produce(200)
        await engine.flushes.flush_all()
        assert await clean_next(engine)
        assert not await clean_next(engine)
        await produce(5)
        data = broker.fetch(TABLE, 0, 1 << 20).records
        assert len(fetched_records(data, *TABLE, 0).offsets) < 30
        broker.check()
    finally:
        engine.detach()


async def test_the_shell_survives_a_failing_cleaning(tmp_path, caplog) -> None:
    storage = FaultyStorage(FileStorage(str(tmp_path)), error=disk_full, only=["append"], persistent=True)
    engine = engine_on(storage)
    engine.attach()
    try:
        broker = engine.broker
        broker.create_topics([TopicSpec("table", 1, configs={"cleanup.policy": "compact"})], START_MS)
        for number in range(60):
            builder = BatchBuilder()
            builder.append(b"k", b"%d" % number, (), START_MS)
            info = broker.produce(TABLE, builder.build(), START_MS)
        await engine.flushes.wait_durable(TABLE, info.last_offset)
        storage.fail_at = storage.calls_count + 1
        assert not await clean_next(engine)
        assert "the disk is full" in caplog.text
        storage.heal()
        assert await clean_next(engine)
    finally:
        engine.detach()


# -- crashes -----------------------------------------------------------------------------------------------------------

TOPICS = ("a", "b", "c")
CRASH_CONFIG = BrokerConfig(log_defaults={"internal.segment.bytes": 350, "retention.ms": -1})


class Machine:
    """Three compacted topics that are written to together, so that commits go through the redo journal."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = CrashStorage()
        self.ids = itertools.count(2)
        self.written: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in TOPICS}
        """By topic: (key, value) at each offset."""
        self.acked = dict.fromkeys(TOPICS, 0)
        self.starts = dict.fromkeys(TOPICS, 0)
        """A first segment that was lost before anything was acknowledged leaves a log that begins later."""
        self.broker: Broker
        self.start()
        specs = [TopicSpec(name, 1, configs={"cleanup.policy": "compact"}) for name in TOPICS]
        self.broker.create_topics(specs, START_MS)

    def start(self) -> None:
        self.broker = Broker.open(
            self.storage, CRASH_CONFIG, now_ms=START_MS, new_id=lambda: next(self.ids).to_bytes(16, "big")
        )

    def produce(self) -> None:
        for name in self.random.sample(TOPICS, self.random.randint(1, 3)):
            log = self.broker.log(TopicPartition(name, 0))
            if log.poisoned:
                continue
            builder = BatchBuilder()
            del self.written[name][log.log_end_offset :]
            for _ in range(self.random.randint(1, 3)):
                key = b"k%d" % self.random.randrange(4)
                value = b"%d" % len(self.written[name]) * self.random.randint(1, 9)
                builder.append(key, value, (), START_MS)
                self.written[name].append((key, value))
            self.broker.produce(TopicPartition(name, 0), builder.build(), START_MS, trusted=True)

    def flush(self) -> None:
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)
        self.note_acked()

    def note_acked(self) -> None:
        for name in TOPICS:
            self.acked[name] = max(self.acked[name], self.broker.log(TopicPartition(name, 0)).high_watermark)

    def clean(self) -> None:
        """As the shell: others go on between the slices."""
        cleaning = self.broker.next_cleaning(START_MS)
        if cleaning is None:
            return
        with contextlib.closing(self.broker.run_cleaning(cleaning)) as run:
            for pause in run:
                if pause is not None:
                    pause()
                elif self.random.random() < 0.2:
                    self.produce()
                    if self.random.random() < 0.5:
                        self.flush()
        self.broker.complete_cleaning(cleaning)

    def step(self) -> None:
        dice = self.random.random()
        if dice < 0.5:
            self.produce()
        elif dice < 0.8:
            self.flush()
        elif dice < 0.93:
            self.clean()
        elif dice < 0.98:
            self.broker.publish_checkpoints(START_MS)
        else:
            self.broker.close(START_MS)
            self.note_closed()
            self.storage.kill()
            self.start()

    def note_closed(self) -> None:
        for name in TOPICS:
            self.acked[name] = len(self.written[name])

    def check(self) -> None:
        self.broker.check()
        for name in TOPICS:
            tp = TopicPartition(name, 0)
            end = self.broker.list_offsets(tp, LATEST).offset
            written = self.written[name]
            assert self.acked[name] <= end <= len(written), f"{name}: acknowledged records are gone"
            found: dict[int, tuple[bytes | None, bytes | None]] = {}
            start = offset = self.broker.list_offsets(tp, EARLIEST).offset
            assert start == self.starts[name] or not self.acked[name], f"{name}: its beginning is gone"
            self.starts[name] = start
            while data := self.broker.fetch(tp, offset, 300).records:
                assert all(batch.header.next_offset > offset for batch in iter_batches(data))
                records = fetched_records(data, *tp, offset)
                found.update(zip(records.offsets, zip(records.keys, records.values, strict=True), strict=True))
                offset = records.next_offset
            assert offset == end
            assert all(written[at] == record for at, record in found.items()), f"{name}: not what was written"
            last = {key: at for at, (key, _) in enumerate(written[:end]) if at >= start}
            assert set(last.values()) <= found.keys(), f"{name}: the last record of a key is gone"
            del written[end:]
            self.acked[name] = end


def live_and_die(seed: int) -> None:
    random = Random(seed)
    machine = Machine(random)
    for _ in range(random.randint(1, 3)):
        storage = machine.storage
        if random.random() < 0.7:
            storage.crash_at_call = storage.calls_count + random.randint(1, 400)
        with contextlib.suppress(SimulatedCrash):
            for _ in range(random.randint(10, 80)):
                machine.step()
        machine.storage = storage.crash(random) if random.random() < 0.8 else storage.kill()
        machine.start()
        machine.check()
        before = machine.storage.tree()
        machine.storage.kill()
        machine.start()
        assert machine.storage.tree() == before, "a second recovery changed something"


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            live_and_die(seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.system
@pytest.mark.parametrize("block", quick(range(8), 1))
def test_power_cuts_while_logs_are_compacted(block: int) -> None:
    run_seeds(range(block * 50, (block + 1) * 50))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_power_cuts_while_logs_are_compacted() -> None:
    run_seeds(of_today(range(10_000, 13_000)))


def let_the_journal_bring_old_segments_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Logs, "publish_recovery_points", lambda logs: None)


def rename_before_the_others_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(storage, directory, first, others) -> None:
        storage.rename(f"{first}{swap.SWAP}.log", first + ".log")
        for stem in others:
            swap.remove_files(storage, stem)
        storage.sync_dir(directory)

    monkeypatch.setattr(swap, "finish_swap", finish)


def never_flush_a_cleaned_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cleaning, "_flush", lambda cleaning, writer: iter(()))


def remove_the_others_before_the_swap_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(storage, directory, first, others) -> None:
        for stem in others:
            swap.remove_files(storage, stem)
        storage.rename(f"{first}{swap.SWAP}.log", first + ".log")
        storage.sync_dir(directory)

    monkeypatch.setattr(swap, "finish_swap", finish)


def forget_swaps_at_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    def recover(storage, directory) -> None:
        for name in storage.listdir(directory) if storage.exists(directory) else ():
            if ".swap." in name or ".cleaned." in name:
                storage.remove(f"{directory}/{name}")

    monkeypatch.setattr("eventbus.log.recovery.recover_swaps", recover)


@pytest.mark.system
@pytest.mark.timeout(600)  # some search many seeds
@pytest.mark.parametrize(
    "plant",
    [
        let_the_journal_bring_old_segments_back,
        pytest.param(rename_before_the_others_are_gone, marks=pytest.mark.slow),  # many seeds do not find it
        never_flush_a_cleaned_segment,
        pytest.param(remove_the_others_before_the_swap_is_on_disk, marks=pytest.mark.slow),
        pytest.param(forget_swaps_at_recovery, marks=pytest.mark.slow),
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    first = 1_000 if plant is remove_the_others_before_the_swap_is_on_disk else 0  # few seeds find that one
    with pytest.raises((AssertionError, KafkaError, Damage)):
        run_seeds(range(first, first + 3_000))


def test_retention_of_many_segments_lets_others_run_in_between(world, monkeypatch) -> None:
    monkeypatch.setattr("eventbus.broker.logs._RETENTION_SEGMENTS", 4)
    for topic in ("a", "b"):
        world.create(topic, internal_segment_bytes=100, retention_ms=1_000)
        for _ in range(5):
            world.produce(TopicPartition(topic, 0), b"x" * 50)
    world.now_ms += 100_000
    slices = 0
    while world.broker.next_deadline_ms() <= world.now_ms:
        before = [world.broker.log_start_offset(TopicPartition(topic, 0)) for topic in ("a", "b")]
        world.broker.tick(world.now_ms)
        after = [world.broker.log_start_offset(TopicPartition(topic, 0)) for topic in ("a", "b")]
        slices += after != before
        assert sum(after) - sum(before) <= 4
    assert after == [5, 5] and slices == 3
