"""Records of ``__consumer_offsets`` for groups of the consumer protocol, in Kafka's format (KIP-848).

A group is many records: its epoch, the epoch of its target assignment, its resolved patterns, and per member its
metadata, its target and what it holds. So a heartbeat that changes little writes little.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from eventbus.coordinator.consumer_group_member import Assigned, ClassicMember, ConsumerMember, MemberState
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.protocol import messages as m
from eventbus.protocol.log_records import decode_key, decode_value, encode_key, encode_value, record_type

METADATA, PARTITION_METADATA, MEMBER, TARGET_METADATA, TARGET_MEMBER, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
"""The types of keys. Partition metadata, which Kafka before 4.1 wrote instead of the hash, is skipped."""

RECORD_TYPES = frozenset((METADATA, PARTITION_METADATA, MEMBER, TARGET_METADATA, TARGET_MEMBER, CURRENT, REGEX))


class ResolvedRegex(NamedTuple):
    """The topics that a pattern matched when it was last resolved."""

    topics: tuple[str, ...]
    """The matching topic names, sorted."""
    version: int
    """The version of the topics that the pattern was resolved against."""
    timestamp_ms: int


def group_record(group: str, epoch: int | None, metadata_hash: int = 0) -> CoordinatorRecord:
    """Return the record of the group's epoch; None deletes the group."""
    value = None if epoch is None else m.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return _record(m.ConsumerGroupMetadataKey(group_id=group), value)


def member_record(group: str, member_id: str, member: ConsumerMember | None) -> CoordinatorRecord:
    """Return the record of what the member reported; None deletes it."""
    value = None
    if member is not None:
        kind = m.ConsumerGroupMemberMetadataValue
        classic = member.classic and kind.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                kind.ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols
            ],
        )
        value = kind(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.assignor,
            classic_member_metadata=classic,
        )
    return _record(m.ConsumerGroupMemberMetadataKey(group_id=group, member_id=member_id), value)


def target_epoch_record(group: str, epoch: int | None, wall_now_ms: int = 0) -> CoordinatorRecord:
    """Return the record of the group epoch that the targets belong to; None deletes it."""
    value = None
    if epoch is not None:
        value = m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_now_ms)
    return _record(m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group), value)


def target_record(group: str, member_id: str, target: Iterable[TopicIdPartition] | None) -> CoordinatorRecord:
    """Return the record of the member's target; None deletes it."""
    value = None
    if target is not None:
        kind = m.ConsumerGroupTargetAssignmentMemberValue
        topics = [
            kind.TopicPartition(topic_id=topic_id, partitions=list(numbers))
            for topic_id, numbers in by_topic(target).items()
        ]
        value = kind(topic_partitions=topics)
    return _record(m.ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=member_id), value)


def current_record(group: str, member_id: str, member: ConsumerMember | None) -> CoordinatorRecord:
    """Return the record of the member's state and partitions; None deletes it."""
    value = None
    if member is not None:
        value = m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state.value,
            assigned_partitions=_held(member.assigned),
            partitions_pending_revocation=_held(member.revoking),
        )
    return _record(m.ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=member_id), value)


def regex_record(group: str, regex: str, resolved: ResolvedRegex | None) -> CoordinatorRecord:
    """Return the record of a pattern's topics; None if no member has the pattern any more."""
    value = None
    if resolved is not None:
        value = m.ConsumerGroupRegularExpressionValue(
            topics=list(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
        )
    return _record(m.ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=regex), value)


def _record(key: msgspec.Struct, value: msgspec.Struct | None) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(key), None if value is None else encode_value(value, 0))


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[bytes, dict[int, None]]:
    """Group partitions by topic, sorted."""
    topics: dict[bytes, dict[int, None]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, {})[partition] = None
    return topics


def _held(assigned: Assigned) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    kind = m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return [
        kind(
            topic_id=topic_id,
            partitions=list(numbers),
            assignment_epochs=[assigned[TopicIdPartition(topic_id, number)] for number in numbers],
        )
        for topic_id, numbers in by_topic(assigned).items()
    ]


# read ----------------------------------------------------------------------------------------------------------------


class RecordKey(NamedTuple):
    """The parts of a key: its type, the group, and the member or the pattern if the type has one."""

    type: int
    group: str
    name: str = ""


