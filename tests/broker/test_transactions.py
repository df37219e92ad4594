"""Transactions over a whole broker: the known bugs of others by name, modes, clocks, every call of a script failing.

What follows request by request stands in ``transcripts/transactions_*.txt``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from random import Random

import pytest

from eventbus.backends.engine import Engine
from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.logs import Logs
from eventbus.broker.names import TRANSACTION_STATE
from eventbus.coordinator import java_string_hash
from eventbus.coordinator.requests import TransactionEnd
from eventbus.coordinator.topics import PRODUCER_IDS_BLOCK
from eventbus.coordinator.transactions import LAST_EPOCH
from eventbus.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    LogPoisoned,
    ProducerFenced,
    StorageError,
    UnknownTopicOrPartition,
)
from eventbus.log.storage import MemoryStorage, Storage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.testing.storage import CrashStorage, FaultyStorage, SimulatedCrash, disk_full, io_error
from eventbus.types import GroupMetadata, IsolationLevel, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from tests.support import naming
from tests.tiers import quick

A, A1, B = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
CONFIG = BrokerConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)


class World:
    """A broker, a clock, and producers that number their records."""

    def __init__(self, storage: Storage | None = None, config: BrokerConfig = CONFIG) -> None:
        self.storage = CrashStorage() if storage is None else storage
        self.config = config
        self.now_ms = START_MS
        self.ids = itertools.count(2)
        self.sequences: dict[tuple[ProducerIdAndEpoch, TopicPartition], int] = {}
        self.open()

    def open(self) -> Broker:
        self.broker = Broker.open(
            self.storage, self.config, now_ms=self.now_ms, new_id=lambda: next(self.ids).to_bytes(16, "big")
        )
        self.transactions = self.broker.transactions
        return self.broker

    def create(self, *specs: TopicSpec) -> None:
        self.broker.create_topics(specs or [TopicSpec("a", 2), TopicSpec("b", 1)], self.now_ms)

    def init(self, name: str = "x", producer: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        return self.transactions.init_producer_id(name, TIMEOUT_MS, self.now_ms, producer=producer)

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "x") -> None:
        self.transactions.add_partitions(name, producer, partitions, self.now_ms)

    def send(self, producer: ProducerIdAndEpoch, tp: TopicPartition, *values: bytes, name: str = "x") -> None:
        self.add(producer, tp, name=name)
        self.send_alone(producer, tp, *values)

    def send_alone(self, producer: ProducerIdAndEpoch, tp: TopicPartition, *values: bytes) -> None:
        builder = BatchBuilder()
        for value in values:
            builder.append(b"k", value, (), self.now_ms)
        sequence = self.sequences.get((producer, tp), 0)
        batch = builder.build(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.broker.produce(tp, batch, self.now_ms)
        self.sequences[producer, tp] = sequence + len(values)

    def plain(self, tp: TopicPartition, *values: bytes) -> None:
        builder = BatchBuilder()
        for value in values:
            builder.append(b"k", value, (), self.now_ms)
        self.broker.produce(tp, builder.build(), self.now_ms)

    def offsets(self, producer: ProducerIdAndEpoch, offset: int, name: str = "x") -> None:
        offsets = {A: OffsetAndMetadata(offset)}
        self.transactions.commit_offsets(name, producer, GroupMetadata("g"), offsets, self.now_ms)

    def end(self, producer: ProducerIdAndEpoch, *, committed: bool, name: str = "x") -> TransactionEnd:
        return self.transactions.end(name, producer, committed=committed, now_ms=self.now_ms)

    def commit(self, producer: ProducerIdAndEpoch, name: str = "x") -> ProducerIdAndEpoch:
        self.flush()
        end = self.end(producer, committed=True, name=name)
        self.flush()
        return end.next

    def abort(self, producer: ProducerIdAndEpoch, name: str = "x") -> ProducerIdAndEpoch:
        end = self.end(producer, committed=False, name=name)
        self.flush()
        return end.next

    def tick(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.broker.tick(self.now_ms)
        self.flush()

    def flush(self) -> None:
        """Until nothing is left; what a failing one raises is the broker's to know."""
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            error = None
            try:
                flush.run()
            except OSError as failed:
                error = failed
            self.broker.complete_sync(flush, error)

    def state(self, name: str = "x") -> str:
        return self.transactions.describe(name).state

    def values(self, tp: TopicPartition) -> list[bytes]:
        """What a read-committed reader sees."""
        found: list[bytes] = []
        offset = 0
        while (data := self.broker.fetch(tp, offset, 1 << 20, IsolationLevel.READ_COMMITTED)).records:
            records = fetched_records(data.records, *tp, offset, aborted=data.aborted)
            found += [value for value in records.values if value is not None]
            offset = records.next_offset
        return found

    def committed_offset(self) -> int | None:
        found = self.broker.groups.fetch_offsets("g", [A], require_stable=True)
        return found[A].offset if A in found else None

    def check_nothing_hangs(self, partitions: Iterable[TopicPartition] = (A, A1, B)) -> None:
        self.broker.check()
        for tp in partitions:
            data = self.broker.fetch(tp, self.broker.list_offsets(tp, -1).offset, 1)
            assert data.last_stable_offset == data.high_watermark, f"{tp} hangs at {data.last_stable_offset}"
        assert {listing.state for listing in self.transactions.list()} <= {"Empty", "CompleteCommit", "CompleteAbort"}


