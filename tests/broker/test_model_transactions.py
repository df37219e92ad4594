"""Producers, transactions, compaction and deletion against lists of tuples, so dumb that they are obviously right.

Hypothesis drives a broker and the lists through the same steps, restarts of all kinds included, and compares what
readers of both isolations see, every offset, and what the groups have committed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.transactions import Sender
from eventbus.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    UnstableOffsetCommit,
)
from eventbus.log.storage import FileStorage, MemoryStorage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.types import (
    GroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tests.support import examples
from tests.tiers import quick

pytestmark = pytest.mark.system

PLAIN = (TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0))
KEYED = TopicPartition("k", 0)
AGING = TopicPartition("r", 0)
EVERYWHERE = (*PLAIN, KEYED, AGING)
IDS = ("t0", "t1", "t2")
GROUP = "g"
TIMEOUT_MS = 1_000
RETENTION_MS = 400
FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Transaction:
    """An open one, or how it ended."""

    def __init__(self, began_ms: int) -> None:
        self.state = "open"
        self.deadline_ms = began_ms + TIMEOUT_MS
        self.first: dict[TopicPartition, int] = {}
        """Its first offset in each partition it was sent to."""
        self.has_offsets = False


class Row(NamedTuple):
    """One record as the model remembers it."""

    offset: int
    key: bytes
    value: bytes
    timestamp_ms: int
    transaction: Transaction | None


class Log:
    """One partition: every record ever stored, where the next one goes, and where readers may begin."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.next = 0
        self.start = 0


class Commit(NamedTuple):
    """One committed offset, in the order of arrival."""

    tp: TopicPartition
    offset: int
    transaction: Transaction | None


class Writer:
    """A producer as its client knows it."""

    def __init__(self, producer: ProducerIdAndEpoch) -> None:
        self.producer = producer
        self.sequences: dict[TopicPartition, int] = {}
        self.last: dict[TopicPartition, deque[tuple[bytes, int, int]]] = {}
        """Per partition the last five batches: (bytes as sent, base offset, last offset)."""
        self.transaction: Transaction | None = None


