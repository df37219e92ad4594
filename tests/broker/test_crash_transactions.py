"""Power cuts at any call of random transactions: several producers, partitions, offsets, flushes, restarts.

After each: a transaction is visible as a whole or not at all, in every partition and in its offsets; one whose commit
was acknowledged, or of which a reader has seen a record, is visible; one that was aborted, or not ended, is not; none
hangs; a second recovery changes nothing. The last tests plant bugs to show that each of these would be found.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from random import Random

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.transaction_ends import Endings
from eventbus.broker.transactions import Transactions
from eventbus.coordinator.codec import OffsetCommitKey
from eventbus.coordinator.offsets import Offsets
from eventbus.coordinator.requests import TransactionEnd
from eventbus.errors import ConcurrentTransactions
from eventbus.log.partition_log import PartitionLog
from eventbus.log.producer_state import ProducerStates
from eventbus.records import BatchBuilder, fetched_records
from eventbus.testing.storage import CrashStorage, SimulatedCrash
from eventbus.types import (
    GroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tests.tiers import of_today, quick

START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
PARTITIONS = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
KEYED = TopicPartition("k", 0)
"""A compacted one."""
KEYS = (b"x", b"y", b"z")
IDS = ("t0", "t1", "t2")
GROUP = "g"
CONFIG = BrokerConfig(
    offsets_topic_num_partitions=1,
    offsets_topic_segment_bytes=900,
    transaction_state_log_num_partitions=2,
    transaction_state_log_segment_bytes=900,
    log_defaults={"internal.segment.bytes": 500, "index.interval.bytes": 200, "retention.ms": -1},
)


class Transaction:
    """What one transaction wrote, and what is known of its end."""

    __slots__ = ("committed", "end", "ended", "name", "offsets", "records")

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: list[tuple[TopicPartition, bytes]] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.committed: bool | None = False
        """True: it must be visible. False: it must not. None: its commit was asked for and not answered."""
        self.end: TransactionEnd | None = None
        self.ended = False
        """The client is done with it."""

    def __repr__(self) -> str:
        return f"{self.name}(committed={self.committed}, {len(self.records)} records, offsets {self.offsets})"


class Client:
    """A transactional producer, as far as a client remembers anything."""

    def __init__(self, transactional_id: str, number: int) -> None:
        self.transactional_id = transactional_id
        self.commits_in = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)][number]
        """Its part of the group's offsets: nobody else commits there, so their order is the order of its commits."""
        self.forget()

    def forget(self) -> None:
        self.producer: ProducerIdAndEpoch | None = None
        self.sequences: dict[TopicPartition, int] = defaultdict(int)
        self.transaction: Transaction | None = None

    def use(self, producer: ProducerIdAndEpoch) -> None:
        if producer != self.producer:
            self.sequences.clear()
        self.producer = producer


