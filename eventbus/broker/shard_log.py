"""A shard and the partition that holds its records: `eventbus.coordinator.shard`'s pattern, carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from eventbus.coordinator import Decision, Shard
from eventbus.coordinator.shard import ReplyT_co
from eventbus.errors import CorruptRecord
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.records import BatchBuilder, fetched_records

ShardT_co = TypeVar("ShardT_co", covariant=True, bound=Shard)

Append = Callable[[PartitionLog, bytearray, int], AppendInfo]
"""How the broker stores a shard's batch at ``now_ms``: no policy and no size limit, only the log."""

_LOAD_BYTES = 1 << 20
_ADVICE = (
    "the log's own bookkeeping cannot be read, so it is not opened. "
    "`eventbus log verify DIR` shows the extent; restore the partition from a copy, or use the version that wrote it"
)


class ShardLog(Generic[ShardT_co]):
    """A shard and its partition, kept together: nothing else writes either."""

    __slots__ = ("_append", "_replayed_offset", "log", "shard")

    def __init__(self, shard: ShardT_co, log: PartitionLog, append: Append) -> None:
        self.shard = shard
        self.log = log
        self._append = append
        self._replayed_offset = log.log_start_offset

    def __repr__(self) -> str:
        return f"{self.log.topic_partition}@{self._replayed_offset} {self.shard!r}"

    def execute(self, decision: Decision[ReplyT_co], now_ms: int) -> ReplyT_co:
        """Store the decision's records in one batch, then fold them in. Nothing changed when this raises."""
        if decision.records:
            builder = BatchBuilder()
            for key, value in decision.records:
                builder.append(key, value, (), now_ms)
            info = self._append(self.log, builder.build(), now_ms)
            for key, value in decision.records:
                self.shard.replay(key, value)
            self._replayed_offset = info.last_offset + 1
        return decision.reply

    def load(self) -> int:
        """Replay what the log holds; returns the number of records.

        Damage is an error for a human: a group that silently starts over reads everything twice, or skips it.
        """
        log, replay, count = self.log, self.shard.replay, 0
        topic, partition = log.topic_partition
        while self._replayed_offset < log.log_end_offset:
            buffer = log.read(self._replayed_offset, _LOAD_BYTES, max_offset=log.log_end_offset)
            records = fetched_records(buffer, topic, partition, self._replayed_offset, check_crcs=False)
            for offset, key, value in zip(records.offsets, records.keys, records.values, strict=True):
                try:
                    replay(key or b"", value)
                except ValueError as error:
                    raise CorruptRecord(f"{log.topic_partition}, offset {offset}: {error}; {_ADVICE}") from error
            if records.next_offset <= self._replayed_offset:
                raise CorruptRecord(f"{log.topic_partition}: no batch at offset {self._replayed_offset}; {_ADVICE}")
            count += len(records)
            self._replayed_offset = records.next_offset
        return count

    def check(self, fresh: Shard) -> None:
        """AssertionError unless the records alone, folded into ``fresh``, give the live state."""
        replayed = ShardLog(fresh, self.log, self._append)
        replayed.load()
        assert repr(replayed) == repr(self), f"replay differs from the live state: {replayed!r}, live {self!r}"
