"""A log with injected faults: a `Backend` around another backend, with hooks at each step.

Without hooks it behaves like the inner log. `eventbus.testing.faults` uses these hooks to simulate the faults that a
service meets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import anyio
from anyio.abc import TaskGroup

from eventbus.backends.base import (
    Add,
    Append,
    Backend,
    BackendConsumer,
    BackendProducer,
    ConsumerConfig,
    ProducerConfig,
    Send,
)
from eventbus.backends.clock import Timers
from eventbus.backends.delivery import BatchDelivery, Delivery, this_loop
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.errors import ConfigError, EventBusError, KafkaError, TransactionAborted
from eventbus.testing.held_back import Held, Line, Wait
from eventbus.types import (
    FetchedRecords,
    GroupMetadata,
    Headers,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
)

Step = Literal[
    "fetch", "send", "flush", "commit", "init_transactions", "send_offsets", "commit_transaction", "abort_transaction"
]
"""The operations of a client on a log."""


class Call(NamedTuple):
    """A step of a client, before or after it happens."""

    step: Step
    when: Literal["before", "after"]
    client: FaultyConsumer | FaultyProducer
    group: str = ""
    """The group of the consumer; empty without a group, and for producers."""
    transactional_id: str = ""
    topic: str = ""
    """The topic of a send; the next fields are for sends too."""
    key: bytes | None = None
    value: bytes | None = None
    is_awaited: bool = True
    """True if a caller waits for the ack; not so for ``send_nowait`` and the outputs of handlers."""
    records: int = 0
    """The number of returned records, after a fetch."""


Hook = Callable[[Call], Wait | None]
"""Called at each step. The step raises what it raises; what it returns is awaited, and then the step continues.

A KafkaError at a send that is not awaited (``send_nowait``, the outputs of handlers) is the outcome of its delivery; a
wait there holds the record and all later ones back. Such a send has no "after" step: check its delivery.
"""


class FaultyBackend:
    """A `Backend` that calls ``hooks`` at each step, in order; they may change at any time. ``inner`` is the log."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.url = inner.url
        self.hooks: list[Hook] = []
        self.consumers: list[FaultyConsumer] = []
        """The open consumers."""
        self.producers: list[FaultyProducer] = []
        self._moved = anyio.Event()
        self.start = inner.start
        self.statistics = inner.statistics
        self.run = inner.run
        self.aclose = inner.aclose
        self.create_topics = inner.create_topics
        self.delete_topics = inner.delete_topics
        self.add_partitions = inner.add_partitions
        self.alter_configs = inner.alter_configs
        self.describe_topics = inner.describe_topics
        self.list_offsets = inner.list_offsets
        self.group_offsets = inner.group_offsets
        self.alter_group_offsets = inner.alter_group_offsets
        self.list_groups = inner.list_groups
        self.describe_groups = inner.describe_groups
        self.delete_group = inner.delete_group
        self.delete_group_offsets = inner.delete_group_offsets
        self.remove_group_members = inner.remove_group_members
        self.delete_records = inner.delete_records
        self.list_transactions = inner.list_transactions
        self.describe_transactions = inner.describe_transactions
        self.describe_producers = inner.describe_producers
        self.abort_transaction = inner.abort_transaction
        self.fence_producer = inner.fence_producer

    def __repr__(self) -> str:
        return f"<faulty {self.url}, {len(self.hooks)} hook(s)>"

    @property
    def timers(self) -> Timers:
        return self.inner.timers

    @property
    def trouble(self) -> str:
        return self.inner.trouble

    @property
    def auto_creates_topics(self) -> bool:
        return self.inner.auto_creates_topics

    @property
    def engine(self) -> Engine:
        """The inner engine, while the log is open. Raises ConfigError if it is closed, or not a log in this process."""
        if not isinstance(self.inner, EmbeddedBackend):
            raise ConfigError(f"{self.url} is not a log of this process: use memory:// or file:// for this fault")
        return self.inner.engine

    def producer(self, config: ProducerConfig) -> FaultyProducer:
        producer = FaultyProducer(self, self.inner.producer(config), config)
        self.producers.append(producer)
        return producer

    def consumer(self, config: ConsumerConfig) -> FaultyConsumer:
        consumer = FaultyConsumer(self, self.inner.consumer(config), config)
        self.consumers.append(consumer)
        return consumer

    # for the clients -------------------------------------------------------------------------------------------------

    async def at(self, call: Call) -> None:
        """Call every hook, and await what they return."""
        for wait in self.ask(call):
            await wait()

    def ask(self, call: Call) -> list[Wait]:
        """Return what the hooks want awaited."""
        return [wait for hook in [*self.hooks] if (wait := hook(call)) is not None]

    def moved(self) -> None:
        """Wake `until_moved`, because partitions were assigned or revoked."""
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    async def until_moved(self) -> None:
        """Return when partitions were assigned to or revoked from some consumer."""
        await self._moved.wait()


