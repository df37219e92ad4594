"""Kafka's record format of ``__transaction_state``: what a coordinator knows of a transactional id.

Schemas: TransactionLogKey.json and TransactionLogValue.json of Apache Kafka's transaction coordinator. Keys are version
0. Values are written as version 0 and, where they carry what only version 1 can (producer ids that follow or came
before, a bumped epoch), as version 1; both are read, with fields of later versions skipped::

    v0   producer_id int64, producer_epoch int16, timeout_ms int32, status int8,
         [topic string, [partition int32]] (null while there are none), last_update_ms int64, start_ms int64
    v1   the same in compact form, and tagged: 0 previous_producer_id int64, 1 next_producer_id int64,
         2 client_transaction_version int16
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

import msgspec

from eventbus.types import ProducerIdAndEpoch, TopicPartition

NO_PRODUCER_ID = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_TAGGED_INT64 = struct.Struct(">BBq")
_PREVIOUS_TAG, _NEXT_TAG, _VERSION_TAG = 0, 1, 2
_BUMPING_VERSION = b"\x02\x02\x00\x02"
"""Tag, size and value: transactions V2."""
_ONLY_BUMPED = b"\x01" + _BUMPING_VERSION
_SHORT = 32_767
_REMEMBERED = 4_096
"""Transactional ids whose key is not taken apart, or put together, again and again."""


class TransactionState(IntEnum):
    """Where a transactional id stands; the value is Kafka's status byte."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name, as admin tools show it."""
        return "".join(part.capitalize() for part in self.name.split("_"))


class TransactionMetadata(msgspec.Struct, frozen=True):
    """All that is stored of one transactional id. Times in milliseconds."""

    producer_id: int
    producer_epoch: int
    """While a transaction is prepared: the epoch of its markers."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    """Those of the open or prepared transaction."""
    last_update_ms: int = -1
    start_ms: int = -1
    """Of the last transaction; -1 before the first."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The id whose epochs ran out: a retry may still carry it."""
    next_producer_id: int = NO_PRODUCER_ID
    """While a transaction is prepared: the id that follows, because the epochs of this one have run out."""
    is_bumped: bool = False
    """The last end moved the epoch (KIP-890), so its markers' epoch is above that of the records: stored as Kafka's
    ``ClientTransactionVersion`` 2."""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


@lru_cache(_REMEMBERED)
def encode_transaction_key(transactional_id: str) -> bytes:
    """Version 0. Raises ValueError for an id that does not fit Kafka's int16 length."""
    return b"\x00\x00" + _string(transactional_id)


def encode_transaction_value(value: TransactionMetadata) -> bytes:
    """Version 0, or 1 where version 0 would lose something."""
    if value.is_bumped or value.previous_producer_id != NO_PRODUCER_ID or value.next_producer_id != NO_PRODUCER_ID:
        return _encode_value_1(value)
    parts = [_HEAD.pack(0, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)]
    if value.partitions:
        topics = _by_topic(value.partitions)
        parts.append(_INT32.pack(len(topics)))
        for topic, numbers in topics:
            parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    else:
        parts.append(b"\xff\xff\xff\xff")
    parts.append(_TIMES.pack(value.last_update_ms, value.start_ms))
    return b"".join(parts)


def _encode_value_1(value: TransactionMetadata) -> bytes:
    parts = [_HEAD.pack(1, value.producer_id, value.producer_epoch, value.timeout_ms, value.state)]
    if value.partitions:
        topics = _by_topic(value.partitions)
        parts.append(_varint(len(topics) + 1))
        for topic, numbers in topics:
            name = topic.encode()
            parts += (_varint(len(name) + 1), name, _varint(len(numbers) + 1))
            parts += (struct.pack(f">{len(numbers)}i", *numbers), b"\0")
    else:
        parts.append(b"\0")
    parts.append(_TIMES.pack(value.last_update_ms, value.start_ms))
    ids = ((_PREVIOUS_TAG, value.previous_producer_id), (_NEXT_TAG, value.next_producer_id))
    tagged = [_TAGGED_INT64.pack(tag, 8, producer_id) for tag, producer_id in ids if producer_id != NO_PRODUCER_ID]
    if value.is_bumped:
        tagged.append(_BUMPING_VERSION)
    return b"".join((*parts, _varint(len(tagged)), *tagged))


