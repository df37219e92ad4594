"""One member of a group of the consumer protocol, and how it moves from its partitions to its target (KIP-848).

Pure: a member is a value. The target belongs to the group, and a member moves towards it independently: first it
revokes what it should not have, then it takes what is free; partitions that others still hold follow once revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from enum import Enum

import msgspec

from eventbus.coordinator.consumer_group_requests import LEAVE_STATIC_EPOCH, TopicIdPartition
from eventbus.errors import FencedMemberEpoch

Assigned = dict[TopicIdPartition, int]
"""The partitions that a member holds, each with the epoch in which it got it."""


class MemberState(Enum):
    """Kafka's member states; the value is the number in stored records."""

    STABLE = 0
    """The member holds its target, as far as that was free."""
    UNREVOKED_PARTITIONS = 1
    """The member was asked to revoke partitions and has not confirmed that yet."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that others still hold."""
    UNKNOWN = 127
    """Written by a newer version; the member has to join again."""


class ClassicMember(msgspec.Struct, frozen=True):
    """The settings of a member that uses the classic protocol: it heartbeats, joins and syncs as before."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member. It must send ``epoch``; ``previous_epoch`` is accepted too, in case an answer was lost."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Subscribed topic names, sorted."""
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None
    """None if the member uses the consumer protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assigned = {}
    revoking: Assigned = {}

    def __repr__(self) -> str:
        static = "" if self.instance_id is None else f"={self.instance_id}"
        kind = "" if self.classic is None else "/classic"
        regex = f"~{self.regex}" if self.regex else ""
        held = " ".join(map(show_partition, sorted(self.assigned)))
        revoking = "".join(f" -{show_partition(tp)}" for tp in sorted(self.revoking))
        state = {
            MemberState.STABLE: "",
            MemberState.UNREVOKED_PARTITIONS: " unrevoked",
            MemberState.UNRELEASED_PARTITIONS: " unreleased",
            MemberState.UNKNOWN: " unknown",
        }[self.state]
        return f"{self.member_id}{static}{kind}:{','.join(self.topics)}{regex}@{self.epoch}{state} ({held}{revoking})"

    @property
    def is_away(self) -> bool:
        """True for a static member that left temporarily."""
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def check_epoch(self, epoch: int, owned: frozenset[TopicIdPartition] | None) -> None:
        """Raise FencedMemberEpoch for a wrong epoch.

        The previous epoch is accepted if the member holds nothing that it should not: the answer with the new epoch was
        lost.
        """
        if epoch in (0, self.epoch):
            return
        # The member that lost an answer reports what it held before. It may hold no more than its assignment, or it
        # reads a partition of another member.
        retried = epoch == self.previous_epoch and owned is not None and owned <= self.assigned.keys()
        if epoch > self.epoch or not retried:
            raise FencedMemberEpoch(
                f"member {self.member_id} came with epoch {epoch}, it is in {self.epoch}: it must give up all its "
                "partitions and join again with epoch 0"
            )

    def reconcile(
        self,
        target_epoch: int,
        target: Set[TopicIdPartition],
        owned: frozenset[TopicIdPartition] | None,
        is_free: Callable[[TopicIdPartition], bool],
    ) -> ConsumerMember:
        """Return the member after its next step towards the target; unchanged if it can take none now.

        ``owned`` is what the member reports to hold, None if it reports nothing. ``is_free`` returns whether no other
        member holds a partition. Raises FencedMemberEpoch for a member whose state cannot be known.
        """
        match self.state:
            case MemberState.STABLE if self.epoch == target_epoch:
                return self
            # Not confirmed yet. Until then the member keeps its epoch, and no member gets the partitions.
            case MemberState.UNREVOKED_PARTITIONS if owned is None or owned & self.revoking.keys():
                return self
            # A state that this version does not know may mean anything about the partitions, so the member must have
            # given up all of them.
            case MemberState.UNKNOWN if owned is None or owned:
                raise FencedMemberEpoch(
                    f"member {self.member_id} is in a state that a newer version wrote: it must give up all its "
                    "partitions and join again with epoch 0"
                )
            case _:
                return self._step(target_epoch, target, owned, is_free)

    def _step(
        self,
        target_epoch: int,
        target: Set[TopicIdPartition],
        owned: frozenset[TopicIdPartition] | None,
        is_free: Callable[[TopicIdPartition], bool],
    ) -> ConsumerMember:
        kept = {tp: epoch for tp, epoch in self.assigned.items() if tp in target}
        revoking = {tp: epoch for tp, epoch in self.assigned.items() if tp not in target}
        # First revoke, then take new partitions, in separate steps: a member never holds more than its old and its new
        # share together.
        if revoking and (owned is None or owned & revoking.keys()):
            return msgspec.structs.replace(
                self,
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned=kept,
                revoking=revoking,
            )
        wanted = target - kept.keys()
        # A lost answer may still be requested again after a step within one epoch.
        previous_epoch = self.previous_epoch if self.epoch == target_epoch else self.epoch
        # Partitions that are free are taken now. The member comes again with its next heartbeat for those that others
        # still hold.
        free = {tp: target_epoch for tp in sorted(wanted) if is_free(tp)}
        waits = len(free) < len(wanted)
        return msgspec.structs.replace(
            self,
            state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
            epoch=target_epoch,
            previous_epoch=previous_epoch,
            assigned={**kept, **free},
            revoking={},
        )


def show_partition(topic_partition: TopicIdPartition) -> str:
    """Return a short form for logs: the first bytes of the topic's id, and the partition."""
    return f"{topic_partition.topic_id.hex()[:8]}-{topic_partition.partition}"