class FaultyConsumer:
    """A consumer with hooks, see `BackendConsumer`."""

    def __init__(self, backend: FaultyBackend, inner: BackendConsumer, config: ConsumerConfig) -> None:
        self.inner = inner
        self.config = config
        self._backend = backend
        self.on_revoked = inner.on_revoked
        self.on_revoking = inner.on_revoking
        self.on_assigned = inner.on_assigned
        self.on_settled = inner.on_settled
        self.on_readable = inner.on_readable
        inner.on_revoked = self._revoked
        inner.on_revoking = self._revoking
        inner.on_assigned = self._take
        inner.on_settled = self._settled
        inner.on_readable = self._readable
        self.subscribe = inner.subscribe
        self.subscription = inner.subscription
        self.assign = inner.assign
        self.assignment = inner.assignment
        self.polled = inner.polled
        self.group_metadata = inner.group_metadata
        self.committed = inner.committed
        self._in_hand: list[FetchedRecords] = []
        """Records that were fetched but not returned yet, because a hook waits."""
        self.seek = inner.seek
        self.pause = inner.pause
        self.resume = inner.resume
        self.end_offsets = inner.end_offsets
        self.topic_ids = inner.topic_ids

    def _revoked(self, partition: TopicPartition) -> None:
        self.on_revoked(partition)

    async def _revoking(self, partitions: list[TopicPartition]) -> None:
        await self.on_revoking(partitions)

    async def _take(self, partitions: list[TopicPartition]) -> None:
        try:
            await self.on_assigned(partitions)
        finally:
            self._backend.moved()

    def _settled(self) -> None:
        self.on_settled()

    def _readable(self, topic_partition: TopicPartition) -> None:
        self.on_readable(topic_partition)

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        backend = self._backend
        if backend.hooks:
            await backend.at(self._call("fetch", "before"))
        fetched = await self.inner.fetch(max_wait_ms)
        if backend.hooks:
            self._in_hand = fetched
            try:
                await backend.at(self._call("fetch", "after", sum(map(len, fetched))))
            except BaseException:
                self._put_back(fetched)
                raise
            finally:
                self._in_hand = []
        return fetched

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        return self.inner.waiting_for

    @property
    def deleted_unread(self) -> Counter[TopicPartition]:
        return self.inner.deleted_unread

    def passed(self) -> dict[TopicPartition, int]:
        return {} if self._in_hand else self.inner.passed()

    async def position(self, partition: TopicPartition) -> int:
        for chunk in self._in_hand:
            if (chunk.topic, chunk.partition) == partition and len(chunk):
                return chunk.offsets[0]  # not returned to a caller yet
        return await self.inner.position(partition)

    async def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        found = await self.inner.positions(partitions)
        for chunk in self._in_hand:
            if len(chunk) and (where := TopicPartition(chunk.topic, chunk.partition)) in found:
                found[where] = chunk.offsets[0]  # not returned to a caller yet
        return found

    def _put_back(self, fetched: list[FetchedRecords]) -> None:
        """Fetch records again that were not returned to a caller."""
        held = self.inner.assignment()
        for chunk in fetched:
            topic_partition = TopicPartition(chunk.topic, chunk.partition)
            if topic_partition in held and len(chunk):
                self.inner.seek(topic_partition, chunk.offsets[0])

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        backend = self._backend
        if not backend.hooks:
            await self.inner.commit(offsets)
            return
        await backend.at(self._call("commit", "before"))
        await self.inner.commit(offsets)
        await backend.at(self._call("commit", "after"))

    def _call(self, step: Step, when: Literal["before", "after"], records: int = 0) -> Call:
        return Call(step, when, self, group=self.config.group or "", records=records)

    async def aclose(self) -> None:
        if self in self._backend.consumers:
            self._backend.consumers.remove(self)
        await self.inner.aclose()