def is_consumer_group_key(key: bytes) -> bool:
    """True if the key belongs to a group of the consumer protocol. Raises ValueError for a key that is too short."""
    return record_type(key) in RECORD_TYPES


def read_key(key: bytes) -> RecordKey:
    """Decode a key. Raises ValueError if it cannot be read or has another type."""
    kind = record_type(key)
    match kind:
        case 3:
            return RecordKey(kind, decode_key(m.ConsumerGroupMetadataKey, key).group_id)
        case 4:
            return RecordKey(kind, decode_key(m.ConsumerGroupPartitionMetadataKey, key).group_id)
        case 5:
            member = decode_key(m.ConsumerGroupMemberMetadataKey, key)
            return RecordKey(kind, member.group_id, member.member_id)
        case 6:
            return RecordKey(kind, decode_key(m.ConsumerGroupTargetAssignmentMetadataKey, key).group_id)
        case 7:
            target = decode_key(m.ConsumerGroupTargetAssignmentMemberKey, key)
            return RecordKey(kind, target.group_id, target.member_id)
        case 8:
            current = decode_key(m.ConsumerGroupCurrentMemberAssignmentKey, key)
            return RecordKey(kind, current.group_id, current.member_id)
        case 16:
            regex = decode_key(m.ConsumerGroupRegularExpressionKey, key)
            return RecordKey(kind, regex.group_id, regex.regular_expression)
        case _:
            raise ValueError(f"a record of type {kind}, which is none of a consumer group's")


def read_group(value: bytes) -> tuple[int, int]:
    """Return the epoch and the hash of the topics. Raises ValueError, as all functions here do."""
    read = decode_value(m.ConsumerGroupMetadataValue, value)[0]
    return read.epoch, read.metadata_hash


def read_member(value: bytes) -> dict[str, Any]:
    """Return the fields of a `ConsumerMember` that the member reported."""
    read = decode_value(m.ConsumerGroupMemberMetadataValue, value)[0]
    classic = read.classic_member_metadata
    return {
        "instance_id": read.instance_id,
        "rack_id": read.rack_id,
        "client_id": read.client_id,
        "client_host": read.client_host,
        "topics": tuple(sorted(read.subscribed_topic_names)),
        "regex": read.subscribed_topic_regex or "",
        "rebalance_timeout_ms": read.rebalance_timeout_ms,
        "assignor": read.server_assignor,
        "classic": classic
        and ClassicMember(
            classic.session_timeout_ms, tuple((one.name, bytes(one.metadata)) for one in classic.supported_protocols)
        ),
    }


def read_target_epoch(value: bytes) -> int:
    return decode_value(m.ConsumerGroupTargetAssignmentMetadataValue, value)[0].assignment_epoch


def read_target(value: bytes) -> frozenset[TopicIdPartition]:
    read = decode_value(m.ConsumerGroupTargetAssignmentMemberValue, value)[0]
    return frozenset(
        TopicIdPartition(bytes(topic.topic_id), number)
        for topic in read.topic_partitions
        for number in topic.partitions
    )


def read_current(value: bytes) -> dict[str, Any]:
    """Return the fields of a `ConsumerMember` that the coordinator maintains."""
    read = decode_value(m.ConsumerGroupCurrentMemberAssignmentValue, value)[0]
    known = {state.value: state for state in MemberState}
    return {
        "epoch": read.member_epoch,
        "previous_epoch": read.previous_member_epoch,
        "state": known.get(read.state, MemberState.UNKNOWN),
        "assigned": _assigned(read.assigned_partitions, read.member_epoch),
        "revoking": _assigned(read.partitions_pending_revocation, read.member_epoch),
    }


def _assigned(
    topics: Iterable[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> Assigned:
    """Return partitions with the epoch of their assignment, or the member's: Kafka before 4.3 did not store the
    former."""
    return {
        TopicIdPartition(bytes(topic.topic_id), number): epoch
        for topic in topics
        for number, epoch in zip(
            topic.partitions, topic.assignment_epochs or [member_epoch] * len(topic.partitions), strict=True
        )
    }


def read_regex(value: bytes) -> ResolvedRegex:
    read = decode_value(m.ConsumerGroupRegularExpressionValue, value)[0]
    return ResolvedRegex(tuple(sorted(read.topics)), read.version, read.timestamp)