@pytest.fixture
def world():
    world = World()
    world.create()
    yield world
    world.broker.check()


# the bugs of others ---------------------------------------------------------------------------------------------------


def test_kafka_9144_a_late_batch_hangs_no_transaction(world: World) -> None:
    """KAFKA-9144, KIP-664: a batch on its way while its transaction was aborted opened another one for good."""
    producer = world.init()
    world.add(producer, A, B)
    world.send_alone(producer, A, b"in time")
    world.abort(producer)
    for tp in (A, B):  # B never saw a record, and so no marker
        with pytest.raises(InvalidProducerEpoch):
            world.send_alone(producer, tp, b"late")
    world.check_nothing_hangs()
    assert world.values(A) == world.values(B) == []


def test_kafka_14402_late_requests_of_an_ended_transaction(world: World) -> None:
    """KAFKA-14402, KIP-890: AddPartitionsToTxn or EndTxn that come late must not touch the next transaction."""
    old = world.init()
    world.send(old, A, b"one")
    new = world.commit(old)
    with pytest.raises(ProducerFenced):
        world.add(old, B)
    assert world.state() == "CompleteCommit", "no transaction was begun by it"
    world.send(new, A, b"two")
    for committed in (True, False):
        with pytest.raises(ProducerFenced):
            world.end(old, committed=committed)
    world.commit(new)
    assert world.values(A) == [b"one", b"two"]


def test_kafka_17754_a_delayed_end_tears_no_transaction(world: World) -> None:
    """KAFKA-17754: the retry of a commit, come late, committed the first half of the next transaction."""
    first = world.init()
    world.send(first, A, b"one")
    second = world.commit(first)
    answer = world.end(first, committed=True)
    assert answer.next == second, "a retry"
    world.send(second, A, b"half")
    with pytest.raises(ProducerFenced):
        world.end(first, committed=True)
    world.send(second, B, b"other half")
    world.abort(second)
    assert world.values(A) == [b"one"]
    assert world.values(B) == []


def test_kafka_18401_a_commit_without_records(world: World) -> None:
    """KAFKA-18401: with KIP-890 the commit of a transaction without records failed."""
    producer = world.init()
    answer = world.end(producer, committed=True)
    assert (answer.offset, answer.markers, answer.next) == (-1, (), producer)
    world.add(producer, A)  # added, but the send failed
    producer = world.commit(producer)
    assert world.state() == "CompleteCommit"
    assert world.broker.list_offsets(A, -1).offset == 0
    world.send(producer, A, b"one")
    world.commit(producer)
    assert world.values(A) == [b"one"]


def test_kip_1228_a_late_marker_of_an_equal_epoch(world: World) -> None:
    """KIP-1228: a marker come late ended the next transaction. Here: recovery, with a part of the next one on disk."""
    producer = world.init()
    world.send(producer, A, b"one")
    world.send(producer, B, b"one")
    following = world.commit(producer)
    world.send(following, A, b"half of the next")
    keep(world, A)
    world.storage = world.storage.crash(Keep("nothing"))
    world.open()
    world.check_nothing_hangs()
    assert world.values(A) == world.values(B) == [b"one"]


