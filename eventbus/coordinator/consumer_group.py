"""State of one group of the consumer protocol: members, target, and partitions held (KIP-848). Pure.

The group has an epoch that rises with every change of members, subscriptions or topics. For each such epoch the
coordinator computes a target assignment, and every member moves towards it independently, with its own epoch
(`consumer_group_member`), without stopping the others. Decisions are made in `consumer_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.consumer_group_member import Assigned, ConsumerMember, MemberState, show_partition
from eventbus.coordinator.consumer_group_records import RecordKey, ResolvedRegex
from eventbus.coordinator.consumer_group_requests import LEAVE_EPOCH, TopicIdPartition
from eventbus.coordinator.shard import CoordinatorRecord

NOTHING: frozenset[TopicIdPartition] = frozenset()


class ConsumerGroupState(Enum):
    """The group's state, under Kafka's name."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group's epoch has risen, and no target has been computed for it yet."""
    RECONCILING = "Reconciling"
    """A member has not reached the target yet."""
    STABLE = "Stable"


class ConsumerGroup:
    """Everything except ``seen_version`` is hard state. `replay` is the only writer."""

    __slots__ = (
        "epoch", "members", "metadata_hash", "name", "owners", "regexes", "seen_version", "static", "target",
        "target_epoch",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.metadata_hash = 0
        """A hash of the topics that the members read. When it changes, the epoch rises."""
        self.target_epoch = 0
        self.target: dict[str, frozenset[TopicIdPartition]] = {}
        """The partitions that each member should hold, by member id."""
        self.members: dict[str, ConsumerMember] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static: dict[str, str] = {}
        """Maps each group instance id to a member id."""
        self.owners: dict[TopicIdPartition, str] = {}
        """The member that holds each partition, or that was asked to revoke it and has not confirmed that yet."""
        self.seen_version: int | None = None
        """Soft state: the version of the topics that the epoch takes into account."""

    def __repr__(self) -> str:
        members = [f"[{member!r}{self._show_target(member.member_id)}]" for _, member in sorted(self.members.items())]
        regexes = [f"~{regex}={','.join(found.topics)}" for regex, found in sorted(self.regexes.items())]
        target = f"/{self.target_epoch}"
        return " ".join([f"{self.name}:{self.state.value}@{self.epoch}{target}", *members, *regexes])

    def _show_target(self, member_id: str) -> str:
        target = self.target.get(member_id, NOTHING)
        member = self.members[member_id]
        if target == member.assigned.keys():
            return ""
        return f" -> ({' '.join(map(show_partition, sorted(target)))})"

    def copy(self) -> ConsumerGroup:
        """Copy the group, to find out where records would lead."""
        other = ConsumerGroup(self.name)
        other.epoch, other.metadata_hash, other.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        other.target, other.members, other.regexes = dict(self.target), dict(self.members), dict(self.regexes)
        other.static, other.owners, other.seen_version = dict(self.static), dict(self.owners), self.seen_version
        return other

    # look ------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def classic_count(self) -> int:
        """The number of members that use the classic protocol."""
        return sum(member.classic is not None for member in self.members.values())

    def topics_of(self, member: ConsumerMember, regexes: Mapping[str, ResolvedRegex] | None = None) -> frozenset[str]:
        """Return the topics that the member subscribes to by name and by pattern, whether they exist or not."""
        found = (self.regexes if regexes is None else regexes).get(member.regex)
        return frozenset(member.topics if found is None else (*member.topics, *found.topics))

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """True if another member still holds a partition that this member should have."""
        return any(
            self.owners.get(tp, member.member_id) != member.member_id
            for tp in self.target.get(member.member_id, NOTHING) - member.assigned.keys()
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the records that delete all of the group's records."""
        name, members = self.name, list(self.members)
        return [
            *(records.current_record(name, member_id, None) for member_id in members),
            *(records.target_record(name, member_id, None) for member_id in {**self.target, **self.members}),
            records.target_epoch_record(name, None),
            *(records.member_record(name, member_id, None) for member_id in members),
            *(records.regex_record(name, regex, None) for regex in self.regexes),
            records.group_record(name, None),
        ]

    # replay ----------------------------------------------------------------------------------------------------------

    def fold(self, stored: Iterable[CoordinatorRecord]) -> None:
        """Replay records of this group; the group's own tombstone is not among them."""
        for key, value in stored:
            self.replay(records.read_key(key), value)

    def replay(self, key: RecordKey, value: bytes | None) -> None:
        """Apply one record. Raises ValueError for bytes that cannot be read."""
        match key.type:
            case records.METADATA if value is not None:
                self.epoch, self.metadata_hash = records.read_group(value)
            case records.MEMBER:
                self._replay_member(key.name, value)
            case records.TARGET_METADATA:
                self.target_epoch = 0 if value is None else records.read_target_epoch(value)
            case records.TARGET_MEMBER if value is not None:
                self.target[key.name] = records.read_target(value)
            case records.TARGET_MEMBER:
                self.target.pop(key.name, None)
            case records.CURRENT:
                self._replay_current(key.name, value)
            case records.REGEX if value is not None:
                self.regexes[key.name] = records.read_regex(value)
            case records.REGEX:
                self.regexes.pop(key.name, None)
            case _:
                pass  # partition metadata: older versions of Kafka stored it where the hash is stored now

    def _replay_member(self, member_id: str, value: bytes | None) -> None:
        old = self.members.get(member_id)
        # The place may belong to another member by now: the record of the new owner can precede the tombstone of the
        # old one.
        if old is not None and old.instance_id is not None and self.static.get(old.instance_id) == member_id:
            del self.static[old.instance_id]
        if value is None:
            if old is not None:
                self._release(old)
                del self.members[member_id]
            return
        member = msgspec.structs.replace(old or ConsumerMember(member_id=member_id), **records.read_member(value))
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id

    def _replay_current(self, member_id: str, value: bytes | None) -> None:
        old = self.members.get(member_id)
        if value is None and old is None:
            return
        if old is None:  # the other records of this member follow: the log was compacted
            old = ConsumerMember(member_id=member_id)
        # Released first, because the new value may hold fewer partitions.
        self._release(old)
        if value is None:
            fields: dict[str, int | MemberState | Assigned] = {
                "epoch": LEAVE_EPOCH, "previous_epoch": LEAVE_EPOCH, "assigned": {}, "revoking": {},
            }  # fmt: skip
        else:
            fields = records.read_current(value)
        member = self.members[member_id] = msgspec.structs.replace(old, **fields)
        self.owners.update(dict.fromkeys((*member.assigned, *member.revoking), member_id))

    def _release(self, member: ConsumerMember) -> None:
        for topic_partition in (*member.assigned, *member.revoking):
            # Another member may have taken it over already, if its record is replayed before this one.
            if self.owners.get(topic_partition) == member.member_id:
                del self.owners[topic_partition]
