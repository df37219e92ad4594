"""Committed offsets of the groups that live in one partition of ``__consumer_offsets``. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from eventbus.coordinator.codec import (
    NO_LEADER_EPOCH,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import GroupIdNotFound, InvalidRequest, KafkaError, OffsetMetadataTooLarge
from eventbus.types import OffsetAndMetadata, TopicPartition

OFFSET_METADATA_MAX_BYTES = 4096
"""Kafka's ``offset.metadata.max.bytes``; Kafka measures it in characters, and so do we."""

GroupOffsets = dict[TopicPartition, OffsetCommitValue]
CommitErrors = dict[TopicPartition, KafkaError]


class OffsetsShard:
    """Hard state: ``groups``. A group exists as long as it has an offset."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: dict[str, GroupOffsets] = {}

    def __repr__(self) -> str:
        groups = (
            f"{group}[{' '.join(f'{tp}={offsets[tp].offset}' for tp in sorted(offsets))}]"
            for group, offsets in sorted(self.groups.items())
        )
        return f"OffsetsShard({' '.join(groups)})"

    # decide ----------------------------------------------------------------------------------------------------------

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], now_ms: int
    ) -> Decision[CommitErrors]:
        """Store offsets; the reply holds an error for each partition that was refused, the others are stored."""
        records: list[CoordinatorRecord] = []
        errors: CommitErrors = {}
        check_group(group)
        for topic_partition, (offset, metadata) in offsets.items():
            if len(metadata) > OFFSET_METADATA_MAX_BYTES:
                errors[topic_partition] = OffsetMetadataTooLarge(
                    f"commit of group {group!r} for {topic_partition}: metadata of {len(metadata):,} characters, "
                    f"{OFFSET_METADATA_MAX_BYTES:,} at most: keep a key to it here, and the text elsewhere"
                )
            elif offset < 0:
                errors[topic_partition] = InvalidRequest(
                    f"commit of group {group!r} for {topic_partition}: offset {offset}; commit the next offset to "
                    "read, 0 or more; to forget a commit use delete_offsets"
                )
            elif not _is_text(metadata):
                errors[topic_partition] = InvalidRequest(
                    f"commit of group {group!r} for {topic_partition}: metadata that UTF-8 cannot hold"
                )
            else:
                value = OffsetCommitValue(offset, metadata, now_ms, NO_LEADER_EPOCH)
                key = encode_offset_key(OffsetCommitKey(group, topic_partition))
                records.append(CoordinatorRecord(key, encode_offset_value(value)))
        return Decision(tuple(records), errors)

    def delete_group(self, group: str) -> Decision[int]:
        """Forget a group; the reply counts its offsets. Raises GroupIdNotFound."""
        offsets = self.groups.get(group)
        if not offsets:
            raise GroupIdNotFound(
                f"there is no group {group!r} with committed offsets; `eventbus groups list` shows them"
            )
        return self._forget((group, topic_partition) for topic_partition in offsets)

    def delete_offsets(self, group: str, topic_partitions: Iterable[TopicPartition]) -> Decision[int]:
        """Forget some offsets of a group; those it does not have are passed over."""
        held = self.groups.get(group, {})
        return self._forget((group, topic_partition) for topic_partition in topic_partitions if topic_partition in held)

    def delete_topics(self, topics: Container[str]) -> Decision[int]:
        """Forget every group's offsets of some topics: a new topic of the name starts at 0."""
        return self._forget(
            (group, topic_partition)
            for group, offsets in self.groups.items()
            for topic_partition in offsets
            if topic_partition.topic in topics
        )

    def _forget(self, keys: Iterable[tuple[str, TopicPartition]]) -> Decision[int]:
        records = tuple(CoordinatorRecord(encode_offset_key(OffsetCommitKey(*key)), None) for key in keys)
        return Decision(records, len(records))

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        decoded = decode_offset_key(key)
        if decoded is None:  # group metadata of a later version of this product, or of Kafka: not ours to judge
            return
        group, topic_partition = decoded
        if value is not None:
            self.groups.setdefault(group, {})[topic_partition] = decode_offset_value(value)
            return
        offsets = self.groups.get(group)
        if offsets is not None and offsets.pop(topic_partition, None) is not None and not offsets:
            del self.groups[group]

    # look ------------------------------------------------------------------------------------------------------------

    def fetch(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group committed; a partition without a commit is absent, an unknown group has none."""
        offsets = self.groups.get(group, {})
        wanted = offsets if topic_partitions is None else topic_partitions
        return {tp: OffsetAndMetadata(offsets[tp].offset, offsets[tp].metadata) for tp in wanted if tp in offsets}


def check_group(group: str) -> None:
    """Raises InvalidRequest for a group name that cannot be stored."""
    if not _is_text(group):
        raise InvalidRequest(f"group {group!r} is no text that UTF-8 can hold: choose another name")
    size_bytes = len(group.encode())
    if not 0 < size_bytes <= 32_767:
        raise InvalidRequest(f"a group's name has 1 to 32,767 bytes, this one has {size_bytes:,}: choose another name")


def _is_text(text: str) -> bool:
    """False for half of a surrogate pair: the bytes on disk are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
