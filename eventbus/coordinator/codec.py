"""Kafka's record format of ``__consumer_offsets``: committed offsets, and groups with their members.

Schemas: OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json and GroupMetadataValue.json of Apache
Kafka's group coordinator. Every key and value starts with an int16 version; strings are an int16 length and UTF-8. Keys
are written as version 1 (offsets) and 2 (groups), values as version 3, as Kafka does; all versions up to Kafka 4.x are
read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from eventbus.types import TopicPartition

NO_LEADER_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TIMEOUTS = struct.Struct(">ii")
_VALUE_3_HEAD = struct.Struct(">hqih")
_SHORT = 32_767


class OffsetCommitKey(NamedTuple):
    """Which offset: a group's, of one partition."""

    group: str
    topic_partition: TopicPartition


class OffsetCommitValue(NamedTuple):
    """A committed offset: the *next* one to read."""

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
    """A generation of a group: with members it was stable, without it is empty."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int
    """When the group came into its state; -1 when an old version wrote it."""
    members: tuple[StoredMember, ...]


def encode_offset_key(key: OffsetCommitKey) -> bytes:
    """Version 1. Raises ValueError for a name that does not fit Kafka's int16 length."""
    group, (topic, partition) = key
    return b"\x00\x01" + _string(group) + _string(topic) + _INT32.pack(partition)


def encode_offset_value(value: OffsetCommitValue) -> bytes:
    """Version 3: offset, leader epoch, metadata, commit timestamp."""
    metadata = value.metadata.encode()
    if len(metadata) > _SHORT:
        raise ValueError(f"a string of {len(metadata):,} bytes is longer than the format's {_SHORT:,}")
    head = _VALUE_3_HEAD.pack(3, value.offset, value.leader_epoch, len(metadata))
    return head + metadata + _INT64.pack(value.commit_timestamp_ms)


def encode_group_key(group: str) -> bytes:
    """Version 2. Raises ValueError for a name that does not fit Kafka's int16 length."""
    return b"\x00\x02" + _string(group)


def encode_group_value(value: GroupMetadataValue) -> bytes:
    """Version 3. Raises ValueError for a string that does not fit."""
    parts = [
        b"\x00\x03",
        _string(value.protocol_type),
        _INT32.pack(value.generation_id),
        _nullable(value.protocol_name),
        _nullable(value.leader_id),
        _INT64.pack(value.state_timestamp_ms),
        _INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _nullable(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _TIMEOUTS.pack(member.rebalance_timeout_ms, member.session_timeout_ms),
            _INT32.pack(len(member.subscription)),
            member.subscription,
            _INT32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def decode_group_key(data: bytes) -> str | None:
    """The group's name, or None for a record of another kind. Raises ValueError."""
    reader = _Reader(data)
    if reader.int16() != 2:
        return None
    group = reader.string()
    reader.finish()
    return group


def decode_group_value(data: bytes) -> GroupMetadataValue:
    """Any version from 0 to 4. Raises ValueError."""
    reader = _Reader(data)
    version = reader.int16()
    if not 0 <= version <= 4:
        raise ValueError(f"a group value of version {version}; 0 to 4 are known here: a newer version wrote it")
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol_name, leader_id = reader.nullable_string(), reader.nullable_string()
    state_timestamp_ms = reader.int64() if version >= 2 else -1
    members: list[StoredMember] = []
    for _ in range(reader.count()):
        member_id = reader.string()
        group_instance_id = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        if rebalance_timeout_ms < 0:
            rebalance_timeout_ms = session_timeout_ms  # Kafka's rule for members of before version 1
        subscription, assignment = reader.byte_string(), reader.byte_string()
        reader.tagged_fields()
        members.append(
            StoredMember(
                member_id, group_instance_id, client_id, client_host, rebalance_timeout_ms, session_timeout_ms,
                subscription, assignment,
            )
        )  # fmt: skip
    reader.tagged_fields()
    reader.finish()
    return GroupMetadataValue(
        protocol_type, generation_id, protocol_name, leader_id, state_timestamp_ms, tuple(members)
    )


def decode_offset_key(data: bytes) -> OffsetCommitKey | None:
    """The key, or None for a record of another kind (versions 2 and up: group metadata and members).

    Raises ValueError when the bytes end early or go on after the last field.
    """
    reader = _Reader(data)
    if reader.int16() not in (0, 1):
        return None
    key = OffsetCommitKey(reader.string(), TopicPartition(reader.string(), reader.int32()))
    reader.finish()
    return key


def decode_offset_value(data: bytes) -> OffsetCommitValue:
    """Any version from 0 to 4. Raises ValueError."""
    reader = _Reader(data)
    version = reader.int16()
    if not 0 <= version <= 4:
        raise ValueError(f"an offset value of version {version}; 0 to 4 are known here: a newer version wrote it")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else NO_LEADER_EPOCH
    reader.flexible = version >= 4
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    if version == 1:
        reader.int64()  # expireTimestamp: Kafka 2.1 and later ignore it too
    if version < 4:
        reader.finish()
    return OffsetCommitValue(offset, metadata, commit_timestamp_ms, leader_epoch)


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``, signed: over UTF-16 code units, so an emoji counts as two."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for_group(group: str, partition_count: int) -> int:
    """The partition of ``__consumer_offsets`` that keeps the group: Kafka's ``Utils.abs(hash) % count``.

    ``Utils.abs`` is the absolute value, 0 for -2147483648; it is *not* ``hash & 0x7fffffff``.
    """
    value = java_string_hash(group)
    return 0 if value == -(1 << 31) else abs(value) % partition_count


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _SHORT:
        raise ValueError(f"a string of {len(data):,} bytes is longer than the format's {_SHORT:,}")
    return _INT16.pack(len(data)) + data


def _nullable(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


class _Reader:
    """Fields in order. ``flexible`` versions have lengths as unsigned varints of length + 1, and tagged fields."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def _unpack(self, layout: struct.Struct) -> int:
        try:
            value: int = layout.unpack_from(self._data, self._position)[0]
        except struct.error:
            raise ValueError(f"the bytes end early, at {len(self._data)}") from None
        self._position += layout.size
        return value

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def string(self) -> str:
        return self._text(self._varint() - 1 if self.flexible else self.int16())

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self.flexible else self.int16()
        return None if length == -1 else self._text(length)

    def byte_string(self) -> bytes:
        return self._take(self.count())

    def count(self) -> int:
        """The length of an array or of bytes: never more than there are bytes left."""
        count = self._varint() - 1 if self.flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"{count} elements do not fit in {len(self._data)} bytes")
        return count

    def tagged_fields(self) -> None:
        """Fields of later versions, passed over."""
        if self.flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())

    def _varint(self) -> int:
        value = shift = 0
        while True:
            if self._position >= len(self._data) or shift > 28:
                raise ValueError("a length is no varint")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"a string of {length} bytes does not fit in {len(self._data)} bytes")
        data = self._data[self._position : end]
        self._position = end
        return data

    def _text(self, length: int) -> str:
        return self._take(length).decode()  # UnicodeDecodeError is a ValueError

    def finish(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes after the last field")
