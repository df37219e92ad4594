"""The embedded producer: an accumulator per partition in front of the broker.

A batch leaves when it is full (inline, at the record that fills it) or when the sender's turn comes (at once, or
after ``linger_ms``). While a flush is under way new records gather in the next batch, as they do in Kafka's producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import anyio
import anyio.lowlevel

from eventbus.backends.base import Add, Append, ProducerConfig, Send
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.backends.engine import Engine
from eventbus.errors import BufferExhausted, EventBusError, ProducerClosed, RecordTooLarge
from eventbus.log.partition_log import AppendInfo
from eventbus.records import BatchBuilder, read_header
from eventbus.records.single import BatchSpan, build_single
from eventbus.types import Headers, RecordMetadata, TopicPartition

_RECORD_OVERHEAD_BYTES = 128
"""More than a batch header, and the lengths and deltas around one record, ever take."""
_SENDS_PER_TURN = 64
"""Awaited sends that need not wait before other tasks get their turn."""


class _Unsettled(NamedTuple):
    """A batch that is written and waits for a flush."""

    topic_partition: TopicPartition
    last_offset: int
    delivery: BatchDelivery
    size_bytes: int


class Accumulator:
    """The batches of one partition, one open at a time."""

    __slots__ = ("_builder", "_delivery", "_limit_bytes", "_producer", "topic_partition")

    def __init__(self, producer: EmbeddedProducer, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self._producer = producer
        self._builder: BatchBuilder | None = None
        self._delivery = BatchDelivery(*topic_partition)
        self._limit_bytes = 0

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
        """Put a record into the open batch and give its handle. The hot path of `send_nowait`."""
        builder = self._builder
        if builder is None:
            builder = self._open()
        limit_bytes = self._limit_bytes
        if headers or (value and len(value) >= limit_bytes) or (key and len(key) >= limit_bytes):
            builder = self._open_for(key, value, headers)
        index = builder.append(key, value, headers, timestamp_ms)
        delivery = Delivery(self._delivery, index, timestamp_ms)
        if builder.size_bytes >= limit_bytes:
            self.close()
        return delivery

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
        """The same without a handle. The hot path of `send_many`."""
        builder = self._builder
        if builder is None:
            builder = self._open()
        limit_bytes = self._limit_bytes
        if headers or (value and len(value) >= limit_bytes) or (key and len(key) >= limit_bytes):
            builder = self._open_for(key, value, headers)
        builder.append(key, value, headers, timestamp_ms)
        delivery = self._delivery
        if builder.size_bytes >= limit_bytes:
            self.close()
        return delivery

    async def send(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> RecordMetadata:
        """Store one record and wait for its ack. The path of one awaited publish."""
        producer = self._producer
        if producer.lingers or self._builder is not None:
            return await self._send_in_batch(key, value, headers, timestamp_ms)
        # Nobody to batch with: straight through, without a handle.
        topic_partition = self.topic_partition
        large_bytes = producer.large_bytes
        if headers or (value and len(value) > large_bytes) or (key and len(key) > large_bytes):
            producer.check_size(topic_partition, key, value, headers)
        batch = build_single(key, value, headers, timestamp_ms, producer.config.compression)
        info = producer.store(topic_partition, batch, BatchSpan(0, timestamp_ms), timestamp_ms)
        base_offset, last_offset, append_time_ms = info[:3]
        if producer.waits:
            await producer.engine.wait_durable(topic_partition, last_offset)
        else:
            producer.unwaited += 1
            if producer.unwaited >= _SENDS_PER_TURN:
                # Nothing was waited for: without this a loop of sends would keep every other task from running.
                producer.unwaited = 0
                await anyio.lowlevel.checkpoint()
            if producer.engine.waits_for_flush:
                producer.engine.flush_soon()  # acks=1: nobody waits, but readers see a record once it is durable
        if not producer.config.acks:
            base_offset = -1
        topic, partition = topic_partition
        return RecordMetadata(topic, partition, base_offset, timestamp_ms if append_time_ms < 0 else append_time_ms)

    async def _send_in_batch(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> RecordMetadata:
        """Behind what was sent without waiting: the order of sends is the order in the log."""
        await self._producer.wait_for_room()
        delivery = self.append(key, value, headers, timestamp_ms)
        if not self._producer.lingers:
            self.close()
            await self._producer.settle()
        return await delivery

    def _open(self) -> BatchBuilder:
        self._limit_bytes = self._producer.opening(self)
        self._delivery = BatchDelivery(*self.topic_partition)
        self._builder = BatchBuilder(self._producer.config.compression)
        return self._builder

    def _open_for(self, key: bytes | None, value: bytes | None, headers: Headers) -> BatchBuilder:
        """The batch for a record that may be large: as large as a batch it gets one of its own, to fail alone."""
        size_bytes = self._producer.check_size(self.topic_partition, key, value, headers)
        if size_bytes >= self._limit_bytes:
            # A loop: closing calls delivery callbacks, and one of them may send to this partition.
            while self._builder is not None and self._builder.count:
                self.close()
        return self._builder or self._open()

    def close(self) -> None:
        """Hand the open batch to the log."""
        builder, self._builder = self._builder, None
        if builder is not None:
            self._producer.closed(self, builder, self._delivery)


class EmbeddedProducer:
    """See `BackendProducer`."""

    def __init__(self, engine: Engine, config: ProducerConfig) -> None:
        self.config = config
        self.on_topics_changed: Callable[[], object] = _nothing
        self.engine = engine
        engine.topic_listeners.append(self._topics_changed)
        self._accumulators: dict[tuple[str, int], Accumulator] = {}
        self._open: dict[tuple[str, int], Accumulator] = {}
        """Those with an open batch, oldest first."""
        self._unsettled: deque[_Unsettled] = deque()
        self._unsettled_bytes = 0
        self._written_count = 0
        """Batches that ever waited for a flush; those before the head of `_unsettled` know their outcome."""
        self.unwaited = 0
        """Awaited sends since the last that had to wait."""
        self.waits = engine.waits_for_flush and config.acks == -1
        self.lingers = config.linger_ms > 0
        self.large_bytes = config.max_request_size - _RECORD_OVERHEAD_BYTES
        self.store: Callable[..., AppendInfo] = engine.broker.append_built
        self._closed = False
        self._opened = anyio.Event()
        self._stored = anyio.Event()

    def partition_count(self, topic: str) -> int:
        return self.engine.partition_count(topic)

    def _topics_changed(self) -> None:
        self._accumulators = dict(self._open)
        self.on_topics_changed()

    # sending ---------------------------------------------------------------------------------------------------------

    def appender(self, topic: str, partition: int) -> Append:
        return self._accumulator(topic, partition).append

    def sender(self, topic: str, partition: int) -> Send:
        return self._accumulator(topic, partition).send

    def adder(self, topic: str, partition: int) -> Add:
        return self._accumulator(topic, partition).add

    def _accumulator(self, topic: str, partition: int) -> Accumulator:
        accumulator = self._accumulators.get((topic, partition))
        if accumulator is None:
            topic_partition = TopicPartition(topic, partition)
            accumulator = self._accumulators[topic_partition] = Accumulator(self, topic_partition)
        return accumulator

    def opening(self, accumulator: Accumulator) -> int:
        """An accumulator begins a batch; the size at which it must close. Raises ProducerClosed, BufferExhausted."""
        if self._closed:
            _refuse()
        if self._used_bytes() >= self.config.buffer_memory:
            raise BufferExhausted(
                f"the producer's buffer is full ({self._used_bytes():,} of buffer_memory={self.config.buffer_memory:,} "
                "bytes wait to be stored): `await producer.wait_for_room()` between sends, or `await bus.send(...)`"
            )
        # A third of the topic's limit: a batch may pass its own by one record whose key and value are each below it.
        most_bytes = self.engine.broker.max_message_bytes(accumulator.topic_partition.topic) // 3
        if not self._open:
            self._opened.set()
        self._open[accumulator.topic_partition] = accumulator
        return min(self.config.batch_size, most_bytes)

    def check_size(
        self, topic_partition: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers
    ) -> int:
        """The size of a record, at most. Raises RecordTooLarge beyond ``max_request_size``."""
        size_bytes = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
        size_bytes += sum([4 * len(name) + len(data or b"") + 10 for name, data in headers])
        if size_bytes > self.config.max_request_size:
            raise RecordTooLarge(
                f"a record of {size_bytes:,} bytes for {topic_partition} is larger than the producer's "
                f"max_request_size={self.config.max_request_size:,}: send less (or a pointer to the payload), "
                "or raise max_request_size and the topic's max.message.bytes"
            )
        return size_bytes

    def closed(self, accumulator: Accumulator, builder: BatchBuilder, delivery: BatchDelivery) -> None:
        """An accumulator ends a batch: append it to the log."""
        topic_partition = accumulator.topic_partition
        self._open.pop(topic_partition, None)
        if not builder.count:
            return
        delivery.count = builder.count
        engine = self.engine
        try:
            data = builder.build()
            info = self.store(topic_partition, data, read_header(data), engine.clock())
        except EventBusError as error:
            delivery.fail(error)
            return
        delivery.base_offset = info.base_offset
        delivery.log_append_time_ms = info.timestamp_ms
        if self.waits:
            self._settle_later(_Unsettled(topic_partition, info.last_offset, delivery, len(data)))
            return
        delivery.resolve(info.base_offset if self.config.acks else -1, info.timestamp_ms)
        if engine.waits_for_flush:
            engine.flush_soon()  # acks=1: nobody waits, but readers see a record once it is durable

    # settling --------------------------------------------------------------------------------------------------------

    def _settle_later(self, entry: _Unsettled) -> None:
        if not self._unsettled:
            self._stored.set()
        self._unsettled.append(entry)
        self._unsettled_bytes += entry.size_bytes
        self._written_count += 1

    def _used_bytes(self) -> int:
        return self._unsettled_bytes + len(self._open) * self.config.batch_size

    async def run(self) -> None:
        if not self.config.linger_ms:
            # One loop: while a flush is under way, what is sent meanwhile gathers in the next batches.
            while True:
                if not self._open and not self._unsettled:
                    self._opened = self._stored = anyio.Event()
                    await self._opened.wait()
                await self._drain()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._close_after_linger)
            while True:  # full batches are settled while others linger
                if not self._unsettled:
                    self._stored = anyio.Event()
                    await self._stored.wait()
                await self.settle()

    async def _close_after_linger(self) -> None:
        while True:
            if not self._open:
                self._opened = anyio.Event()
                await self._opened.wait()
            await anyio.sleep(self.config.linger_ms / 1000)
            self._close_open()

    def _close_open(self) -> None:
        for accumulator in list(self._open.values()):
            accumulator.close()

    async def _drain(self) -> None:
        """Store what was given so far; not what others add meanwhile, or a busy producer would never be drained."""
        self._close_open()
        await self.settle()

    async def settle(self) -> None:
        """Return when every batch written so far knows its outcome."""
        await self._settle(self._written_count)

    async def _settle(self, count: int) -> None:
        """Wait for flushes, and tell the first ``count`` batches their outcome, in order.

        Several tasks may be here at once (the sender, a flush, an awaited send): each looks at the head again after
        its wait, so that an entry settled by another is not settled twice.
        """
        unsettled = self._unsettled
        while unsettled and self._written_count - len(unsettled) < count:
            head = unsettled[0]
            try:
                await self.engine.wait_durable(head.topic_partition, head.last_offset)
                self._settle_durable()
            except EventBusError as error:
                if unsettled and unsettled[0] is head:
                    self._forget_head().fail(error)

    def _settle_durable(self) -> None:
        is_durable = self.engine.broker.is_durable
        while self._unsettled and is_durable(self._unsettled[0].topic_partition, self._unsettled[0].last_offset):
            delivery = self._forget_head()
            delivery.resolve(delivery.base_offset, delivery.log_append_time_ms)

    def _forget_head(self) -> BatchDelivery:
        entry = self._unsettled.popleft()
        self._unsettled_bytes -= entry.size_bytes
        return entry.delivery

    async def wait_for_room(self) -> None:
        # Room for two batches more: one send may close a batch that has passed its limit, and open the next.
        most_bytes = max(self.config.buffer_memory - 2 * self.config.batch_size, self.config.buffer_memory // 2)
        if self._used_bytes() < most_bytes:
            return
        with anyio.move_on_after(self.config.max_block_ms / 1000):
            await self._drain()
        if self._used_bytes() >= most_bytes:
            raise BufferExhausted(
                f"no room in the producer's buffer of {self.config.buffer_memory:,} bytes for "
                f"{self.config.max_block_ms:,} ms (max_block_ms): the disk is slower than the sends"
            )

    async def flush(self) -> None:
        await self._drain()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self.engine.topic_listeners.remove(self._topics_changed)
            with anyio.CancelScope(shield=True):
                await self._drain()
            self.store = _refuse


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ProducerClosed("this producer is closed: send inside `async with`, or open a new one")


def _nothing() -> None:
    """Until a client says what it wants to hear."""
