"""``memory://`` and ``file://``: one backend over two storages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.embedded_consumer import EmbeddedConsumer
from eventbus.backends.embedded_producer import EmbeddedProducer
from eventbus.backends.engine import Engine
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import ConfigError, KafkaError
from eventbus.types import IsolationLevel, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition


class EmbeddedBackend:
    """See `Backend`. ``make_engine`` is called at start: engines of one log are shared by the buses of a process."""

    def __init__(self, url: str, engine_of: Callable[[], Engine]) -> None:
        self.url = url
        self._engine_of = engine_of
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ConfigError(f"{self.url} is not open: use it inside `async with bus:`")
        return self._engine

    @property
    def auto_creates_topics(self) -> bool:
        return self.engine.config.auto_create_topics

    async def start(self) -> None:
        if self._engine is None:
            engine = self._engine_of()
            engine.attach()
            self._engine = engine

    async def run(self) -> None:
        await self.engine.run()

    async def aclose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.detach()

    # admin: the broker makes changes of topics durable before it answers; those of groups are flushed here -----------

    async def create_topics(
        self, specs: Sequence[TopicSpec], *, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        engine = self.engine
        result = engine.broker.create_topics(list(specs), engine.clock(), validate_only=validate_only)
        engine.topics_changed()
        return result

    async def delete_topics(self, names: Sequence[str]) -> None:
        engine = self.engine
        errors = engine.broker.delete_topics(list(names), engine.clock())
        engine.topics_changed()
        for error in errors.values():
            if error is not None:
                raise error

    async def add_partitions(self, topic: str, total_count: int) -> None:
        engine = self.engine
        engine.broker.add_partitions(topic, total_count, engine.clock())
        engine.topics_changed()

    async def alter_configs(self, topic: str, set: Mapping[str, str], delete: Sequence[str]) -> None:
        engine = self.engine
        engine.broker.alter_configs(topic, dict(set), list(delete), engine.clock())
        engine.topics_changed()

    async def describe_topics(self, names: Sequence[str] | None = None) -> list[TopicDescription]:
        return self.engine.broker.describe_topics(None if names is None else list(names))

    async def list_offsets(
        self, at: Mapping[TopicPartition, int], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        broker = self.engine.broker
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for topic_partition, when in at.items():
            found[topic_partition] = broker.list_offsets(topic_partition, when, isolation)
            await anyio.lowlevel.checkpoint()
        return found

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.engine.broker.groups.fetch_offsets(group, None)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._refuse_active(group)
        engine = self.engine
        stored = engine.broker.groups.commit_offsets(group, dict(offsets), engine.clock())
        await self._flush()
        for error in stored.errors.values():
            raise error

    async def list_groups(self) -> list[str]:
        return [listing.group for listing in self.engine.broker.groups.list()]

    async def delete_group(self, group: str) -> None:
        self._refuse_active(group)
        engine = self.engine
        engine.broker.groups.delete(group, engine.clock())
        await self._flush()

    def _refuse_active(self, group: str) -> None:
        topics = sorted(topic for name, topic in self.engine.members if name == group)
        if topics:
            raise ConfigError(f"group {group!r} is reading {', '.join(topics)}: stop its consumers first")

    async def _flush(self) -> None:
        if self.engine.waits_for_flush:
            await self.engine.flush_all()

    # clients ---------------------------------------------------------------------------------------------------------

    def producer(self, config: ProducerConfig) -> EmbeddedProducer:
        return EmbeddedProducer(self.engine, config)

    def consumer(self, config: ConsumerConfig) -> EmbeddedConsumer:
        return EmbeddedConsumer(self.engine, config)