class TransactionsAgainstLists(RuleBasedStateMachine):
    directory: Path | None = None
    fsync = "commit"

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.ids = 0
        self.logs = {tp: Log() for tp in EVERYWHERE}
        self.commits: list[Commit] = []
        self.plain_writers: list[Writer] = []
        self.writers: dict[str, Writer | None] = dict.fromkeys(IDS)
        self.zombies: list[tuple[str, ProducerIdAndEpoch]] = []
        if self.directory is None:
            self.storage = MemoryStorage()
        else:
            self.root = Path(tempfile.mkdtemp(dir=self.directory))
            self.storage = FileStorage(str(self.root))

    @initialize()
    def begin(self) -> None:
        self.open()
        specs = [
            TopicSpec("a", 2, configs={"retention.ms": -1}),
            TopicSpec("b", 1, configs={"retention.ms": -1}),
            TopicSpec("k", 1, configs={"cleanup.policy": "compact", "delete.retention.ms": 100}),
            TopicSpec("r", 1, configs={"retention.ms": RETENTION_MS}),
        ]
        self.broker.create_topics(specs, self.now_ms)
        for _ in range(2):
            self.plain_writers.append(Writer(self.broker.transactions.init_producer_id(None, TIMEOUT_MS, self.now_ms)))

    def open(self) -> None:
        config = BrokerConfig(
            fsync=self.fsync,
            log_retention_check_interval_ms=10,
            offsets_topic_num_partitions=1,
            offsets_topic_segment_bytes=700,
            transaction_state_log_num_partitions=2,
            transaction_state_log_segment_bytes=700,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
            log_defaults={"internal.segment.bytes": 400, "index.interval.bytes": 100, "file.delete.delay.ms": 0},
        )
        self.broker = Broker.open(self.storage, config, now_ms=self.now_ms, new_id=self.new_id)

    def new_id(self) -> bytes:
        self.ids += 1
        return self.ids.to_bytes(16, "big")

    def flush(self) -> None:
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)

    # records ---------------------------------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        keys: list[bytes],
        writer: Writer | None,
        transaction: Transaction | None,
        sender: Sender | None = None,
    ) -> None:
        log = self.logs[tp]
        builder = BatchBuilder()
        rows = []
        for number, key in enumerate(keys):
            value = b"%d." % (log.next + number) * 4
            builder.append(key, value, (), self.now_ms)
            rows.append(Row(log.next + number, key, value, self.now_ms, transaction))
        if writer is None:
            batch = builder.build()
        else:
            batch = builder.build(
                producer_id=writer.producer.producer_id,
                producer_epoch=writer.producer.producer_epoch,
                base_sequence=writer.sequences.get(tp, 0),
                is_transactional=transaction is not None,
            )
        as_sent = bytes(batch)
        info = self.broker.produce(tp, batch, self.now_ms, sender=sender)
        assert (info.base_offset, info.last_offset, info.duplicate) == (log.next, log.next + len(keys) - 1, False)
        log.rows += rows
        log.next += len(keys)
        if writer is not None:
            writer.sequences[tp] = writer.sequences.get(tp, 0) + len(keys)
            writer.last.setdefault(tp, deque(maxlen=5)).append((as_sent, info.base_offset, info.last_offset))
        self.flush()

    keys = st.lists(st.sampled_from([b"x", b"y", b"z"]), min_size=1, max_size=3)
    anywhere = st.sampled_from(EVERYWHERE)

    @rule(tp=anywhere, keys=keys)
    def produce(self, tp: TopicPartition, keys: list[bytes]) -> None:
        self.append(tp, keys, None, None)

    @rule(which=st.integers(0, 1), tp=anywhere, keys=keys)
    def produce_idempotently(self, which: int, tp: TopicPartition, keys: list[bytes]) -> None:
        self.append(tp, keys, self.plain_writers[which], None)

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """The answer was lost on the way: the same batch once more."""
        writers = [*self.plain_writers, *(writer for writer in self.writers.values() if writer is not None)]
        sent = [(w, tp) for w in writers for tp in EVERYWHERE if w.last.get(tp)]
        if not sent:
            return
        writer, tp = data.draw(st.sampled_from(sent))
        batch, base_offset, last_offset = data.draw(st.sampled_from(list(writer.last[tp])))
        info = self.broker.produce(tp, bytearray(batch), self.now_ms)
        assert (info.base_offset, info.last_offset, info.duplicate) == (base_offset, last_offset, True)

    @rule(which=st.integers(0, 1), tp=anywhere, skipped=st.integers(1, 5))
    def leave_a_gap(self, which: int, tp: TopicPartition, skipped: int) -> None:
        writer = self.plain_writers[which]
        if tp not in writer.sequences:
            return
        builder = BatchBuilder()
        builder.append(b"x", b"lost", (), self.now_ms)
        batch = builder.build(
            producer_id=writer.producer.producer_id,
            producer_epoch=writer.producer.producer_epoch,
            base_sequence=writer.sequences[tp] + skipped,
        )
        with pytest.raises(OutOfOrderSequence):
            self.broker.produce(tp, batch, self.now_ms)

    # transactions ----------------------------------------------------------------------------------------------------

    def writer(self, transactional_id: str) -> tuple[Writer, Transaction]:
        """With a transaction open, begun if need be."""
        writer = self.writers[transactional_id]
        if writer is None:
            producer = self.broker.transactions.init_producer_id(transactional_id, TIMEOUT_MS, self.now_ms)
            writer = self.writers[transactional_id] = Writer(producer)
        if writer.transaction is None:
            writer.transaction = Transaction(self.now_ms)
        return writer, writer.transaction

    @rule(transactional_id=st.sampled_from(IDS), tp=anywhere, keys=keys, is_outside=st.booleans())
    def send(self, transactional_id: str, tp: TopicPartition, keys: list[bytes], is_outside: bool) -> None:
        """Send from this process, or as a request whose batch adds the partition itself (KIP-890)."""
        writer, transaction = self.writer(transactional_id)
        if not is_outside:
            self.broker.transactions.add_partitions(transactional_id, writer.producer, [tp], self.now_ms)
        transaction.first.setdefault(tp, self.logs[tp].next)
        sender = Sender(transactional_id, True, self.now_ms) if is_outside else None
        self.append(tp, keys, writer, transaction, sender)

    @rule(transactional_id=st.sampled_from(IDS), tp=st.sampled_from(PLAIN), offset=st.integers(0, 99))
    def send_offset(self, transactional_id: str, tp: TopicPartition, offset: int) -> None:
        writer, transaction = self.writer(transactional_id)
        stored = self.broker.transactions.commit_offsets(
            transactional_id, writer.producer, GroupMetadata(GROUP), {tp: OffsetAndMetadata(offset)}, self.now_ms
        )
        assert not stored.errors
        transaction.has_offsets = True
        self.commits.append(Commit(tp, offset, transaction))
        self.flush()

    @rule(tp=st.sampled_from(PLAIN), offset=st.integers(0, 99))
    def commit_offset(self, tp: TopicPartition, offset: int) -> None:
        self.broker.groups.commit_offsets(GROUP, {tp: OffsetAndMetadata(offset)}, self.now_ms)
        self.commits.append(Commit(tp, offset, None))
        self.flush()

    @rule(transactional_id=st.sampled_from(IDS), committed=st.booleans(), again=st.booleans())
    def end(self, transactional_id: str, committed: bool, again: bool) -> None:
        writer = self.writers[transactional_id]
        if writer is None:
            return
        before = writer.producer
        transactions = self.broker.transactions
        is_empty = writer.transaction is None or not (writer.transaction.first or writer.transaction.has_offsets)
        end = transactions.end(transactional_id, before, committed=committed, now_ms=self.now_ms)
        self.flush()
        if again and not is_empty:  # the answer was lost
            repeated = transactions.end(transactional_id, before, committed=committed, now_ms=self.now_ms)
            assert (repeated.committed, repeated.next) == (committed, end.next)
            with pytest.raises(FENCED):
                transactions.end(transactional_id, before, committed=not committed, now_ms=self.now_ms)
        if end.next != before:
            self.zombies.append((transactional_id, before))
            writer.producer = end.next
            writer.sequences.clear()
            writer.last.clear()
        if writer.transaction is not None:
            self.ended(writer.transaction, "committed" if committed else "aborted")
            writer.transaction = None

    def ended(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        for tp in transaction.first:
            self.logs[tp].next += 1  # its marker

    @rule(transactional_id=st.sampled_from(IDS))
    def take_over(self, transactional_id: str) -> None:
        """Another producer of the same id; the one before is a zombie from here on."""
        old = self.writers[transactional_id]
        self.writers[transactional_id] = Writer(self.init(transactional_id))
        if old is not None:
            self.zombies.append((transactional_id, old.producer))
            if old.transaction is not None:
                self.ended(old.transaction, "aborted")

    def init(self, transactional_id: str) -> ProducerIdAndEpoch:
        from eventbus.errors import ConcurrentTransactions

        for _ in range(3):
            try:
                return self.broker.transactions.init_producer_id(transactional_id, TIMEOUT_MS, self.now_ms)
            except ConcurrentTransactions:
                self.flush()
        raise AssertionError(f"{transactional_id} is never free")

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), tp=anywhere, how=st.sampled_from(["send", "request", "add", "offsets"]))
    def zombie(self, data: st.DataObject, tp: TopicPartition, how: str) -> None:
        """Somebody who was fenced says another word."""
        transactional_id, producer = data.draw(st.sampled_from(self.zombies))
        transactions = self.broker.transactions
        with pytest.raises(FENCED):
            if how == "add":
                transactions.add_partitions(transactional_id, producer, [tp], self.now_ms)
            elif how == "offsets":
                offsets = {PLAIN[0]: OffsetAndMetadata(12_345)}
                transactions.commit_offsets(transactional_id, producer, GroupMetadata(GROUP), offsets, self.now_ms)
            else:
                builder = BatchBuilder()
                builder.append(b"x", b"zombie", (), self.now_ms)
                batch = builder.build(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=0,
                    is_transactional=True,
                )
                sender = Sender(transactional_id, True, self.now_ms) if how == "request" else None
                self.broker.produce(tp, batch, self.now_ms, sender=sender)

    # time, cleaning, restarts ----------------------------------------------------------------------------------------

    @rule(passed_ms=st.integers(0, 700), continues=st.booleans())
    def time_passes(self, passed_ms: int, continues: bool) -> None:
        """A producer whose transaction timed out either aborts it and continues, or is gone."""
        self.now_ms += passed_ms
        self.broker.tick(self.now_ms)
        self.flush()
        for transactional_id, writer in self.writers.items():
            if writer is None or writer.transaction is None:
                continue
            transaction = writer.transaction
            if (transaction.first or transaction.has_offsets) and self.now_ms >= transaction.deadline_ms:
                self.ended(transaction, "aborted")
                self.zombies.append((transactional_id, writer.producer))
                self.writers[transactional_id] = None
                if continues:
                    transactions, before = self.broker.transactions, writer.producer
                    with pytest.raises(FENCED):
                        transactions.end(transactional_id, before, committed=True, now_ms=self.now_ms)
                    end = transactions.end(transactional_id, before, committed=False, now_ms=self.now_ms)
                    self.writers[transactional_id] = Writer(end.next)
            elif not (transaction.first or transaction.has_offsets):
                transaction.deadline_ms = self.now_ms + TIMEOUT_MS
        self.take_start(AGING, may_go_ms=self.now_ms - RETENTION_MS)

    def take_start(self, tp: TopicPartition, may_go_ms: int) -> None:
        """How much goes depends on where segments end; what may go does not."""
        log = self.logs[tp]
        start = self.broker.list_offsets(tp, -2).offset
        assert log.start <= start <= log.next
        assert all(row.timestamp_ms < may_go_ms for row in log.rows if log.start <= row.offset < start)
        log.start = start

    @rule()
    def compact(self) -> None:
        self.broker.clean_now(self.now_ms)

    @rule(tp=st.sampled_from((*PLAIN, AGING)), part=st.floats(0, 1))
    def delete_records(self, tp: TopicPartition, part: float) -> None:
        log = self.logs[tp]
        before = round(log.next * part)
        start = self.broker.delete_records(tp, before, self.now_ms)
        log.start = max(log.start, before)
        assert start == log.start

    @rule(clean=st.booleans(), clients_died=st.booleans())
    def restart(self, clean: bool, clients_died: bool) -> None:
        """Idempotent producers go on in any case; transactional ones where they live elsewhere (in other processes)."""
        before = self.state()
        if clean or self.directory is None:
            self.broker.close(self.now_ms)
        else:
            self.storage.unlock()
            self.storage = FileStorage(str(self.root))
        self.open()
        assert self.state() == before, "what was replayed is not what lived"
        if clients_died:
            self.broker.transactions.abort_all(self.now_ms)
            self.flush()
        for transactional_id, writer in self.writers.items():
            if writer is None or writer.transaction is None:
                continue
            transaction = writer.transaction
            if not clients_died or not (transaction.first or transaction.has_offsets):
                transaction.deadline_ms = self.now_ms + TIMEOUT_MS  # counted anew
            else:
                self.ended(transaction, "aborted")
                self.zombies.append((transactional_id, writer.producer))
                self.writers[transactional_id] = None

    def state(self) -> str:
        """All hard state, but for a shard nothing was written to, which is not opened when the log is."""
        producers = {tp: self.broker.describe_producers(tp) for tp in EVERYWHERE}
        return f"{self.broker!r} {producers}".replace("GroupsShard() ", " ").replace("TransactionsShard() ", " ")

    # comparisons -----------------------------------------------------------------------------------------------------

    def open_transactions(self) -> list[Transaction]:
        return [w.transaction for w in self.writers.values() if w is not None and w.transaction is not None]

    @invariant()
    def all_agree(self) -> None:
        if not hasattr(self, "broker"):
            return
        for tp, log in self.logs.items():
            self.compare(tp, log)
        self.compare_offsets()
        self.broker.check()

    def compare(self, tp: TopicPartition, log: Log) -> None:
        first_open = min((t.first[tp] for t in self.open_transactions() if tp in t.first), default=log.next)
        stable = max(first_open, log.start)
        data = self.broker.fetch(tp, log.start, 1, COMMITTED)
        found = (data.log_start_offset, data.last_stable_offset, data.high_watermark)
        assert found == (log.start, stable, log.next), f"{tp}: {found}, expected {(log.start, stable, log.next)}"
        assert self.broker.list_offsets(tp, -1, COMMITTED).offset == stable
        assert self.broker.list_offsets(tp, -1, UNCOMMITTED).offset == log.next
        everything = [(r.offset, r.key, r.value) for r in log.rows if r.offset >= log.start]
        committed = [
            (row.offset, row.key, row.value)
            for row in log.rows
            if log.start <= row.offset < stable and (row.transaction is None or row.transaction.state == "committed")
        ]
        if tp == KEYED:
            self.compare_compacted(committed)
            return
        for max_bytes in (1 << 20, 1):
            assert self.read(tp, UNCOMMITTED, max_bytes) == everything, f"{tp}, read-uncommitted"
            assert self.read(tp, COMMITTED, max_bytes) == committed, f"{tp}, read-committed"

    def compare_compacted(self, committed: list[tuple[int, bytes, bytes]]) -> None:
        found = self.read(KEYED, COMMITTED, 1 << 20)
        assert set(found) <= set(committed), "compaction shows what was not committed"
        assert found == sorted(found)
        last = {key: (offset, key, value) for offset, key, value in committed}
        assert set(last.values()) <= set(found), "the last record of a key is gone"
        assert self.read(KEYED, COMMITTED, 1) == found

    def read(self, tp: TopicPartition, isolation: IsolationLevel, max_bytes: int) -> list[tuple[int, bytes, bytes]]:
        found: list[tuple[int, bytes, bytes]] = []
        offset = self.logs[tp].start
        while (data := self.broker.fetch(tp, offset, max_bytes, isolation)).records:
            records = fetched_records(data.records, *tp, offset, aborted=data.aborted)
            for at, key, value in zip(records.offsets, records.keys, records.values, strict=True):
                assert key is not None
                assert value is not None
                found.append((at, key, value))
            assert records.next_offset > offset
            offset = records.next_offset
        return found

    def compare_offsets(self) -> None:
        groups = self.broker.groups
        expected: dict[TopicPartition, OffsetAndMetadata] = {}
        for commit in self.commits:
            if commit.transaction is None or commit.transaction.state == "committed":
                expected[commit.tp] = OffsetAndMetadata(commit.offset)
        assert groups.fetch_offsets(GROUP, PLAIN) == expected
        pending = {commit.tp for commit in self.commits if commit.transaction and commit.transaction.state == "open"}
        for tp in PLAIN:
            if tp in pending:
                with pytest.raises(UnstableOffsetCommit):
                    groups.fetch_offsets(GROUP, [tp], require_stable=True)
            else:
                groups.fetch_offsets(GROUP, [tp], require_stable=True)

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close(self.now_ms)
        if self.directory is not None:
            shutil.rmtree(self.root)


def run(directory: Path | None, fsync: str, most_examples: int) -> None:
    machine = type("Machine", (TransactionsAgainstLists,), {"directory": directory, "fsync": fsync})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=most_examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def test_in_memory() -> None:
    run(None, "commit", examples(25, 40))


@pytest.mark.parametrize("mode", quick(["commit", "os"], 1))
def test_on_disk(tmp_path: Path, mode: str) -> None:
    run(tmp_path, mode, examples(12, 20))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_memory_for_long() -> None:
    run(None, "commit", 1000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["commit", "os"])
def test_on_disk_for_long(tmp_path: Path, mode: str) -> None:
    run(tmp_path, mode, 200)
