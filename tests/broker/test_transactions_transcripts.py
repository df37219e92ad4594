"""Transactions over a whole broker, told in transcripts: ``transcripts/transactions_*.txt``.

Commands; ID is a transactional id, whose client remembers what it is to produce with::

    init ID [timeout=MS] [again] [as=PID/EPOCH]  again: as the producer it is
    add ID TP...                send ID TP VALUE...             plain TP VALUE...
    offsets ID GROUP TP=OFFSET... [v1] [as=PID/EPOCH]              add-offsets ID GROUP
    missing ID                  what must be durable before a commit
    marker TP as=PID/EPOCH [commit]                                by hand
    commit ID | abort ID        [v1] [as=PID/EPOCH]; the client goes on with what the answer says
    epoch ID N                  as if so many transactions had been before
    flush                       until nothing is left            flush once          sync TP   as a disk may: one alone
    tick +MS                    admin-abort ID                   abort-all
    list [STATE]                describe ID                      read TP          fetch GROUP [stable]
    create TOPIC [PARTITIONS]   delete TOPIC
    full | room                 the disk                         power-cut        nothing that was not flushed is left
    restart                     in order                         kill             the process died, the machine did not

After each command: what was stored where, and how the transaction stands.
"""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from random import Random

import pytest

from eventbus.broker import Broker, BrokerConfig, TopicSpec
from eventbus.broker.names import CLUSTER_METADATA, TRANSACTION_STATE
from eventbus.coordinator.transaction_codec import (
    TransactionMetadata,
    decode_transaction_key,
    decode_transaction_value,
)
from eventbus.errors import KafkaError
from eventbus.log.commit import Flush
from eventbus.records import BatchBuilder, RecordBatch, fetched_records, iter_batches, read_marker
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full
from eventbus.types import GroupMetadata, IsolationLevel, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition
from tests import transcripts

FILES = sorted((Path(__file__).parent / "transcripts").glob("transactions_*.txt"))
CONFIG = BrokerConfig(
    transaction_state_log_num_partitions=1,
    offsets_topic_num_partitions=1,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
)
HOUR_MS = 3_600_000


class Nothing(Random):
    """Decides that nothing survives a power cut but what was flushed."""

    def choice(self, seq):
        return seq[0]


class TransactionsMachine:
    def __init__(self) -> None:
        self.now_ms = 0
        self.ids = itertools.count(2)
        self.storage = CrashStorage()
        self.clients: dict[str, ProducerIdAndEpoch] = {}
        self.sequences: dict[tuple[ProducerIdAndEpoch, TopicPartition], int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.lines: list[str] = []
        self.open()
        self.broker.create_topics([TopicSpec("a", 2), TopicSpec("b", 1)], 0)

    def open(self) -> None:
        self.disk = FaultyStorage(self.storage, error=disk_full, persistent=True, only=("append",))
        self.broker = Broker.open(
            self.disk, CONFIG, now_ms=self.now_ms, new_id=lambda: next(self.ids).to_bytes(16, "big")
        )

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        self.lines = []
        try:
            getattr(self, f"do_{name.replace('-', '_')}")(*words)
        except KafkaError as error:
            self.lines += textwrap.wrap(f"refused: {error.name}: {error}", 116, subsequent_indent="  ")
        self.show_stored()
        self.broker.check()
        return self.lines

    # what is on the disk ---------------------------------------------------------------------------------------------

    def show_stored(self) -> None:
        for tp, partition in sorted(self.broker._partitions.items()):
            log, seen = partition.log, self.ends.get(tp, 0)
            if tp.topic == CLUSTER_METADATA or log.log_end_offset == seen:
                continue
            if seen > log.log_end_offset:
                self.lines.append(f"{tp} ends at {log.log_end_offset}")
            else:
                data = log.read(seen, 1 << 20, max_offset=log.log_end_offset)
                for batch in iter_batches(data):
                    self.lines += self.show_batch(tp, batch)
            self.ends[tp] = log.log_end_offset
        self.ends = {tp: end for tp, end in self.ends.items() if tp in self.broker._partitions}

    @staticmethod
    def show_batch(tp: TopicPartition, batch: RecordBatch) -> list[str]:
        header, columns = batch.header, batch.columns()
        if tp.topic == TRANSACTION_STATE:
            found = zip(columns.keys, columns.values, strict=True)
            return [f"  stored {show(decode_transaction_key(key or b''), value)}" for key, value in found]
        where, who = f"{tp}@{header.base_offset}", f"{header.producer_id}/{header.producer_epoch}"
        if header.is_control:
            marker = read_marker(columns.keys[0], columns.values[0])
            assert marker is not None
            return [f"  marker {where} {marker.control_type.name.lower()} of {who}"]
        return [f"  records {where} of {who}" if header.is_transactional else f"  records {where}"]

    # producers -------------------------------------------------------------------------------------------------------

    def producer(self, name: str, words: tuple[str, ...]) -> ProducerIdAndEpoch:
        for word in words:
            if word.startswith("as="):
                producer_id, epoch = word.removeprefix("as=").split("/")
                return ProducerIdAndEpoch(int(producer_id), int(epoch))
        return self.clients.get(name, ProducerIdAndEpoch(0, 0))

    def do_init(self, name: str, *words: str) -> None:
        timeout_ms = next((int(word[8:]) for word in words if word.startswith("timeout=")), 60_000)
        known = self.producer(name, words) if words and words[-1].startswith(("again", "as=")) else None
        given = self.broker.transactions.init_producer_id(name, timeout_ms, self.now_ms, producer=known)
        self.clients[name] = given
        self.lines.append(f"producer {given.producer_id}/{given.producer_epoch}")

    def do_add(self, name: str, *words: str) -> None:
        wanted = [partition(word) for word in words if "=" not in word]
        self.broker.transactions.add_partitions(name, self.producer(name, words), wanted, self.now_ms)

    def do_send(self, name: str, tp: str, *values: str) -> None:
        where, who = partition(tp), self.producer(name, values)
        builder = BatchBuilder()
        for value in values:
            if "=" not in value:
                builder.append(b"k", value.encode(), (), self.now_ms)
        sequence = self.sequences.get((who, where), 0)
        batch = builder.build(
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.broker.produce(where, batch, self.now_ms)
        self.sequences[who, where] = sequence + builder.count

    def do_plain(self, tp: str, *values: str) -> None:
        builder = BatchBuilder()
        for value in values:
            builder.append(b"k", value.encode(), (), self.now_ms)
        self.broker.produce(partition(tp), builder.build(), self.now_ms)

    def do_offsets(self, name: str, group: str, *words: str) -> None:
        given = (word.split("=") for word in words if "=" in word and not word.startswith("as="))
        offsets = {partition(tp): OffsetAndMetadata(int(at)) for tp, at in given}
        who = self.producer(name, words)
        self.broker.transactions.commit_offsets(
            name, who, GroupMetadata(group), offsets, self.now_ms, added="v1" in words
        )

    def do_add_offsets(self, name: str, group: str) -> None:
        self.broker.transactions.add_offsets(name, self.producer(name, ()), group, self.now_ms)

    def do_missing(self, name: str) -> None:
        missing = self.broker.transactions.not_durable(name)
        self.lines.append(" ".join(f"{tp}@{offset}" for tp, offset in missing) or "nothing")

    def do_marker(self, tp: str, *words: str) -> None:
        offset = self.broker.transactions.write_marker(
            partition(tp), self.producer("", words), "commit" in words, 0, self.now_ms
        )
        self.lines.append(f"marker at {offset}")

    def do_commit(self, name: str, *words: str) -> None:
        self.end(name, words, committed=True)

    def do_abort(self, name: str, *words: str) -> None:
        self.end(name, words, committed=False)

    def end(self, name: str, words: tuple[str, ...], *, committed: bool) -> None:
        end = self.broker.transactions.end(
            name, self.producer(name, words), committed=committed, now_ms=self.now_ms, bump_epoch="v1" not in words
        )
        self.clients[name] = end.next
        decided = f"decided at {end.offset}" if end.offset >= 0 else "nothing to store"
        self.lines.append(f"{decided}, next {end.next.producer_id}/{end.next.producer_epoch}")

    def do_epoch(self, name: str, epoch: str) -> None:
        transactions = self.broker.transactions
        shard_log = transactions._homes[name]
        known = shard_log.execute(shard_log.shard.raise_epoch(name, int(epoch), self.now_ms), self.now_ms)
        self.clients[name] = known.producer

    # the broker ------------------------------------------------------------------------------------------------------

    def do_flush(self, *words: str) -> None:
        while self.broker.needs_sync:
            flush: Flush = self.broker.begin_sync()
            flush.run()
            self.broker.complete_sync(flush)
            if words:
                return

    def do_sync(self, tp: str) -> None:
        log = self.broker._partitions[partition(tp)].log
        for segment in log.segments:
            segment.file.sync()
        for directory in (log.directory, ""):
            self.storage.sync_dir(directory)

    def do_tick(self, later: str) -> None:
        self.now_ms += int(later)
        self.broker.tick(self.now_ms)

    def do_admin_abort(self, name: str) -> None:
        self.broker.transactions.abort(name, self.now_ms)

    def do_abort_all(self) -> None:
        self.broker.transactions.abort_all(self.now_ms)

    def do_list(self, *states: str) -> None:
        self.lines += [
            f"{name} {producer_id} {state}" for name, producer_id, state in self.broker.transactions.list(states)
        ]

    def do_describe(self, name: str) -> None:
        told = self.broker.transactions.describe(name)
        partitions = " ".join(map(str, told.partitions))
        self.lines.append(
            f"{told.state} {told.producer_id}/{told.producer_epoch} timeout={told.timeout_ms} start={told.start_ms} "
            f"[{partitions}]"
        )

    def do_read(self, tp: str) -> None:
        where = partition(tp)
        data = self.broker.fetch(where, 0, 1 << 20, IsolationLevel.READ_COMMITTED)
        records = fetched_records(data.records, *where, 0, aborted=data.aborted)
        values = " ".join(value.decode() for value in records.values if value is not None)
        stable, high = data.last_stable_offset, data.high_watermark
        self.lines.append(f"[{values}] " + (f"all {high}" if stable == high else f"stable {stable} of {high}"))

    def do_fetch(self, group: str, *words: str) -> None:
        found = self.broker.groups.fetch_offsets(group, require_stable=bool(words))
        self.lines.append("offsets: " + " ".join(f"{tp}={found[tp].offset}" for tp in sorted(found)))

    def do_create(self, name: str, partitions: str = "1") -> None:
        self.broker.create_topics([TopicSpec(name, int(partitions))], self.now_ms)

    def do_delete(self, name: str) -> None:
        self.broker.delete_topics([name], self.now_ms)

    def do_full(self) -> None:
        self.disk.fail_at = self.disk.calls_count + 1

    def do_room(self) -> None:
        self.disk.fail_at = 0

    def do_restart(self) -> None:
        self.broker.close(self.now_ms)
        self.open()

    def do_kill(self) -> None:
        self.storage.kill()
        self.open()

    def do_power_cut(self) -> None:
        self.storage = self.storage.crash(Nothing())
        self.open()


def partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def show(name: str, value: bytes | None) -> str:
    if value is None:
        return f"{name} tombstone"
    known: TransactionMetadata = decode_transaction_value(value)
    parts = [
        f"{name} {known.state.title} {known.producer_id}/{known.producer_epoch}",
        *map(str, sorted(known.partitions)),
    ]
    if known.next_producer_id >= 0:
        parts.append(f"then {known.next_producer_id}/0")
    if known.previous_producer_id >= 0:
        parts.append(f"after {known.previous_producer_id}")
    return " ".join(parts)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transactions(path: Path, rewrite: bool) -> None:
    transcripts.check(path, TransactionsMachine, rewrite)


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 10