class FaultyProducer:
    """A producer with hooks, see `BackendProducer`."""

    def __init__(self, backend: FaultyBackend, inner: BackendProducer, config: ProducerConfig) -> None:
        self.inner = inner
        self.config = config
        self._backend = backend
        self._lines: dict[TopicPartition, Line] = {}
        """The lines of partitions that ever held a record back."""
        self._begun: deque[Line] = deque()
        """Lines that hold a record again, and are not being released yet."""
        self._some_begun = anyio.Event()
        self._spoiled: EventBusError | None = None
        """The error because of which a record of the open transaction was not stored."""
        self.on_topics_changed = inner.on_topics_changed
        inner.on_topics_changed = self._topics_changed
        self.partition_count = inner.partition_count
        self.look_up = inner.look_up
        self.look_up = inner.look_up
        self.wait_for_room = inner.wait_for_room

    def _topics_changed(self) -> None:
        self.on_topics_changed()

    # sends -----------------------------------------------------------------------------------------------------------

    def _passes(self, line: Line) -> bool:
        """True if no hook interferes, so that a record is passed on directly."""
        return not self._backend.hooks and not line.held

    def _line(self, topic: str, partition: int) -> Line:
        where = TopicPartition(topic, partition)
        line = self._lines.get(where)
        if line is None:
            line = self._lines[where] = Line(where, self._fail)
        return line

    def appender(self, topic: str, partition: int) -> Append:
        append = self.inner.appender(topic, partition)
        line = self._line(topic, partition)

        def faulty(key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
            if self._passes(line):
                return append(key, value, headers, timestamp_ms)
            return self._append(line, append, key, value, headers, timestamp_ms)

        return faulty

    def adder(self, topic: str, partition: int) -> Add:
        add = self.inner.adder(topic, partition)
        append = self.inner.appender(topic, partition)
        line = self._line(topic, partition)

        def faulty(key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
            if self._passes(line):
                return add(key, value, headers, timestamp_ms)
            return self._append(line, append, key, value, headers, timestamp_ms).batch

        return faulty

    def sender(self, topic: str, partition: int) -> Send:
        send = self.inner.sender(topic, partition)
        append = self.inner.appender(topic, partition)
        line = self._line(topic, partition)

        async def watched(
            key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
        ) -> RecordMetadata:
            try:
                waits = self._backend.ask(self._sending(line, key, value, is_awaited=True))
            except EventBusError as error:
                self._spoil(error)
                raise
            if waits or line.held:  # after earlier records
                held = self._hold(line, waits, partial(append, key, value, headers, timestamp_ms))
                metadata = await Delivery(held, 0, timestamp_ms)
            else:
                metadata = await send(key, value, headers, timestamp_ms)
            await self._backend.at(self._sending(line, key, value, is_awaited=True)._replace(when="after"))
            return metadata

        def faulty(
            key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
        ) -> Coroutine[Any, Any, RecordMetadata]:
            return (send if self._passes(line) else watched)(key, value, headers, timestamp_ms)

        return faulty

    def _append(
        self,
        line: Line,
        append: Append,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> Delivery:
        try:
            waits = self._backend.ask(self._sending(line, key, value, is_awaited=False))
        except KafkaError as error:
            refused = BatchDelivery(*line.where)
            self._fail(refused, error)
            return Delivery(refused, 0, timestamp_ms)
        if waits or line.held:
            held = self._hold(line, waits, partial(append, key, value, headers, timestamp_ms))
            return Delivery(held, 0, timestamp_ms)
        return append(key, value, headers, timestamp_ms)

    def _hold(self, line: Line, waits: list[Wait], append: Callable[[], Delivery]) -> BatchDelivery:
        delivery = BatchDelivery(*line.where, this_loop())
        if not line.held:
            self._begun.append(line)
            self._some_begun.set()
        line.held.append(Held(waits, append, delivery))
        return delivery

    def _fail(self, delivery: BatchDelivery, error: EventBusError) -> None:
        self._spoil(error)
        delivery.count = 1
        delivery.fail(error)

    def _spoil(self, error: EventBusError) -> None:
        if self.config.transactional_id is not None:
            self._spoiled = self._spoiled or error

    async def _release(self) -> None:
        """Return when no record is held back any more."""
        for line in list(self._lines.values()):
            if line.held:
                await line.release()

    async def flush(self) -> None:
        if self._backend.hooks:
            await self._backend.at(self._call("flush", "before"))
        await self._release()
        await self.inner.flush()
        if self._backend.hooks:
            await self._backend.at(self._call("flush", "after"))

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._release_in_time, tasks)
            await self.inner.run()

    async def _release_in_time(self, tasks: TaskGroup) -> None:
        while True:
            self._some_begun = anyio.Event()
            while self._begun:
                tasks.start_soon(self._begun.popleft().release)
            await self._some_begun.wait()

    # transactions ----------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        await self._around("init_transactions", self.inner.init_transactions)

    def begin_transaction(self) -> None:
        self.inner.begin_transaction()
        self._spoiled = None

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        await self._around("send_offsets", lambda: self.inner.send_offsets_to_transaction(offsets, group))

    async def commit_transaction(self) -> None:
        await self._around("commit_transaction", self._commit_transaction)

    async def _commit_transaction(self) -> None:
        await self._release()
        spoiled, self._spoiled = self._spoiled, None
        if spoiled is not None:
            await self.inner.abort_transaction()
            raise TransactionAborted(
                f"the transaction of {self.config.transactional_id!r} was aborted, for a record of it was not stored: "
                f"{spoiled}"
            ) from spoiled
        await self.inner.commit_transaction()

    async def abort_transaction(self) -> None:
        for line in self._lines.values():
            line.discard(TransactionAborted("its transaction was aborted before it was sent"))
        await self._around("abort_transaction", self.inner.abort_transaction)

    async def _around(self, step: Step, do: Callable[[], Awaitable[Any]]) -> None:
        if self._backend.hooks:
            await self._backend.at(self._call(step, "before"))
        await do()
        if self._backend.hooks:
            await self._backend.at(self._call(step, "after"))

    def _call(self, step: Step, when: Literal["before", "after"]) -> Call:
        return Call(step, when, self, transactional_id=self.config.transactional_id or "")

    def _sending(self, line: Line, key: bytes | None, value: bytes | None, *, is_awaited: bool) -> Call:
        call = self._call("send", "before")
        return call._replace(topic=line.where.topic, key=key, value=value, is_awaited=is_awaited)

    async def aclose(self) -> None:
        if self in self._backend.producers:
            self._backend.producers.remove(self)
        try:
            await self._release()
        finally:
            await self.inner.aclose()

    def give_up(self, error: EventBusError) -> int:
        held = sum([line.discard(error) for line in self._lines.values()])
        return held + self.inner.give_up(error)
