"""Kafka's record format of ``__consumer_offsets``: committed offsets.

Schemas: OffsetCommitKey.json and OffsetCommitValue.json of Apache Kafka's group coordinator. Every key and value
starts with an int16 version; strings are an int16 length and UTF-8. Keys are written as version 1 and values as
version 3, as Kafka does; all versions up to Kafka 4.x are read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from eventbus.types import TopicPartition

NO_LEADER_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
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
    metadata = reader.compact_string() if version >= 4 else reader.string()
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


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

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
        return self._text(self.int16())

    def compact_string(self) -> str:
        """Flexible versions: an unsigned varint of length + 1."""
        length = shift = 0
        while True:
            if self._position >= len(self._data) or shift > 28:
                raise ValueError("a string's length is no varint")
            byte = self._data[self._position]
            self._position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._text(length - 1)

    def _text(self, length: int) -> str:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"a string of {length} bytes does not fit in {len(self._data)} bytes")
        text = self._data[self._position : end].decode()  # UnicodeDecodeError is a ValueError
        self._position = end
        return text

    def finish(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes after the last field")
