"""Conversion of groups between the classic and the consumer protocol, and their classic members (KIP-848).

A group belongs to the consumer protocol as long as one member uses it. When the first such member joins, the group is
converted with all its members, which continue to join and sync as before; when the last one leaves, it is converted
back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

import msgspec

from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.codec import GroupMetadataValue, StoredMember, encode_group_key, encode_group_value
from eventbus.coordinator.consumer_group import NOTHING, ConsumerGroup
from eventbus.coordinator.consumer_group_member import ClassicMember, ConsumerMember
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicsView, metadata_hash
from eventbus.coordinator.consumer_protocol import decode_assignment, decode_subscription, encode_assignment
from eventbus.coordinator.group import Group
from eventbus.coordinator.members import Member, Members
from eventbus.coordinator.requests import CONSUMER_PROTOCOL, JoinGroup
from eventbus.coordinator.shard import CoordinatorRecord
from eventbus.errors import GroupIdNotFound, InconsistentGroupProtocol
from eventbus.types import TopicPartition


def read_subscription(group: str, protocols: Iterable[tuple[str, bytes]]) -> Subscription:
    """Return the topics that a classic member reads, from its first protocol. Raises InconsistentGroupProtocol."""
    try:
        return decode_subscription(next(metadata for _, metadata in protocols))
    except (ValueError, StopIteration) as error:
        raise InconsistentGroupProtocol(
            f"a member that joins group {group!r} brings no subscription of a consumer ({error}): other kinds of "
            "members need a group of their own"
        ) from error


def joined(member: ConsumerMember, request: JoinGroup, subscription: Subscription) -> ConsumerMember:
    """Return the member with the fields of this join."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    return msgspec.structs.replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex="",
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        classic=ClassicMember(request.session_timeout_ms, request.protocols),
    )


def to_ids(partitions: Iterable[TopicPartition], topics: TopicsView) -> frozenset[TopicIdPartition]:
    """Return the partitions of topics that exist, by topic id."""
    facts = {name: topics.get(name) for name in {tp.topic for tp in partitions}}
    return frozenset(
        TopicIdPartition(fact.topic_id, tp.partition) for tp in partitions if (fact := facts[tp.topic]) is not None
    )


def encode_classic_assignment(partitions: Iterable[TopicIdPartition], topics: TopicsView) -> bytes:
    """Encode the assignment as a group leader would, without partitions of deleted topics."""
    names = {topic_id: topics.name_of(topic_id) for topic_id in {topic_id for topic_id, _ in partitions}}
    return encode_assignment(
        TopicPartition(name, partition) for topic_id, partition in partitions if (name := names[topic_id]) is not None
    )


def classic_tombstone(name: str) -> CoordinatorRecord:
    """Return the record that deletes the classic group."""
    return CoordinatorRecord(encode_group_key(name), None)


# conversion ----------------------------------------------------------------------------------------------------------


def upgraded(group: Group, topics: TopicsView) -> list[CoordinatorRecord]:
    """Return the records that convert a classic group of consumers to the consumer protocol.

    Each member keeps its last assignment. Raises GroupIdNotFound, as Kafka does, for a group that cannot be converted.
    """
    if not group.is_consumers:
        raise GroupIdNotFound(
            f"group {group.name!r} is of protocol type {group.protocol_type!r}, which cannot become a group of the "
            "consumer protocol: choose another group"
        )
    name, epoch = group.name, group.generation_id
    taken: set[TopicIdPartition] = set()
    members: list[ConsumerMember] = []
    for member in group.members:
        members.append(_upgraded_member(group, member, topics, taken))
        taken.update(members[-1].assigned)
    read = frozenset(topic for member in members for topic in member.topics)
    return [
        *(records.member_record(name, member.member_id, member) for member in members),
        records.group_record(name, epoch, metadata_hash(topics, read)),
        *(records.target_record(name, member.member_id, member.assigned) for member in members),
        records.target_epoch_record(name, epoch),
        *(records.current_record(name, member.member_id, member) for member in members),
    ]


def _upgraded_member(group: Group, member: Member, topics: TopicsView, taken: Set[TopicIdPartition]) -> ConsumerMember:
    """Convert one member. ``taken`` is what other members have: a leader may have assigned a partition twice by
    mistake, and then only the first owner keeps it."""
    try:
        metadata = member.metadata(group.protocol_name) or member.protocols[0][1]
        subscription = decode_subscription(metadata)
        partitions = to_ids(decode_assignment(member.assignment), topics)
    except ValueError as error:
        raise GroupIdNotFound(
            f"group {group.name!r} cannot become one of the consumer protocol: what {member.member_id} stored is no "
            f"consumer's ({error})"
        ) from error
    epoch = group.generation_id
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
        epoch=epoch,
        previous_epoch=epoch,
        # The members keep what they read, in the epoch of their generation, so a conversion interrupts no member.
        assigned=dict.fromkeys(partitions - taken, epoch),
    )


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], max_size: int) -> bool:
    """True if only classic members remain, and no more of them than a classic group may have."""
    stay = [member for member_id, member in group.members.items() if member_id not in leaving]
    changes = any(group.members[member_id].classic is None for member_id in leaving)
    return changes and 0 < len(stay) <= max_size and all(member.classic is not None for member in stay)


def downgraded(
    group: ConsumerGroup, leaving: Collection[str], topics: TopicsView, wall_now_ms: int
) -> tuple[list[CoordinatorRecord], GroupMetadataValue]:
    """Return the records that convert the group to a classic one without the leaving members, and its stored
    generation.

    The generation has no leader.
    """
    members = Members()
    for member_id, member in group.members.items():
        if member_id not in leaving and member.classic is not None:
            members.add(_classic_member(member, group, topics))
    protocol_name = members.vote()
    stored: tuple[StoredMember, ...] = tuple(member.stored(protocol_name, member.assignment) for member in members)
    value = GroupMetadataValue(CONSUMER_PROTOCOL, group.epoch, protocol_name, None, wall_now_ms, stored)
    record = CoordinatorRecord(encode_group_key(group.name), encode_group_value(value))
    return [*group.tombstones(), record], value


def _classic_member(member: ConsumerMember, group: ConsumerGroup, topics: TopicsView) -> Member:
    assert member.classic is not None, "only members of the classic protocol stay"
    found = Member(member.member_id, member.instance_id)
    found.client_id, found.client_host = member.client_id, member.client_host
    found.protocols = member.classic.protocols
    found.session_timeout_ms = member.classic.session_timeout_ms
    found.rebalance_timeout_ms = member.rebalance_timeout_ms
    found.assignment = encode_classic_assignment(group.target.get(member.member_id, NOTHING), topics)
    return found
