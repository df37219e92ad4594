"""Data that consumers exchange through their coordinator: subscriptions, assignments, and what sticky members held.

Schemas: ConsumerProtocolSubscription, ConsumerProtocolAssignment and StickyAssignorUserData in the tables of
`eventbus.protocol`. The coordinator forwards these bytes unread. A later version may only add fields, so bytes after
the known fields are ignored, as Kafka's clients do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from eventbus.coordinator.assignors import Subscription
from eventbus.protocol import MalformedMessage, encode, messages, reader
from eventbus.protocol.log_records import record_type
from eventbus.types import TopicPartition

_VERSION = 3
"""The version written. Kafka's clients have written it since 3.5; older clients read the fields that they know."""

_Message = TypeVar("_Message", bound=msgspec.Struct)


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode as version 3, with topics and partitions sorted, as the Java client does."""
    made = messages.ConsumerProtocolSubscription
    owned = _by_topic(subscription.owned_partitions)
    message = made(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[made.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in owned.items()],
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return _VERSION.to_bytes(2, "big") + encode(message, _VERSION)


def decode_subscription(data: bytes) -> Subscription:
    """Decode any version. Raises ValueError for bytes that are not a subscription."""
    message = _decode(messages.ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        user_data=message.user_data,
        owned_partitions=tuple(
            [TopicPartition(owned.topic, number) for owned in message.owned_partitions for number in owned.partitions]
        ),
        generation_id=message.generation_id,
        rack_id=message.rack_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """Encode as version 3; all versions have the same fields."""
    made = messages.ConsumerProtocolAssignment
    assigned = [
        made.TopicPartition(topic=topic, partitions=numbers) for topic, numbers in _by_topic(partitions).items()
    ]
    message = made(assigned_partitions=assigned, user_data=user_data)
    return _VERSION.to_bytes(2, "big") + encode(message, _VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode any version; empty bytes mean an empty assignment. Raises ValueError for other bytes."""
    if not data:
        return []  # a coordinator sends this to a member that the leader left out
    assigned = _decode(messages.ConsumerProtocolAssignment, data).assigned_partitions
    return [TopicPartition(topic.topic, number) for topic in assigned for number in topic.partitions]


def encode_sticky_user_data(partitions: Iterable[TopicPartition], generation_id: int) -> bytes:
    """Encode StickyAssignorUserData, version 1: the partitions a member held, and the generation. It has no version
    field."""
    made = messages.StickyAssignorUserData
    held = [made.TopicAssignment(topic=topic, partitions=numbers) for topic, numbers in _by_topic(partitions).items()]
    return encode(made(previous_assignment=held, generation=generation_id), 1)


def decode_sticky_user_data(data: bytes) -> tuple[list[TopicPartition], int]:
    """Decode version 1, or version 0, which ends before the generation (-1 then). Raises ValueError."""
    message, end = reader("StickyAssignorUserData", 0)(data, 0)
    if end < len(data):
        message, _ = reader("StickyAssignorUserData", 1)(data, 0)
    held = message.previous_assignment
    return [TopicPartition(topic.topic, number) for topic in held for number in topic.partitions], message.generation


def _decode(cls: type[_Message], data: bytes) -> _Message:
    """Decode the fields known here, of whatever version."""
    version = record_type(data)
    if version < 0:
        raise MalformedMessage(f"{cls.__name__} of version {version}: versions begin at 0")
    message: _Message = reader(cls.__name__, min(version, _VERSION))(data, 2)[0]
    return message


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic
