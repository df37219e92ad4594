"""Kafka's record format of ``__consumer_offsets``: committed offsets, and groups with their members.

Every key begins with an int16 for its type (0 and 1: an offset, 2: a group), every value with an int16 version. Values
are written as version 3, as Kafka does; all versions up to Kafka 4.x are read. The schemas are in the tables of
`eventbus.protocol`; offsets, which are written most often, are encoded by hand, which is a third faster.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from eventbus.protocol import decode, encode, messages
from eventbus.protocol.log_records import decode_value, record_type
from eventbus.types import TopicPartition

NO_LEADER_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VALUE_3_HEAD = struct.Struct(">hqih")
_SHORT = 32_767
NAMES = 1_024
"""Groups, or partitions of groups, whose names are not encoded and hashed again for each commit."""


class OffsetCommitKey(NamedTuple):
    """The key of a committed offset: a group and a partition."""

    group: str
    topic_partition: TopicPartition


class OffsetCommitValue(NamedTuple):
    """A committed offset: the *next* offset to read."""

    offset: int
    metadata: str
    commit_timestamp_ms: int
    leader_epoch: int = NO_LEADER_EPOCH


class StoredMember(NamedTuple):
    """A member of a stored generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The member's metadata for the group's protocol."""
    assignment: bytes


class GroupMetadataValue(NamedTuple):
    """A generation of a group: stable if it has members, empty otherwise."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    """The time at which the group entered its state; -1 if an old version wrote the record."""
    members: tuple[StoredMember, ...]


@lru_cache(NAMES)
def encode_offset_key(key: OffsetCommitKey) -> bytes:
    """Encode as version 1. Raises ValueError for a name that does not fit Kafka's int16 length."""
    group, (topic, partition) = key
    return b"\x00\x01" + _string(group) + _string(topic) + _INT32.pack(partition)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    """Encode as version 3: offset, leader epoch, metadata, commit timestamp."""
    metadata = value.metadata.encode()
    if len(metadata) > _SHORT:
        raise ValueError(f"a string of {len(metadata):,} bytes is longer than the format's {_SHORT:,}")
    head = _VALUE_3_HEAD.pack(3, value.offset, value.leader_epoch, len(metadata))
    return head + metadata + _INT64.pack(value.commit_timestamp_ms)


def encode_group_key(group: str) -> bytes:
    """Encode as version 2. Raises ValueError for a name that does not fit Kafka's int16 length."""
    return b"\x00\x02" + _string(group)


def encode_group_value(value: GroupMetadataValue) -> bytes:
    """Encode as version 3. Raises ValueError for a string that does not fit."""
    members = [
        messages.GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    ]
    message = messages.GroupMetadataValue(
        protocol_type=value.protocol_type,
        generation=value.generation_id,
        protocol=value.protocol_name,
        leader=value.leader_id,
        current_state_timestamp=value.state_timestamp_ms,
        members=members,
    )
    return b"\x00\x03" + encode(message, 3)


def decode_group_key(data: bytes) -> str | None:
    """Return the group's name, or None for a record of another type. Raises ValueError."""
    if record_type(data) != 2:
        return None
    return decode(messages.GroupMetadataKey, 0, data[2:]).group


def decode_group_value(data: bytes) -> GroupMetadataValue:
    """Decode any version from 0 to 4. Raises ValueError."""
    message, _ = decode_value(messages.GroupMetadataValue, data)
    members = [
        StoredMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            # Absent before version 1; Kafka uses the session timeout then.
            member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
            member.session_timeout,
            member.subscription,
            member.assignment,
        )
        for member in message.members
    ]
    return GroupMetadataValue(
        message.protocol_type,
        message.generation,
        message.protocol,
        message.leader,
        message.current_state_timestamp,
        tuple(members),
    )


@lru_cache(NAMES)
def decode_offset_key(data: bytes) -> OffsetCommitKey | None:
    """Return the key, or None for a record of another type (group metadata and members).

    Raises ValueError if the bytes are truncated or continue after the last field.
    """
    if record_type(data) not in (0, 1):
        return None
    message = decode(messages.OffsetCommitKey, 0, data[2:])
    return OffsetCommitKey(message.group, TopicPartition(message.topic, message.partition))


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    """Decode any version from 0 to 4. Raises ValueError."""
    message, _ = decode_value(messages.OffsetCommitValue, data)
    return OffsetCommitValue(message.offset, message.metadata, message.commit_timestamp, message.leader_epoch)


def java_string_hash(text: str) -> int:
    """Return Java's ``String.hashCode``, signed: over UTF-16 code units, so an emoji counts as two."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(NAMES)
def partition_for_group(group: str, partition_count: int) -> int:
    """Return the partition of ``__consumer_offsets`` that stores the group: Kafka's ``Utils.abs(hash) % count``.

    ``Utils.abs`` is the absolute value, 0 for -2147483648; it is *not* ``hash & 0x7fffffff``.
    """
    value = java_string_hash(group)
    return 0 if value == -(1 << 31) else abs(value) % partition_count


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _SHORT:
        raise ValueError(f"a string of {len(data):,} bytes is longer than the format's {_SHORT:,}")
    return _INT16.pack(len(data)) + data
