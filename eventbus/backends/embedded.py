"""``memory://`` and ``file://``: the same backend with two storages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.masking import shown_url
from eventbus.backends.statistics import Statistics, TopicStatistics
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.coordinator.requests import (
    GroupDescription,
    GroupListing,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from eventbus.errors import ConcurrentTransactions, ConfigError, KafkaError, UnknownMemberId
from eventbus.suggest import nearest
from eventbus.types import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)

if TYPE_CHECKING:  # the log itself, which takes 60 ms, is imported when it is opened: some programs only inspect a bus
    from eventbus.backends.embedded_consumer import EmbeddedConsumer
    from eventbus.backends.embedded_producer import EmbeddedProducer
    from eventbus.backends.engine import Engine

_FENCING_ATTEMPTS = 10
_CLEAN_UP_SECONDS = 1.0


class EmbeddedBackend:
    """See `Backend`. ``make_engine`` is called at start: buses of a process share the engine of a log."""

    def __init__(
        self, url: str, engine_of: Callable[[], Engine], timers: Timers | None = None, *, is_private: bool = False
    ) -> None:
        self.url = url
        self.is_private = is_private
        """True for a log of a single bus, which is empty whenever the bus starts."""
        self.timers: Timers = timers or RealTimers()
        self._engine_of = engine_of
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise ConfigError(f"{shown_url(self.url)} is not open: use it inside `async with bus:`")
        return self._engine

    @property
    def auto_creates_topics(self) -> bool:
        return self.engine.config.auto_create_topics

    @property
    def trouble(self) -> str:
        return "" if self._engine is None else self._engine.broker.trouble

    def statistics(self) -> Statistics:
        if self._engine is None:
            return Statistics()
        engine = self._engine
        return Statistics(
            log=engine.statistics(), topics=tuple(_counted(one) for one in engine.broker.describe_topics(None))
        )

    async def start(self, *, clients_may_return: bool = False) -> None:
        """Open the log; for ``clients_may_return`` see `Engine.attach`."""
        if self._engine is None:
            engine = self._engine_of()
            engine.attach(clients_may_return=clients_may_return)
            self._engine = engine

    async def run(self) -> None:
        from eventbus.backends.cleaning import clean_logs, look_seconds

        engine = self.engine
        clean_from_ms = engine.now_ms()
        if not engine.broker.missed_clean_up:
            clean_from_ms += engine.config.log_cleaner_backoff_ms
            with engine.timers.move_on_after(look_seconds(engine)):
                await engine.run()  # alone: a log that is open only for a moment is compacted when it closes
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clean_logs, engine, clean_from_ms)
            await engine.run()

    async def aclose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            try:
                await _clean_up(engine)
            finally:
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
            # A search by time may read an index from the disk. Other tasks run between two partitions.
            await anyio.lowlevel.checkpoint()
        return found

    async def group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.engine.groups.fetch_offsets(group, None)

    async def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        engine = self.engine
        stored = engine.groups.commit_offsets(group, dict(offsets), engine.now_ms())
        await self._flush()
        for error in stored.errors.values():
            raise error

    async def list_groups(self) -> list[GroupListing]:
        return self.engine.groups.list()

    async def describe_groups(self, groups: Sequence[str]) -> list[GroupDescription]:
        return self.engine.groups.describe(groups)

    async def delete_group(self, group: str) -> None:
        engine = self.engine
        engine.groups.delete(group, engine.now_ms())
        await self._flush()

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        engine = self.engine
        engine.groups.delete_offsets(group, list(partitions), engine.now_ms())
        await self._flush()

    async def remove_group_members(self, group: str, members: Sequence[str] | None = None) -> None:
        engine = self.engine
        # Names may be instance ids or member ids, as in Kafka's own tool.
        (description,) = engine.groups.describe([group])
        names = {one.group_instance_id or one.member_id: one for one in description.members}
        names |= {one.member_id: one for one in description.members}
        chosen = [one.member_id for one in description.members] if members is None else members
        for name in chosen:
            if name not in names:
                raise UnknownMemberId(
                    f"group {group!r} has no member {name!r}{nearest(name, names)}; `admin.describe_group` shows them"
                )
        leaving = [(names[name].member_id, names[name].group_instance_id) for name in chosen]
        errors = engine.groups.leave(group, leaving, engine.now_ms(), "removed by an administrator")
        for member in engine.members_of(group):
            member.heartbeat()  # so that they notice now
        engine.deadline_changed()
        await self._flush()
        for error in errors:
            if error is not None:
                raise error

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        engine = self.engine
        return {tp: engine.broker.delete_records(tp, offset, engine.now_ms()) for tp, offset in before.items()}

    # transactions ----------------------------------------------------------------------------------------------------

    async def list_transactions(self) -> list[TransactionListing]:
        return self.engine.broker.transactions.list()

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[TransactionDescription]:
        transactions = self.engine.broker.transactions
        return [transactions.describe(transactional_id) for transactional_id in transactional_ids]

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        broker = self.engine.broker
        return {topic_partition: broker.describe_producers(topic_partition) for topic_partition in partitions}

    async def abort_transaction(self, transactional_id: str) -> None:
        engine = self.engine
        engine.broker.transactions.abort(transactional_id, engine.now_ms())
        await self._settle()

    async def fence_producer(self, transactional_id: str) -> ProducerIdAndEpoch:
        engine = self.engine
        # Raises for an unknown id: taking it over would create it.
        timeout_ms = engine.broker.transactions.describe(transactional_id).timeout_ms
        for _ in range(_FENCING_ATTEMPTS):
            try:
                owner = engine.broker.transactions.init_producer_id(transactional_id, timeout_ms, engine.now_ms())
            except ConcurrentTransactions:
                await self._settle()
                continue
            await self._settle()
            return owner
        raise ConcurrentTransactions(
            f"the open transaction of {transactional_id!r} is still being ended: try again in a moment"
        )

    async def _settle(self) -> None:
        """Return when decisions about transactions are durable, with the markers that follow from them."""
        engine = self.engine
        for _ in range(2):  # first the decision, then the markers
            await self._flush()
            engine.broker.transactions.finish_prepared(engine.now_ms())
        await self._flush()

    async def _flush(self) -> None:
        if self.engine.waits_for_flush:
            await self.engine.flushes.flush_all()

    # clients ---------------------------------------------------------------------------------------------------------

    def producer(self, config: ProducerConfig) -> EmbeddedProducer:
        from eventbus.backends.embedded_producer import EmbeddedProducer

        return EmbeddedProducer(self.engine, config)

    def consumer(self, config: ConsumerConfig) -> EmbeddedConsumer:
        from eventbus.backends.embedded_consumer import EmbeddedConsumer

        return EmbeddedConsumer(self.engine, config)


def _counted(one: TopicDescription) -> TopicStatistics:
    return TopicStatistics(
        topic=one.name,
        partitions=len(one.partitions),
        records=sum(part.log_end_offset - part.log_start_offset for part in one.partitions),
        size_bytes=sum(part.size_bytes for part in one.partitions),
    )


async def _clean_up(engine: Engine) -> None:
    """Delete and compact what is due before the log is closed, within a second.

    Scripts and jobs end before the housekeeping has begun, and a directory that only they use would grow without end. A
    cleaning that takes longer is broken off, and loses nothing.
    """
    from eventbus.backends.cleaning import clean_next

    if engine.closes_with_next:
        # A test no longer advances its clock at this point.
        with RealTimers().move_on_after(_CLEAN_UP_SECONDS, shield=True):
            while engine.clean_up():
                await anyio.lowlevel.checkpoint()
            while await clean_next(engine):
                pass
