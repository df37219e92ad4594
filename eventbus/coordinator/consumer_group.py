"""One group of the consumer protocol: members, their target, what they hold (KIP-848). Pure; changed by replay alone.

The group has an epoch that rises with every change of members, subscriptions or topics. For each such epoch the
coordinator computes a target assignment, and every member walks towards it by itself, with its own epoch
(`consumer_group_member`): nobody stops for the others. Decisions are made in `consumer_groups`.
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
    """Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group's epoch has risen, and no target belongs to it yet."""
    RECONCILING = "Reconciling"
    """A member is not at the target yet."""
    STABLE = "Stable"


class ConsumerGroup:
    """All of it is hard state but ``seen_version``. `replay` is the only writer."""

    __slots__ = (
        "epoch", "members", "metadata_hash", "name", "owners", "regexes", "seen_version", "static", "target",
        "target_epoch",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.metadata_hash = 0
        """Of the topics that the members read: another hash, another epoch."""
        self.target_epoch = 0
        self.target: dict[str, frozenset[TopicIdPartition]] = {}
        """By member id: what it should hold."""
        self.members: dict[str, ConsumerMember] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static: dict[str, str] = {}
        """Group instance id -> member id."""
        self.owners: dict[TopicIdPartition, str] = {}
        """Who holds a partition, or was told to give it up and has not said that it did."""
        self.seen_version: int | None = None
        """Soft: the version of the topics that the epoch takes into account."""

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
        """To see where records would lead."""
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
        """How many members speak the classic protocol."""
        return sum(member.classic is not None for member in self.members.values())

    def topics_of(self, member: ConsumerMember, regexes: Mapping[str, ResolvedRegex] | None = None) -> frozenset[str]:
        """By name and by pattern, whether they exist or not."""
        found = (self.regexes if regexes is None else regexes).get(member.regex)
        return frozenset(member.topics if found is None else (*member.topics, *found.topics))

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether somebody else still holds a partition that the member should have."""
        return any(
            self.owners.get(tp, member.member_id) != member.member_id
            for tp in self.target.get(member.member_id, NOTHING) - member.assigned.keys()
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        """All of the group's records, gone."""
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
        """Fold one record in. Raises ValueError for bytes that cannot be read."""
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
                pass  # partition metadata: older versions of Kafka stored what the hash stands for now

    def _replay_member(self, member_id: str, value: bytes | None) -> None:
        old = self.members.get(member_id)
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
        if old is None:  # the rest of it comes later in a log that was compacted
            old = ConsumerMember(member_id=member_id)
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
            if self.owners.get(topic_partition) == member.member_id:
                del self.owners[topic_partition]
