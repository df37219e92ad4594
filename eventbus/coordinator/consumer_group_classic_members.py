"""Classic members of groups of the consumer protocol: they join and sync as before (KIP-848). Pure.

The coordinator assigns for them. A join is answered at once, with the member's epoch as its generation; the answer to a
heartbeat makes the member join again when it must revoke partitions or can have more.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.coordinator import consumer_group_classic as classics
from eventbus.coordinator.codec import GroupMetadataValue
from eventbus.coordinator.consumer_group import ConsumerGroup
from eventbus.coordinator.consumer_group_member import ConsumerMember, MemberState
from eventbus.coordinator.consumer_groups import ConsumerGroups, find_member, static_member
from eventbus.coordinator.group_rules import Timer, Turn
from eventbus.coordinator.members import JoinReply, SyncReply
from eventbus.coordinator.requests import CONSUMER_PROTOCOL, JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from eventbus.types import GroupMetadata


class ClassicMembers:
    """Handles the requests of classic members. All state is in the groups."""

    __slots__ = ("_groups",)

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups

    def join(self, request: JoinGroup, reply: JoinReply, turn: Turn) -> None:
        """Let a classic member join a group that has members. It is answered at once, without waiting for other
        members.

        Raises GroupMaxSizeReached, InconsistentGroupProtocol, MemberIdRequired, UnknownMemberId, FencedInstanceId.
        """
        group = self._groups.groups[request.group]
        name, instance_id = group.name, request.group_instance_id
        member_id = request.member_id or f"{instance_id or request.client_id}-{self._groups.new_id()}"
        self._groups.check_room(group, member_id)
        self._check_protocols(group, request)
        if request.require_known_member_id and not request.member_id and instance_id is None:
            raise MemberIdRequired(f"group {name!r}: join again as {member_id}", member_id)
        subscription = classics.read_subscription(name, request.protocols)
        place = group.static.get(instance_id or "")
        if instance_id is None:
            member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
        elif request.member_id:
            member = static_member(group, member_id, instance_id)
        else:
            group, member = self._groups.take_place(group, member_id, instance_id, turn, by_classic=True)
        updated = classics.joined(member, request, subscription)
        owned = classics.to_ids(subscription.owned_partitions, self._groups.topics)
        settled = self._groups.advance(group, member, updated, owned, turn)
        self._groups.renew(name, settled, turn.now_ms)
        self._groups.deadlines.cancel((name, Timer.JOIN, member_id))
        generation_id, protocol_name = settled.epoch, request.protocols[0][0]
        value = None
        if place is not None and self._groups.groups[name].members[place].classic is None:
            value = self._downgrade_if_classic(group, turn)
        if value is not None:
            generation_id, protocol_name = value.generation_id, value.protocol_name or ""
        else:
            self._groups.deadlines.set(
                (name, Timer.SYNC, member_id), turn.now_ms + max(updated.rebalance_timeout_ms, 0)
            )
        turn.join(
            reply,
            JoinGroupResult(
                generation_id=generation_id,
                protocol_type=CONSUMER_PROTOCOL,
                protocol_name=protocol_name,
                leader_id="",
                member_id=member_id,
            ),
        )

    def _downgrade_if_classic(self, group: ConsumerGroup, turn: Turn) -> GroupMetadataValue | None:
        """Convert the group back if the member replaced by this join was the last that used the consumer protocol."""
        after = group.copy()
        after.fold(turn.records)
        if not after.classic_count == len(after.members) <= self._groups.config.group_max_size:
            return None
        return self._groups.downgrade(after, (), turn)

    def _check_protocols(self, group: ConsumerGroup, request: JoinGroup) -> None:
        names = {name for name, _ in request.protocols}
        for member in group.members.values():
            if member.classic is not None:
                names &= {name for name, _ in member.classic.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL or not names:
            raise InconsistentGroupProtocol(
                f"a member of protocol type {request.protocol_type!r} with "
                f"{', '.join(name for name, _ in request.protocols) or 'no protocol'} cannot join group "
                f"{group.name!r}: it is one of consumers, who need an assignor in common"
            )

    def sync(
        self,
        member: GroupMetadata,
        reply: SyncReply,
        turn: Turn,
        protocol_type: str | None,
        protocol_name: str | None,
    ) -> None:
        """Answer with the assignment of a classic member.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol, RebalanceInProgress.
        """
        group, held, protocols, _ = self._classic_member(member)
        own_name = protocols[0][0]
        for given, own in ((protocol_type, CONSUMER_PROTOCOL), (protocol_name, own_name)):
            if given is not None and given != own:
                raise InconsistentGroupProtocol(
                    f"member {held.member_id} goes by {own!r}, its sync by {given!r}: rejoin"
                )
        if group.epoch > held.epoch and held.state is not MemberState.UNREVOKED_PARTITIONS:
            raise self._rejoin(group, held, turn.now_ms)
        self._groups.deadlines.cancel((group.name, Timer.SYNC, held.member_id))
        self._groups.renew(group.name, held, turn.now_ms)
        assignment = classics.encode_classic_assignment(held.assigned, self._groups.topics)
        turn.sync(reply, SyncGroupResult(CONSUMER_PROTOCOL, own_name, assignment))

    def heartbeat(self, member: GroupMetadata, now_ms: int) -> None:
        """Renew the session of a classic member.

        Raises UnknownMemberId, FencedInstanceId, IllegalGeneration, and RebalanceInProgress if the member must revoke
        partitions or can have more.
        """
        group, held, _, _ = self._classic_member(member)
        self._groups.renew(group.name, held, now_ms)
        if (
            held.epoch < group.epoch
            or held.state is MemberState.UNREVOKED_PARTITIONS
            or (held.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(held))
        ):
            raise self._rejoin(group, held, now_ms)

    def _rejoin(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> RebalanceInProgress:
        key = (group.name, Timer.JOIN, member.member_id)
        if key not in self._groups.deadlines:
            self._groups.deadlines.set(key, now_ms + max(member.rebalance_timeout_ms, 0))
        return RebalanceInProgress(f"group {group.name!r} has something else for {member.member_id}: rejoin")

    def _classic_member(
        self, member: GroupMetadata
    ) -> tuple[ConsumerGroup, ConsumerMember, tuple[tuple[str, bytes], ...], int]:
        group = self._groups.groups[member.group]
        held = find_member(group, member.member_id, member.group_instance_id)
        if held.classic is None:
            raise UnknownMemberId(f"member {held.member_id} of group {group.name!r} speaks the consumer protocol")
        if held.epoch != member.generation_id:
            raise IllegalGeneration(
                f"member {held.member_id} of group {group.name!r} is in epoch {held.epoch}, not in generation "
                f"{member.generation_id}: rejoin"
            )
        return group, held, held.classic.protocols, held.classic.session_timeout_ms

    def leave(self, name: str, members: Sequence[tuple[str, str | None]], turn: Turn) -> list[KafkaError | None]:
        """Remove members, by id or (static members) by instance id alone; return an error or None for each."""
        group = self._groups.groups[name]
        errors: list[KafkaError | None] = []
        gone: list[str] = []
        for member_id, instance_id in members:
            try:
                by_admin = not member_id and instance_id is not None
                place = group.static.get(instance_id or "", "") if by_admin else member_id
                member = find_member(group, place, instance_id)
                if member.member_id not in gone:
                    gone.append(member.member_id)
                errors.append(None)
            except KafkaError as error:
                errors.append(error)
        if gone:
            self._groups.fence(group, gone, turn, "member_left")
        return errors