class Machine:
    """A broker on a storage that can lose power, its clients, and what must be true afterwards."""

    waits_for_data = True
    """A producer flushes its records before it asks for a commit."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.storage = CrashStorage()
        self.now_ms = START_MS
        self.ids = 0
        self.number = 0
        self.clients = [Client(name, number) for number, name in enumerate(IDS)]
        self.history: dict[TopicPartition, list[tuple[bytes, Transaction | None]]] = {tp: [] for tp in PARTITIONS}
        """Every record in the order of its append, and the transaction it belongs to."""
        self.acked = dict.fromkeys((*PARTITIONS, KEYED), 0)
        """How many of them are stored for certain; of the keyed partition, up to which offset."""
        self.keyed: dict[int, tuple[bytes, bytes, Transaction | None]] = {}
        """Of the compacted partition: (key, value, transaction) by offset."""
        self.offsets: dict[TopicPartition, list[Transaction]] = {tp: [] for tp in PARTITIONS}
        """Transactions with an offset there, in order."""
        self.pending: list[Transaction] = []
        self.unacked: dict[TopicPartition, list[tuple[bytes, list[bytes]]]] = {tp: [] for tp in PARTITIONS}
        """Of an idempotent producer that lives elsewhere and outlives crashes: (batch, its values) not answered yet."""
        self.sequences: dict[TopicPartition, int] = defaultdict(int)
        self.open()
        compacted = TopicSpec("k", 1, configs={"cleanup.policy": "compact"})
        self.broker.create_topics([TopicSpec("a", 2), TopicSpec("b", 1), compacted], self.now_ms)
        self.idempotent = self.broker.transactions.init_producer_id(None, TIMEOUT_MS, self.now_ms)

    def open(self) -> None:
        """As the embedded engine does: whoever was a client is gone."""
        for client in self.clients:
            client.forget()
        self.pending = []
        self.broker = Broker.open(self.storage, CONFIG, now_ms=self.now_ms, new_id=self.new_id)
        self.broker.groups.drop_clients(self.now_ms)
        self.broker.transactions.abort_all(self.now_ms)
        self.flush_all()

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    # work ------------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        weights: dict[Callable[[], None], int] = {
            self.send: 12,
            self.send_offsets: 3,
            self.commit: 5,
            self.abort: 2,
            self.flush: 7,
            self.plain: 2,
            self.send_idempotently: 3,
            self.take_over: 1,
            self.time_out: 1,
            self.look: 1,
            self.compact: 1,
            self.restart: 1,
        }
        self.random.choices(list(weights), list(weights.values()))[0]()

    def ready(self) -> Client | None:
        """A client with a transaction to write to, begun if need be; None while its last one is being ended."""
        client = self.random.choice(self.clients)
        if client.producer is None:
            self.init(client)
        if client.transaction is not None and client.transaction.end is not None:
            markers = client.transaction.end.markers
            if markers is None or not all(self.broker.is_durable(tp, offset) for tp, offset in markers):
                return None
            client.transaction = None
        if client.transaction is None:
            self.number += 1
            client.transaction = Transaction(f"{client.transactional_id}#{self.number}")
        return client

    def init(self, client: Client) -> None:
        for _ in range(4):
            try:
                client.forget()
                client.use(self.broker.transactions.init_producer_id(client.transactional_id, TIMEOUT_MS, self.now_ms))
                return
            except ConcurrentTransactions:
                self.flush()
        raise AssertionError(f"{client.transactional_id} is never free again: {self.broker!r}")

    def send(self) -> None:
        client = self.ready()
        if client is None:
            return
        assert client.producer is not None
        assert client.transaction is not None
        tp = self.random.choice((*PARTITIONS, KEYED))
        self.broker.transactions.add_partitions(client.transactional_id, client.producer, [tp], self.now_ms)
        builder = BatchBuilder()
        for number in range(self.random.randint(1, 3)):
            key = self.random.choice(KEYS)
            builder.append(key, self.record(tp, client.transaction, key, number), (), self.now_ms)
        batch = builder.build(
            producer_id=client.producer.producer_id,
            producer_epoch=client.producer.producer_epoch,
            base_sequence=client.sequences[tp],
            is_transactional=True,
        )
        client.sequences[tp] += builder.count
        self.broker.produce(tp, batch, self.now_ms, trusted=True)

    def record(self, tp: TopicPartition, transaction: Transaction | None, key: bytes, number: int) -> bytes:
        """A value like no other, as the ``number``-th record of a batch, written down before it is sent."""
        self.number += 1
        value = b"%d." % self.number * self.random.randint(1, 6)
        if tp == KEYED:
            self.keyed[log_end_offset(self.broker, tp) + number] = (key, value, transaction)
        else:
            self.history[tp].append((value, transaction))
        if transaction is not None:
            transaction.records.append((tp, value))
        return value

    def plain(self) -> None:
        """Somebody else's records, in the midst of transactions."""
        tp = self.random.choice((*PARTITIONS, KEYED))
        builder = BatchBuilder()
        key = self.random.choice(KEYS)
        builder.append(key, self.record(tp, None, key, 0), (), self.now_ms)
        self.broker.produce(tp, builder.build(), self.now_ms, trusted=True)

    def send_idempotently(self) -> None:
        tp = self.random.choice(PARTITIONS)
        if len(self.unacked[tp]) == 5:
            return  # no more in flight
        builder = BatchBuilder()
        values = [self.record(tp, None, b"k", number) for number in range(self.random.randint(1, 2))]
        for value in values:
            builder.append(b"k", value, (), self.now_ms)
        batch = builder.build(
            producer_id=self.idempotent.producer_id,
            producer_epoch=self.idempotent.producer_epoch,
            base_sequence=self.sequences[tp],
        )
        self.sequences[tp] += builder.count
        self.unacked[tp].append((bytes(batch), values))
        self.broker.produce(tp, batch, self.now_ms, trusted=True)

    def send_again(self) -> None:
        """After a crash: what was not answered once more, in its order. Each batch is there exactly once then."""
        for tp, unacked in self.unacked.items():
            for batch, values in unacked:
                stored = values[0] in [value for value, _ in self.history[tp]]
                info = self.broker.produce(tp, bytearray(batch), self.now_ms)
                assert info.duplicate == stored, f"{tp}: {values} sent again, was stored: {stored}, answer: {info}"
                if not stored:
                    self.history[tp] += [(value, None) for value in values]
        self.flush_all()

    def send_offsets(self) -> None:
        client = self.ready()
        if client is None:
            return
        assert client.producer is not None
        assert client.transaction is not None
        self.number += 1
        tp = client.commits_in
        if tp not in client.transaction.offsets:
            self.offsets[tp].append(client.transaction)
        client.transaction.offsets[tp] = self.number
        self.broker.transactions.commit_offsets(
            client.transactional_id,
            client.producer,
            GroupMetadata(GROUP),
            {tp: OffsetAndMetadata(self.number)},
            self.now_ms,
        )

    def commit(self) -> None:
        self.end(committed=True)

    def abort(self) -> None:
        self.end(committed=False)

    def end(self, *, committed: bool) -> None:
        client = self.ready()
        if client is None:
            return
        transaction = client.transaction
        assert client.producer is not None
        assert transaction is not None
        if committed and self.waits_for_data:
            self.flush_all()
        if committed:
            transaction.committed = None
        end = self.broker.transactions.end(
            client.transactional_id, client.producer, committed=committed, now_ms=self.now_ms
        )
        assert end.committed == committed or end.offset < 0
        transaction.end = end
        client.use(end.next)
        if end.offset < 0:
            assert not transaction.records
            assert not transaction.offsets
            transaction.committed = committed
            client.transaction = None
        elif committed:
            self.pending.append(transaction)

    def flush(self) -> None:
        if not self.broker.needs_sync:
            return
        covered = {tp: len(history) for tp, history in self.history.items()}
        covered[KEYED] = log_end_offset(self.broker, KEYED)
        in_flight = {tp: len(unacked) for tp, unacked in self.unacked.items()}
        flush = self.broker.begin_sync()
        if self.random.random() < 0.3:
            self.plain()
        flush.run()
        if self.random.random() < 0.2:
            self.plain()
        self.broker.complete_sync(flush)
        for tp, count in covered.items():
            self.acked[tp] = max(self.acked[tp], count)
        for tp, count in in_flight.items():
            del self.unacked[tp][:count]
        self.settle()
        if self.random.random() < 0.2:
            self.broker.publish_checkpoints(self.now_ms)

    def flush_all(self) -> None:
        for _ in range(20):
            if not self.broker.needs_sync:
                return
            self.flush()
        raise AssertionError("there is always something left to flush")

    def settle(self) -> None:
        """A commit is acknowledged when its markers are stored."""
        for transaction in list(self.pending):
            assert transaction.end is not None
            markers = transaction.end.markers
            if markers is not None and all(self.broker.is_durable(tp, offset) for tp, offset in markers):
                transaction.committed = True
                self.pending.remove(transaction)

    def take_over(self) -> None:
        """Another process opens a producer of the same id; the one before never says another word."""
        self.init(self.random.choice(self.clients))

    def time_out(self) -> None:
        """Nobody ends what is open; the log does."""
        self.now_ms += TIMEOUT_MS + 1
        self.broker.tick(self.now_ms)
        for client in self.clients:
            if client.transaction is not None and client.transaction.end is None:
                client.forget()

    def compact(self) -> None:
        """The keyed partition, and the logs of groups and transactions."""
        self.broker.clean_now(self.now_ms)
        self.acked[KEYED] = max(self.acked[KEYED], self.broker.list_offsets(KEYED, -1).offset)

    def look(self) -> None:
        """What a reader has seen was committed, for ever."""
        self.mark_seen()

    def mark_seen(self) -> dict[TopicPartition, list[bytes]]:
        visible: dict[TopicPartition, list[bytes]] = {}
        for tp in PARTITIONS:
            visible[tp] = read_all(self.broker, tp, IsolationLevel.READ_COMMITTED)
            found = set(visible[tp])
            for value, transaction in self.history[tp]:
                if transaction is not None and value in found:
                    assert transaction.committed is not False, f"{tp} shows {value!r} of {transaction}"
                    transaction.committed = True
        for offset, value in read_keyed(self.broker).items():
            transaction = self.keyed[offset][2]
            if transaction is not None:
                assert transaction.committed is not False, f"{KEYED} shows {value!r} of {transaction}"
                transaction.committed = True
        return visible

    def restart(self) -> None:
        """In order, or killed: then all that was written is there."""
        if self.random.random() < 0.5:
            self.broker.check()
            self.broker.close(self.now_ms)
        else:
            self.storage.kill()
        self.open()
        self.check()

    # the end of the world --------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        self.storage = self.storage.crash(self.random)
        if self.random.random() < 0.25:  # and once more while it recovers from it
            self.storage.crash_at_call = self.random.randint(1, 60)
            with contextlib.suppress(SimulatedCrash):
                self.open()
            self.storage = self.storage.crash(self.random)
        self.open()
        self.check()
        self.send_again()
        if self.random.random() < 0.5:
            before = self.seen()
            self.storage.kill()
            self.open()
            assert self.seen() == before, "a second recovery changed something"

    def seen(self) -> tuple[str, dict[str, bytes]]:
        """The state, and the files but for what every opening renews: checkpoints, caches, the journal."""
        files = self.storage.tree()
        caches = ("-checkpoint", ".snapshot", ".state", ".journal")
        return repr(self.broker), {path: files[path] for path in files if not path.endswith(caches)}

    def check(self) -> None:
        self.broker.check()
        stored = {tp: self.check_stored(tp) for tp in PARTITIONS}
        self.check_keyed_stored()
        visible = self.mark_seen()
        committed = self.broker.groups.fetch_offsets(GROUP, PARTITIONS)
        self.decide(committed)
        for tp in PARTITIONS:
            expected = [v for v, t in stored[tp] if t is None or t.committed]
            assert visible[tp] == expected, f"{tp}: {self.explain(tp, visible[tp], expected)}"
            self.check_offset(tp, committed.get(tp))
        self.check_keyed()
        self.check_nothing_hangs()

    def check_stored(self, tp: TopicPartition) -> list[tuple[bytes, Transaction | None]]:
        """The log is the beginning of what was appended, with all that was acknowledged; returns what is there."""
        found = read_all(self.broker, tp, IsolationLevel.READ_UNCOMMITTED)
        history = self.history[tp]
        start = 0
        if not self.acked[tp] and found:  # before its first flush, a log may lose its first file and keep its second
            start = [value for value, _ in history].index(found[0])
        kept = history[start : start + len(found)]
        assert found == [value for value, _ in kept], f"{tp}: not what was appended"
        assert len(found) >= self.acked[tp], f"{tp}: acknowledged records are gone"
        self.history[tp] = kept
        self.acked[tp] = len(found)
        self.lose(tp, [transaction for _, transaction in history[start + len(found) :]])
        return kept

    def lose(self, tp: TopicPartition, transactions: list[Transaction | None]) -> None:
        """What lost a record can only have been aborted."""
        for transaction in transactions:
            if transaction is not None:
                assert not transaction.committed, f"{tp}: a part of {transaction} is gone"
                transaction.committed = False

    def check_keyed_stored(self) -> None:
        """What no flush had covered was not compacted either: it is there or lost. A marker may stand in its place."""
        found = read_keyed(self.broker, IsolationLevel.READ_UNCOMMITTED)
        for offset, (_, value, _) in self.keyed.items():
            assert found.get(offset, value) == value, f"{KEYED} at {offset}: {found[offset]!r}, written was {value!r}"
        gone = [offset for offset in self.keyed if offset >= self.acked[KEYED] and offset not in found]
        self.lose(KEYED, [self.keyed.pop(offset)[2] for offset in gone])
        self.acked[KEYED] = log_end_offset(self.broker, KEYED)

    def check_keyed(self) -> None:
        """Of each key at least the last committed value is there, and what is there was committed."""
        last = {key: offset for offset, (key, _, t) in sorted(self.keyed.items()) if t is None or t.committed}
        found = read_keyed(self.broker)
        assert set(last.values()) <= found.keys(), f"{KEYED}: last offsets {last}, there are {sorted(found)}"

    def decide(self, committed: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """The outcome of a commit that was not answered is known now: as seen, or not seen."""
        for tp, transactions in self.offsets.items():
            found = committed[tp].offset if tp in committed else -1
            for transaction in transactions:
                if transaction.committed is None and transaction.offsets[tp] == found:
                    transaction.committed = True
        mentioned = [transaction for history in self.history.values() for _, transaction in history]
        mentioned += [transaction for _, _, transaction in self.keyed.values()]
        mentioned += [transaction for transactions in self.offsets.values() for transaction in transactions]
        for transaction in mentioned:
            if transaction is not None:
                transaction.committed = bool(transaction.committed)

    def check_offset(self, tp: TopicPartition, found: OffsetAndMetadata | None) -> None:
        visible = [transaction.offsets[tp] for transaction in self.offsets[tp] if transaction.committed]
        expected = visible[-1] if visible else None
        assert (found.offset if found else None) == expected, f"offset in {tp}: {self.offsets[tp][-3:]}"

    def check_nothing_hangs(self) -> None:
        for tp in (*PARTITIONS, KEYED):
            data = self.broker.fetch(tp, self.broker.list_offsets(tp, -1).offset, 1, IsolationLevel.READ_COMMITTED)
            assert data.last_stable_offset == data.high_watermark, f"{tp} hangs at {data.last_stable_offset}"
        states = {listing.state for listing in self.broker.transactions.list()}
        assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}, states
        # A group whose offsets a transaction holds back answers so.
        self.broker.groups.fetch_offsets(GROUP, PARTITIONS, require_stable=True)

    def explain(self, tp: TopicPartition, found: list[bytes], expected: list[bytes]) -> str:
        owner = dict(self.history[tp])
        extra = [(value, owner.get(value)) for value in found if value not in expected]
        missing = [(value, owner.get(value)) for value in expected if value not in found]
        return f"visible though not committed: {extra}; committed but not visible: {missing}"


