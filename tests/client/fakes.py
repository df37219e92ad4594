"""A consumer, a producer and a group that a test controls step by step, for what no real log does on demand."""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from eventbus import TopicPartition
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.clock import RealTimers, Timers
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.runner import Runner
from eventbus.client.producing.shutdown_work import ShutdownWork
from eventbus.client.transaction import OwnProducer, Transaction
from eventbus.coordinator.requests import GroupDescription
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import FetchedRecords, GroupMetadata, OffsetAndMetadata, TimestampType

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def records(
    partition: TopicPartition, offsets: Iterable[int], key: Callable[[int], bytes | None] = lambda offset: None
) -> FetchedRecords:
    """Return records whose values are their offsets, and whose keys are computed from them."""
    listed = list(offsets)
    keys = [key(offset) for offset in listed]
    values: list[bytes | None] = [b"%d" % offset for offset in listed]
    return FetchedRecords(
        *partition, listed, [0] * len(listed), keys, values, None, TimestampType.CREATE_TIME, listed[-1] + 1
    )


def on_both(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio and on trio."""

    def run(backend: str, **arguments: Any) -> None:
        anyio.run(partial(test, **arguments), backend=backend)

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    signature = inspect.signature(test)
    backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
    named: Any = run
    named.__signature__ = signature.replace(
        parameters=[*signature.parameters.values(), backend], return_annotation=None
    )
    named.pytestmark = list(getattr(test, "pytestmark", []))
    return pytest.mark.parametrize("backend", ["asyncio", "trio"])(run)


async def others_run() -> None:
    """Let all other tasks run until they block. (`wait_all_tasks_blocked` wakes in step with the runner's commits.)"""
    for _ in range(30):
        await anyio.lowlevel.checkpoint()


class FakeConsumer:
    """A consumer whose `fetch` executes the orders of the test, one per call."""

    def __init__(self) -> None:
        self.on_revoked: Callable[[TopicPartition], object] = lambda partition: None
        self.on_revoking: Callable[[list[TopicPartition]], Awaitable[object]]
        self.on_assigned: Callable[[list[TopicPartition]], Awaitable[object]]
        self.on_settled: Callable[[], object]
        self.on_readable: Callable[[TopicPartition], object]
        self._orders: deque[Callable[[], Awaitable[list[FetchedRecords]]]] = deque()
        self._ordered = anyio.Event()
        self.generation = 1
        self.group_generation = 1
        self.state = "Stable"
        self.assigned = {T0, T1}
        self.places: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_error: EventBusError | None = None
        self.paused: set[TopicPartition] = set()

    # orders of the test

    def _order(self, order: Callable[[], Awaitable[list[FetchedRecords]]]) -> None:
        self._orders.append(order)
        self._ordered.set()

    def deliver(self, *chunks: FetchedRecords) -> None:
        self.ends.update({TopicPartition(chunk.topic, chunk.partition): chunk.next_offset for chunk in chunks})

        async def order() -> list[FetchedRecords]:
            for chunk in chunks:
                self.places[TopicPartition(chunk.topic, chunk.partition)] = chunk.next_offset
            return list(chunks)

        self._order(order)

    async def revoke(self, *partitions: TopicPartition) -> None:
        """Return after the runner has released the partitions."""
        done = anyio.Event()

        async def order() -> list[FetchedRecords]:
            await self.on_revoking(list(partitions))
            self.assigned -= set(partitions)
            for partition in partitions:
                self.on_revoked(partition)
            done.set()
            return []

        self._order(order)
        await done.wait()

    async def lose(self, *partitions: TopicPartition) -> None:
        done = anyio.Event()

        async def order() -> list[FetchedRecords]:
            self.assigned -= set(partitions)
            for partition in partitions:
                self.on_revoked(partition)
            done.set()
            return []

        self._order(order)
        await done.wait()

    def answer(self) -> None:
        """Let `fetch` return an empty result."""
        self.deliver()

    # calls of the runner

    async def subscribe(self, topics: Any = (), pattern: str | None = None) -> None: ...

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.assigned)

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        while not self._orders:
            self._ordered = anyio.Event()
            await self._ordered.wait()
        return await self._orders.popleft()()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.commit_error is not None:
            raise self.commit_error
        self.commits.append({partition: offset.offset for partition, offset in offsets.items()})
        self.offsets.update(offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {partition: self.offsets[partition] for partition in partitions if partition in self.offsets}

    def passed(self) -> dict[TopicPartition, int]:
        return {}

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        return {}

    @property
    def deleted_unread(self) -> Counter[TopicPartition]:
        return Counter()

    def polled(self) -> bool:
        return False

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g", self.generation, "me")

    async def position(self, partition: TopicPartition) -> int:
        if partition not in self.assigned:
            raise ConfigError(f"{partition} is not assigned to this consumer")
        return self.places.get(partition, 0)

    async def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        wanted = self.assigned if partitions is None else self.assigned.intersection(partitions)
        return {partition: self.places.get(partition, 0) for partition in wanted}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.ends.get(partition, 0) for partition in partitions}

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: f"id of {topic}" for topic in topics}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused -= set(partitions)

    async def aclose(self) -> None: ...


