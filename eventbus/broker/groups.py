"""Committed offsets: one shard per partition of ``__consumer_offsets``. Part of the broker."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from eventbus.broker.descriptions import OffsetCommitResult
from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import OffsetsShard, partition_for_group
from eventbus.coordinator.offsets import CommitErrors, check_group
from eventbus.errors import UnknownTopicOrPartition
from eventbus.log.partition_log import PartitionLog
from eventbus.types import OffsetAndMetadata, TopicPartition

OffsetsLog = ShardLog[OffsetsShard]


class GroupOffsets:
    """Which shard keeps a group, and what concerns all of them."""

    def __init__(self, partition_count: int, open_shard: Callable[[int, int], OffsetsLog]) -> None:
        """``open_shard`` gives the shard of a partition at ``now_ms``, with what is stored replayed."""
        self._shards: dict[int, OffsetsLog] = {}
        self._partition_count = partition_count
        self._open_shard = open_shard

    def __repr__(self) -> str:
        return " ".join(repr(shard_log.shard) for _, shard_log in sorted(self._shards.items()))

    def load(self, number: int, now_ms: int) -> OffsetsLog:
        """The shard of a partition, opened if need be."""
        shard_log = self._shards.get(number)
        if shard_log is None:
            shard_log = self._shards[number] = self._open_shard(number, now_ms)
        return shard_log

    def _held(self, group: str) -> OffsetsLog | None:
        return self._shards.get(partition_for_group(group, self._partition_count))

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        refuse: Callable[[TopicPartition], UnknownTopicOrPartition | None],
        now_ms: int,
    ) -> OffsetCommitResult:
        """Store what names a partition that exists; the others are refused one by one."""
        check_group(group)
        errors: CommitErrors = {}
        for topic_partition in offsets:
            error = refuse(topic_partition)
            if error is not None:
                errors[topic_partition] = error
        shard_log = self.load(partition_for_group(group, self._partition_count), now_ms)
        log = shard_log.log
        wanted = {tp: offset for tp, offset in offsets.items() if tp not in errors} if errors else offsets
        decision = shard_log.shard.commit(group, wanted, now_ms)
        errors.update(shard_log.execute(decision, now_ms))
        return OffsetCommitResult(log.topic_partition, log.log_end_offset - 1 if decision.records else -1, errors)

    def fetch(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        shard_log = self._held(group)
        return {} if shard_log is None else shard_log.shard.fetch(group, topic_partitions)

    def names(self) -> list[str]:
        return sorted(group for shard_log in self._shards.values() for group in shard_log.shard.groups)

    def delete_group(self, group: str, now_ms: int) -> int:
        """Raises GroupIdNotFound. Returns how many offsets were forgotten."""
        shard_log = self._held(group)
        if shard_log is None:
            return OffsetsShard().delete_group(group).reply  # no shard, no group: it raises
        return shard_log.execute(shard_log.shard.delete_group(group), now_ms)

    def delete_offsets(self, group: str, topic_partitions: Iterable[TopicPartition], now_ms: int) -> int:
        shard_log = self._held(group)
        if shard_log is None:
            return 0
        return shard_log.execute(shard_log.shard.delete_offsets(group, topic_partitions), now_ms)

    def forget_topics(self, topics: Container[str], now_ms: int) -> list[PartitionLog]:
        """Forget every group's offsets of some topics; returns the logs this was written to."""
        return [
            shard_log.log
            for shard_log in self._shards.values()
            if shard_log.execute(shard_log.shard.delete_topics(topics), now_ms)
        ]

    def check(self) -> None:
        """Live state equals replayed state, or AssertionError."""
        for number, shard_log in self._shards.items():
            shard_log.check(OffsetsShard())
            for group in shard_log.shard.groups:
                assert partition_for_group(group, self._partition_count) == number, f"{group!r} in partition {number}"
