"""Decisions for the groups of the consumer protocol in one partition of ``__consumer_offsets`` (KIP-848). Pure.

Part of `GroupsShard`. The heartbeat is the only request: it reports what the member reads and holds, and its answer
lists what the member may hold. Members of the classic protocol join with their own requests; the coordinator assigns
for them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from eventbus.coordinator import consumer_group_classic as classics
from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.codec import GroupMetadataValue
from eventbus.coordinator.consumer_group import NOTHING, ConsumerGroup
from eventbus.coordinator.consumer_group_assigning import Assigning, preferred_assignor
from eventbus.coordinator.consumer_group_assignors import ASSIGNORS
from eventbus.coordinator.consumer_group_member import ConsumerMember, MemberState
from eventbus.coordinator.consumer_group_regex import TopicPattern
from eventbus.coordinator.consumer_group_requests import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMemberDescription,
    TopicIdPartition,
)
from eventbus.coordinator.consumer_group_topics import TopicsView
from eventbus.coordinator.deadlines import Deadlines
from eventbus.coordinator.group import RETRY_MS, Group
from eventbus.coordinator.group_rules import Cause, GroupConfig, State, Timer, TimerKey, Turn
from eventbus.coordinator.offsets import is_text
from eventbus.coordinator.requests import (
    CONSUMER_PROTOCOL,
    GroupListing,
)
from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from eventbus.types import GroupMetadata, TopicPartition

FIRST_EPOCH = 1
"""The epoch of a group before its first member, as in Kafka since 4.3: that member joins in epoch 2."""


class ConsumerGroups:
    """The groups of one shard. Hard state: ``groups``.

    Timers are soft state, and belong to the shard: SESSION, JOIN (by then a classic member must have joined again, and
    a member of the consumer protocol must have revoked its partitions) and SYNC. A request whose records could not be
    stored has changed nothing, so a decision that stores records cancels no timer of a member that it replaces,
    removes or lets revoke. The timer expires without effect once there is nothing left to end (see `expire`).
    """

    __slots__ = ("_assigning", "config", "deadlines", "groups", "new_id", "topics")

    def __init__(
        self, config: GroupConfig, deadlines: Deadlines[TimerKey], new_id: Callable[[], str], topics: TopicsView
    ) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.config = config
        self.deadlines = deadlines
        self.new_id = new_id
        self.topics = topics
        self._assigning = Assigning(topics)

    def __repr__(self) -> str:
        return " ".join(repr(group) for _, group in sorted(self.groups.items()))

    # heartbeat -------------------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, classic: Group | None, turn: Turn) -> ConsumerHeartbeatResult:
        """Let a member join, stay or leave. ``classic`` is the classic group with the name, converted if necessary.

        Raises InvalidRequest, UnsupportedAssignor, InvalidRegularExpression, GroupIdNotFound (a classic group that
        cannot be converted), GroupMaxSizeReached, UnknownMemberId, FencedMemberEpoch, UnreleasedInstanceId,
        FencedInstanceId.
        """
        _check(request)
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request, turn)
        joins = request.member_epoch == JOIN_EPOCH
        group = self._group_for(request.group, classic, turn) if joins else self._existing(request.group, classic)
        # Since heartbeat version 1 the client makes its own id (KIP-1082), so that a retry of a lost join does not add
        # a second member.
        member_id = request.member_id or self.new_id()
        self.check_room(group, member_id)
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and joins:
                member = ConsumerMember(member_id=member_id)
            elif member is None:
                raise _unknown(group.name, member_id)
            member.check_epoch(request.member_epoch, request.owned)
        elif joins:
            group, member = self.take_place(group, member_id, request.instance_id, turn, by_classic=False)
        else:
            member = static_member(group, member_id, request.instance_id)
            member.check_epoch(request.member_epoch, request.owned)
        updated = msgspec.structs.replace(
            member,
            instance_id=request.instance_id or member.instance_id,
            rack_id=request.rack_id or member.rack_id,
            rebalance_timeout_ms=(
                member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
            ),
            assignor=request.assignor or member.assignor,
            topics=member.topics if request.topics is None else tuple(sorted(set(request.topics))),
            regex=member.regex if request.regex is None else request.regex,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=None,
        )
        settled = self.advance(group, member, updated, request.owned, turn, request.may_describe)
        self.renew(group.name, settled, turn.now_ms)
        # Members with a parked join would wait for a rebalance that never completes, because the group has no classic
        # rebalances any more.
        if classic is not None:  # nothing is refused after this line
            classic.interrupt(turn)
        # A heartbeat usually has no assignment in its answer: the client keeps the one that it has (KIP-848).
        sends_assignment = request.is_full or settled.assigned.keys() != member.assigned.keys()
        return ConsumerHeartbeatResult(
            member_id,
            settled.epoch,
            self.config.group_consumer_heartbeat_interval_ms,
            frozenset(settled.assigned) if sends_assignment else None,
        )

    def _group_for(self, name: str, classic: Group | None, turn: Turn) -> ConsumerGroup:
        """Return the group that a member joins: existing, new, or converted from the classic protocol."""
        known = self.groups.get(name)
        if known is not None and (known.members or classic is None):
            return known
        group = ConsumerGroup(name)
        group.epoch = FIRST_EPOCH
        if classic is None:
            return group
        converted: list[CoordinatorRecord] = []
        if classic.state is not State.EMPTY:
            # Checked before any record is made: a conversion is all or nothing.
            if len(classic.members) > self.config.group_consumer_max_size:
                raise GroupIdNotFound(
                    f"group {name!r} has more members than group_consumer_max_size allows a group of the consumer "
                    "protocol, so it is not converted to one"
                )
            converted = classics.upgraded(classic, self.topics)
            group.fold(converted)
        if known is not None:  # a conversion back to the classic protocol was begun, and could not be stored
            turn.records += known.tombstones()
        turn.records += [classics.classic_tombstone(name), *converted]
        return group

    def _existing(self, name: str, classic: Group | None = None) -> ConsumerGroup:
        group = self.groups.get(name)
        if group is None and classic is not None:
            raise GroupIdNotFound(f"group {name!r} is a classic group: join it with epoch 0 to convert it")
        if group is None:
            raise UnknownMemberId(f"there is no group {name!r}: join it with epoch 0")
        return group

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        limit = self.config.group_consumer_max_size
        if member_id not in group.members and len(group.members) >= limit:
            raise GroupMaxSizeReached(f"group {group.name!r}: group_consumer_max_size allows {limit} members")

    def take_place(
        self, group: ConsumerGroup, member_id: str, instance_id: str, turn: Turn, *, by_classic: bool
    ) -> tuple[ConsumerGroup, ConsumerMember]:
        """Return the group and member after a static member joined as a new member or took over its instance id's
        place.

        Raises UnreleasedInstanceId while another member is active under the instance id; that member must leave first.
        A classic member, and a member that takes over from a classic one, need not wait (KIP-345).
        """
        old_id = group.static.get(instance_id)
        if old_id is None:
            return group, group.members.get(member_id) or ConsumerMember(member_id=member_id)
        old = group.members[old_id]
        # The member itself joins again, after an error for instance.
        if old_id == member_id and not old.is_away:
            return group, old
        # The consumer protocol does not fence the running member, unlike KIP-345: two processes with one instance id
        # would throw each other out forever. The second process gets the error instead.
        if not by_classic and old.classic is None and not old.is_away:
            raise UnreleasedInstanceId(
                f"member {old_id} of group {group.name!r} has group_instance_id {instance_id!r}: stop it first, or "
                f"give {member_id} another one"
            )
        # Epoch 0: the new process holds nothing yet, and gets the partitions of the old one with its first answer.
        new = msgspec.structs.replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        name = group.name
        replaced = [
            *_gone(name, old_id),
            records.member_record(name, member_id, new),
            records.target_record(name, member_id, group.target.get(old_id, NOTHING)),
            records.current_record(name, member_id, new),
        ]
        turn.records += replaced
        # On a copy, because these records are not stored yet. If storing fails, the group must be as before.
        group = group.copy()
        group.fold(replaced)
        return group, new

    def advance(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: frozenset[TopicIdPartition] | None,
        turn: Turn,
        may_describe: Callable[[str], bool] = lambda _: True,
    ) -> ConsumerMember:
        """See `Assigning.advance`. A member that has to revoke partitions gets a deadline."""
        settled = self._assigning.advance(group, member, updated, owned, turn, may_describe)
        if settled != updated:
            self._watch(group.name, settled, turn.now_ms)
        return settled

    # stay, leave, fail -----------------------------------------------------------------------------------------------

    def renew(self, name: str, member: ConsumerMember, now_ms: int) -> None:
        """Restart the member's session timeout."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self.config.group_consumer_session_timeout_ms
        self.deadlines.set((name, Timer.SESSION, member.member_id), now_ms + timeout_ms)

    def _watch(self, name: str, member: ConsumerMember, now_ms: int) -> None:
        """Start the ``rebalance_timeout_ms`` of a member of the consumer protocol that must revoke partitions."""
        if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            key = (name, Timer.JOIN, member.member_id)
            self.deadlines.set(key, now_ms + max(member.rebalance_timeout_ms, 0))

    def _leave(self, request: ConsumerHeartbeat, turn: Turn) -> ConsumerHeartbeatResult:
        group = self._existing(request.group)
        if request.instance_id is None:
            member = _member(group, request.member_id)
        else:
            member = static_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # Its partitions stay assigned to it until its session ends, so a restart moves nothing. What it had to
            # revoke is free now: it holds nothing any more.
            away = msgspec.structs.replace(member, epoch=LEAVE_STATIC_EPOCH, revoking={})
            turn.records.append(records.current_record(group.name, member.member_id, away))
        else:
            self.fence(group, [member.member_id], turn, "member_left")
        return ConsumerHeartbeatResult(member.member_id, request.member_epoch)

    def fence(self, group: ConsumerGroup, member_ids: Sequence[str], turn: Turn, cause: Cause) -> None:
        """Remove members. If only classic members remain, the group becomes classic."""
        name = group.name
        turn.begun.append((name, cause))
        for member_id in member_ids:
            # If storing fails, this timer tries again; if it succeeds, the timer finds no member to remove.
            self.deadlines.set((name, Timer.SESSION, member_id), turn.now_ms + RETRY_MS)
        if classics.can_downgrade(group, member_ids, self.config.group_max_size):
            self.downgrade(group, member_ids, turn)
            # At the next tick all members must join again: this timer of classic groups does just that.
            self.deadlines.set((name, Timer.SYNC, ""), turn.now_ms)
            return
        stay = {member_id: member for member_id, member in group.members.items() if member_id not in member_ids}
        regexes = {member.regex for member in stay.values()}
        for member_id in member_ids:
            turn.records += _gone(name, member_id)
        # A pattern that no member uses would be resolved again at every change of topics.
        turn.records += [records.regex_record(name, regex, None) for regex in group.regexes if regex not in regexes]
        turn.records.append(
            records.group_record(name, group.epoch + 1, self._assigning.hash_of(group, stay, group.regexes))
        )
        # A classic member learns of a new assignment only from an error to its heartbeat. Members in this process are
        # notified at once.
        if any(member.classic is not None for member in stay.values()):
            turn.rebalancing.append(name)

    def downgrade(self, group: ConsumerGroup, leaving: Sequence[str], turn: Turn) -> GroupMetadataValue:
        """Convert the group to a classic one. Remaining members keep their sessions, because the timers have the same
        names."""
        stored, value = classics.downgraded(group, leaving, self.topics, turn.wall_now_ms)
        turn.records += stored
        return value

    def expire(self, name: str, timer: Timer, member_id: str, turn: Turn) -> None:
        """Handle the expiry of a deadline of a group. It has no effect if the member has met it or is gone."""
        group = self.groups[name]
        member = group.members.get(member_id)
        if member is None:
            return
        revokes = member.state is MemberState.UNREVOKED_PARTITIONS and not member.is_away
        # The deadline of a revocation that the member has confirmed meanwhile.
        if member.classic is None and timer is not Timer.SESSION and not (timer is Timer.JOIN and revokes):
            return
        self.fence(group, [member_id], turn, "session_expired")

    def start(self, now_ms: int) -> None:
        """Start timers after replay: all sessions, and the deadlines for revoking partitions, begin now."""
        for group in self.groups.values():
            for member in group.members.values():
                self.renew(group.name, member, now_ms)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self._watch(group.name, member, now_ms)

    # offsets ---------------------------------------------------------------------------------------------------------

    def check_commit(
        self, member: GroupMetadata, topic_partitions: Iterable[TopicPartition], *, in_transaction: bool = False
    ) -> None:
        """Check that the member may commit. An earlier epoch is accepted for partitions that the member has held since
        then.

        Raises UnknownMemberId, FencedInstanceId, StaleMemberEpoch; IllegalGeneration to members of the classic
        protocol, and in a transaction.
        """
        group = self.groups[member.group]
        is_anonymous = member.generation_id < 0 and not member.member_id and member.group_instance_id is None
        # As in classic groups: tools may commit while nothing runs, and producers from before KIP-447 name no member.
        if (member.generation_id < 0 and not group.members) or (in_transaction and is_anonymous):
            return
        held = find_member(group, member.member_id, member.group_instance_id)
        epoch = member.generation_id
        if epoch == held.epoch:
            return
        # An epoch rises with every change of the group, also of other members. A commit that was in flight then is
        # still valid for partitions that this member has held all the time.
        partitions = classics.to_ids(list(topic_partitions), self.topics)
        since = [held.assigned.get(tp, held.revoking.get(tp)) for tp in partitions]
        if epoch > held.epoch or not all(start is not None and start <= epoch for start in since):
            text = f"member {held.member_id} of group {group.name!r} is in epoch {held.epoch}, not {epoch}"
            raise IllegalGeneration(text) if in_transaction or held.classic is not None else StaleMemberEpoch(text)

    def check_fetch(self, name: str, member_id: str | None, member_epoch: int) -> None:
        """Raise UnknownMemberId or StaleMemberEpoch (IllegalGeneration to members of the classic protocol)."""
        if member_id is None and member_epoch < 0:
            return
        member = _member(self.groups[name], member_id or "")
        if member.epoch != member_epoch:
            text = f"member {member_id} of group {name!r} is in epoch {member.epoch}, not {member_epoch}"
            raise IllegalGeneration(text) if member.classic is not None else StaleMemberEpoch(text)

    def speaks_consumer_protocol(self, name: str, member_id: str) -> bool:
        """True for a member of the consumer protocol, to which the requests of the classic protocol are refused."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(member_id)
        return member is not None and member.classic is None

    # admin -----------------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> list[CoordinatorRecord]:
        """Return the group's tombstones. Raises NonEmptyGroup."""
        group = self.groups[name]
        if group.members:
            raise NonEmptyGroup(f"group {name!r} has members: stop them first")
        return group.tombstones()

    def listing(self, name: str) -> GroupListing:
        return GroupListing(name, CONSUMER_PROTOCOL, self.groups[name].state.value, "consumer")

    def describe(self, name: str) -> ConsumerGroupDescription:
        """Describe the group. Raises GroupIdNotFound."""
        group = self.groups.get(name)
        if group is None:
            raise GroupIdNotFound(f"there is no group {name!r} of the consumer protocol")
        members = tuple(
            ConsumerMemberDescription(
                member.member_id, member.instance_id, member.rack_id, member.epoch, member.client_id,
                member.client_host, member.topics, member.regex, frozenset((*member.assigned, *member.revoking)),
                group.target.get(member.member_id, NOTHING), member.classic is not None,
            )
            for member in group.members.values()
        )  # fmt: skip
        topic_ids = {tp.topic_id for member in members for tp in (*member.assignment, *member.target)}
        found = {topic_id: self.topics.name_of(topic_id) for topic_id in topic_ids}
        names = {topic_id: topic for topic_id, topic in found.items() if topic is not None}
        return ConsumerGroupDescription(
            group.name,
            group.state.value,
            group.epoch,
            group.target_epoch,
            preferred_assignor(group.members.values()),
            members,
            names,
        )

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one stored record. Raises ValueError for bytes that cannot be read."""
        read = records.read_key(key)
        group = self.groups.get(read.group)
        if value is None and read.type == records.METADATA:
            self.groups.pop(read.group, None)
        elif group is not None:
            group.replay(read, value)
            if value is None and read.type == records.MEMBER:
                # The session's timer stays: if the group becomes a classic one, the member's session continues.
                for timer in (Timer.JOIN, Timer.SYNC):
                    self.deadlines.cancel((read.group, timer, read.name))
        # A record before the group's own: compaction keeps the latest record of each key, in the order of their last
        # writes.
        elif value is not None and read.type != records.PARTITION_METADATA:
            group = self.groups[read.group] = ConsumerGroup(read.group)
            group.replay(read, value)


def _check(request: ConsumerHeartbeat) -> None:
    """Raise InvalidRequest, UnsupportedAssignor or InvalidRegularExpression for an invalid heartbeat."""
    epoch = request.member_epoch
    wrong = ""
    if not request.member_id.strip() and (epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH):
        wrong = "a member that has joined names its member_id"
    elif request.instance_id is not None and not request.instance_id.strip():
        wrong = "an instance_id is not empty"
    elif request.rack_id is not None and not request.rack_id.strip():
        wrong = "a rack_id is not empty"
    elif epoch < LEAVE_STATIC_EPOCH:
        wrong = f"a member_epoch is {LEAVE_STATIC_EPOCH} at least, not {epoch}"
    elif epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        wrong = "a static member that leaves for a while names its instance_id"
    elif epoch == JOIN_EPOCH and request.rebalance_timeout_ms == -1:
        wrong = "a member that joins must send its rebalance_timeout_ms"
    elif epoch == JOIN_EPOCH and (request.owned is None or request.owned):
        wrong = "a member that joins holds no partitions, and says so"
    elif epoch == JOIN_EPOCH and request.topics is None and request.regex is None:
        wrong = "a member that joins names its topics, or a pattern for them"
    else:
        texts = [request.member_id, request.instance_id or "", request.rack_id or "", request.regex or ""]
        texts += [request.client_id, request.client_host, *(request.topics or ())]
        bad = next((text for text in texts if not is_text(text) or len(text.encode()) > 32_000), None)
        wrong = "" if bad is None else f"{bad[:100]!r} is not text of up to 32,000 bytes"
    if wrong:
        raise InvalidRequest(f"heartbeat of group {request.group!r}: {wrong}")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(
            f"heartbeat of group {request.group!r}: assignor {request.assignor!r}; there are {', '.join(ASSIGNORS)}"
        )
    if request.regex:
        TopicPattern(request.regex)


def _gone(name: str, member_id: str) -> list[CoordinatorRecord]:
    return [
        records.current_record(name, member_id, None),
        records.target_record(name, member_id, None),
        records.member_record(name, member_id, None),
    ]


def _unknown(name: str, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"group {name!r} has no member {member_id!r}: it left, or its session ended; join again")


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise _unknown(group.name, member_id)
    return member


def static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """Return the static member. Raises UnknownMemberId, FencedInstanceId."""
    place = group.static.get(instance_id)
    if place is None:
        raise UnknownMemberId(f"group {group.name!r} has no member with group_instance_id {instance_id!r}: join again")
    if place != member_id:
        raise FencedInstanceId(
            f"member {place} of group {group.name!r} has group_instance_id {instance_id!r}, and {member_id} is fenced: "
            "each running consumer needs one of its own"
        )
    return group.members[place]


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    return _member(group, member_id) if instance_id is None else static_member(group, member_id, instance_id)