def test_librdkafka_an_empty_aborted_transaction_hides_nothing_after_it(world: World) -> None:
    producer = world.init()
    world.add(producer, A)
    producer = world.abort(producer)
    world.plain(A, b"plain")
    producer = world.abort(producer)
    world.send(producer, A, b"yes")
    world.commit(producer)
    assert world.values(A) == [b"plain", b"yes"]


def test_ydb_52731_the_next_transaction_waits_for_the_end_of_the_last(world: World) -> None:
    """It raced the teardown of the one before and lost a batch: the answer is "concurrent transactions"."""
    producer = world.init()
    world.send(producer, A, b"one")
    world.flush()
    following = world.end(producer, committed=True).next
    for request in (
        lambda: world.add(following, A),
        lambda: world.offsets(following, 1),
        lambda: world.end(following, committed=True),
        lambda: world.end(producer, committed=True),
        lambda: world.init(),
    ):
        with pytest.raises(ConcurrentTransactions):
            request()
    with pytest.raises(InvalidTxnState):
        world.send_alone(following, A, b"too early")
    world.flush()
    world.send(following, A, b"two")
    world.commit(following)
    assert world.values(A) == [b"one", b"two"]


def test_tansu_timeouts_are_swept_by_tick(world: World) -> None:
    """Its sweep every 10 minutes pinned the last stable offset."""
    producer = world.init()
    world.send(producer, A, b"no")
    world.plain(A, b"behind")
    world.flush()
    assert world.broker.next_deadline_ms() <= START_MS + TIMEOUT_MS
    world.tick(TIMEOUT_MS)
    assert world.values(A) == [b"behind"]
    world.check_nothing_hangs()


def test_transactions_time_out_at_kafkas_sweeps(world: World) -> None:
    """Every 10 s. Until then the transaction may still be committed, although its timeout has passed."""
    world.tick(4_000)
    first, second = world.init(), world.init("y")
    world.send(first, A, b"no")
    world.send(second, B, b"yes", name="y")
    world.tick(TIMEOUT_MS + 5_999)
    assert (world.state(), world.state("y")) == ("Ongoing", "Ongoing")
    world.commit(second, "y")
    world.tick(1)
    assert (world.state(), world.state("y")) == ("CompleteAbort", "CompleteCommit")
    assert (world.values(A), world.values(B)) == ([], [b"yes"])


def test_a_producer_continues_after_its_timeout(world: World) -> None:
    """It aborts and begins the next transaction, in the partition of the first and elsewhere, as on Kafka 4.3."""
    producer = world.init()
    world.send(producer, A, b"no")
    world.tick(TIMEOUT_MS)
    with pytest.raises(InvalidProducerEpoch):
        world.send_alone(producer, A, b"no")
    following = world.abort(producer)
    assert following.producer_epoch == producer.producer_epoch + 1
    world.send(following, A, b"yes")
    world.send(following, B, b"yes")
    world.commit(following)
    assert (world.values(A), world.values(B)) == ([b"yes"], [b"yes"])
    world.check_nothing_hangs()


def test_kfake_time_spent_closed_is_no_transactions_age(world: World) -> None:
    producer = world.init()
    world.send(producer, A, b"one")
    world.flush()
    world.broker.close(world.now_ms)
    world.now_ms += 10 * TIMEOUT_MS
    world.open()
    world.tick(TIMEOUT_MS - 1)
    assert world.state() == "Ongoing"
    world.tick(1)
    assert world.state() == "CompleteAbort"


def test_kfake_a_recreated_topic_is_not_marked(world: World) -> None:
    producer = world.init()
    world.send(producer, A, b"one")
    world.send(producer, B, b"gone")
    world.flush()
    world.broker.delete_topics(["b"], world.now_ms)
    world.create(TopicSpec("b", 1))
    world.plain(B, b"new")
    world.commit(producer)
    assert world.broker.list_offsets(B, -1).offset == 1
    assert world.values(A) == [b"one"]


