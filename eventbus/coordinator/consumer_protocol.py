"""What consumers tell each other through their coordinator: subscriptions, assignments, what sticky members held.

Schemas: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Apache Kafka's clients, versions 0
to 3. The coordinator passes these bytes on unread. A later version may only add fields, so what follows the known
ones is ignored, as Kafka's clients do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from eventbus.coordinator.assignors import Subscription
from eventbus.types import TopicPartition

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION = 3
"""The one written; Kafka's clients have written it since 3.5, and older ones read as far as they know."""
_SHORT = 32_767


def encode_subscription(subscription: Subscription) -> bytes:
    """Version 3, topics and partitions in order, as the Java client writes them."""
    return b"".join(
        (
            _INT16.pack(_VERSION),
            _INT32.pack(len(subscription.topics)),
            *(_string(topic) for topic in sorted(subscription.topics)),
            _bytes(subscription.user_data),
            _partitions(subscription.owned_partitions),
            _INT32.pack(subscription.generation_id),
            _INT16.pack(-1) if subscription.rack_id is None else _string(subscription.rack_id),
        )
    )


def decode_subscription(data: bytes) -> Subscription:
    """Any version. Raises ValueError for bytes that are no subscription."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.string() for _ in range(reader.count()))
    user_data = reader.bytes()
    owned = reader.partitions() if version >= 1 else []
    generation_id = reader.int32() if version >= 2 else -1
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(
        topics=topics, user_data=user_data, owned_partitions=tuple(owned), generation_id=generation_id, rack_id=rack_id
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Version 3; all versions have the same fields."""
    return _INT16.pack(_VERSION) + _partitions(partitions) + _bytes(user_data)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Any version; no bytes at all are no partitions. Raises ValueError for bytes that are no assignment."""
    if not data:
        return []  # what a coordinator gives a member that its leader left out
    reader = _Reader(data)
    reader.version()
    partitions = reader.partitions()
    reader.bytes()
    return partitions


def encode_sticky_user_data(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """StickyAssignorUserData, version 1: what a member held in which generation. The format has no version field."""
    return _partitions(partitions) + _INT32.pack(generation_id)


def decode_sticky_user_data(data: bytes) -> tuple[list[TopicPartition], int]:
    """Version 1, or version 0, which ends before the generation (-1 then). Raises ValueError."""
    reader = _Reader(data)
    partitions = reader.partitions()
    return partitions, -1 if reader.at_end else reader.int32()


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _SHORT:
        raise ValueError(f"a string of {len(data):,} bytes is longer than the format's {_SHORT:,}")
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes | None) -> bytes:
    return _INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


class _Reader:
    """Reads fields one after another; every length is checked before it is believed."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def _unpack(self, layout: struct.Struct) -> int:
        try:
            value: int = layout.unpack_from(self._data, self._position)[0]
        except struct.error:
            raise ValueError(f"the bytes end early, at {len(self._data)}") from None
        self._position += layout.size
        return value

    def version(self) -> int:
        version = self._unpack(_INT16)
        if version < 0:
            raise ValueError(f"version {version}: versions begin at 0")
        return version

    def int32(self) -> int:
        return self._unpack(_INT32)

    def count(self) -> int:
        """Of an array whose items take two bytes or more each."""
        count = self._unpack(_INT32)
        if not 0 <= 2 * count <= len(self._data) - self._position:
            raise ValueError(f"an array of {count} does not fit in {len(self._data)} bytes")
        return count

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"a field of {length} bytes does not fit in {len(self._data)} bytes")
        data = self._data[self._position : end]
        self._position = end
        return data

    def string(self) -> str:
        return self._take(self._unpack(_INT16)).decode()  # UnicodeDecodeError is a ValueError

    def nullable_string(self) -> str | None:
        length = self._unpack(_INT16)
        return None if length == -1 else self._take(length).decode()

    def bytes(self) -> bytes | None:
        length = self._unpack(_INT32)
        return None if length == -1 else self._take(length)

    def partitions(self) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self.count()):
            topic = self.string()
            count = self.count()
            numbers = struct.unpack(f">{count}i", self._take(4 * count))
            found += [TopicPartition(topic, number) for number in numbers]
        return found
