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


def _ignore(group: str) -> None: ...


class Groups:
    """The group coordinator: assigns partitions to members and stores their offsets. `Broker.groups`.

    Times are ``now_ms`` of the monotonic clock, which never jumps; ``wall`` dates what is stored. Replies are called at
    once or during a later call, in order, and never nested: a request made by a reply is executed at once, and answered
    after the reply has returned.
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
        """``open_shard`` returns the shard of a partition at a wall time, with stored records replayed; ``refuse``
        the error for a partition that does not exist; ``check_open`` raises if the broker is closed; ``new_shard``
        creates an empty shard."""
        self.on_rebalance: Callable[[str], None] = _ignore
        """Called when a group begins to prepare a rebalance, so that its members in this process join again at once,
        without waiting for their next heartbeat."""
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
        self._pending_replies: deque[tuple[Callable[[Any], None], object]] = deque()
        self._is_replying = False

    def __repr__(self) -> str:
        return " ".join(repr(shard_log.shard) for _, shard_log in sorted(self._shards.items()))

    def load(self, number: int, now_ms: int) -> GroupsLog:
        """Return the shard of a partition, opened if necessary. Loaded sessions start now."""
        shard_log = self._shards.get(number)
        if shard_log is None:
            shard_log = self._shards[number] = self._open_shard(number, self._wall.at(now_ms))
            # Sessions start now and not at their stored times: the members could not send heartbeats while the log was
            # closed.
            for decision in shard_log.shard.start(now_ms):
                self._carry_out(shard_log, decision, now_ms)
        return shard_log

    def partition_of(self, group: str) -> TopicPartition:
        """Return the partition of ``__consumer_offsets`` that stores the group; the topic is created if necessary."""
        check_group(group)
        self._check_open()
        return self._of(group, self._now_ms).log.topic_partition

    def last_record_of(self, group: str) -> tuple[TopicPartition, int] | None:
        """Return the position of the last record that may concern the group: once it is durable, so is every
        decision about the group. None if the group has no records."""
        shard_log = self._held(group)
        return None if shard_log is None else (shard_log.log.topic_partition, shard_log.log.log_end_offset - 1)

    def _of(self, group: str, now_ms: int) -> GroupsLog:
        number = partition_for_group(group, self._partition_count)
        return self._shards.get(number) or self.load(number, now_ms)

    def _held(self, group: str) -> GroupsLog | None:
        return self._shards.get(partition_for_group(group, self._partition_count))

    # membership ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroup, now_ms: int, reply: JoinReply) -> None:
        """Join the group's next generation; ``reply`` is called with the generation or an error.

        It replaces a parked join of the member, which is answered with RebalanceInProgress. Errors: InvalidGroupId,
        InvalidSessionTimeout, InconsistentGroupProtocol, UnknownMemberId, FencedInstanceId, MemberIdRequired (join
        again with its ``member_id``), GroupMaxSizeReached, InvalidRequest, StorageError.
        """
        self._check_open()
        try:
            check_group(request.group)
            shard_log = self._of(request.group, now_ms)
            decision = shard_log.shard.join(request, reply, now_ms)
        except KafkaError as error:
            self._reply(reply, error)
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
        """Fetch the member's assignment. The leader passes ``assignments`` for all members, by member id, the others
        none.

        Errors passed to ``reply``: UnknownMemberId, FencedInstanceId, IllegalGeneration, RebalanceInProgress (join
        again), InconsistentGroupProtocol, StorageError (sync again).
        """
        self._check_open()
        shard_log = self._held(group.group)
        try:
            if shard_log is None:
                # Without a shard there is no group: it raises.
                decision = self._new_shard().sync(group, assignments, reply, now_ms)
                return
            decision = shard_log.shard.sync(group, assignments, reply, now_ms, protocol_type, protocol_name)
        except KafkaError as error:
            self._reply(reply, error)
        else:
            self._carry_out(shard_log, decision, now_ms)

    def heartbeat(self, group: GroupMetadata, now_ms: int) -> None:
        """Renew the member's session. Raises UnknownMemberId, IllegalGeneration, RebalanceInProgress,
        FencedInstanceId."""
        shard_log = self._held(group.group)
        (self._new_shard() if shard_log is None else shard_log.shard).heartbeat(group, now_ms)

    def consumer_heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> ConsumerHeartbeatResult:
        """Handle the heartbeat with which a member of the consumer protocol joins, stays or leaves (KIP-848).

        Raises as `ConsumerGroups.heartbeat`, and InvalidGroupId, StorageError.
        """
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
        """Remove members, each given as (member id, group instance id); return an error or None for each.

        An empty member id means the present member of the instance id. Raises StorageError.
        """
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
        """Remove every dynamic member, because their process died. Static members keep their place until their
        session ends."""
        for shard_log in list(self._shards.values()):  # a reply may open another shard
            for decision in shard_log.shard.drop_clients(now_ms):
                self._carry_out(shard_log, decision, now_ms)

    def _carry_out(self, shard_log: GroupsLog, decision: Decision[Turn], now_ms: int) -> KafkaError | None:
        """Store the records, then send the replies. If storing fails, all replies get the error instead."""
        turn = decision.reply
        failed: KafkaError | None = None
        try:
            shard_log.execute(decision, self._wall.at(now_ms))
        # The members get the error instead of an assignment that a restart would not know. They join again.
        except KafkaError as error:
            failed = error
            _logger.warning("%s: a change of groups is not stored: %s", shard_log.log.topic_partition, error)
        for reply, answer in turn.replies:
            self._pending_replies.append((reply, failed or answer))
        for group, cause in turn.begun:
            self._begun[group][cause] += 1
        for group in turn.rebalancing:
            self._pending_replies.append((self.on_rebalance, group))
        self._send_replies()
        return failed

    def _reply(self, reply: Callable[[Any], None], answer: object) -> None:
        self._pending_replies.append((reply, answer))
        self._send_replies()

    def _send_replies(self) -> None:
        """Call the replies in order, never nested, because a reply may call here again. An error does not stop the
        others."""
        # A reply may join or leave in the same call. If its replies were sent in between, a member could get the answer
        # to its second request before that to its first.
        if self._is_replying:
            return
        self._is_replying = True
        raised: Exception | None = None
        while self._pending_replies:
            try:
                reply, answer = self._pending_replies.popleft()
                reply(answer)
            except Exception as error:
                # One broken callback must not leave the other members without their answer until their session ends.
                raised = raised or error
        self._is_replying = False
        if raised is not None:
            raise raised

    # committed offsets -----------------------------------------------------------------------------------------------

    def commit_offsets(self, group: GroupMetadata | str, offsets: NewOffsets, now_ms: int) -> OffsetCommitResult:
        """Store the next offset to read of each partition; partitions that do not exist are refused, the others are
        stored.

        A group's name alone commits without a member: for groups that have none. Raises, with nothing stored:
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
        """Store offsets as part of the producer's open transaction: they count once it is committed.

        Called by `Transactions`, which checks whether the producer may.
        """
        shard_log, existing, errors = self._prepare_commit(group, offsets, now_ms)
        decision = shard_log.shard.commit_in_transaction(group, existing, now_ms)
        errors.update(shard_log.execute_in_transaction(decision, producer, self._wall.at(now_ms)))
        log = shard_log.log
        return OffsetCommitResult(log.topic_partition, log.log_end_offset - 1 if decision.records else -1, errors)

    def _prepare_commit(
        self, member: GroupMetadata, offsets: NewOffsets, now_ms: int
    ) -> tuple[GroupsLog, NewOffsets, CommitErrors]:
        """Return the shard, the offsets of partitions that exist, and an error for each partition that does not."""
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
        """Write the marker into a partition of ``__consumer_offsets``; the producer's pending offsets are applied or
        dropped.

        Called by `Transactions`.
        """
        shard_log = self.load(topic_partition.partition, now_ms)
        return shard_log.end_transaction(producer, committed, coordinator_epoch, self._wall.at(now_ms))

    def fetch_offsets(
        self,
        group: str,
        topic_partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets of the group, of all partitions or the given ones; partitions without a commit are
        absent.

        With ``require_stable`` raises UnstableOffsetCommit while an open transaction may change one of them (KIP-447).
        """
        shard_log = self._held(group)
        # No shard means that the group was never written, and reading must not create ``__consumer_offsets``.
        if shard_log is None:
            return {}
        return shard_log.shard.fetch(group, topic_partitions, require_stable=require_stable)

    def look_up_offsets(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetCommitValue | UnstableOffsetCommit]:
        """Return stored commits; with ``require_stable``, an error for each partition whose offset may change."""
        shard_log = self._held(group)
        if shard_log is None:
            return {}
        return shard_log.shard.look_up(group, topic_partitions, require_stable=require_stable)

    def check_fetch(self, group: str, member_id: str | None, member_epoch: int) -> None:
        """Check that a member may fetch offsets, see `GroupsShard.check_fetch`."""
        shard_log = self._held(group)
        if shard_log is not None:
            shard_log.shard.check_fetch(group, member_id, member_epoch)

    def speaks_consumer_protocol(self, group: str, member_id: str) -> bool:
        """True for a member of the consumer protocol (KIP-848), to which older requests are refused."""
        shard_log = self._held(group)
        return shard_log is not None and shard_log.shard.speaks_consumer_protocol(group, member_id)

    def delete_offsets(self, group: str, topic_partitions: Iterable[TopicPartition], now_ms: int) -> int:
        """Delete some offsets of a group, so that it starts over there; return how many it had.

        Raises GroupIdNotFound, GroupSubscribedToTopic, NonEmptyGroup (members that are not consumers); nothing is
        deleted then.
        """
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            # Without a shard there is no group: it raises.
            return self._new_shard().delete_offsets(group, topic_partitions).reply
        return shard_log.execute(shard_log.shard.delete_offsets(group, topic_partitions), self._wall.at(now_ms))

    def forget_topics(self, topics: Container[str], wall_now_ms: int) -> list[PartitionLog]:
        """Delete every group's offsets of some topics; return the logs this was written to."""
        return [
            shard_log.log
            for shard_log in self._shards.values()
            if shard_log.execute(shard_log.shard.delete_topics(topics), wall_now_ms)
        ]

    # groups ----------------------------------------------------------------------------------------------------------

    def list(self, states: Collection[str] = ()) -> list[GroupListing]:
        """List every group, by name; only those in some states, named as in Kafka, if given."""
        return sorted(listing for shard_log in self._shards.values() for listing in shard_log.shard.list(states))

    def rebalances(self) -> dict[str, dict[str, int]]:
        """Return the number of rebalances that each existing group has begun since the log was opened, by cause."""
        for group in [group for group in self._begun if not self.is_known(group)]:
            del self._begun[group]
        return {group: dict(causes) for group, causes in sorted(self._begun.items())}

    def is_known(self, group: str) -> bool:
        """True if the group has members, offsets, or a stored generation."""
        shard_log = self._held(group)
        return shard_log is not None and group in shard_log.shard.names

    def describe(self, groups: Sequence[str]) -> list[GroupDescription]:
        """Describe each group. An unknown group is Dead and empty, as in Kafka."""
        held = [(group, self._held(group)) for group in groups]
        return [(self._new_shard() if log is None else log.shard).describe(group) for group, log in held]

    def describe_consumers(self, group: str) -> ConsumerGroupDescription:
        """Describe a group of the consumer protocol. Raises GroupIdNotFound."""
        shard_log = self._held(group)
        return (self._new_shard() if shard_log is None else shard_log.shard).describe_consumers(group)

    def delete(self, group: str, now_ms: int) -> int:
        """Delete a group; return how many offsets it had. Raises GroupIdNotFound, NonEmptyGroup."""
        self._check_open()
        shard_log = self._held(group)
        if shard_log is None:
            return self._new_shard().delete_group(group).reply  # without a shard there is no group: it raises
        return shard_log.execute(shard_log.shard.delete_group(group), self._wall.at(now_ms))

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do everything that is due: expired sessions, rebalances that timed out, expired offsets."""
        self._now_ms = now_ms
        for shard_log in list(self._shards.values()):  # a reply may open another shard
            for decision in shard_log.shard.tick(now_ms):
                self._carry_out(shard_log, decision, now_ms)
        if now_ms >= self._next_retention_ms:
            self.expire_offsets(now_ms)

    def expire_offsets(self, now_ms: int, empty_for_ms: int = 0) -> None:
        """Delete the offsets and groups that are past ``offsets_retention_ms``; see `GroupsShard.expire_offsets`."""
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
        """Return when `tick` has something to do; perhaps earlier, never later."""
        deadlines = [shard_log.shard.next_deadline_ms() for shard_log in self._shards.values()]
        return min([self._next_retention_ms, *(deadline for deadline in deadlines if deadline is not None)])

    def close(self) -> None:
        """Save the state from which the next opening continues."""
        for shard_log in self._shards.values():
            shard_log.close()

    def check(self) -> None:
        """Check that live state equals replayed state; raise AssertionError."""
        for number, shard_log in self._shards.items():
            shard_log.check(self._new_shard)
            for group in shard_log.shard.names:
                assert partition_for_group(group, self._partition_count) == number, f"{group!r} in partition {number}"