def read_all(broker: Broker, tp: TopicPartition, isolation: IsolationLevel) -> list[bytes]:
    values: list[bytes] = []
    offset = broker.list_offsets(tp, -2).offset
    while (data := broker.fetch(tp, offset, 1 << 20, isolation)).records:
        records = fetched_records(data.records, *tp, offset, aborted=data.aborted)
        values += [value for value in records.values if value is not None]
        offset = records.next_offset
    return values


def read_keyed(broker: Broker, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[int, bytes]:
    """What a reader sees of the compacted partition, by offset."""
    values: dict[int, bytes] = {}
    offset = broker.list_offsets(KEYED, -2).offset
    while (data := broker.fetch(KEYED, offset, 1 << 20, isolation)).records:
        records = fetched_records(data.records, *KEYED, offset, aborted=data.aborted)
        for at, value in zip(records.offsets, records.values, strict=True):
            assert value is not None
            values[at] = value
        offset = records.next_offset
    return values


def log_end_offset(broker: Broker, tp: TopicPartition) -> int:
    return broker.log(tp).log_end_offset


def run(seed: int, machine: type[Machine] = Machine, steps: int = 38) -> None:
    random = Random(seed)
    world = machine(random)
    for _ in range(random.choice((1, 1, 1, 2))):
        world.storage.crash_at_call = world.storage.calls_count + random.randint(1, 300)
        with contextlib.suppress(SimulatedCrash):
            for _ in range(steps):
                world.step()
        world.power_cut()


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        try:
            run(seed)
        except Exception as error:
            error.add_note(f"seed {seed}: tests.broker.test_crash_transactions.run({seed})")
            raise


@pytest.mark.system
@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.parametrize("block", quick(range(10), 1))
def test_power_cuts(block: int) -> None:
    run_seeds(range(block * 100, (block + 1) * 100))


@pytest.mark.usefixtures("latest_records_are_saved_often")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(2))
def test_many_power_cuts(block: int) -> None:
    run_seeds(of_today(range(10_000 + block * 8_000, 10_000 + (block + 1) * 8_000)))


