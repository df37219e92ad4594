"""The progress of a mirror: while it runs, and at its end."""

from __future__ import annotations

from typing import Literal

import msgspec

from eventbus.types import TopicPartition

GroupState = Literal[
    "translated", "ahead of the copy", "live at the destination", "moved at the destination", "refused"
]


class PartitionProgress(msgspec.Struct, kw_only=True):
    """The progress of one partition. Offsets are the source's."""

    copied: int = 0
    """Records copied by this run."""
    copied_bytes: int = 0
    position: int = 0
    """The next offset to read: everything before it is copied, or has no readable record."""
    end: int = 0
    """The next offset that the source will write (the last stable offset), when last checked."""
    lost: int = 0
    """Offsets that the source had deleted before they were copied."""

    @property
    def lag(self) -> int:
        return max(self.end - self.position, 0)


class GroupProgress(msgspec.Struct, kw_only=True):
    """The progress of one group's offsets."""

    state: GroupState
    partitions: int
    """Partitions with a committed offset."""
    committed: int = 0
    """Offsets that this run has committed at the destination."""


class Progress(msgspec.Struct, kw_only=True):
    """The whole progress; it changes while the mirror runs."""

    partitions: dict[TopicPartition, PartitionProgress] = {}
    groups: dict[str, GroupProgress] = {}
    problems: dict[str, str] = {}
    """Topics that are not mirrored any more, each with the reason."""
    refused: dict[TopicPartition, str] = {}
    """Partitions that cannot be copied now, each with the reason. A mirror that follows tries them again."""
    kept_back: dict[str, tuple[str, ...]] = {}
    """Configs of topics that were not copied."""
    looks: int = 0
    """The number of checks of topics, configs and groups."""
    restarts: int = 0
    """The number of restarts after a temporary error."""
    moved_timestamps: int = 0
    """Records of the first millisecond of 1970, which a Kafka client cannot write: they get the second one."""

    @property
    def copied(self) -> int:
        return sum(one.copied for one in self.partitions.values())

    @property
    def copied_bytes(self) -> int:
        return sum(one.copied_bytes for one in self.partitions.values())

    @property
    def lag(self) -> int:
        """The number of offsets that remain."""
        return sum(one.lag for one in self.partitions.values())

    @property
    def lost(self) -> int:
        return sum(one.lost for one in self.partitions.values())

    def of(self, where: TopicPartition) -> PartitionProgress:
        return self.partitions.setdefault(where, PartitionProgress())