# clocks ---------------------------------------------------------------------------------------------------------------

DAY_MS = 86_400_000


def test_a_clock_set_back_by_a_day_does_not_prolong_a_transaction(world: World) -> None:
    producer = world.init()
    world.send(producer, A, b"no")
    world.tick(-DAY_MS)
    assert world.broker.next_deadline_ms() <= world.now_ms + TIMEOUT_MS
    world.tick(TIMEOUT_MS)
    assert world.state() == "CompleteAbort"


def test_a_clock_set_back_does_not_put_off_what_found_no_room() -> None:
    world = World(FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",)))
    world.create()
    producer = world.init()
    world.send(producer, A, b"one")
    world.flush()
    world.end(producer, committed=True)
    world.storage.fail_at = world.storage.calls_count + 1
    world.flush()
    world.storage.fail_at = 0
    world.tick(-DAY_MS)
    assert world.state() == "CompleteCommit"
    assert world.values(A) == [b"one"]


def test_a_clock_set_back_while_closed(world: World) -> None:
    producer = world.init()
    world.send(producer, A, b"no")
    world.flush()
    world.broker.close(world.now_ms)
    world.now_ms -= DAY_MS
    world.open()
    world.tick(TIMEOUT_MS - 1)
    assert world.state() == "Ongoing"
    world.tick(1)
    assert world.state() == "CompleteAbort"


def test_a_clock_set_forward_aborts_as_a_timeout_does(world: World) -> None:
    producer = world.init()
    world.send(producer, A, b"no")
    world.tick(DAY_MS)
    with pytest.raises(InvalidTxnState, match="cannot commit"):
        world.end(producer, committed=True)
    world.send(world.init(producer=producer), A, b"yes")
    assert world.values(A) == []


# modes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["memory", "os", "interval"])
def test_where_nothing_waits_for_flushes_an_end_is_complete_at_once(storage: str) -> None:
    fsync = "commit" if storage == "memory" else storage
    config = BrokerConfig(fsync=fsync)
    world = World(MemoryStorage() if storage == "memory" else CrashStorage(), config)
    world.create()
    producer = world.init()
    world.send(producer, A, b"one")
    world.offsets(producer, 7)
    answer = world.end(producer, committed=True)
    assert answer.markers is not None
    assert world.state() == "CompleteCommit"
    assert world.values(A) == [b"one"]
    assert world.committed_offset() == 7
    world.send(answer.next, A, b"no")
    assert world.init().producer_epoch == 3, "aborted and taken over in one call"
    assert world.values(A) == [b"one"]
    world.broker.close(world.now_ms)
    world.open()
    world.check_nothing_hangs((A, A1))


@pytest.mark.parametrize("epoch", [0, LAST_EPOCH])
@pytest.mark.parametrize("committed", [True, False])
def test_where_nothing_waits_for_flushes_a_lost_marker_is_written_again(committed: bool, epoch: int) -> None:
    """The disk kept that the transaction is complete, and not one of its markers: the outcome is known all the same."""
    world = World(config=BrokerConfig(fsync="os", transaction_state_log_num_partitions=1))
    world.create()
    producer = world.init()
    shard_log = world.transactions._shards[0]
    producer = shard_log.execute(shard_log.shard.raise_epoch("x", epoch, world.now_ms), world.now_ms).producer
    world.send(producer, A, b"one")
    world.send(producer, B, b"one")
    keep(world, B)
    world.end(producer, committed=committed)
    keep(world, A, TopicPartition(TRANSACTION_STATE, 0))
    world.storage = world.storage.crash(Keep("nothing"))
    world.open()
    world.check_nothing_hangs()
    assert world.values(A) == world.values(B) == [b"one"] * committed


def keep(world: World, *partitions: TopicPartition) -> None:
    """The disk takes what is in these partitions, and nothing else."""
    for tp in partitions:
        for segment in world.broker._partitions[tp].log.segments:
            segment.file.sync()
        for directory in (str(tp), ""):
            world.storage.sync_dir(directory)


@pytest.mark.parametrize("first", quick(range(0, 200, 20), 1))
def test_where_nothing_waits_for_flushes_a_power_cut_hangs_nothing(first: int) -> None:
    """What is lost is the setting's own word; that the log works afterwards, and no epoch comes twice, is ours."""
    for seed in range(first, first + 20):
        with naming(f"seed {seed}"):
            cut_power_where_nothing_waits(Random(seed))


def cut_power_where_nothing_waits(random: Random) -> None:
    world = World(config=BrokerConfig(fsync="os", transaction_state_log_num_partitions=1))
    world.create()
    producer = world.init()
    for number in range(random.randint(1, 12)):
        world.send(producer, random.choice((A, A1, B)), b"%d" % number)
        world.offsets(producer, number)
        if random.random() < 0.6:
            producer = world.end(producer, committed=random.random() < 0.6).next
        if random.random() < 0.2:
            producer = world.init()
    world.storage = world.storage.crash(random)
    world.open()
    world.transactions.abort_all(world.now_ms)
    partitions = (A, A1, B)
    world.check_nothing_hangs(partitions)
    before = {tp: world.values(tp) for tp in partitions}
    producer = world.init()
    for tp in partitions:
        world.send(producer, tp, b"after")
    world.end(producer, committed=True)
    assert {tp: world.values(tp) for tp in partitions} == {tp: [*before[tp], b"after"] for tp in partitions}
    repeated = repr(world.broker.transactions)
    world.storage.kill()
    world.open()
    assert repr(world.broker.transactions) == repeated


# producer ids ---------------------------------------------------------------------------------------------------------


def fresh_ids(world: World, count: int) -> list[int]:
    return [world.transactions.init_producer_id(None, 0, world.now_ms).producer_id for _ in range(count)]


def test_producer_ids_come_from_blocks_and_never_twice(world: World) -> None:
    ids = fresh_ids(world, PRODUCER_IDS_BLOCK + 1)
    assert ids == list(range(PRODUCER_IDS_BLOCK + 1))
    world.broker.close(world.now_ms)
    world.open()
    assert fresh_ids(world, 1) == [2 * PRODUCER_IDS_BLOCK]


@pytest.mark.system
def test_no_power_cut_gives_a_producer_id_twice() -> None:
    """Whatever call the power is cut at, and whatever the disk kept of what was not flushed."""
    for crash_at in itertools.count(1):
        for style in ("nothing", "everything", "half", "bytes", "names"):
            world = World()
            world.storage.crash_at_call = world.storage.calls_count + crash_at
            given: list[int] = []
            with contextlib.suppress(SimulatedCrash):
                for _ in range(3):
                    given += fresh_ids(world, PRODUCER_IDS_BLOCK // 2)
            crashed = world.storage.stopped
            world.storage = world.storage.crash(Keep(style))
            world.open()
            given += fresh_ids(world, 1)
            assert len(set(given)) == len(given), f"cut at call {crash_at}, {style} kept"
        if not crashed:
            return


def test_a_failed_flush_gives_no_producer_id_out() -> None:
    disk = CrashStorage()
    world = World(FaultyStorage(disk, error=io_error, only=("sync",)))
    world.storage.fail_at = world.storage.calls_count + 1
    with pytest.raises(StorageError):
        fresh_ids(world, 1)
    with pytest.raises(LogPoisoned):
        fresh_ids(world, 1)


# where ids live -------------------------------------------------------------------------------------------------------


def test_the_topic_is_made_when_the_first_id_is() -> None:
    world = World(config=BrokerConfig())
    assert not world.broker.has_topic(TRANSACTION_STATE)
    with pytest.raises(InvalidProducerIdMapping):
        world.end(ProducerIdAndEpoch(0, 0), committed=True)
    assert fresh_ids(world, 1) == [0]
    assert world.transactions.list() == []
    assert not world.broker.has_topic(TRANSACTION_STATE)
    world.init("übung-🙂")
    assert world.broker.partitions_of(TRANSACTION_STATE) == 50
    (described,) = world.broker.describe_topics([TRANSACTION_STATE])
    assert described.is_internal
    shards = list(world.transactions._shards)
    assert shards == [abs(java_string_hash("übung-🙂")) % 50]


def test_ids_of_many_shards_are_listed_and_found_again() -> None:
    world = World(config=BrokerConfig(transaction_state_log_num_partitions=7))
    world.create()
    names = [f"id-{number}" for number in range(30)]
    for name in names:
        world.init(name)
    producer = world.init("id-3")
    world.send(producer, A, b"one", name="id-3")
    world.flush()
    world.broker.close(world.now_ms)
    world.open()
    assert [listing.transactional_id for listing in world.transactions.list()] == sorted(names)
    assert [listing.transactional_id for listing in world.transactions.list(["Ongoing"])] == ["id-3"]
    described = world.transactions.describe("id-3")
    assert (described.partitions, described.producer_epoch, described.timeout_ms) == ((A,), 1, TIMEOUT_MS)
    world.transactions.abort_all(world.now_ms)
    world.check_nothing_hangs()


# every call fails -----------------------------------------------------------------------------------------------------


class Keep(Random):
    """Decides a crash's style itself, and what survives by a fixed seed."""

    def __init__(self, style: str) -> None:
        super().__init__(style)
        self._style = style

    def choice(self, seq):
        return self._style if self._style in seq else super().choice(seq)


class Script:
    """One commit and one abort over several partitions and offsets, and what of it was acknowledged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acked: dict[bytes, bool] = {}
        """By value: acknowledged as committed."""

    def run(self) -> None:
        world = self.world
        world.create()
        producer = world.init()
        world.flush()
        for number, committed in ((1, True), (2, False), (3, True)):
            value = b"%d" % number
            for tp in (A, A1, B):
                world.send(producer, tp, value)
            world.offsets(producer, number)
            world.flush()
            for tp in (A, A1, B):
                assert world.broker.is_durable(tp, world.broker._partitions[tp].log.log_end_offset - 1)
            self.acked[value] = False
            answer = world.end(producer, committed=committed)
            world.flush()
            assert answer.markers is not None
            for tp, offset in answer.markers:
                assert world.broker.is_durable(tp, offset)
            self.acked[value] = committed
            producer = answer.next

    def check(self) -> None:
        """All or nothing, and what was acknowledged is there."""
        world = self.world
        if not (world.broker.has_topic("a") and world.broker.has_topic("b")):
            return
        world.check_nothing_hangs()
        values = world.values(A)
        assert values == world.values(A1) == world.values(B)
        offset = world.committed_offset()
        assert offset == (int(values[-1]) if values else None)
        assert b"2" not in values
        assert {value for value, committed in self.acked.items() if committed} <= set(values) <= set(self.acked)


STYLES = ["nothing", "everything", "prefix", "few", "half", "most", "names", "bytes"]


@pytest.mark.system
@pytest.mark.parametrize("style", quick(STYLES, ["nothing", "names"]))
def test_a_power_cut_at_every_call(style: str) -> None:
    for crash_at in itertools.count(1):
        world = World()
        script = Script(world)
        world.storage.crash_at_call = world.storage.calls_count + crash_at
        with contextlib.suppress(SimulatedCrash):
            script.run()
        crashed = world.storage.stopped
        try:
            for _ in range(2):  # and a second one, without anything between
                world.storage = world.storage.crash(Keep(style))
                world.open()
                world.transactions.abort_all(world.now_ms)
                script.check()
        except Exception as error:
            error.add_note(f"the power was cut at call {crash_at}")
            raise
        before = repr(world.broker)
        world.storage.kill()
        world.open()
        world.transactions.abort_all(world.now_ms)
        assert repr(world.broker) == before, f"a second recovery changed something, cut at call {crash_at}"
        if not crashed:
            return


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "from then on"])
def test_a_full_disk_at_every_append(persistent: bool) -> None:
    """What is told as failed has not happened; what is prepared is finished once there is room."""
    for fail_at in itertools.count(1):
        world = World(FaultyStorage(CrashStorage(), error=disk_full, persistent=persistent, only=("append",)))
        script = Script(world)
        disk = world.storage
        disk.fail_at = disk.calls_count + fail_at
        failed = False
        try:
            script.run()
        except (StorageError, AssertionError, UnknownTopicOrPartition, ConcurrentTransactions):
            failed = True
        disk.fail_at = 0
        for listing in world.transactions.list(["Ongoing"]):
            world.transactions.abort(listing.transactional_id, world.now_ms)
        for _ in range(3):
            world.flush()
            world.tick(1_000)
        script.check()
        if not failed:
            return


def test_a_producer_is_not_held_up_by_a_disk_that_was_full() -> None:
    """That the transaction is complete found no room; there is some again when the next one begins."""
    world = World(FaultyStorage(CrashStorage(), error=disk_full, only=("append",)))
    world.create()
    producer = world.init()
    world.send(producer, A, b"one")
    world.flush()
    following = world.end(producer, committed=True).next
    world.storage.fail_at = world.storage.calls_count + 2  # the marker, then this
    world.flush()
    assert world.state() == "PrepareCommit"
    world.send(following, A, b"two")
    world.commit(following)
    assert world.values(A) == [b"one", b"two"]
    world.check_nothing_hangs()


@pytest.mark.parametrize("open_in", ["prepared", "unknown"])
def test_a_log_opens_on_a_full_disk_and_finishes_its_transactions_later(
    open_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.create()
    producer = world.init()
    world.flush()
    world.send(producer, A, b"one")
    world.send(producer, B, b"one")
    if open_in == "prepared":
        world.flush()
        world.end(producer, committed=True)
        flush = world.broker.begin_sync()
        flush.run()  # the decision; no marker
    else:
        keep(world, A, B)
    disk = FaultyStorage(world.storage.crash(Keep("nothing")), error=disk_full, persistent=True, only=("append",))
    forget_recovery = Logs.forget_recovery

    def full_from_here(logs: Logs) -> None:
        forget_recovery(logs)
        disk.fail_at = disk.calls_count + 1

    monkeypatch.setattr(Logs, "forget_recovery", full_from_here)  # what recovery keeps, it writes anew
    world.storage = disk
    world.open()
    world.transactions.abort_all(world.now_ms)
    assert world.values(A) == []
    data = world.broker.fetch(A, 0, 1 << 20)
    assert data.last_stable_offset == 0, "open for now"
    assert world.broker.next_deadline_ms() <= world.now_ms + 1_000
    disk.fail_at = 0
    world.tick(1_000)
    expected = [b"one"] if open_in == "prepared" else []
    assert world.values(A) == world.values(B) == expected
    world.check_nothing_hangs()


def test_an_engine_that_cannot_abort_what_is_open_leaves_nothing_locked() -> None:
    """The log is open already when the flush of the aborts fails: nobody would ever close it."""
    disk = CrashStorage()
    world = World(disk)
    world.create()
    world.send(world.init(), A, b"open")
    world.flush()
    failures = 0
    for fail_at in itertools.count(1):
        storage = FaultyStorage(disk.crash(Keep("nothing")), error=io_error, only=("sync",), fail_at=fail_at)
        engine = Engine("test", storage, CONFIG, lambda: START_MS, lambda: next(world.ids).to_bytes(16, "big"))
        try:
            engine.attach()
        except StorageError:
            failures += 1
            assert not engine.is_open
            engine.attach()
        assert [each.state for each in engine.broker.transactions.list()] == ["CompleteAbort"]
        engine.broker.check()
        with contextlib.suppress(StorageError):  # here, too
            engine.detach()
        if not storage.failures_count:
            break
    assert failures > 5


@pytest.mark.parametrize("only", ["sync", "sync_dir"])
def test_a_failed_flush_at_every_place(only: str) -> None:
    """The log is poisoned; opened again, everything acknowledged is there and nothing hangs."""
    for fail_at in itertools.count(1):
        disk = CrashStorage()
        world = World(FaultyStorage(disk, error=io_error, only=(only,)))
        script = Script(world)
        world.storage.fail_at = world.storage.calls_count + fail_at
        failed = False
        try:
            script.run()
        except (StorageError, AssertionError, UnknownTopicOrPartition):
            failed = True
        world.storage = disk.kill() if fail_at % 2 else disk.crash(Keep("half"))
        world.open()
        world.transactions.abort_all(world.now_ms)
        script.check()
        if not failed:
            return
