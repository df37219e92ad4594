"""Random lives of one partition; a consumer, a reader in another process and a plain list must agree on every record.

What belongs together here is in no other test: aborted transactions, compaction, retention, records deleted by request,
restarts with caches lost, faults of the disk under all of that.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from random import Random

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.errors import ConcurrentTransactions, CorruptRecord, PolicyViolation, StorageError
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage
from eventbus.records import BatchBuilder, fetched_records
from eventbus.testing.storage import FaultyStorage, disk_full, io_error
from eventbus.types import IsolationLevel, ProducerIdAndEpoch, TopicPartition
from tests.tiers import of_today

pytestmark = pytest.mark.system

P = TopicPartition("p", 0)
START_MS = 1_700_000_000_000
POLICIES = ["delete", "compact", "compact,delete"]
IDS = ("x", "y", "z")
KEYS = (b"a", b"b", b"a key that is longer than its digest")
Found = list[tuple[int, bytes, bytes | None]]


class Life:
    """The partition, who writes to it, and what was written: (key, value, transaction) by offset."""

    def __init__(self, directory: Path, policy: str, random: Random) -> None:
        self.directory = directory
        self.compacts, self.deletes = "compact" in policy, "delete" in policy
        self.random = random
        self.now_ms = START_MS
        self.ids = itertools.count(2)
        self.config = BrokerConfig(
            fsync=random.choice(["commit", "interval", "os"]),
            transaction_state_log_num_partitions=1,
            log_defaults={
                "internal.segment.bytes": random.choice([600, 1500]),
                "index.interval.bytes": 200,
                "retention.ms": -1,
                "delete.retention.ms": random.choice([0, 1000]),
            },
        )
        self.written: dict[int, tuple[bytes, bytes | None, int]] = {}
        self.committed: dict[int, bool] = {0: True}
        """By number of the transaction; 0 stands for none."""
        self.numbers = itertools.count(1)
        self.open()
        configs = {"cleanup.policy": policy, **({"retention.bytes": 2500} if self.deletes else {})}
        self.broker.create_topics([TopicSpec("p", 1, configs=configs)], self.now_ms)
        self.idempotent = self.broker.transactions.init_producer_id(None, 0, self.now_ms)
        self.sequence = 0
        self.write(b"a", 0, self.idempotent, 0)

    def open(self) -> None:
        """As the embedded engine does: whoever was a client is gone."""
        self.producers: dict[str, ProducerIdAndEpoch] = {}
        self.current: dict[str, int] = {}
        self.sequences: dict[ProducerIdAndEpoch, int] = {}
        self.disk = FaultyStorage(FileStorage(str(self.directory)))
        self.broker = Broker.open(
            self.disk, self.config, now_ms=self.now_ms, new_id=lambda: next(self.ids).to_bytes(16, "big")
        )
        self.broker.transactions.abort_all(self.now_ms)
        self.flush()

    @property
    def log(self) -> PartitionLog:
        return self.broker._partitions[P].log

    def flush(self) -> None:
        while self.broker.needs_sync:
            flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)

    # what happens ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += self.random.choice([1, 500])
        calls = {self.send: 10, self.plain: 3, self.end: 6, self.flush: 3, self.delete_records: 1, self.tick: 1}
        calls |= {self.keep_house: 3, self.restart: 2, self.verify: 2}
        self.random.choices(list(calls), list(calls.values()))[0]()

    def write(self, key: bytes, number: int, producer: ProducerIdAndEpoch, sequence: int) -> bytearray:
        value = self.random.choice([None, b"%d" % number * self.random.choice([1, 30])])
        builder = BatchBuilder()
        builder.append(key, value, (), self.now_ms)
        batch = builder.build(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=number > 0,
        )
        again = bytearray(batch)
        self.last_offset = self.broker.produce(P, batch, self.now_ms).base_offset
        self.written[self.last_offset] = (key, value, number)
        return again

    def plain(self) -> None:
        self.sequence += 1
        again = self.write(self.random.choice(KEYS), 0, self.idempotent, self.sequence)
        info = self.broker.produce(P, again, self.now_ms)
        assert info.duplicate
        assert info.base_offset == self.last_offset

    def send(self) -> None:
        name = self.random.choice(IDS)
        if name not in self.producers:
            self.producers[name] = self.broker.transactions.init_producer_id(name, 60_000, self.now_ms)
        producer = self.producers[name]
        try:
            self.broker.transactions.add_partitions(name, producer, [P], self.now_ms)
        except ConcurrentTransactions:
            return
        if name not in self.current:
            self.current[name] = next(self.numbers)
        sequence = self.sequences.get(producer, 0)
        self.write(self.random.choice(KEYS), self.current[name], producer, sequence)
        self.sequences[producer] = sequence + 1

    def end(self) -> None:
        if not self.current:
            return
        name = self.random.choice(list(self.current))
        committed = self.random.random() < 0.5
        if committed:
            self.flush()
        end = self.broker.transactions.end(name, self.producers[name], committed=committed, now_ms=self.now_ms)
        self.producers[name] = end.next
        self.committed[self.current.pop(name)] = committed

    def tick(self) -> None:
        self.now_ms += 2_000
        self.broker.tick(self.now_ms)

    def delete_records(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.high_watermark)
        with contextlib.suppress(PolicyViolation):
            self.broker.delete_records(P, offset, self.now_ms)

    def keep_house(self) -> None:
        """Compaction or retention, perhaps with a fault; a log that is poisoned by it is opened again."""
        if self.random.random() < 0.4:
            calls = ["append", "sync", "sync_dir", "rename", "remove", "open", "truncate", "listdir"]
            self.disk.only = frozenset(self.random.sample(calls, self.random.choice([1, 8])))
            self.disk.error = self.random.choice([io_error, disk_full])
            self.disk.persistent = self.random.random() < 0.3
            self.disk.fail_at = self.disk.calls_count + self.random.randint(1, 30)
        with contextlib.suppress(StorageError, CorruptRecord):
            if self.random.random() < 0.6:
                self.broker.clean_now(self.now_ms)
            else:
                self.broker._logs.apply_retention(self.now_ms)
        failed = self.disk.failures_count
        self.disk.heal()
        if failed and any(partition.log.poisoned for partition in self.broker._partitions.values()):
            self.restart()
        self.verify()

    def restart(self) -> None:
        poisoned = any(partition.log.poisoned for partition in self.broker._partitions.values())
        if poisoned or self.random.random() < 0.5:
            self.disk.unlock()
        else:
            self.flush()
            self.broker.close(self.now_ms)
        if self.random.random() < 0.4:
            suffix = self.random.choice(["snapshot", "txnindex"])
            for path in (self.directory / "p-0").glob(f"*.{suffix}"):
                if self.random.random() < 0.7:
                    path.unlink()
        for number in self.current.values():
            self.committed[number] = False
        self.open()
        self.verify()

    # what must be true -----------------------------------------------------------------------------------------------

    def expected(self) -> Found:
        start, end = self.log.log_start_offset, self.log.last_stable_offset
        return [
            (offset, key, value)
            for offset, (key, value, number) in sorted(self.written.items())
            if start <= offset < end and self.committed.get(number)
        ]

    def fetched(self) -> Found:
        found: Found = []
        offset = self.log.log_start_offset
        size = self.random.choice([200, 100_000])
        while (data := self.broker.fetch(P, offset, size, IsolationLevel.READ_COMMITTED)).records:
            records = fetched_records(data.records, *P, offset, aborted=data.aborted)
            found += zip(records.offsets, map(_bytes, records.keys), records.values, strict=True)
            offset = records.next_offset
        return found

    def read_from_elsewhere(self) -> Found:
        self.broker.publish_checkpoints(self.now_ms)
        reader = LogReader(str(self.directory))
        start, end = reader.offsets("p")[0]
        found: Found = []
        for data in reader.read("p", 0, start, end, self.random.choice([200, 100_000])):
            records = fetched_records(data, *P, start)
            found += zip(records.offsets, map(_bytes, records.keys), records.values, strict=True)
        return found

    def verify(self) -> None:
        found, expected = self.fetched(), self.expected()
        if self.compacts:
            assert set(found) <= set(expected), "nobody wrote that, or it was aborted"
            newest = {key: (offset, key, value) for offset, key, value in expected}
            lost = {record for record in newest.values() if record[2] is not None} - set(found)
            assert not lost, "compaction took the last record of a key"
        else:
            assert found == expected
        assert self.read_from_elsewhere() == found
        self.log.check()


def _bytes(key: bytes | None) -> bytes:
    assert key is not None
    return bytes(key)


def live(directory: Path, policy: str, seed: int) -> None:
    life = Life(directory, policy, Random(seed))
    try:
        for _ in range(100):
            life.step()
        while life.current:
            life.end()
        life.flush()
        life.verify()
        assert life.log.last_stable_offset == life.log.high_watermark == life.log.log_end_offset
        life.broker.check()
        life.broker.close(life.now_ms)
    except BaseException as error:
        error.add_note(f"policy {policy}, seed {seed}")
        raise


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.log.producers.SNAPSHOT_BYTES", 1_000)
    monkeypatch.setattr("eventbus.log.producers._SNAPSHOT_RATIO", 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_readers_agree(tmp_path: Path, policy: str) -> None:
    for seed in range(6):
        live(tmp_path / str(seed), policy, seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", POLICIES)
def test_readers_agree_for_long(tmp_path: Path, policy: str) -> None:
    for seed in of_today(range(1_000, 1_300)):
        live(tmp_path / str(seed), policy, seed)
