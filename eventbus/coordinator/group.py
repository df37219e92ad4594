"""One consumer group of the classic protocol: members, generations, rebalances (KIP-345, KIP-394, KIP-814). Pure.

The rules are those of Apache Kafka's group coordinator. A generation is formed in three steps: all members join, the
leader (one of the members) assigns, all members sync. The assignment is stored; the steps before it are not, so a group
that is loaded again is in the state in which it last was stable or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eventbus.coordinator.codec import (
    GroupMetadataValue,
    encode_group_key,
    encode_group_value,
)
from eventbus.coordinator.deadlines import Deadlines
from eventbus.coordinator.group_rules import TRANSITIONS, Cause, Event, GroupConfig, State, Timer, TimerKey, Turn
from eventbus.coordinator.members import JoinReply, Member, Members, SyncReply
from eventbus.coordinator.requests import (
    CONSUMER_PROTOCOL,
    GroupDescription,
    JoinedMember,
    JoinGroup,
    JoinGroupResult,
    SyncGroupResult,
)
from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.types import GroupMetadata

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long a join stays parked whose member does not know its id yet: the coordinator cannot detect that it left."""
RETRY_MS = 1_000
"""If storing an empty generation fails, it is tried again after this time."""


class Group:
    """One classic group. ``stored`` is the last generation in the log. All else is soft state of the live members.

    Only `replay` changes ``stored``, and it makes the soft state agree.
    """

    __slots__ = (
        "_config", "_deadlines", "_delay_until_ms", "_extended", "_new_id", "_opening", "_subscribed", "generation_id",
        "members", "name", "pending", "protocol_name", "protocol_type", "state", "state_timestamp_ms", "stored",
        "unsynced",
    )  # fmt: skip

    def __init__(
        self, name: str, config: GroupConfig, deadlines: Deadlines[TimerKey], new_id: Callable[[], str]
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.stored: GroupMetadataValue | None = None
        self.generation_id = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.state_timestamp_ms = -1
        self.members = Members()
        self.pending: set[str] = set()
        """Member ids given out in the handshake whose members have not joined yet."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not fetched their assignment."""
        self._config = config
        self._deadlines = deadlines
        self._new_id = new_id
        self._subscribed: frozenset[str] | None = None
        self._opening = False
        """True in the first rebalance after being empty, which waits ``group_initial_rebalance_delay_ms`` for more
        members."""
        self._extended = False
        self._delay_until_ms = 0

    def __repr__(self) -> str:
        members = repr(self.members) + "".join(f" ?{member_id}" for member_id in sorted(self.pending))
        return f"{self.name}:{self.state.value}@{self.generation_id} {self.protocol_name or '-'} [{members}]"

    # join ------------------------------------------------------------------------------------------------------------

    def join(self, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        """Park the join, or answer it. Raises KafkaError if it is refused."""
        member_id, instance_id = request.member_id, request.group_instance_id
        # A known member that comes too late for the last place leaves the group. Otherwise the rebalance would wait for
        # it until the timeout.
        if not self._has_room(member_id or self.members.static.get(instance_id or "", "")):
            limit = self._config.group_max_size
            self._remove(member_id, turn)
            turn.join(reply, GroupMaxSizeReached(f"group {self.name!r}: group_max_size allows {limit} members"))
            if self.state is State.PREPARING_REBALANCE:
                self._complete_if_all_joined(turn)
            return
        self._check_protocols(request)
        # The second half of the handshake of KIP-394. A client that dies between both halves leaves only a pending id,
        # which times out, and no member for which a rebalance would wait.
        if member_id in self.pending and instance_id is None:
            self._add(member_id, request, reply, turn)
        elif member_id:
            self._rejoin(self.validate(member_id, instance_id), request, reply, turn)
        # KIP-345: a static member that restarts has no member id. It gets its old place, so no rebalance moves its
        # partitions.
        elif instance_id is not None and instance_id in self.members.static:
            old = self.validate(self.members.static[instance_id], instance_id)
            self._replace_static(old, request, reply, turn)
        elif instance_id is None and request.require_known_member_id:
            member_id = self._make_id(request)
            self.pending.add(member_id)
            # The id counts towards the rebalance until then, see `_complete_if_all_joined`.
            self._deadlines.set((self.name, Timer.SESSION, member_id), turn.now_ms + request.session_timeout_ms)
            raise MemberIdRequired(f"group {self.name!r}: join again as {member_id}", member_id)
        else:
            self._add(self._make_id(request), request, reply, turn)

    def _make_id(self, request: JoinGroup) -> str:
        return f"{request.group_instance_id or request.client_id}-{self._new_id()}"

    def _has_room(self, member_id: str) -> bool:
        """True if the member may join. As in Kafka, while a rebalance is prepared the members that have joined
        count."""
        # The first member always has room, and a member with a parked join is counted already.
        member = self.members.get(member_id)
        if self.state is State.EMPTY or (member is not None and member.joining is not None):
            return True
        if self.state is State.PREPARING_REBALANCE:
            return self.members.joining_count < self._config.group_max_size
        return member is not None or len(self.members) < self._config.group_max_size

    def _check_protocols(self, request: JoinGroup) -> None:
        """Raise InconsistentGroupProtocol unless all members, including this member, have a protocol in common."""
        names = [name for name, _ in request.protocols]
        if not request.protocol_type or not names:
            raise InconsistentGroupProtocol(f"a join of group {self.name!r} names no protocol type or no protocol")
        if self.state is State.EMPTY or not self.members:
            return
        if request.protocol_type != self.protocol_type:
            raise InconsistentGroupProtocol(
                f"group {self.name!r} is of protocol type {self.protocol_type!r}, the joining member of "
                f"{request.protocol_type!r}: give one of them another group"
            )
        if not self.members.have_in_common(names):
            common = ", ".join(self.members.in_common()) or "nothing"
            raise InconsistentGroupProtocol(
                f"the members of group {self.name!r} have {common} in common, the joining one offers "
                f"{', '.join(names)}: give all of them one assignor in common"
            )

    def _add(self, member_id: str, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        self.pending.discard(member_id)
        member = Member(member_id, request.group_instance_id)
        self.members.add(member)
        # Another member came during the initial delay, so the delay is extended once more (KIP-134).
        self._extended = self._opening
        self._update(member, request, reply, turn)
        # A member that does not know its id sends no heartbeats, and a lost connection is not visible here. So a join
        # that is parked for too long is dropped; a member that still waits joins again.
        self._deadlines.set((self.name, Timer.SESSION, member_id), turn.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(turn, "member_joined")

    def _rejoin(self, member: Member, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        leads_stable = self.state is State.STABLE and member.member_id == self.members.leader_id
        if self.state is State.PREPARING_REBALANCE or leads_stable or member.protocols != request.protocols:
            # The leader may join again with nothing changed: it has seen new topics or partitions.
            self._update(member, request, reply, turn)
            self._rebalance_or_complete(turn, "metadata_changed")
            return
        # Nothing changed: the answer was lost, or the member rejoins because of a rebalance that is already over.
        # Answer as before. A new rebalance would stop all other members for a request that changes nothing.
        leads = self.state is State.COMPLETING_REBALANCE and member.member_id == self.members.leader_id
        listed = self.members.listed(self.protocol_name) if leads else ()
        self._renew(member, turn.now_ms)
        turn.join(reply, self._joined(member.member_id, listed))

    def _replace_static(self, member: Member, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        """Give the place of a static member that returns under a new member id to that id, and fence the old id
        (KIP-345)."""
        old_id, old_leader_id = member.member_id, self.members.leader_id
        error = FencedInstanceId(
            f"another member of group {self.name!r} joined as group_instance_id {member.group_instance_id!r}: "
            "each running consumer needs one of its own"
        )
        new_id = self._make_id(request)
        self.members.rename(member, new_id)
        # A parked request of the old process is answered now, because the member is about to be known by another id
        # only.
        self._drop_parked(member, error, turn)
        self._deadlines.cancel((self.name, Timer.SESSION, old_id))
        # The leader has not assigned yet, so the new process takes over the wait for the assignment too.
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        topics = self._topics_of(member)
        self._update(member, request, reply, turn)
        if (
            # Completing: the leader has the old id, and would assign to a member that no longer exists.
            self.state is not State.STABLE
            or self.members.vote() != self.protocol_name
            # Kafka lets a member with other topics wait for the next rebalance; here it gets them at once.
            or self._topics_of(member) != topics
        ):
            self._rebalance_or_complete(turn, "member_joined")
            return
        self.members.park_join(member, None)
        self._renew(member, turn.now_ms)
        # Stored under the new member id. After a restart of the log the old id must not be valid again.
        assignments = {member.member_id: member.assignment for member in self.members}
        turn.records.append(self._record(self._value(assignments, turn.wall_now_ms)))
        leads = new_id == self.members.leader_id
        # KIP-814: a leader that rejoins learns that it is the leader, so that it watches topics, but must not assign.
        if request.supports_skipping_assignment:
            listed = self.members.listed(self.protocol_name) if leads else ()
            turn.join(reply, self._joined(new_id, listed, skip_assignment=leads))
        else:  # not as the leader: it would compute an assignment that no member waits for
            turn.join(reply, self._joined(new_id, (), leader_id=old_leader_id))

    def _update(self, member: Member, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        """Update the member from its join, and park the join instead of an earlier one."""
        if member.joining is not None:
            turn.join(member.joining, RebalanceInProgress(f"{member.member_id} joined once more"))
        self.members.update(member, request)
        self.members.park_join(member, reply)
        self._subscribed = None
        if not member.is_new:  # a member that waits for the others is alive
            self._deadlines.cancel((self.name, Timer.SESSION, member.member_id))

    # rebalance -------------------------------------------------------------------------------------------------------

    def _enter(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _rebalance_or_complete(self, turn: Turn, cause: Cause) -> None:
        """Begin a rebalance; if one is already being prepared, complete it if this was the last member it waited
        for."""
        if self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(turn)
            return
        self._prepare(turn)
        turn.begun.append((self.name, cause))
        if self.members and self._waits_for_joins():
            turn.rebalancing.append(self.name)

    def _waits_for_joins(self) -> bool:
        return self.state is State.PREPARING_REBALANCE

    def _prepare(self, turn: Turn) -> None:
        opening = self.state is State.EMPTY
        for member in self.members:
            if member.syncing is not None:
                # An assignment of the interrupted generation must not be stored with the next one.
                member.assignment = b""
                turn.sync(member.syncing, RebalanceInProgress(f"group {self.name!r} began another rebalance: rejoin"))
                member.syncing = None
                self._renew(member, turn.now_ms)
        self._deadlines.cancel((self.name, Timer.SYNC, ""))
        self._enter(Event.REBALANCE)
        # KIP-134: services of several processes start together. Without the delay, the first process would get all
        # partitions and lose most of them a moment later.
        if opening and self._config.group_initial_rebalance_delay_ms > 0:
            self._opening, self._extended = True, False
            self._delay_until_ms = turn.now_ms + self.members.rebalance_timeout_ms()
            self._delay(turn.now_ms)
        elif opening:
            self._complete_join(turn)
        else:
            self._deadlines.set((self.name, Timer.JOIN, ""), turn.now_ms + self.members.rebalance_timeout_ms())
            self._complete_if_all_joined(turn)

    def _delay(self, now_ms: int) -> None:
        end_ms = min(now_ms + self._config.group_initial_rebalance_delay_ms, self._delay_until_ms)
        self._deadlines.set((self.name, Timer.JOIN, ""), end_ms)

    def _complete_if_all_joined(self, turn: Turn) -> None:
        # A pending member is about to join. Completing without it would start the next rebalance at once.
        if self.members.joining_count == len(self.members) and not self.pending and not self._opening:
            self._complete_join(turn)

    def _complete_join(self, turn: Turn) -> None:
        """End the join phase: the members that joined form a new generation, and one of them leads it."""
        self._deadlines.cancel((self.name, Timer.JOIN, ""))
        self._opening = False
        for member in list(self.members):
            if member.joining is None and member.group_instance_id is None:  # static members stay until sessions end
                self._remove(member.member_id, turn)
        # Stored, because the generation must not be used again after a restart: commits of its late members would be
        # accepted.
        if not self.members:
            self.protocol_name = None
            value = GroupMetadataValue(self.protocol_type, self.generation_id + 1, None, None, turn.wall_now_ms, ())
            turn.records.append(self._record(value))
            # Try again unless the empty generation is stored by then.
            self._deadlines.set((self.name, Timer.JOIN, ""), turn.now_ms + RETRY_MS)
            return
        # Only static members that are away are left. They keep their partitions until their sessions end.
        if not self.members.joining_count:
            self._deadlines.set((self.name, Timer.JOIN, ""), turn.now_ms + self.members.rebalance_timeout_ms())
            return
        self.members.elect()
        self.generation_id += 1
        self.protocol_name = self.members.vote()
        self._subscribed = None
        self._enter(Event.JOINED)
        # Members that join and then never fetch their assignment hold partitions that are not read. The timer removes
        # them.
        self.unsynced = {member.member_id for member in self.members}
        self._deadlines.set((self.name, Timer.SYNC, ""), turn.now_ms + self.members.rebalance_timeout_ms())
        listed = self.members.listed(self.protocol_name)
        for member in self.members:
            if member.joining is not None:
                leads = member.member_id == self.members.leader_id
                turn.join(member.joining, self._joined(member.member_id, listed if leads else ()))
                self.members.park_join(member, None)
                member.is_new = False
                self._renew(member, turn.now_ms)

    def _joined(
        self,
        member_id: str,
        members: tuple[JoinedMember, ...],
        *,
        skip_assignment: bool = False,
        leader_id: str | None = None,
    ) -> JoinGroupResult:
        return JoinGroupResult(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name or "",
            leader_id=leader_id or self.members.leader_id or "",
            member_id=member_id,
            members=members,
            skip_assignment=skip_assignment,
        )

    # sync ------------------------------------------------------------------------------------------------------------

    def sync(
        self,
        member: GroupMetadata,
        assignments: Mapping[str, bytes],
        reply: SyncReply,
        turn: Turn,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> None:
        """Park the sync, or answer it; the leader's sync stores the assignments. Raises KafkaError if it is refused."""
        held = self.validate(member.member_id, member.group_instance_id)
        self._check_generation(member.generation_id)
        for given, own in ((protocol_type, self.protocol_type), (protocol_name, self.protocol_name)):
            if given is not None and given != own:
                raise InconsistentGroupProtocol(f"group {self.name!r} goes by {own!r}, the sync by {given!r}: rejoin")
        if self.state is State.PREPARING_REBALANCE:
            raise self._rebalancing()
        self.unsynced.discard(held.member_id)
        if self.state is State.STABLE:
            if not self.unsynced:
                self._deadlines.cancel((self.name, Timer.SYNC, ""))
            self._renew(held, turn.now_ms)
            turn.sync(reply, self._synced(held.assignment))
            return
        if held.syncing is not None:
            turn.sync(held.syncing, RebalanceInProgress(f"{held.member_id} asked once more"))
        held.syncing = reply
        self._deadlines.cancel((self.name, Timer.SESSION, held.member_id))
        # Only the leader knows the assignments. The others wait for it.
        if held.member_id != self.members.leader_id:
            return
        # The answers are sent after this record is stored (`Groups._carry_out`), so no member reads by an assignment
        # that a restart would not know.
        turn.records.append(self._record(self._value(assignments, turn.wall_now_ms)))
        for waiting in self.members:
            if waiting.syncing is not None:
                turn.sync(waiting.syncing, self._synced(assignments.get(waiting.member_id, b"")))
                waiting.syncing = None
                self._renew(waiting, turn.now_ms)

    def _synced(self, assignment: bytes) -> SyncGroupResult:
        return SyncGroupResult(self.protocol_type, self.protocol_name or "", assignment)

    def _value(self, assignments: Mapping[str, bytes], wall_now_ms: int) -> GroupMetadataValue:
        """Return the generation to store. A member without partitions gets an empty assignment."""
        members = tuple(
            member.stored(self.protocol_name, assignments.get(member.member_id, b"")) for member in self.members
        )
        return GroupMetadataValue(
            self.protocol_type, self.generation_id, self.protocol_name, self.members.leader_id, wall_now_ms, members
        )

    def _record(self, value: GroupMetadataValue) -> CoordinatorRecord:
        return CoordinatorRecord(encode_group_key(self.name), encode_group_value(value))

    # stay, leave, fail -----------------------------------------------------------------------------------------------

    def validate(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member. Raises UnknownMemberId, FencedInstanceId."""
        return self.members.validate(self.name, member_id, group_instance_id)

    def _check_generation(self, generation_id: int) -> None:
        if generation_id != self.generation_id:
            raise IllegalGeneration(
                f"group {self.name!r} is in generation {self.generation_id}, not {generation_id}: rejoin"
            )

    def _rebalancing(self) -> RebalanceInProgress:
        return RebalanceInProgress(f"group {self.name!r} is rebalancing: rejoin")

    def heartbeat(self, member: GroupMetadata, now_ms: int) -> None:
        """Renew the member's session. Raises UnknownMemberId, FencedInstanceId, IllegalGeneration,
        RebalanceInProgress."""
        held = self.validate(member.member_id, member.group_instance_id)
        self._check_generation(member.generation_id)
        self._renew(held, now_ms)
        # The session is renewed first: a member that finishes its records before it rejoins is alive and must not be
        # removed.
        if self.state is State.PREPARING_REBALANCE:
            raise self._rebalancing()

    def _renew(self, member: Member, now_ms: int) -> None:
        """Restart the session timeout, except for a member that waits for an answer: it is certainly alive."""
        if member.joining is None and member.syncing is None:
            deadline_ms = now_ms + member.session_timeout_ms
            self._deadlines.set((self.name, Timer.SESSION, member.member_id), deadline_ms)

    def leave(self, members: Sequence[tuple[str, str | None]], turn: Turn) -> list[KafkaError | None]:
        """Remove members, by id or by instance id alone; return an error or None for each."""
        errors: list[KafkaError | None] = []
        removed = False
        for member_id, instance_id in members:
            if not member_id and instance_id is not None:
                member_id = self.members.static.get(instance_id, "")
            try:
                if member_id in self.pending:
                    self._remove(member_id, turn)
                else:
                    self.validate(member_id, instance_id)
                    self._remove(member_id, turn)
                    removed = True
                errors.append(None)
            except KafkaError as error:
                errors.append(error)
        # A pending member that leaves may be the last one that a rebalance waited for.
        if removed or self.state is State.PREPARING_REBALANCE:
            self._rebalance_or_complete(turn, "member_left")
        return errors

    def _remove(self, member_id: str, turn: Turn) -> None:
        self._deadlines.cancel((self.name, Timer.SESSION, member_id))
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        member = self.members.remove(member_id)
        if member is not None:
            self._subscribed = None
            self._drop_parked(member, UnknownMemberId(f"group {self.name!r} removed {member_id}: rejoin"), turn)

    @staticmethod
    def _drop_parked(member: Member, error: KafkaError, turn: Turn) -> None:
        """Answer the parked requests of a member that is removed or gets a new id with an error."""
        if member.joining is not None:
            turn.join(member.joining, error)
        if member.syncing is not None:
            turn.sync(member.syncing, error)
        member.joining = member.syncing = None

    def expire(self, timer: Timer, member_id: str, turn: Turn) -> None:
        """Handle the expiry of a deadline."""
        if member_id and timer is not Timer.SESSION:
            return  # it was set by a join that could not be stored, when the group was one of the consumer protocol
        match timer:
            case Timer.SESSION:
                was_member = member_id in self.members
                self._remove(member_id, turn)
                if was_member or self.state is State.PREPARING_REBALANCE:
                    self._rebalance_or_complete(turn, "session_expired")
            case Timer.JOIN:
                # The initial delay is extended while members keep coming, up to the rebalance timeout (KIP-134).
                if self._opening and self._extended and turn.now_ms < self._delay_until_ms:
                    self._extended = False
                    self._delay(turn.now_ms)
                else:
                    self._complete_join(turn)
            case Timer.SYNC:
                # They have joined and not fetched their assignment within the rebalance timeout.
                for unsynced_id in list(self.unsynced):
                    self._remove(unsynced_id, turn)
                self._rebalance_or_complete(turn, "sync_timed_out")

    def start(self, now_ms: int, turn: Turn) -> None:
        """Start after replay: restart all sessions, and rebalance a generation that cannot continue as stored."""
        for member in list(self.members):
            if self.protocol_name is None:  # it never had an assignment, and its protocols are not stored
                self._remove(member.member_id, turn)
            else:
                self._renew(member, now_ms)
        # A stored generation without a living leader could not react to new topics: only a leader's rejoin starts a
        # rebalance.
        leads = self.members.leader_id in self.members
        if self.state is State.STABLE and (not leads or len(self.members) > self._config.group_max_size):
            self._rebalance_or_complete(turn, "coordinator_loaded")

    def drop_clients(self, turn: Turn) -> None:
        """Remove every dynamic member, because the process that they lived in is gone."""
        gone = [member.member_id for member in self.members if member.group_instance_id is None]
        for member_id in (*gone, *self.pending):
            self._remove(member_id, turn)
        if gone:
            self._rebalance_or_complete(turn, "process_died")

    def interrupt(self, turn: Turn) -> None:
        """Make all waiting members join again at once, because the group is converted to the consumer protocol
        (KIP-848)."""
        for member in self.members:
            if member.joining is not None:
                turn.join(member.joining, self._rebalancing())
                self.members.park_join(member, None)
            if member.syncing is not None:
                turn.sync(member.syncing, self._rebalancing())
                member.syncing = None
            self._renew(member, turn.now_ms)

    # offsets ---------------------------------------------------------------------------------------------------------

    def check_commit(self, member: GroupMetadata, now_ms: int, *, in_transaction: bool = False) -> None:
        """Raise UnknownMemberId, FencedInstanceId, IllegalGeneration or RebalanceInProgress if the member may not
        commit."""
        # A simple consumer, or an administrator that resets offsets: no member can be hurt.
        if member.generation_id < 0 and self.state is State.EMPTY:
            return
        if member.generation_id >= 0 or member.member_id or member.group_instance_id is not None:
            held = self.validate(member.member_id, member.group_instance_id)
            self._check_generation(member.generation_id)
            self._renew(held, now_ms)
        # In a transaction a commit without a member is allowed, as in Kafka: producers from before KIP-447 send only
        # the group's name, and are fenced by their transactional id.
        elif not in_transaction and self.state is not State.EMPTY:
            raise UnknownMemberId(
                f"group {self.name!r} has members, and a commit by nobody in particular would move them: "
                "stop them first, or commit as one of them"
            )
        # The member knows its generation, but not yet its assignment, so it cannot know which partitions it may commit.
        if not in_transaction and self.state is State.COMPLETING_REBALANCE:
            raise RebalanceInProgress(
                f"group {self.name!r} has begun generation {self.generation_id}: fetch the assignment (sync) first"
            )

    @property
    def is_consumers(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def is_subscribed_to(self, topic: str) -> bool:
        """True if a member reads the topic, or if the subscriptions cannot be decoded, as in Kafka."""
        if not self.is_consumers or not self.members:
            return False
        if self._subscribed is None:
            try:
                self._subscribed = frozenset().union(*(member.topics(self.protocol_name) for member in self.members))
            except ValueError:
                return True
        return topic in self._subscribed

    def _topics_of(self, member: Member) -> frozenset[str] | None:
        """Return the member's topics, or None if they cannot be decoded."""
        if not self.is_consumers:
            return None
        try:
            return member.topics(self.protocol_name)
        except ValueError:
            return None

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply a stored generation. In a live group, the members already exist and hold more than what is stored."""
        self.stored = value
        self.generation_id, self.protocol_type = value.generation_id, value.protocol_type
        self.protocol_name, self.state_timestamp_ms = value.protocol_name, value.state_timestamp_ms
        self._subscribed = None
        members: list[Member] = []
        for stored in value.members:
            member = self.members.get(stored.member_id)
            # A live member stays: it has parked replies and protocols that are not stored.
            if member is None or member.stored(value.protocol_name, stored.assignment) != stored:
                member = Member.restore(stored, value.protocol_name)
            member.assignment = stored.assignment
            members.append(member)
        self.members.replace(members, value.leader_id)
        if self.state is State.COMPLETING_REBALANCE and not self.unsynced:
            self._deadlines.cancel((self.name, Timer.SYNC, ""))
        self._enter(Event.ASSIGNED if members else Event.EMPTIED)
        self._deadlines.cancel((self.name, Timer.JOIN, ""))

    def delete(self) -> None:
        """Apply the group's tombstone."""
        self._enter(Event.DELETED)
        for timer in (Timer.JOIN, Timer.SYNC):
            self._deadlines.cancel((self.name, timer, ""))

    # look ------------------------------------------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """Describe the group. As in Kafka, only a stable group shows metadata and assignments."""
        stable = self.state is State.STABLE
        members = self.members.described(self.protocol_name, stable=stable)
        protocol_name = (self.protocol_name or "") if stable else ""
        return GroupDescription(
            self.name, self.state.value, self.protocol_type, protocol_name, self.generation_id, members
        )
