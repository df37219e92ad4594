"""Topics with their configs, and the allocation of producer ids, replayed from ``__cluster_metadata-0``. Pure.

The record format is not Kafka's, whose metadata log is a Raft log with other records. Keys and values are JSON; records
without a key are those of `eventbus.coordinator.security`::

    key    {"type": "topic", "name": "flights"}
    value  {"version": 0, "topic_id": "<22 characters>", "partitions": 3, "configs": {"retention.ms": "1000"},
            "created_ms": 1700000000000}            or null: the topic is deleted

    key    {"type": "producer_ids"}
    value  {"version": 0, "next_producer_id": 1000}  ids below may have been given out, and never are again

A topic's value is complete, so the last record per key is sufficient and the log can be compacted. ``configs`` holds
only what was set on the topic, as text, under Kafka's keys. Unknown fields of a value are refused, not dropped: they
come with a higher ``version``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from eventbus.coordinator.security import SecurityShard, identify_security_record
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import InvalidPartitions, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.suggest import nearest

MAX_PARTITIONS = 10_000
"""The largest partition count of a topic: as many as Kafka creates in one request."""

_PRODUCER_IDS_KEY = b'{"type":"producer_ids"}'

StructT = TypeVar("StructT", bound=msgspec.Struct)

PRODUCER_IDS_BLOCK = 1_000
"""The number of producer ids reserved at once (Kafka's ``ProducerIdsBlock``); a restart drops the rest of a block."""

_VERSION = 0


class TopicState(msgspec.Struct, frozen=True):
    """One topic's stored state."""

    name: str
    topic_id: str
    partitions: int
    configs: dict[str, str]
    created_ms: int


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str = ""


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    topic_id: str
    partitions: int
    configs: dict[str, str]
    created_ms: int


class _ProducerIdsValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    next_producer_id: int


class _Versioned(msgspec.Struct):
    version: int


class TopicsShard:
    """Hard state: ``topics``, ``deleted`` (the names whose last record is a tombstone), ``next_producer_id``, and
    the nested shard ``security`` on this partition."""

    __slots__ = ("deleted", "next_producer_id", "security", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, TopicState] = {}
        self.deleted: set[str] = set()
        self.next_producer_id = 0
        self.security = SecurityShard()

    def __repr__(self) -> str:
        topics = (
            f"{topic.name}({topic.topic_id} partitions={topic.partitions}"
            f"{''.join(f' {key}={value}' for key, value in sorted(topic.configs.items()))})"
            for _, topic in sorted(self.topics.items())
        )
        deleted = (f"-{name}" for name in sorted(self.deleted))
        producer_ids = [f"producer_ids<{self.next_producer_id}"] if self.next_producer_id else []
        security = [repr(self.security)] if self.security.is_used else []
        return f"TopicsShard({' '.join([*topics, *deleted, *producer_ids, *security])})"

    # decide ----------------------------------------------------------------------------------------------------------

    def create(
        self, name: str, partitions: int, configs: Mapping[str, str], topic_id: str, now_ms: int
    ) -> Decision[TopicState]:
        """Create a topic. The broker checks name and configs. Raises TopicAlreadyExists, InvalidPartitions."""
        known = self.topics.get(name)
        if known is not None:
            raise TopicAlreadyExists(
                f"topic {name!r} exists, with {known.partitions} partition(s): use it as it is, "
                f"or delete it first (`eventbus topics delete {name}`)"
            )
        _check_partitions(name, partitions)
        return _stored(TopicState(name, topic_id, partitions, dict(configs), now_ms))

    def delete(self, name: str) -> Decision[TopicState]:
        """Delete a topic. Raises UnknownTopicOrPartition."""
        topic = self.topic(name)
        return Decision((CoordinatorRecord(_encode_key(name), None),), topic)

    def add_partitions(self, name: str, total_count: int) -> Decision[TopicState]:
        """Raise the partition count. Raises InvalidPartitions unless it is higher than before."""
        topic = self.topic(name)
        _check_whole(name, total_count)
        if total_count <= topic.partitions:
            raise InvalidPartitions(
                f"topic {name!r} has {topic.partitions} partition(s), asked for {total_count}: a topic only grows; "
                "for fewer, copy it to a new topic"
            )
        _check_partitions(name, total_count)
        return _stored(msgspec.structs.replace(topic, partitions=total_count))

    def alter_configs(self, name: str, set: Mapping[str, str], delete: Sequence[str]) -> Decision[TopicState]:
        """Set and unset keys, which the broker has checked; nothing is stored if nothing changes."""
        topic = self.topic(name)
        kept = {key: value for key, value in topic.configs.items() if key not in delete}
        configs = {**kept, **set}
        if configs == topic.configs:
            return Decision((), topic)
        return _stored(msgspec.structs.replace(topic, configs=configs))

    def allocate_producer_ids(self) -> Decision[range]:
        """Reserve the next block of producer ids; none of them may be used before the record is on disk."""
        # A block, because each reservation costs a flush. Ids are never reused, so a partition cannot confuse two
        # producers.
        block = range(self.next_producer_id, self.next_producer_id + PRODUCER_IDS_BLOCK)
        value = msgspec.json.encode(_ProducerIdsValue(_VERSION, block.stop))
        return Decision((CoordinatorRecord(_PRODUCER_IDS_KEY, value),), block)

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        if not key:
            self.security.replay(value)
            return
        decoded = _decode(key, _Key)
        if decoded.type == "producer_ids":
            self.next_producer_id = _decode_versioned(value or b"", _ProducerIdsValue).next_producer_id
            return
        if decoded.type != "topic":
            raise ValueError(f"metadata of unknown type {decoded.type!r}: a newer version wrote it")
        name = decoded.name
        if not name:
            raise ValueError("metadata that cannot be read (a topic without a name)")
        if value is None:
            self.topics.pop(name, None)
            # Kept, so that directories that a crash has left are recognised as deleted, and not reported as
            # unknown.
            self.deleted.add(name)
            return
        stored = _decode_versioned(value, _Value)
        self.topics[name] = TopicState(name, stored.topic_id, stored.partitions, stored.configs, stored.created_ms)
        self.deleted.discard(name)

    def identify(self, key: bytes, value: bytes | None) -> tuple[bytes, bool]:
        """See `IdentifyingShard`. The tombstone of a topic is kept: its files may still have to be removed."""
        return (key, True) if key else identify_security_record(value)

    # look ------------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        """Return the topic. Raises UnknownTopicOrPartition with the nearest name."""
        topic = self.topics.get(name)
        if topic is None:
            raise self.unknown(name)
        return topic

    def unknown(self, name: str) -> UnknownTopicOrPartition:
        """Return the error for a topic that does not exist."""
        known = [other for other in self.topics if not other.startswith("__")]
        return UnknownTopicOrPartition(
            f"there is no topic {name!r} (create it: `eventbus topics create {name}`){nearest(name, known)}"
        )


def _check_whole(name: str, partitions: int) -> None:
    """Require the exact type int: 3.0 and True would be written as such, and the log could not be opened again."""
    if type(partitions) is not int:
        raise InvalidPartitions(
            f"topic {name!r} with partitions={partitions!r}: a whole number, 1 to {MAX_PARTITIONS:,}"
        )


def _check_partitions(name: str, partitions: int) -> None:
    _check_whole(name, partitions)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitions(f"topic {name!r} with {partitions} partitions: choose 1 to {MAX_PARTITIONS:,}")


def _decode(data: bytes, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"metadata that cannot be read ({error})") from error


def _decode_versioned(value: bytes, kind: type[StructT]) -> StructT:
    version = _decode(value, _Versioned).version
    if version != _VERSION:
        raise ValueError(f"metadata of version {version}; {_VERSION} is known here: a newer version wrote it")
    return _decode(value, kind)


def _encode_key(name: str) -> bytes:
    return msgspec.json.encode(_Key("topic", name))


def _stored(topic: TopicState) -> Decision[TopicState]:
    value = _Value(_VERSION, topic.topic_id, topic.partitions, topic.configs, topic.created_ms)
    return Decision((CoordinatorRecord(_encode_key(topic.name), msgspec.json.encode(value)),), topic)
