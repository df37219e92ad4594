"""A shard and the partition that holds its records: `eventbus.coordinator.shard`'s pattern, carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from eventbus.coordinator import Decision, Shard
from eventbus.coordinator.shard import ReplyT_co, TransactionalShard
from eventbus.errors import CorruptRecord
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.records import BatchBuilder, ControlType, iter_batches, read_marker
from eventbus.records.batch import RecordBatch
from eventbus.types import ProducerIdAndEpoch, TopicPartition

ShardT_co = TypeVar("ShardT_co", covariant=True, bound=Shard)

Append = Callable[[PartitionLog, bytearray, int], AppendInfo]
"""How the broker stores a shard's batch at ``now_ms``: no policy and no size limit, only the log."""

AppendMarker = Callable[[TopicPartition, ProducerIdAndEpoch, bool, int, int], "AppendInfo | None"]
"""How the broker ends a producer's transaction on a partition: committed or not, by the coordinator of an epoch, at
``now_ms``; None when the partition is gone."""

_LOAD_BYTES = 1 << 20
_ADVICE = (
    "the log's own bookkeeping cannot be read, so it is not opened. "
    "`eventbus log verify DIR` shows the extent; restore the partition from a copy, or use the version that wrote it"
)


class ShardLog(Generic[ShardT_co]):
    """A shard and its partition, kept together: nothing else writes either."""

    __slots__ = ("_append", "_append_marker", "_replayed_offset", "_transactional", "log", "shard")

    def __init__(
        self, shard: ShardT_co, log: PartitionLog, append: Append, append_marker: AppendMarker | None = None
    ) -> None:
        self.shard = shard
        self.log = log
        self._append = append
        self._append_marker = append_marker
        self._replayed_offset = log.log_start_offset
        self._transactional = shard if isinstance(shard, TransactionalShard) else None

    def __repr__(self) -> str:
        return f"{self.log.topic_partition}@{self._replayed_offset} {self.shard!r}"

    def execute(self, decision: Decision[ReplyT_co], now_ms: int, append: Append | None = None) -> ReplyT_co:
        """Store the decision's records in one batch, then fold them in. Nothing changed when this raises.

        ``append`` replaces the usual way to store, for this once.
        """
        if decision.records:
            builder = BatchBuilder()
            for key, value in decision.records:
                builder.append(key, value, (), now_ms)
            info = (append or self._append)(self.log, builder.build(), now_ms)
            for key, value in decision.records:
                self.shard.replay(key, value)
            self._replayed_offset = info.last_offset + 1
        return decision.reply

    def execute_in_transaction(
        self: ShardLog[TransactionalShard], decision: Decision[ReplyT_co], producer: ProducerIdAndEpoch, now_ms: int
    ) -> ReplyT_co:
        """As `execute`, as part of the producer's open transaction: the records stay pending until it ends."""
        if decision.records:
            builder = BatchBuilder()
            for key, value in decision.records:
                builder.append(key, value, (), now_ms)
            batch = builder.build(
                producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, is_transactional=True
            )
            info = self._append(self.log, batch, now_ms)
            for key, value in decision.records:
                self.shard.replay_pending(producer.producer_id, key, value)
            self._replayed_offset = info.last_offset + 1
        return decision.reply

    def end_transaction(
        self: ShardLog[TransactionalShard],
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
    ) -> AppendInfo | None:
        """Store the marker that ends the producer's transaction here, then apply or drop what was pending."""
        assert self._append_marker is not None, "a shard that takes part in transactions knows how to store markers"
        info = self._append_marker(self.log.topic_partition, producer, committed, coordinator_epoch, now_ms)
        if info is not None:
            self.shard.complete_transaction(producer.producer_id, committed)
            self._replayed_offset = info.last_offset + 1
        return info

    def load(self) -> int:
        """Replay what the log holds; returns the number of records.

        Damage is an error for a human: a group that silently starts over reads everything twice, or skips it.
        """
        log, count = self.log, 0
        while self._replayed_offset < log.log_end_offset:
            buffer = log.read(self._replayed_offset, _LOAD_BYTES, max_offset=log.log_end_offset)
            before = self._replayed_offset
            for batch in iter_batches(buffer, verify=False):
                if batch.header.last_offset >= self._replayed_offset:
                    count += self._replay(batch)
                    self._replayed_offset = batch.header.next_offset
            if self._replayed_offset <= before:
                raise CorruptRecord(f"{log.topic_partition}: no batch at offset {before}; {_ADVICE}")
        return count

    def _replay(self, batch: RecordBatch) -> int:
        """Fold one batch in; returns how many records it held for the shard."""
        header, shard, first_offset = batch.header, self.shard, self._replayed_offset
        transactional = self._transactional
        columns = batch.columns()
        offset = header.base_offset
        try:
            if header.is_control:
                marker = read_marker(columns.keys[0], columns.values[0]) if columns.keys else None
                if marker is not None and transactional is not None:
                    transactional.complete_transaction(header.producer_id, marker.control_type is ControlType.COMMIT)
                return 0
            count = 0
            for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                if offset < first_offset:
                    continue
                if not header.is_transactional:
                    shard.replay(key or b"", value)
                elif transactional is not None:
                    transactional.replay_pending(header.producer_id, key or b"", value)
                else:
                    raise ValueError("a record of a transaction, which is never written here")
                count += 1
        except ValueError as error:
            raise CorruptRecord(f"{self.log.topic_partition}, offset {offset}: {error}; {_ADVICE}") from error
        return count

    def check(self, fresh: Shard) -> None:
        """AssertionError unless the records alone, folded into ``fresh``, give the live state."""
        replayed = ShardLog(fresh, self.log, self._append)
        replayed.load()
        assert repr(replayed) == repr(self), f"replay differs from the live state: {replayed!r}, live {self!r}"