@lru_cache(_REMEMBERED)
def decode_transaction_key(data: bytes) -> str:
    """The transactional id. Raises ValueError when the bytes are of another version, end early or go on."""
    reader = _Reader(data)
    version = reader.unpack(_INT16)
    if version != 0:
        raise ValueError(f"a transaction's key of version {version}; 0 is known here: a newer version wrote it")
    transactional_id = reader.text(reader.unpack(_INT16))
    reader.finish()
    return transactional_id


def decode_transaction_value(data: bytes) -> TransactionMetadata:
    """Version 0 or 1. Raises ValueError."""
    reader = _Reader(data)
    version, producer_id, producer_epoch, timeout_ms, status = reader.unpack_all(_HEAD)
    if version not in (0, 1):
        raise ValueError(f"a transaction's value of version {version}; 0 and 1 are known here: a newer one wrote it")
    if status not in range(TransactionState.DEAD):  # the last two are never stored
        raise ValueError(f"a transaction's value of status {status}")
    partitions = reader.partitions_1() if version else reader.partitions_0()
    last_update_ms, start_ms = reader.unpack_all(_TIMES)
    tagged = reader.tagged() if version else {}
    reader.finish()
    return TransactionMetadata(
        producer_id,
        producer_epoch,
        timeout_ms,
        TransactionState(status),
        partitions,
        last_update_ms,
        start_ms,
        _integer(tagged.get(_PREVIOUS_TAG), 8, NO_PRODUCER_ID),
        _integer(tagged.get(_NEXT_TAG), 8, NO_PRODUCER_ID),
        _integer(tagged.get(_VERSION_TAG), 2, 0) >= 2,
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return list(topics.items())


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _SHORT:
        raise ValueError(f"a string of {len(data):,} bytes is longer than the format's {_SHORT:,}")
    return _INT16.pack(len(data)) + data


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _integer(data: bytes | None, size_bytes: int, default: int) -> int:
    if data is None:
        return default
    if len(data) != size_bytes:
        raise ValueError(f"a tagged field of {len(data)} bytes; {size_bytes} belong there")
    return int.from_bytes(data, "big", signed=True)


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def unpack(self, layout: struct.Struct) -> int:
        return self.unpack_all(layout)[0]

    def unpack_all(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values: tuple[int, ...] = layout.unpack_from(self._data, self._position)
        except struct.error:
            raise ValueError(f"the bytes end early, at {len(self._data)}") from None
        self._position += layout.size
        return values

    def take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"{length} bytes do not fit in {len(self._data)} bytes")
        data = self._data[self._position : end]
        self._position = end
        return data

    def text(self, length: int) -> str:
        return self.take(length).decode()  # UnicodeDecodeError is a ValueError

    def varint(self) -> int:
        if self._position < len(self._data) and (byte := self._data[self._position]) < 0x80:
            self._position += 1
            return byte
        value = shift = 0
        while shift < 35:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise ValueError("a length is no varint")

    def partitions_0(self) -> frozenset[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self.unpack(_INT32)):  # null is -1: none
            topic = self.text(self.unpack(_INT16))
            found += [TopicPartition(topic, number) for number in self._numbers(self.unpack(_INT32))]
        return frozenset(found)

    def partitions_1(self) -> frozenset[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self.varint() - 1):
            topic = self.text(self.varint() - 1)
            found += [TopicPartition(topic, number) for number in self._numbers(self.varint() - 1)]
            self.tagged()
        return frozenset(found)

    def _numbers(self, count: int) -> tuple[int, ...]:
        data = self.take(4 * count)
        return struct.unpack(f">{count}i", data)

    def tagged(self) -> dict[int, bytes]:
        """The tagged fields behind a structure, by tag."""
        if self._data.startswith(_ONLY_BUMPED, self._position):
            self._position += len(_ONLY_BUMPED)
            return {_VERSION_TAG: b"\x00\x02"}
        fields: dict[int, bytes] = {}
        for _ in range(self.varint()):
            tag = self.varint()
            fields[tag] = self.take(self.varint())
        return fields

    def finish(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes after the last field")