# planted bugs ---------------------------------------------------------------------------------------------------------


def found_by(seeds: range, machine: type[Machine] = Machine) -> str:
    """What the checker says of a planted bug."""
    for seed in seeds:
        try:
            run(seed, machine)
        except AssertionError as error:
            return str(error)
    raise LookupError(f"not found by {len(seeds)} seeds")


@pytest.mark.system
def test_nothing_is_found_without_a_bug() -> None:
    with pytest.raises(LookupError):
        found_by(range(30))


@pytest.mark.slow
def test_markers_before_the_decision_is_durable_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Endings.advance

    def too_early(self: Endings, transactional_id: str, now_ms: int) -> None:
        self.prepared[transactional_id].offset = -1
        advance(self, transactional_id, now_ms)

    monkeypatch.setattr(Endings, "advance", too_early)
    found_by(range(600, 1_500))  # one life in about 200 shows it


@pytest.mark.system
def test_a_commit_before_its_records_are_durable_would_be_found() -> None:
    found_by(range(150), type("Hasty", (Machine,), {"waits_for_data": False}))


def test_readers_past_open_transactions_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(lambda log: log.high_watermark))
    assert "shows" in found_by(range(30))


def test_a_lost_index_of_aborted_transactions_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "aborted_in", lambda *_: ())
    assert "shows" in found_by(range(30))


def test_offsets_that_do_not_wait_for_the_commit_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Offsets, producer_id: int, key: OffsetCommitKey, value: bytes | None) -> None:
        pending(self, producer_id, key, value)
        self.complete_transaction(producer_id, True)

    pending = Offsets.replay_pending
    monkeypatch.setattr(Offsets, "replay_pending", at_once)
    found = found_by(range(60))
    assert "offset in" in found or "replay differs from the live state" in found


@pytest.mark.system
def test_transactions_nobody_remembers_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transactions, "reconcile", lambda *_: None)
    found_by(range(150))


def test_transactions_nobody_ends_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transactions, "abort_all", lambda *_: None)
    assert "hangs" in found_by(range(60))


@pytest.mark.system
def test_batches_stored_twice_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    assert "sent again" in found_by(range(60))