class FakeBackend:
    def __init__(self, timers: Timers | None = None) -> None:
        self.fake = FakeConsumer()
        self.timers = timers or RealTimers()
        self.trouble = ""

    def consumer(self, config: ConsumerConfig) -> FakeConsumer:
        return self.fake

    async def describe_groups(self, groups: list[str]) -> list[GroupDescription]:
        return [GroupDescription("g", self.fake.state, "consumer", "range", self.fake.group_generation, ())]


class FakeProducer:
    """A transactional producer over lists. ``errors`` names the call that fails next, once."""

    def __init__(self, log: FakeTransactions) -> None:
        self.log = log
        self.shutdown_work = ShutdownWork(RealTimers(), 30)
        self.is_open = False
        self.values: list[Any] = []
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.deliveries: list[BatchDelivery] = []
        self.error: EventBusError | None = None

    def transaction(self) -> Transaction:
        fake: Any = self
        return Transaction("id", OwnProducer(fake))

    async def init(self) -> None:
        self.log.call("init")

    async def begin(self) -> None:
        assert not self.is_open
        self.log.call("begin")
        self.is_open, self.values, self.offsets, self.deliveries = True, [], {}, []

    def send_nowait(self, topic: str, value: Any, **ignored: Any) -> Delivery:
        assert self.is_open
        self.log.call("send")
        batch = BatchDelivery(topic, 0)
        batch.count = 1
        self.deliveries.append(batch)
        self.values.append(value)
        return Delivery(batch, 0, 0)

    async def flush(self) -> None:
        await anyio.lowlevel.checkpoint()
        for batch, value in zip(self.deliveries, self.values, strict=True):
            if batch.done:
                continue
            refused = self.log.refuse(value)
            if refused is None:
                batch.resolve(0, -1)
            else:
                batch.fail(refused)

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        self.log.call("offsets")
        self.offsets.update({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})
        self.log.groups.append(group)

    async def commit(self) -> None:
        assert self.is_open
        await anyio.lowlevel.checkpoint()
        self.is_open = False
        self.log.call("commit")
        self.log.visible += self.values
        self.log.consumer.offsets.update(self.offsets)
        self.log.sizes.append(len(self.values))

    async def abort(self) -> None:
        self.is_open = False
        self.log.aborts += 1

    async def aclose(self) -> None:
        self.log.closed += 1


class FakeTransactions:
    """The effects of the producers of all transactional ids."""

    def __init__(self, consumer: FakeConsumer) -> None:
        self.consumer = consumer
        self.ids: list[str] = []
        self.visible: list[Any] = []
        self.sizes: list[int] = []
        self.groups: list[GroupMetadata] = []
        self.aborts = self.closed = 0
        self.errors: list[tuple[str, EventBusError]] = []
        """Pairs of a call and the error that it raises. Each is used once, in any order."""
        self.before: dict[str, Callable[[], None]] = {}
        """Functions that run before a call, by its name."""
        self.refuse: Callable[[Any], EventBusError | None] = lambda value: None

    def call(self, name: str) -> None:
        if name in self.before:
            self.before[name]()
        for entry in self.errors:
            if entry[0] == name:
                self.errors.remove(entry)
                raise entry[1]

    def open(self, transactional_id: str) -> FakeProducer:
        self.ids.append(transactional_id)
        return FakeProducer(self)


class Running:
    """A running runner, and its surroundings."""

    def __init__(self, handler: Handler[..., Any], timers: Timers | None = None, **config: Any) -> None:
        self.backend = FakeBackend(timers)
        self.consumer = self.backend.fake
        self.transactions = FakeTransactions(self.consumer)
        self.progress = anyio.Event()
        self.published: list[BatchDelivery] = []
        opened: Any = self.transactions.open
        backend: Any = self.backend
        publish = self.publish if handler.producer is not None and not handler.spec.exactly_once else None
        self.runner = Runner(
            handler, "g", backend, ConsumerConfig(group="g", **config), publish, self.flush, opened, {}, self.notify
        )

    async def publish(self, value: Any) -> Delivery:
        self.published.append(BatchDelivery("out", 0))
        return Delivery(self.published[-1], 0, 0)

    async def flush(self) -> None:
        for batch in self.published:
            if not batch.done:
                batch.resolve(0, -1)

    def notify(self) -> None:
        progress, self.progress = self.progress, anyio.Event()
        progress.set()

    async def idle(self) -> None:
        with anyio.fail_after(10):
            while not await self.runner.is_idle():
                self.consumer.answer()
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def running(handler: Handler[..., Any], timers: Timers | None = None, **config: Any) -> Any:
    run = Running(handler, timers, **config)
    async with anyio.create_task_group() as tasks:
        await run.runner.start()
        tasks.start_soon(run.runner.run)
        await others_run()
        yield run
        run.runner.stop()
