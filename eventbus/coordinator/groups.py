"""All groups that are stored in one partition of ``__consumer_offsets``: members and offsets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from eventbus.coordinator.codec import (
    OffsetCommitValue,
    decode_group_key,
    decode_group_value,
    decode_offset_key,
    encode_group_key,
)
from eventbus.coordinator.consumer_group import ConsumerGroup
from eventbus.coordinator.consumer_group_classic_members import ClassicMembers
from eventbus.coordinator.consumer_group_records import is_consumer_group_key
from eventbus.coordinator.consumer_group_requests import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from eventbus.coordinator.consumer_group_topics import NO_TOPICS, TopicsView
from eventbus.coordinator.consumer_groups import ConsumerGroups
from eventbus.coordinator.deadlines import Deadlines
from eventbus.coordinator.group import Group
from eventbus.coordinator.group_rules import GroupConfig, State, TimerKey, Turn
from eventbus.coordinator.members import JoinReply, SyncReply
from eventbus.coordinator.offsets import CommitErrors, NewOffsets, Offsets, check_group, is_text
from eventbus.coordinator.requests import GroupDescription, GroupListing, JoinGroup
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InvalidRequest,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from eventbus.log.wall_time import WallTime
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

_INT32_MAX = (1 << 31) - 1


class GroupsShard:
    """The groups of one partition. Requests change soft state as they decide; records and replies go into a `Turn`.

    Hard state: ``offsets``; ``stored`` of each of ``groups``, the last generation that was stable or empty; and
    ``consumers``, the groups of the consumer protocol (KIP-848). A name is in one of the latter two only.

    Soft state, which is lost when the log is closed and not missed: members that are joining or syncing, deadlines, and
    a generation whose leader has not assigned yet. The replies of a turn are sent once its records are stored. A group
    without a `Group` has only offsets, because no member ever joined it (a "simple" group).
    """

    __slots__ = ("_classic_members", "_config", "_deadlines", "_new_id", "_wall", "consumers", "groups", "offsets")

    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        topics: TopicsView = NO_TOPICS,
        wall: WallTime | None = None,
    ) -> None:
        """``new_id`` makes the unique part of member ids; ``topics`` are those of the log; ``wall`` dates records
        (default: by ``now_ms``)."""
        self._wall = wall or WallTime()
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self._deadlines = Deadlines[TimerKey]()
        self._config = config
        self._new_id = new_id
        self.consumers = ConsumerGroups(config, self._deadlines, new_id, topics)
        self._classic_members = ClassicMembers(self.consumers)

    def __repr__(self) -> str:
        stored = " ".join(f"{name}={group.stored!r}" for name, group in sorted(self.groups.items()) if group.stored)
        return f"GroupsShard({' '.join(filter(None, (stored, repr(self.consumers), repr(self.offsets))))})"

    @property
    def names(self) -> set[str]:
        """Every group that has members, offsets, or a stored generation."""
        return {*self.groups, *self.consumers.groups, *self.offsets.groups}

    # membership ------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroup, reply: JoinReply, now_ms: int) -> Decision[Turn]:
        """Handle a join. ``reply`` is called by this turn or a later one. Raises KafkaError if the join is refused."""
        check_group(request.group)
        self._check_join(request)
        turn = self._turn(now_ms)
        consumers = self.consumers.groups.get(request.group)
        if consumers is not None and consumers.members:
            self._classic_members.join(request, reply, turn)
            return _decision(turn)
        if consumers is not None:
            turn.records += consumers.tombstones()  # it has no members: it becomes a classic group
        group = self.groups.get(request.group)
        if group is None:
            if request.member_id:
                raise _unknown_member(request.group, request.member_id)
            group = self._make(request.group)
        try:
            group.join(request, reply, turn)
        # A join that was refused must not create an empty group for each name that a client tries.
        finally:
            self._drop_if_unused(group)
        return _decision(turn)

    def _check_join(self, request: JoinGroup) -> None:
        low, high = self._config.group_min_session_timeout_ms, self._config.group_max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            raise InvalidSessionTimeout(
                f"join of group {request.group!r}: session_timeout_ms={request.session_timeout_ms} is outside the "
                f"log's bounds, group_min_session_timeout_ms={low} and group_max_session_timeout_ms={high}"
            )
        if request.rebalance_timeout_ms > _INT32_MAX:
            raise InvalidRequest(f"join of group {request.group!r}: rebalance_timeout_ms is 2,147,483,647 at most")
        texts = [request.member_id, request.group_instance_id or "", request.client_id, request.client_host]
        texts += [request.protocol_type, *(name for name, _ in request.protocols)]
        for text in texts:
            # A member id consists of another name and an id of a few dozen characters.
            if not is_text(text) or len(text.encode()) > 32_000:
                raise InvalidRequest(
                    f"join of group {request.group!r}: {text[:100]!r} is not a name of up to 32,000 bytes"
                )

    def sync(
        self,
        member: GroupMetadata,
        assignments: Mapping[str, bytes],
        reply: SyncReply,
        now_ms: int,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Decision[Turn]:
        """Handle a sync. ``reply`` is called by this turn or a later one. Raises KafkaError if the sync is refused."""
        turn = self._turn(now_ms)
        if self._is_consumers(member.group):
            self._classic_members.sync(member, reply, turn, protocol_type, protocol_name)
            return _decision(turn)
        self._joined(member).sync(member, assignments, reply, turn, protocol_type, protocol_name)
        return _decision(turn)

    def heartbeat(self, member: GroupMetadata, now_ms: int) -> None:
        """Renew a member's session. Raises UnknownMemberId, IllegalGeneration, RebalanceInProgress,
        FencedInstanceId."""
        if self._is_consumers(member.group):
            self._classic_members.heartbeat(member, now_ms)
        else:
            self._joined(member).heartbeat(member, now_ms)

    def _is_consumers(self, name: str) -> bool:
        """True if the group uses the consumer protocol. An empty such group yields to a classic group that begins."""
        group = self.consumers.groups.get(name)
        return group is not None and (bool(group.members) or name not in self.groups)

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, now_ms: int
    ) -> tuple[Decision[Turn], ConsumerHeartbeatResult]:
        """See `ConsumerGroups.heartbeat`. Raises InvalidGroupId too."""
        check_group(request.group)
        turn = self._turn(now_ms)
        result = self.consumers.heartbeat(request, self.groups.get(request.group), turn)
        return _decision(turn), result

    def leave(
        self, name: str, members: Sequence[tuple[str, str | None]], now_ms: int
    ) -> tuple[Decision[Turn], list[KafkaError | None]]:
        """Remove members; return an error or None for each of them."""
        turn = self._turn(now_ms)
        if self._is_consumers(name):
            errors = self._classic_members.leave(name, members, turn)
            return _decision(turn), errors
        group = self.groups.get(name)
        if group is None:
            return _decision(turn), [
                _unknown_member(name, member_id or instance or "") for member_id, instance in members
            ]
        errors = group.leave(members, turn)
        self._drop_if_unused(group)
        return _decision(turn), errors

    def _turn(self, now_ms: int) -> Turn:
        return Turn(now_ms, self._wall.at(now_ms))

    def _joined(self, member: GroupMetadata) -> Group:
        group = self.groups.get(member.group)
        if group is None:
            # Not GROUP_ID_NOT_FOUND, which ends Kafka's own consumer: its members could not join again after a log in
            # memory was restarted.
            raise _unknown_member(member.group, member.member_id)
        return group

    def _make(self, name: str) -> Group:
        group = self.groups[name] = Group(name, self._config, self._deadlines, self._new_id)
        return group

    def _drop_if_unused(self, group: Group) -> None:
        """Remove a group that has no members and no stored state."""
        if group.stored is None and group.state is State.EMPTY and not group.members and not group.pending:
            self.groups.pop(group.name, None)

    # time ------------------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def tick(self, now_ms: int) -> Iterable[Decision[Turn]]:
        """Yield a decision for each deadline that has passed. Execute each before taking the next."""
        for name, timer, member_id in self._deadlines.due(now_ms):
            group = self.groups.get(name)
            turn = self._turn(now_ms)
            if group is not None:
                group.expire(timer, member_id, turn)
                self._drop_if_unused(group)
            # The deadline may have been set while the group was a classic one: both kinds share the keys of their
            # timers.
            elif name in self.consumers.groups:
                self.consumers.expire(name, timer, member_id, turn)
            yield _decision(turn)

    def start(self, now_ms: int) -> Iterable[Decision[Turn]]:
        """Start all sessions after replay. Execute each decision before taking the next."""
        self.consumers.start(now_ms)
        for group in list(self.groups.values()):
            turn = self._turn(now_ms)
            group.start(now_ms, turn)
            yield _decision(turn)

    def drop_clients(self, now_ms: int) -> Iterable[Decision[Turn]]:
        """Remove every dynamic member. Execute each decision before taking the next."""
        for group in list(self.groups.values()):
            turn = self._turn(now_ms)
            group.drop_clients(turn)
            self._drop_if_unused(group)
            yield _decision(turn)

    def expire_offsets(self, wall_now_ms: int, empty_for_ms: int = 0) -> Decision[int]:
        """Delete offsets unused for ``offsets_retention_ms``, and empty groups that have none left (KIP-211).

        A classic group without offsets is deleted only if it has been empty for ``empty_for_ms``.
        """
        records: list[CoordinatorRecord] = []
        limit_ms = wall_now_ms - self._config.offsets_retention_ms
        for name in sorted(self.names):
            group, consumers = self.groups.get(name), self.consumers.groups.get(name)

            def unused_since(
                tp: TopicPartition, value: OffsetCommitValue, found: ConsumerGroup | Group | None = consumers or group
            ) -> int | None:
                since_ms = _unused_since(found, tp, value)
                return None if since_ms is None else self._wall.believed(since_ms, wall_now_ms)

            found = self.offsets.expired(name, unused_since, limit_ms)
            records += found
            # `held` includes pending offsets, so a group with an open transaction is kept.
            nothing_left = len(found) == len(self.offsets.held(name))
            if consumers is not None and not consumers.members and nothing_left:
                records += consumers.tombstones()
            elif (
                group is not None and group.stored and group.state is State.EMPTY and not group.pending and nothing_left
            ) and self._wall.believed(group.state_timestamp_ms, wall_now_ms) <= wall_now_ms - empty_for_ms:
                records.append(CoordinatorRecord(encode_group_key(name), None))
        return Decision(tuple(records), len(records))

    # offsets ---------------------------------------------------------------------------------------------------------

    def commit(self, member: GroupMetadata, offsets: NewOffsets, now_ms: int) -> Decision[CommitErrors]:
        """Store offsets; the reply holds an error for each partition that was refused, the others are stored.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, StaleMemberEpoch, RebalanceInProgress,
        InvalidGroupId.
        """
        self._check_commit(member, offsets, now_ms, in_transaction=False)
        return self.offsets.commit(member.group, offsets, self._wall.at(now_ms))

    def commit_in_transaction(self, member: GroupMetadata, offsets: NewOffsets, now_ms: int) -> Decision[CommitErrors]:
        """Store offsets that count once the transaction is committed.

        As in Kafka, this is also allowed while the group completes a rebalance, and for a caller that is not a member.
        """
        self._check_commit(member, offsets, now_ms, in_transaction=True)
        return self.offsets.commit(member.group, offsets, self._wall.at(now_ms))

    def _check_commit(
        self, member: GroupMetadata, topic_partitions: Iterable[TopicPartition], now_ms: int, *, in_transaction: bool
    ) -> None:
        check_group(member.group)
        group = self.groups.get(member.group)
        if self._is_consumers(member.group):
            self.consumers.check_commit(member, topic_partitions, in_transaction=in_transaction)
        elif group is not None:
            group.check_commit(member, now_ms, in_transaction=in_transaction)
        elif member.generation_id >= 0:
            # Kafka answers these two cases with different errors, and clients react differently: UNKNOWN_MEMBER_ID
            # makes a member join again under a new id.
            if member.group in self.offsets.groups:  # a simple group: no member ever joined it
                raise _unknown_member(member.group, member.member_id)
            raise IllegalGeneration(
                f"there is no group {member.group!r}, so none of generation {member.generation_id}: rejoin"
            )

    def check_fetch(self, name: str, member_id: str | None, member_epoch: int) -> None:
        """Check that the member may fetch its group's offsets (KIP-848). Classic groups are not checked.

        Raises UnknownMemberId, StaleMemberEpoch, IllegalGeneration.
        """
        if name in self.consumers.groups:
            self.consumers.check_fetch(name, member_id, member_epoch)

    def speaks_consumer_protocol(self, name: str, member_id: str) -> bool:
        return self.consumers.speaks_consumer_protocol(name, member_id)

    def fetch(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets, see `Offsets.fetch`."""
        return self.offsets.fetch(group, topic_partitions, require_stable=require_stable)

    def look_up(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetCommitValue | UnstableOffsetCommit]:
        """Return committed offsets or errors, see `Offsets.look_up`."""
        return self.offsets.look_up(group, topic_partitions, require_stable=require_stable)

    def delete_offsets(self, name: str, topic_partitions: Iterable[TopicPartition]) -> Decision[int]:
        """Delete some offsets of a group; partitions without an offset are skipped.

        Raises GroupIdNotFound; GroupSubscribedToTopic if a member reads one of the topics, and NonEmptyGroup for a
        group whose members are not consumers: nothing is deleted then.
        """
        self._check_exists(name)
        group = self.groups.get(name)
        wanted = list(topic_partitions)
        readers = self.consumers.groups.get(name)
        if readers is None and group is not None and group.state is not State.EMPTY:
            if not group.is_consumers:
                raise _non_empty(name)
            readers = group
        read = sorted({tp.topic for tp in wanted if readers is not None and readers.is_subscribed_to(tp.topic)})
        if read:
            raise GroupSubscribedToTopic(
                f"members of group {name!r} read {', '.join(read)}: stop them first, then delete its offsets"
            )
        records = self.offsets.forget(name, wanted)
        return Decision(tuple(records), len(records))

    def delete_topics(self, topics: Container[str]) -> Decision[int]:
        """Delete every group's offsets of some topics: a new topic of the name starts at 0."""
        records = self.offsets.forget_topics(topics)
        return Decision(tuple(records), len(records))

    # groups ----------------------------------------------------------------------------------------------------------

    def delete_group(self, name: str) -> Decision[int]:
        """Delete a group; the reply counts its offsets. Raises GroupIdNotFound, NonEmptyGroup."""
        self._check_exists(name)
        group = self.groups.get(name)
        if group is not None and (group.state is not State.EMPTY or group.pending):
            raise _non_empty(name)
        records = self.offsets.forget(name)
        count = len(records)
        if name in self.consumers.groups:
            records += self.consumers.delete(name)
        elif group is not None and group.stored is not None:
            records.append(CoordinatorRecord(encode_group_key(name), None))
        return Decision(tuple(records), count)

    def _check_exists(self, name: str) -> None:
        if name not in self.groups and name not in self.consumers.groups and not self.offsets.held(name):
            raise GroupIdNotFound(f"there is no group {name!r}; `eventbus groups list` shows them")

    def list(self, states: Collection[str] = ()) -> list[GroupListing]:
        """List every group by name, or those in some states, named as in Kafka."""
        found = [self._listing(name) for name in sorted(self.names)]
        return [listing for listing in found if not states or listing.state in states]

    def _listing(self, name: str) -> GroupListing:
        if name in self.consumers.groups:
            return self.consumers.listing(name)
        group = self.groups.get(name)
        if group is None:
            return GroupListing(name, "", State.EMPTY.value)
        return GroupListing(name, group.protocol_type, group.state.value)

    def describe(self, name: str) -> GroupDescription:
        """Describe a classic group. As in Kafka, an unknown group is Dead and empty, and so is one of the consumer
        protocol."""
        group = self.groups.get(name)
        if group is not None:
            return group.describe()
        is_simple = name in self.offsets.groups and name not in self.consumers.groups
        state = State.EMPTY if is_simple else State.DEAD
        return GroupDescription(name, state.value, "", "", -1, ())

    def describe_consumers(self, name: str) -> ConsumerGroupDescription:
        """Describe a group of the consumer protocol. Raises GroupIdNotFound."""
        return self.consumers.describe(name)

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record. Groups of other types (share, streams) are skipped. Raises ValueError for unreadable
        bytes."""
        offset_key = decode_offset_key(key)
        if offset_key is not None:
            self.offsets.replay(offset_key, value)
            return
        if is_consumer_group_key(key):
            self.consumers.replay(key, value)
            return
        name = decode_group_key(key)
        if name is None:
            return
        group = self.groups.get(name)
        if value is None:
            if group is not None:
                group.delete()
                del self.groups[name]
        else:
            (group or self._make(name)).replay(decode_group_value(value))

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        offset_key = decode_offset_key(key)
        if offset_key is None:
            raise ValueError("a record inside a transaction that is not a committed offset")
        self.offsets.replay_pending(producer_id, offset_key, value)

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        self.offsets.complete_transaction(producer_id, committed)


def _decision(turn: Turn) -> Decision[Turn]:
    return Decision(tuple(turn.records), turn)


def _unused_since(
    group: Group | ConsumerGroup | None, topic_partition: TopicPartition, value: OffsetCommitValue
) -> int | None:
    """Return since when the offset is unused, None while it may be in use, by Kafka's rule (KIP-211)."""
    if isinstance(group, ConsumerGroup):
        return None if group.is_subscribed_to(topic_partition.topic) else value.commit_timestamp_ms
    if group is None or not group.protocol_type:
        return value.commit_timestamp_ms  # a simple group: commits are the only sign of its use
    if group.state is State.EMPTY:
        return value.commit_timestamp_ms if group.state_timestamp_ms < 0 else group.state_timestamp_ms
    if group.state is State.STABLE and group.is_consumers and not group.is_subscribed_to(topic_partition.topic):
        return value.commit_timestamp_ms
    return None


def _unknown_member(group: str, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"there is no group {group!r} with members, so no member {member_id!r}: rejoin")


def _non_empty(name: str) -> NonEmptyGroup:
    return NonEmptyGroup(f"group {name!r} has members: stop them first")
