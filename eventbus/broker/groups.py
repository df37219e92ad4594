"""Consumer groups: one shard per partition of ``__consumer_offsets``. Part of the broker."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from eventbus.broker.descriptions import OffsetCommitResult
from eventbus.broker.shard_log import ShardLog
from eventbus.coordinator import Decision, partition_for_group
from eventbus.coordinator.codec import OffsetCommitValue
from eventbus.coordinator.consumer_group_requests import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from eventbus.coordinator.group_rules import Turn
from eventbus.coordinator.groups import GroupsShard
from eventbus.coordinator.members import JoinReply, SyncReply
from eventbus.coordinator.offsets import CommitErrors, NewOffsets, check_group
from eventbus.coordinator.requests import GroupDescription, GroupListing, JoinGroup
from eventbus.errors import KafkaError, UnstableOffsetCommit
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.wall_time import WallTime
from eventbus.types import GroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

GroupsLog = ShardLog[GroupsShard]

_logger = logging.getLogger("eventbus.groups")


def _nobody(group: str) -> None:
    """Nobody waits."""


class Groups:
    """The group coordinator: who reads what, and how far they came. `Broker.groups`.

    Times are ``now_ms`` of the monotonic clock, which never jumps; ``wall`` dates what is stored. Replies are called at
    once or by a later call, in order, never inside one another: what a reply asks for is carried out at once, and
    answered after it has returned.
    """

    def __init__(
        self,
        partition_count: int,
        open_shard: Callable[[int, int], GroupsLog],
        refuse: Callable[[TopicPartition], KafkaError | None],
        check_open: Callable[[], None],
        new_shard: Callable[[], GroupsShard],
        retention_check_interval_ms: int,
        wall: WallTime,
        now_ms: int,
    ) -> None:
        """``open_shard`` gives the shard of a partition at a wall time, with what is stored replayed; ``refuse`` the
        error for a partition that does not exist; ``check_open`` raises when the broker is closed; ``new_shard`` makes
        an empty shard."""
        self.on_rebalance: Callable[[str], None] = _nobody
        """Called with a group that began to prepare a rebalance: its members in this process join again at once,
        without waiting for their next heartbeat to tell them."""
        self._shards: dict[int, GroupsLog] = {}
        self._partition_count = partition_count
        self._open_shard = open_shard
        self._refuse = refuse
        self._check_open = check_open
        self._new_shard = new_shard
        self._wall = wall
        self._now_ms = now_ms
        self._retention_check_interval_ms = retention_check_interval_ms
        self._next_retention_ms = now_ms + retention_check_interval_ms
        self._begun: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Rebalances since the log was opened, by group and by cause."""
        self._to_say: deque[tuple[Callable[[Any], None], object]] = deque()
        self._is_saying = False

    def __repr__(self) -> str:
        return " ".join(repr(shard_log.shard) for _, shard_log in sorted(self._shards.items()))

    def load(self, number: int, now_ms: int) -> GroupsLog:
        """The shard of a partition, opened if need be. Loaded sessions begin anew."""
        shard_log = self._shards.get(number)
        if shard_log is None:
            shard_log = self._shards[number] = self._open_shard(number, self._wall.at(now_ms))
            for decision in shard_log.shard.start(now_ms):
                self._carry_out(shard_log, decision, now_ms)
        return shard_log

    def partition_of(self, group: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that keeps the group; the topic is created if need be."""
        check_group(group)
        self._check_open()
        return self._of(group, self._now_ms).log.topic_partition

    def last_record_of(self, group: str) -> tuple[TopicPartition, int] | None:
        """Where the last record stands that may tell of the group: once it is durable, all that was decided of the
        group is. None: nothing was."""
        shard_log = self._held(group)
        return None if shard_log is None else (shard_log.log.topic_partition, shard_log.log.log_end_offset - 1)

    def _of(self, group: str, now_ms: int) -> GroupsLog:
        return self.load(partition_for_group(group, self._partition_count), now_ms)

    def _held(self, group: str) -> GroupsLog | None:
        return self._shards.get(partition_for_group(group, self._partition_count))

    # membership ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroup, now_ms: int, reply: JoinReply) -> None:
        """Take part in the group's next generation; ``reply`` is told the generation, or why not.

        A join of a member that is parked already replaces it: the earlier one is told RebalanceInProgress. Errors told:
        InvalidGroupId, InvalidSessionTimeout, InconsistentGroupProtocol, UnknownMemberId, FencedInstanceId,
        MemberIdRequired (join again with its ``member_id``), GroupMaxSizeReached, InvalidRequest, StorageError.
        """
        self._check_open()
        try:
            check_group(request.group)
            shard_log = self._of(request.group, now_ms)
            decision = shard_log.shard.join(request, reply, now_ms)
        except KafkaError as error:
            self._say(reply, error)
        else:
            self._carry_out(shard_log, decision, now_ms)

    def sync(
        self,
        group: GroupMetadata,
        assignments: Mapping[str, bytes],
        now_ms: int,
        reply: SyncReply,
        *,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> None:
        """Fetch what the leader assigned; the leader gives all ``assignments``, by member id, the others none.

        Errors told: UnknownMemberId, FencedInstanceId, IllegalGeneration, RebalanceInProgress (join again),
        InconsistentGroupProtocol, StorageError (sync again).
        """
        self._check_open()
        shard_log = self._held(group.group)
        try:
            if shard_log is None:
                decision = self._new_shard().sync(group, assignments, reply, now_ms)  # no shard, no group: it raises
                return
            decision = shard_log.shard.sync(group, assignments, reply, now_ms, protocol_type, protocol_name)
        except KafkaError as error:
            self._say(reply, error)
        else:
            self._carry_out(shard_log, decision, now_ms)

    def heartbeat(self, group: GroupMetadata, now_ms: int) -> None:
        """The member is alive. Raises UnknownMemberId, IllegalGeneration, RebalanceInProgress, FencedInstanceId."""
        shard_log = self._held(group.group)
        (self._new_shard() if shard_log is None else shard_log.shard).heartbeat(group, now_ms)

    def consumer_heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        """A member of the consumer protocol joins, stays or leaves (KIP-848); see `ConsumerGroups.heartbeat` for what
        it raises, and InvalidGroupId, StorageError."""
        self._check_open()
        check_group(request.group)
        shard_log = self._of(request.group, now_ms)
        decision, result = shard_log.shard.consumer_heartbeat(request, now_ms)
        failed = self._carry_out(shard_log, decision, now_ms)
        if failed is not None:
            raise failed
        return result

    def leave(
        self, group: str, members: Sequence[tuple[str, str | None]], now_ms: int, reason: str = ""
    ) -> list[KafkaError | None]:
        """Remove members, each given as (member id, group instance id); an empty id means the static member of the
        instance id, whoever it is. Returns an error or None for each. Raises StorageError."""
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return self._new_shard().leave(group, members, now_ms)[1]
        decision, errors = shard_log.shard.leave(group, members, now_ms)
        if reason:
            _logger.debug("group %s: %s left: %s", group, members, reason)
        failed = self._carry_out(shard_log, decision, now_ms)
        if failed is not None:
            raise failed
        return errors

    def drop_clients(self, now_ms: int) -> None:
        """Every dynamic member is gone: they lived in a process that died. Static ones keep their place until their
        session ends."""
        for shard_log in list(self._shards.values()):  # a reply may open another
            for decision in shard_log.shard.drop_clients(now_ms):
                self._carry_out(shard_log, decision, now_ms)

    def _carry_out(self, shard_log: GroupsLog, decision: Decision[Turn], now_ms: int) -> KafkaError | None:
        """Store, then say. When storing fails, everybody who would have been answered is told so instead."""
        turn = decision.reply
        failed: KafkaError | None = None
        try:
            shard_log.execute(decision, self._wall.at(now_ms))
        except KafkaError as error:
            failed = error
            _logger.warning("%s: a change of groups is not stored: %s", shard_log.log.topic_partition, error)
        for reply, answer in turn.replies:
            self._to_say.append((reply, failed or answer))
        for group, cause in turn.begun:
            self._begun[group][cause] += 1
        for group in turn.rebalancing:
            self._to_say.append((self.on_rebalance, group))
        self._say_all()
        return failed

    def _say(self, reply: Callable[[Any], None], answer: object) -> None:
        self._to_say.append((reply, answer))
        self._say_all()

    def _say_all(self) -> None:
        """In order, never nested: who is called may call here again. An error of one does not silence the others."""
        if self._is_saying:
            return
        self._is_saying = True
        raised: Exception | None = None
        while self._to_say:
            try:
                reply, answer = self._to_say.popleft()
                reply(answer)
            except Exception as error:
                raised = raised or error
        self._is_saying = False
        if raised is not None:
            raise raised

    # committed offsets -----------------------------------------------------------------------------------------------

    def commit_offsets(self, group: GroupMetadata | str, offsets: NewOffsets, now_ms: int) -> OffsetCommitResult:
        """Store the next offset to read per partition; one that does not exist is refused, the others are stored.

        A group's name alone stands for nobody in particular: for groups without members. Raises, with nothing stored:
        UnknownMemberId, IllegalGeneration, FencedInstanceId, RebalanceInProgress, InvalidGroupId, StorageError.
        """
        member = GroupMetadata(group) if isinstance(group, str) else group
        shard_log, existing, errors = self._prepare_commit(member, offsets, now_ms)
        decision = shard_log.shard.commit(member, existing, now_ms)
        errors.update(shard_log.execute(decision, self._wall.at(now_ms)))
        log = shard_log.log
        return OffsetCommitResult(log.topic_partition, log.log_end_offset - 1 if decision.records else -1, errors)

    def commit_transaction_offsets(
        self,
        producer: ProducerIdAndEpoch,
        group: GroupMetadata,
        offsets: NewOffsets,
        now_ms: int,
    ) -> OffsetCommitResult:
        """As `commit_offsets`, as part of the producer's open transaction: they count once it is committed.

        Called by `Transactions`, which knows whether the producer may.
        """
        shard_log, existing, errors = self._prepare_commit(group, offsets, now_ms)
        decision = shard_log.shard.commit_in_transaction(group, existing, now_ms)
        errors.update(shard_log.execute_in_transaction(decision, producer, self._wall.at(now_ms)))
        log = shard_log.log
        return OffsetCommitResult(log.topic_partition, log.log_end_offset - 1 if decision.records else -1, errors)

    def _prepare_commit(
        self, member: GroupMetadata, offsets: NewOffsets, now_ms: int
    ) -> tuple[GroupsLog, NewOffsets, CommitErrors]:
        """The shard, what names a partition that exists, and an error for each that does not."""
        self._check_open()
        check_group(member.group)
        errors: CommitErrors = {}
        for topic_partition in offsets:
            error = self._refuse(topic_partition)
            if error is not None:
                errors[topic_partition] = error
        existing = {tp: offset for tp, offset in offsets.items() if tp not in errors} if errors else offsets
        return self._of(member.group, now_ms), existing, errors

    def end_transaction(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
    ) -> AppendInfo | None:
        """Write the marker into a partition of ``__consumer_offsets``; the producer's pending offsets count from here
        on, or are dropped. Called by `Transactions`."""
        shard_log = self.load(topic_partition.partition, now_ms)
        return shard_log.end_transaction(producer, committed, coordinator_epoch, self._wall.at(now_ms))

    def fetch_offsets(
        self,
        group: str,
        topic_partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group committed, of all partitions or the given ones; absent where it committed nothing.

        With ``require_stable`` raises UnstableOffsetCommit while an open transaction may change one of them (KIP-447).
        """
        shard_log = self._held(group)
        if shard_log is None:
            return {}
        return shard_log.shard.fetch(group, topic_partitions, require_stable=require_stable)

    def look_up_offsets(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetCommitValue | UnstableOffsetCommit]:
        """As `fetch_offsets`, as they are stored, and with ``require_stable`` the error for each that may change."""
        shard_log = self._held(group)
        if shard_log is None:
            return {}
        return shard_log.shard.look_up(group, topic_partitions, require_stable=require_stable)

    def check_fetch(self, group: str, member_id: str | None, member_epoch: int) -> None:
        """See `GroupsShard.check_fetch`."""
        shard_log = self._held(group)
        if shard_log is not None:
            shard_log.shard.check_fetch(group, member_id, member_epoch)

    def speaks_consumer_protocol(self, group: str, member_id: str) -> bool:
        """Whether that is a member of the consumer protocol (KIP-848): older requests are refused to it."""
        shard_log = self._held(group)
        return shard_log is not None and shard_log.shard.speaks_consumer_protocol(group, member_id)

    def delete_offsets(self, group: str, topic_partitions: Iterable[TopicPartition], now_ms: int) -> int:
        """Forget some offsets of a group, so that it starts over there; returns how many it had.

        Raises GroupIdNotFound, GroupSubscribedToTopic, NonEmptyGroup (members that are no consumers); nothing is
        forgotten then.
        """
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return self._new_shard().delete_offsets(group, topic_partitions).reply  # no shard, no group: it raises
        return shard_log.execute(shard_log.shard.delete_offsets(group, topic_partitions), self._wall.at(now_ms))

    def forget_topics(self, topics: Container[str], wall_now_ms: int) -> list[PartitionLog]:
        """Forget every group's offsets of some topics; returns the logs this was written to."""
        return [
            shard_log.log
            for shard_log in self._shards.values()
            if shard_log.execute(shard_log.shard.delete_topics(topics), wall_now_ms)
        ]

    # groups ----------------------------------------------------------------------------------------------------------

    def list(self, states: Collection[str] = ()) -> list[GroupListing]:
        """Every group, by name; of some states only, if given, named as Kafka does."""
        return sorted(listing for shard_log in self._shards.values() for listing in shard_log.shard.list(states))

    def rebalances(self) -> dict[str, dict[str, int]]:
        """How many each group has begun since the log was opened, by cause; of groups that still are."""
        for group in [group for group in self._begun if not self.is_known(group)]:
            del self._begun[group]
        return {group: dict(causes) for group, causes in sorted(self._begun.items())}

    def is_known(self, group: str) -> bool:
        """Whether it has members, offsets, or a generation that is stored."""
        shard_log = self._held(group)
        return shard_log is not None and group in shard_log.shard.names

    def describe(self, groups: Sequence[str]) -> list[GroupDescription]:
        """Each group as it stands. An unknown one is Dead and empty, as in Kafka."""
        held = [(group, self._held(group)) for group in groups]
        return [(self._new_shard() if log is None else log.shard).describe(group) for group, log in held]

    def describe_consumers(self, group: str) -> ConsumerGroupDescription:
        """A group of the consumer protocol. Raises GroupIdNotFound."""
        shard_log = self._held(group)
        return (self._new_shard() if shard_log is None else shard_log.shard).describe_consumers(group)

    def delete(self, group: str, now_ms: int) -> int:
        """Forget a group; returns how many offsets it had. Raises GroupIdNotFound, NonEmptyGroup."""
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return self._new_shard().delete_group(group).reply  # no shard, no group: it raises
        return shard_log.execute(shard_log.shard.delete_group(group), self._wall.at(now_ms))

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do what is due: sessions and rebalances that ran out, offsets that expired."""
        self._now_ms = now_ms
        for shard_log in list(self._shards.values()):  # a reply may open another
            for decision in shard_log.shard.tick(now_ms):
                self._carry_out(shard_log, decision, now_ms)
        if now_ms >= self._next_retention_ms:
            self.expire_offsets(now_ms)

    def expire_offsets(self, now_ms: int, empty_for_ms: int = 0) -> None:
        """Forget the offsets and groups that are past ``offsets_retention_ms``; see `GroupsShard.expire_offsets`."""
        self._next_retention_ms = now_ms + self._retention_check_interval_ms
        for shard_log in self._shards.values():
            self._expire_offsets_of(shard_log, self._wall.at(now_ms), empty_for_ms)

    def _expire_offsets_of(self, shard_log: GroupsLog, wall_now_ms: int, empty_for_ms: int) -> None:
        try:
            count = shard_log.execute(shard_log.shard.expire_offsets(wall_now_ms, empty_for_ms), wall_now_ms)
        except KafkaError as error:
            _logger.warning("%s: offsets that expired are kept: %s", shard_log.log.topic_partition, error)
        else:
            if count:
                _logger.info(
                    "%s: %d offsets and groups expired: unused for offsets_retention_ms",
                    shard_log.log.topic_partition, count,
                )  # fmt: skip

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do; perhaps earlier, never later."""
        deadlines = [shard_log.shard.next_deadline_ms() for shard_log in self._shards.values()]
        return min([self._next_retention_ms, *(deadline for deadline in deadlines if deadline is not None)])

    def close(self) -> None:
        """Save what the next opening goes on from."""
        for shard_log in self._shards.values():
            shard_log.close()

    def check(self) -> None:
        """Live state equals replayed state, or AssertionError."""
        for number, shard_log in self._shards.items():
            shard_log.check(self._new_shard)
            for group in shard_log.shard.names:
                assert partition_for_group(group, self._partition_count) == number, f"{group!r} in partition {number}"
