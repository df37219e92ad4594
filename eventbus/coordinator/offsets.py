"""Committed offsets of the groups that are stored in one partition of ``__consumer_offsets``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from eventbus.coordinator.codec import (
    NAMES,
    NO_LEADER_EPOCH,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from eventbus.coordinator.requests import SentOffset
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import (
    InvalidGroupId,
    InvalidRequest,
    KafkaError,
    OffsetMetadataTooLarge,
    UnstableOffsetCommit,
)
from eventbus.types import OffsetAndMetadata, TopicPartition

OFFSET_METADATA_MAX_BYTES = 4096
"""Kafka's ``offset.metadata.max.bytes``. Kafka measures it in characters, and so does this code."""

_INT64_MAX = (1 << 63) - 1

CommitErrors = dict[TopicPartition, KafkaError]
NewOffsets = Mapping[TopicPartition, OffsetAndMetadata | SentOffset]


class CommittedOffset(NamedTuple):
    """A committed offset and the position of its commit in the log."""

    value: OffsetCommitValue
    position: int
    """Counts records. Of two commits, the commit that is later in the log is valid, even if the earlier commit
    belongs to a transaction that ended after it."""


OffsetsOfGroup = dict[TopicPartition, CommittedOffset]


class Offsets:
    """Hard state only: ``groups``, and ``pending``, the uncommitted offsets of open transactions by producer id."""

    __slots__ = ("_decided", "_position", "groups", "pending")

    def __init__(self) -> None:
        self.groups: dict[str, OffsetsOfGroup] = {}
        self.pending: dict[int, dict[str, OffsetsOfGroup]] = {}
        self._position = 0
        self._decided: dict[bytes, OffsetCommitValue] = {}
        """The values decided last, by their encoded bytes: they are replayed next, and need not be decoded for that."""

    def __repr__(self) -> str:
        groups = [f"{group}{_line(offsets)}" for group, offsets in sorted(self.groups.items())]
        for producer_id, pending in sorted(self.pending.items()):
            groups += [f"{group}{_line(offsets)}?{producer_id}" for group, offsets in sorted(pending.items())]
        return " ".join(groups)

    # decide ----------------------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: NewOffsets, wall_now_ms: int) -> Decision[CommitErrors]:
        """Store offsets; the reply holds an error for each partition that was refused, the others are stored."""
        records: list[CoordinatorRecord] = []
        errors: CommitErrors = {}
        self._decided.clear()
        for topic_partition, given in offsets.items():
            offset, metadata = given.offset, given.metadata
            sent = isinstance(given, SentOffset)
            if len(metadata) > OFFSET_METADATA_MAX_BYTES:
                errors[topic_partition] = OffsetMetadataTooLarge(
                    f"commit of group {group!r} for {topic_partition}: metadata of {len(metadata):,} characters, "
                    f"{OFFSET_METADATA_MAX_BYTES:,} at most: keep a key to it here, and the text elsewhere"
                )
            elif not sent and not 0 <= offset <= _INT64_MAX:
                errors[topic_partition] = InvalidRequest(
                    f"commit of group {group!r} for {topic_partition}: offset {offset}; commit the next offset to "
                    f"read, 0 to {_INT64_MAX}; to forget a commit use delete_offsets"
                )
            elif not (metadata.isascii() or is_text(metadata)):
                errors[topic_partition] = InvalidRequest(
                    f"commit of group {group!r} for {topic_partition}: metadata that UTF-8 cannot hold"
                )
            else:
                leader_epoch = given.leader_epoch if sent else NO_LEADER_EPOCH
                value = OffsetCommitValue(int(offset), metadata, wall_now_ms, leader_epoch)
                key = encode_offset_key(OffsetCommitKey(group, topic_partition))
                data = encode_offset_value(value)
                self._decided[data] = value
                # All partitions of a commit go into one batch, which the log stores as a whole or not at all.
                records.append(CoordinatorRecord(key, data))
        return Decision(tuple(records), errors)

    def forget(self, group: str, topic_partitions: Iterable[TopicPartition] | None = None) -> list[CoordinatorRecord]:
        """Return tombstones of a group's offsets, all or some, pending included. Partitions without an offset are
        skipped."""
        held = self.held(group)
        wanted = held if topic_partitions is None else held.keys() & set(topic_partitions)
        return [_tombstone(group, topic_partition) for topic_partition in held if topic_partition in wanted]

    def forget_topics(self, topics: Container[str]) -> list[CoordinatorRecord]:
        """Return tombstones of every group's offsets of some topics: a new topic of the name starts at 0."""
        names = {*self.groups, *(group for pending in self.pending.values() for group in pending)}
        return [
            _tombstone(group, topic_partition)
            for group in sorted(names)
            for topic_partition in self.held(group)
            if topic_partition.topic in topics
        ]

    def expired(
        self, group: str, since_ms: Callable[[TopicPartition, OffsetCommitValue], int | None], limit_ms: int
    ) -> list[CoordinatorRecord]:
        """Return tombstones of the offsets for which ``since_ms`` returns a time before ``limit_ms``.

        An offset stays if ``since_ms`` returns None, or if an open transaction would commit it.
        """
        found: list[CoordinatorRecord] = []
        for topic_partition, (value, _) in self.groups.get(group, {}).items():
            since = since_ms(topic_partition, value)
            if since is not None and since <= limit_ms and not self._is_pending(group, topic_partition):
                found.append(_tombstone(group, topic_partition))
        return found

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: OffsetCommitKey, value: bytes | None) -> None:
        self._position += 1
        group, topic_partition = key
        if value is not None:
            committed = CommittedOffset(self._decided.get(value) or decode_offset_value(value), self._position)
            self.groups.setdefault(group, {})[topic_partition] = committed
            return
        _drop(self.groups, group, topic_partition)
        # A deletion also covers offsets of open transactions. Otherwise the commit of the transaction would bring the
        # deleted offset back.
        for producer_id, pending in list(self.pending.items()):
            _drop(pending, group, topic_partition)
            if not pending:
                del self.pending[producer_id]

    def replay_pending(self, producer_id: int, key: OffsetCommitKey, value: bytes | None) -> None:
        if value is None:
            # The order of a deletion and a transaction's end could not be replayed: pending records take effect at the
            # marker.
            raise ValueError("a tombstone inside a transaction, which no coordinator writes")
        self._position += 1
        committed = CommittedOffset(self._decided.get(value) or decode_offset_value(value), self._position)
        self.pending.setdefault(producer_id, {}).setdefault(key.group, {})[key.topic_partition] = committed

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        # Offsets of an aborted transaction are dropped, as if they had never been sent.
        pending = self.pending.pop(producer_id, {})
        if not committed:
            return
        for group, offsets in pending.items():
            held = self.groups.setdefault(group, {})
            for topic_partition, offset in offsets.items():
                # A plain commit may have come after the transaction's commit. It is later in the log, so it stays, as
                # in Kafka, although the marker comes last.
                if topic_partition not in held or held[topic_partition].position < offset.position:
                    held[topic_partition] = offset

    # look ------------------------------------------------------------------------------------------------------------

    def held(self, group: str) -> dict[TopicPartition, None]:
        """Return the partitions of which the group has an offset, committed or pending."""
        return dict.fromkeys(
            topic_partition
            for groups in (self.groups, *self.pending.values())
            for topic_partition in groups.get(group, ())
        )

    def _is_pending(self, group: str, topic_partition: TopicPartition) -> bool:
        return any(topic_partition in pending.get(group, ()) for pending in self.pending.values())

    def look_up(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetCommitValue | UnstableOffsetCommit]:
        """Return stored commits of the group; a partition without a commit is absent.

        With ``require_stable``, a partition whose offset an open transaction may change gets an error (KIP-447).
        """
        offsets = self.groups.get(group, {})
        # Pending partitions too: an offset that a transaction is about to commit for the first time is not stable
        # either.
        if topic_partitions is None:
            topic_partitions = list(self.held(group)) if require_stable else list(offsets)
        found: dict[TopicPartition, OffsetCommitValue | UnstableOffsetCommit] = {}
        for topic_partition in topic_partitions:
            if require_stable and self.pending and self._is_pending(group, topic_partition):
                found[topic_partition] = UnstableOffsetCommit(
                    f"offset of group {group!r} for {topic_partition}: an open transaction may change it; "
                    "try again in a moment"
                )
            elif topic_partition in offsets:
                found[topic_partition] = offsets[topic_partition].value
        return found

    def fetch(
        self, group: str, topic_partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the group committed; a partition without a commit is absent, an unknown group has
        none.

        A negative offset is not a position to resume from, so it counts as no commit. With ``require_stable``, raises
        UnstableOffsetCommit if an open transaction may change one of them.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic_partition, value in self.look_up(group, topic_partitions, require_stable=require_stable).items():
            if isinstance(value, UnstableOffsetCommit):
                raise value
            if value.offset >= 0:
                found[topic_partition] = OffsetAndMetadata(value.offset, value.metadata)
        return found


def _line(offsets: OffsetsOfGroup) -> str:
    texts = (
        f"{tp}={value.offset}{value.metadata and repr(value.metadata)}@{value.commit_timestamp_ms}"
        for tp, (value, _) in sorted(offsets.items())
    )
    return f"[{' '.join(texts)}]"


def _tombstone(group: str, topic_partition: TopicPartition) -> CoordinatorRecord:
    return CoordinatorRecord(encode_offset_key(OffsetCommitKey(group, topic_partition)), None)


def _drop(groups: dict[str, OffsetsOfGroup], group: str, topic_partition: TopicPartition) -> None:
    offsets = groups.get(group)
    if offsets is not None and offsets.pop(topic_partition, None) is not None and not offsets:
        del groups[group]


@lru_cache(NAMES)
def check_group(group: str) -> None:
    """Raise InvalidGroupId for a group name that cannot be stored."""
    if not is_text(group):
        raise InvalidGroupId(f"group {group!r} is not valid Unicode text: choose another name")
    size_bytes = len(group.encode())
    if not 0 < size_bytes <= 32_767:
        raise InvalidGroupId(f"a group's name has 1 to 32,767 bytes, this one has {size_bytes:,}: choose another name")


def is_text(text: str) -> bool:
    """True if the text can be encoded as UTF-8: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
