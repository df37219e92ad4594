"""The environment of a promise: a started bus, unique names, and helpers to read all records."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import TypeVar, Unpack

import anyio

from eventbus.client.admin import Admin
from eventbus.client.bus import EventBus
from eventbus.client.consumer import Consumer
from eventbus.client.keywords import ProducerFunctionOptions, ProducerOptions
from eventbus.client.producer import Producer
from eventbus.testing.conformance.target import Target
from eventbus.types import ConsumerRecord, IsolationLevel, RecordMetadata, TopicPartition

C = TypeVar("C", Producer, Consumer)

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


class World:
    """A bus on the target (``world.bus``), and helpers for common operations of promises."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._numbers = itertools.count(1)
        self._buses: list[EventBus] = []
        self._doomed: list[Producer | Consumer] = []
        self._stack = AsyncExitStack()
        self.bus: EventBus

    async def __aenter__(self) -> World:
        self.bus = await self.another_bus()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close_buses()

    async def another_bus(self) -> EventBus:
        """Start another bus on the same log."""
        bus = self.target.open()
        await bus.start()
        self._buses.append(bus)
        return bus

    async def close_buses(self) -> None:
        """Close every bus; the log keeps its content."""
        while self._buses:
            await self._buses.pop().close()

    async def restart(self) -> None:
        """Close every bus, restart the log, and open a new bus."""
        await self.close_buses()
        await self.target.restart()
        self.bus = await self.another_bus()

    async def kill(self) -> None:
        """Kill the log and its clients; then open it again."""
        await self.target.kill()
        while self._buses:
            with suppress(Exception):
                await self._buses.pop().close()
        self.bus = await self.another_bus()

    async def doomed(self, client: C) -> C:
        """Open a client that is in use when the log is killed, and that is never closed explicitly."""
        await client.__aenter__()
        self._doomed.append(client)
        return client

    @property
    def admin(self) -> Admin:
        return self.bus.admin

    # names -----------------------------------------------------------------------------------------------------------

    def name(self, what: str) -> str:
        """Return a unique name for a topic, a group, or a transactional id."""
        return f"{self.target.prefix}{what}-{next(self._numbers)}"

    async def topic(self, partitions: int = 1, **configs: object) -> str:
        """Create a topic; configs are given with underscores."""
        name = self.name("topic")
        await self.admin.create_topic(name, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})
        return name

    # writing ---------------------------------------------------------------------------------------------------------

    async def send(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> None:
        """Send records in order, and wait for all acknowledgements."""
        for value in values:
            await self.bus.send(topic, value, key=key, partition=partition)

    @asynccontextmanager
    async def producer(
        self,
        transactional_id: str | None = None,
        bus: EventBus | None = None,
        **config: Unpack[ProducerFunctionOptions],
    ) -> AsyncGenerator[Producer, None]:
        """Open a producer; a transactional id is taken over when it first begins."""
        options: ProducerOptions = {**config}
        if transactional_id is not None:
            options["transactional_id"] = transactional_id
        async with (bus or self.bus).new_producer(**options) as producer:
            yield producer

    # reading ---------------------------------------------------------------------------------------------------------

    async def records(
        self, topic: str, partition: int = 0, isolation: IsolationLevel = COMMITTED
    ) -> list[ConsumerRecord]:
        """Return all records of a partition that a reader with that isolation may see now."""
        where = TopicPartition(topic, partition)
        end = (await self.admin.list_offsets({where: -1}, isolation))[where].offset
        found: list[ConsumerRecord] = []
        async with self.bus.new_consumer(isolation_level=isolation) as consumer:
            await consumer.assign([where])
            await consumer.seek_to_beginning()
            while await consumer.position(where) < end:
                found += await consumer.poll(timeout_ms=100)
        return [record for record in found if record.offset < end]

    async def values(self, topic: str, partition: int = 0, isolation: IsolationLevel = COMMITTED) -> list[bytes | None]:
        """Return the values of `records`."""
        return [record.value for record in await self.records(topic, partition, isolation)]

    async def first_offset(self, topic: str, partition: int = 0) -> int:
        return await self._offset(TopicPartition(topic, partition), -2, COMMITTED)

    async def end_offset(self, topic: str, partition: int = 0, isolation: IsolationLevel = COMMITTED) -> int:
        return await self._offset(TopicPartition(topic, partition), -1, isolation)

    async def _offset(self, where: TopicPartition, at: int, isolation: IsolationLevel) -> int:
        return (await self.admin.list_offsets({where: at}, isolation))[where].offset

    # waiting ---------------------------------------------------------------------------------------------------------

    async def eventually(self, true: Callable[[], Awaitable[bool]], what: str) -> None:
        """Return when ``true`` is true; the time limit of the promise applies."""
        try:
            while not await true():  # noqa: ASYNC110 - there is no notification of what is due
                await anyio.sleep(0.002)
        except anyio.get_cancelled_exc_class() as cancelled:
            cancelled.add_note(f"still waiting: {what}")
            raise

    async def settled(
        self, consumers: Sequence[Consumer], partitions: Iterable[TopicPartition]
    ) -> list[ConsumerRecord]:
        """Poll the members in turn until each partition has exactly one owner among them; return the records polled.

        A rebalance counts as over when all agree for a few rounds, and the group has no newer generation: members may
        learn of it late.
        """
        wanted = sorted(partitions)
        records: list[ConsumerRecord] = []
        calm = 0
        while calm < 3:
            for consumer in consumers:
                records += await consumer.poll(timeout_ms=1)
            owned = sorted(where for consumer in consumers for where in consumer.assignment())
            calm = calm + 1 if owned == wanted and await self._agree(consumers) else 0
        return records

    async def _agree(self, consumers: Sequence[Consumer]) -> bool:
        """Return True if the group is stable, and has the generation of its members here."""
        members = [consumer.group_metadata() for consumer in consumers]
        described = await self.admin.describe_group(members[0].group)
        generations = {member.generation_id for member in members}
        return described.state == "Stable" and generations == {described.generation_id}

    async def take(self, consumer: Consumer, count: int) -> list[ConsumerRecord]:
        """Return the next ``count`` records of a consumer."""
        records: list[ConsumerRecord] = []
        while len(records) < count:
            records += await consumer.poll(timeout_ms=100, max_records=count - len(records))
        return records


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def offset_of(metadata: RecordMetadata) -> int:
    return metadata.offset
