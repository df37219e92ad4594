"""Consumer groups: one shard per partition of ``__consumer_offsets``. Part of the broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping

from eventbus.broker.descriptions import OffsetCommitResult
from eventbus.broker.names import CONSUMER_OFFSETS
from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import OffsetsShard, partition_for_group
from eventbus.coordinator.offsets import CommitErrors, check_group
from eventbus.coordinator.requests import GroupListing
from eventbus.errors import KafkaError
from eventbus.log.partition_log import PartitionLog
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

GroupsLog = ShardLog[OffsetsShard]


class Groups:
    """Which shard keeps a group, and what concerns all of them. `Broker.groups`."""

    def __init__(
        self,
        partition_count: int,
        open_shard: Callable[[int, int], GroupsLog],
        refuse: Callable[[TopicPartition], KafkaError | None],
        check_open: Callable[[], None],
    ) -> None:
        """``open_shard`` gives the shard of a partition at ``now_ms``, with what is stored replayed; ``refuse`` the
        error for a partition that does not exist; ``check_open`` raises when the broker is closed."""
        self._shards: dict[int, GroupsLog] = {}
        self._partition_count = partition_count
        self._open_shard = open_shard
        self._refuse = refuse
        self._check_open = check_open

    def __repr__(self) -> str:
        return " ".join(repr(shard_log.shard) for _, shard_log in sorted(self._shards.items()))

    def load(self, number: int, now_ms: int) -> GroupsLog:
        """The shard of a partition, opened if need be."""
        shard_log = self._shards.get(number)
        if shard_log is None:
            shard_log = self._shards[number] = self._open_shard(number, now_ms)
        return shard_log

    def partition_of(self, group: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that keeps the group."""
        return TopicPartition(CONSUMER_OFFSETS, partition_for_group(group, self._partition_count))

    def _held(self, group: str) -> GroupsLog | None:
        return self._shards.get(partition_for_group(group, self._partition_count))

    # committed offsets -----------------------------------------------------------------------------------------------

    def commit_offsets(
        self, group: GroupMetadata | str, offsets: Mapping[TopicPartition, OffsetAndMetadata], now_ms: int
    ) -> OffsetCommitResult:
        """Store the next offset to read per partition; one that does not exist is refused, the others are stored."""
        self._check_open()
        name = group if isinstance(group, str) else group.group
        check_group(name)
        errors: CommitErrors = {}
        for topic_partition in offsets:
            error = self._refuse(topic_partition)
            if error is not None:
                errors[topic_partition] = error
        shard_log = self.load(partition_for_group(name, self._partition_count), now_ms)
        log = shard_log.log
        wanted = {tp: offset for tp, offset in offsets.items() if tp not in errors} if errors else offsets
        decision = shard_log.shard.commit(name, wanted, now_ms)
        errors.update(shard_log.execute(decision, now_ms))
        return OffsetCommitResult(log.topic_partition, log.log_end_offset - 1 if decision.records else -1, errors)

    def fetch_offsets(
        self,
        group: str,
        topic_partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group committed, of all partitions or the given ones; absent where it committed nothing."""
        shard_log = self._held(group)
        return {} if shard_log is None else shard_log.shard.fetch(group, topic_partitions)

    def delete_offsets(self, group: str, topic_partitions: Iterable[TopicPartition], now_ms: int) -> int:
        """Forget some offsets of a group, so that it starts over there; returns how many it had."""
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return 0
        return shard_log.execute(shard_log.shard.delete_offsets(group, topic_partitions), now_ms)

    # groups ----------------------------------------------------------------------------------------------------------

    def list(self, states: Collection[str] = ()) -> list[GroupListing]:
        """Every group, by name; of some states only, if given."""
        names = sorted(group for shard_log in self._shards.values() for group in shard_log.shard.groups)
        return [GroupListing(name, "", "Empty") for name in names if not states or "Empty" in states]

    def delete(self, group: str, now_ms: int) -> int:
        """Forget a group; returns how many offsets it had. Raises GroupIdNotFound."""
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return OffsetsShard().delete_group(group).reply  # no shard, no group: it raises
        return shard_log.execute(shard_log.shard.delete_group(group), now_ms)

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
