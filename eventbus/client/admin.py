"""Topics, offsets and groups of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eventbus.backends.base import Backend
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import KafkaError
from eventbus.types import IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition


class Admin:
    """Administration, the same on every backend. Every change is durable when its call returns."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, Any] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create one topic. Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidConfig."""
        spec = TopicSpec(name, partitions, replication_factor, {k: as_text(v) for k, v in (configs or {}).items()})
        result = (await self._backend.create_topics([spec], validate_only=validate_only))[name]
        if isinstance(result, KafkaError):
            raise result
        return result

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        """Create several topics: each one wholly or not at all, with its outcome."""
        return await self._backend.create_topics(specs, validate_only=validate_only)

    async def delete_topics(self, names: Sequence[str] | str) -> None:
        """Delete topics, their records and the offsets groups have in them."""
        await self._backend.delete_topics([names] if isinstance(names, str) else names)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Topic names in order; internal ones on request."""
        return [t.name for t in await self._backend.describe_topics() if internal or not t.is_internal]

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        """Partitions, offsets, sizes and configs; all topics when none is named."""
        return await self._backend.describe_topics(names)

    async def add_partitions(self, topic: str, total_count: int) -> None:
        """Grow a topic to ``total_count`` partitions. Keys hash differently from then on; a topic never shrinks."""
        await self._backend.add_partitions(topic, total_count)

    async def alter_configs(self, topic: str, set: Mapping[str, Any] | None = None, delete: Sequence[str] = ()) -> None:
        """Set or delete configs of a topic, under Kafka's dotted names."""
        await self._backend.alter_configs(topic, {k: as_text(v) for k, v in (set or {}).items()}, delete)

    async def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets: -1 the end, -2 the beginning, -3 the largest timestamp, or the first at or after a time in ms.

        Offset -1 in the answer means that there is no such record.
        """
        return await self._backend.list_offsets(at, isolation)

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed: the next offset to read per partition."""
        return await self._backend.group_offsets(group)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Set a group's offsets; its consumers must be stopped."""
        await self._backend.alter_group_offsets(
            group, {tp: OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()}
        )

    async def list_groups(self) -> list[str]:
        """Groups that have committed offsets."""
        return await self._backend.list_groups()

    async def delete_group(self, group: str) -> None:
        """Forget a group and its offsets; its consumers must be stopped."""
        await self._backend.delete_group(group)


def as_text(value: Any) -> str:
    """A config value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
