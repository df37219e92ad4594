"""The embedded producer: an accumulator per partition in front of the broker.

A batch is appended when it is full (inline, by the record that fills it) or in the sender's turn (at once, or after
``linger_ms``). During a flush, new records gather in the next batch, as in Kafka's producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import anyio
import anyio.lowlevel

from eventbus.backends.accumulator import Accumulator, Identity
from eventbus.backends.base import Add, Append, ProducerConfig, Send, Then
from eventbus.backends.delivery import BatchDelivery, this_loop
from eventbus.backends.embedded_transactions import ProducerTransactions
from eventbus.backends.engine import Engine, Queued
from eventbus.backends.transactional import TransactionalProducer, refuse_closed
from eventbus.backends.wake import Wake
from eventbus.errors import (
    BufferExhausted,
    EventBusError,
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from eventbus.log.partition_log import AppendInfo
from eventbus.records import BatchBuilder
from eventbus.types import Headers, TopicPartition

_RECORD_OVERHEAD_BYTES = 128
"""An upper limit for a batch header, and the lengths and deltas of one record."""
_NOT_IDENTIFIED = Identity(-1, -1, False)
"""No identity yet: the producer id is not requested, or no transaction is open."""


class _Unsettled(NamedTuple):
    """A batch that is written and waits for a flush."""

    topic_partition: TopicPartition
    last_offset: int
    delivery: BatchDelivery
    size_bytes: int


class EmbeddedProducer(TransactionalProducer[ProducerTransactions]):
    """The producer of an embedded log, see `BackendProducer`."""

    def __init__(self, engine: Engine, config: ProducerConfig) -> None:
        super().__init__()
        self.config = config
        self.engine = engine
        engine.topic_listeners.append(self._topics_changed)
        engine.producers.add(self)
        self._accumulators: dict[tuple[str, int], Accumulator] = {}
        self._open: dict[tuple[str, int], Accumulator] = {}
        """Accumulators with an open batch, oldest first."""
        self._unsettled: deque[_Unsettled] = deque()
        self._unsettled_bytes = 0
        self._written_count = 0
        """The number of batches that ever waited for a flush; those before the head of `_unsettled` have their
        outcome."""
        self.unwaited = 0
        """The number of awaited sends since the last that had to wait."""
        self.acks = config.acks
        self.waits = engine.waits_for_flush and config.acks == -1
        self.transactions = (
            None if config.transactional_id is None else ProducerTransactions(self, config.transactional_id)
        )
        self.flushes = engine.waits_for_flush and not self.waits
        """True with acks=1: sends do not wait, but readers see a record only once it is durable."""
        self.lingers = config.linger_ms > 0
        self.compression = config.compression
        self.large_bytes = config.max_request_size - _RECORD_OVERHEAD_BYTES
        self.store: Callable[..., AppendInfo] = engine.broker.append_built
        self.identity = _NOT_IDENTIFIED
        """The identity for batches. An accumulator with another identity calls `identify`."""
        self.home = this_loop()
        """The event loop in which outcomes are set."""
        self._opened = Wake()
        self._stored = Wake() if config.linger_ms else self._opened

    def partition_count(self, topic: str) -> int:
        return self.engine.partition_count(topic)

    def look_up(self, topic: str, then: Then) -> None:
        then(None)  # every topic of this log is already known

    def _topics_changed(self) -> None:
        """Keep sequences unless the topic was deleted and created again, which starts them over.

        The broker may have been replaced too, after `Engine.restart`.
        """
        self.tell_counts()
        topic_id = self.engine.broker.topic_id
        kept: dict[tuple[str, int], Accumulator] = {}
        for topic_partition, accumulator in self._accumulators.items():
            if accumulator.topic_id == topic_id(topic_partition[0]):
                kept[topic_partition] = accumulator
            else:
                accumulator.forget()
        self._accumulators = kept
        self.store = self.engine.broker.append_built
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
            accumulator = Accumulator(self, topic_partition, self.engine.broker.topic_id(topic))
            self._accumulators[topic_partition] = accumulator
        return accumulator

    def identify(self, accumulator: Accumulator) -> Identity:
        """Return the identity for the partition's batches from now on, under which no other producer has sequences
        there.

        Raises InvalidTxnState outside a transaction, UnknownTopicOrPartition if the topic was deleted or created again.
        """
        topic_partition = accumulator.topic_partition
        # The record was sent to the old topic of this name. Storing it in the new one would surprise its sender.
        if self._accumulators.get(topic_partition) is not accumulator:
            raise UnknownTopicOrPartition(
                f"topic {topic_partition.topic!r} was deleted after the record was given to the producer: send it again"
            )
        if self.transactions is not None:
            if self._closed:
                refuse_closed()
            return self.transactions.include(accumulator)
        if self.identity is _NOT_IDENTIFIED:
            # As in Kafka, idempotence needs acks=all: without it, the producer would not retry what may have been lost.
            if not self.config.enable_idempotence or self.config.acks != -1:
                self.identity = Identity(-1, -1, False)
            else:
                broker = self.engine.broker
                taken = broker.transactions.init_producer_id(None, 0, self.engine.now_ms())
                self.identity = Identity(*taken, False)
        return self.identity

    def forget_identity(self) -> None:
        """Drop the present identity, under which no batch may be stored any more."""
        self.identity = _NOT_IDENTIFIED

    def not_stored(self, error: EventBusError) -> None:
        """Record that a record was not stored: an open transaction can only be aborted."""
        if self.transactions is not None:
            self.transactions.spoil(error)

    def opening(self, accumulator: Accumulator) -> int:
        """Begin a batch; return the size at which it must close. Raises ProducerClosed, BufferExhausted."""
        if self._closed:
            refuse_closed()
        if self.transactions is not None:
            self.transactions.check_accepts()
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
        """Return an upper limit for the size of a record. Raises RecordTooLarge beyond ``max_request_size``."""
        size_bytes = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
        size_bytes += sum([4 * len(name) + len(data or b"") + 10 for name, data in headers])
        if size_bytes > self.config.max_request_size:
            too_large = RecordTooLarge(
                f"a record of {size_bytes:,} bytes for {topic_partition} is larger than the producer's "
                f"max_request_size={self.config.max_request_size:,}: send less (or a pointer to the payload), "
                "or raise max_request_size and the topic's max.message.bytes"
            )
            self.not_stored(too_large)
            raise too_large
        return size_bytes

    def closed(self, accumulator: Accumulator, builder: BatchBuilder, delivery: BatchDelivery) -> None:
        """Append a closed batch to the log."""
        topic_partition = accumulator.topic_partition
        self._open.pop(topic_partition, None)
        if not builder.count:
            return
        delivery.count = builder.count
        try:
            info, size_bytes = self._stored_in(accumulator, builder, delivery)
        except EventBusError as error:
            self.not_stored(error)
            delivery.fail(error)
            return
        delivery.base_offset = info.base_offset
        delivery.log_append_time_ms = info.timestamp_ms
        if self.waits:
            self._settle_later(_Unsettled(topic_partition, info.last_offset, delivery, size_bytes))
            return
        # acks=0 promises nothing about the record, so there is no offset to return either.
        delivery.resolve(info.base_offset if self.acks else -1, info.timestamp_ms)
        # acks=1 does not wait for this flush, but readers do: they see a record once it is durable.
        if self.flushes:
            self.engine.flushes.begin_soon()

    def _stored_in(
        self, accumulator: Accumulator, builder: BatchBuilder, delivery: BatchDelivery
    ) -> tuple[AppendInfo, int]:
        """Append a batch without the records that the log refuses. Raises if all are refused."""
        try:
            return accumulator.store(builder)
        except (InvalidRecord, InvalidTimestamp, RecordTooLarge):
            # In a transaction, a refused record aborts all of it anyway.
            if builder.count == 1 or self.transactions is not None:
                raise
        failures: dict[int, EventBusError] = {}
        stored = accumulator.store_each(builder, failures)
        if stored is None:
            raise failures[0]
        if failures:
            delivery.fail_some(failures)
        return stored

    def discard_open(self, error: EventBusError) -> int:
        """Drop the records of an aborted transaction that are not stored yet; return how many there are."""
        count = 0
        while self._open:
            _, accumulator = self._open.popitem()
            count += accumulator.discard(error)
        return count

    # settling --------------------------------------------------------------------------------------------------------

    def _settle_later(self, entry: _Unsettled) -> None:
        if not self._unsettled:
            self._stored.set()
        self._unsettled.append(entry)
        self._unsettled_bytes += entry.size_bytes
        self._written_count += 1

    def queued(self) -> Queued:
        """Return records without an outcome, for metrics."""
        records = sum(entry.delivery.count for entry in self._unsettled)
        return Queued(records + sum(one.open_count for one in self._open.values()), self._used_bytes())

    def tell_counts(self) -> None:
        """Add awaited records, each in a separate batch, to the statistics now."""
        for one in self._accumulators.values():
            if one.alone:
                self.engine.wrote(1, one.alone_bytes / one.alone, one.alone)
                one.alone = one.alone_bytes = 0

    def _used_bytes(self) -> int:
        return self._unsettled_bytes + len(self._open) * self.config.batch_size

    async def run(self) -> None:
        if not self.config.linger_ms:
            # A loop, because records sent during a flush gather in the next batches.
            while True:
                if not self._open and not self._unsettled:
                    self._opened.clear()
                    await self._opened.wait()
                else:
                    # Draining does not yield if nothing waits for the disk. A delivery callback that sends the next
                    # record refills the buffer each time, and no other task would run again.
                    await anyio.lowlevel.checkpoint()
                await self._drain()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._close_after_linger)
            while True:  # full batches are settled while others linger
                if not self._unsettled:
                    self._stored.clear()
                    await self._stored.wait()
                await self.settle()

    async def _close_after_linger(self) -> None:
        while True:
            if not self._open:
                self._opened.clear()
                await self._opened.wait()
            await self.engine.timers.sleep(self.config.linger_ms / 1000)
            self.close_open()

    def close_open(self) -> None:
        """Append every open batch to the log."""
        for accumulator in list(self._open.values()):
            accumulator.close()

    async def _drain(self) -> None:
        """Store everything sent so far, but not what is added meanwhile, or draining a busy producer would never
        end."""
        self.close_open()
        await self.settle()

    async def settle(self) -> None:
        """Return when every batch written so far has its outcome."""
        await self._settle(self._written_count)

    async def _settle(self, count: int) -> None:
        """Wait for flushes, and set the outcome of the first ``count`` batches, in order.

        Several tasks may be here at once (the sender, a flush, an awaited send): each checks the head again after its
        wait, so that an entry settled by another task is not settled twice.
        """
        unsettled = self._unsettled
        while unsettled and self._written_count - len(unsettled) < count:
            head = unsettled[0]
            try:
                self._settle_durable()
                # Another task may have settled the head while this one waited.
                if unsettled and unsettled[0] is head:
                    await self.engine.flushes.wait_flushed(head.topic_partition, head.last_offset)
            except EventBusError as error:
                if unsettled and unsettled[0] is head:
                    self.not_stored(error)
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
        # Leave space for two more batches: one send may close a batch that exceeded its limit, and open the next.
        most_bytes = max(self.config.buffer_memory - 2 * self.config.batch_size, self.config.buffer_memory // 2)
        if self._used_bytes() < most_bytes:
            return
        # Kafka's max.block.ms bounds the wait, so that a full disk shows as an error and not as a program that hangs.
        with self.engine.timers.move_on_after(self.config.max_block_ms / 1000):
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
            self.tell_counts()
            self.engine.producers.discard(self)
            try:
                if self.transactions is not None:
                    await self.transactions.aclose()
                await self._drain()
            finally:
                self.store = refuse_closed

    def give_up(self, error: EventBusError) -> int:
        count = self.discard_open(error)
        while self._unsettled:
            delivery = self._forget_head()
            count += delivery.count
            delivery.discard(error)
        return count
