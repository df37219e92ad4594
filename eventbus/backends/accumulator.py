"""The batches of one partition: collected, stamped with the producer's id and sequence, and appended to the log.

Sequences make a producer idempotent (KIP-98): the log stores each batch once, and in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio.lowlevel

from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.errors import EventBusError
from eventbus.log.partition_log import AppendInfo
from eventbus.records import BatchBuilder, RecordBatch, read_header
from eventbus.records.sequence import MAX_SEQUENCE, increment_sequence
from eventbus.records.single import BatchSpan, build_single
from eventbus.types import Headers, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.embedded_producer import EmbeddedProducer

_SENDS_PER_TURN = 64
"""The number of awaited sends that may complete without waiting before other tasks get a turn."""

_MOST_CLOSED = 8
"""The most batches that are closed before a large record is added to an open batch after all."""

_NewMetadata = Callable[[type[RecordMetadata], tuple[str, int, int, int]], RecordMetadata]
_new_metadata = cast("_NewMetadata", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]  a third of the cost


class Identity(NamedTuple):
    """The producer's fields in a batch. Compared by object identity: each object begins a new run of sequences."""

    producer_id: int
    producer_epoch: int
    is_transactional: bool


class Accumulator:
    """The batches of one partition, of which only the newest is open."""

    __slots__ = (
        "_builder",
        "_delivery",
        "_identity",
        "_limit_bytes",
        "_producer",
        "_sequence",
        "alone",
        "alone_bytes",
        "last_offset",
        "topic_id",
        "topic_partition",
    )

    def __init__(self, producer: EmbeddedProducer, topic_partition: TopicPartition, topic_id: str) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        """The id of the topic that the sequences belong to: a topic that is created again has seen none of them."""
        self.last_offset = -1
        """The offset of the last record stored here."""
        self.alone = self.alone_bytes = 0
        """The number and size of batches with a single awaited record, which enter the statistics at their mean when
        requested."""
        self._producer = producer
        self._identity: Identity | None = None
        self._sequence = -1
        """The sequence of the next record; -1 without idempotence."""
        self._builder: BatchBuilder | None = None
        self._delivery = BatchDelivery(*topic_partition, producer.home)
        self._limit_bytes = 0

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
        """Add a record to the open batch and return its handle. The hot path of `send_nowait`."""
        builder = self._builder
        if builder is None:
            builder = self._open()
        limit_bytes = self._limit_bytes
        # One test for all rare cases, so that the hot path has a single branch. The size of a record with headers is
        # computed exactly.
        if headers or (value and len(value) >= limit_bytes) or (key and len(key) >= limit_bytes):
            builder = self._open_for(key, value, headers)
        index = builder.append(key, value, headers, timestamp_ms)
        delivery = Delivery(self._delivery, index, timestamp_ms)
        if builder.size_bytes >= limit_bytes:
            self.close()
        return delivery

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
        """Add a record without creating a handle. The hot path of `send_many`."""
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
        """Store one record and wait for its ack. The path of a single awaited publish."""
        producer = self._producer
        # Records that were sent without waiting are in an open batch. Storing this one directly would put it before
        # them.
        if producer.lingers or self._builder is not None:
            return await self._send_in_batch(key, value, headers, timestamp_ms)
        # There is nothing to batch with: append directly, without a handle.
        topic_partition = self.topic_partition
        large_bytes = producer.large_bytes
        if headers or (value and len(value) > large_bytes) or (key and len(key) > large_bytes):
            producer.check_size(topic_partition, key, value, headers)
        try:
            identity = producer.identity
            # Another object means another epoch or another transaction, in which sequences start at 0.
            if self._identity is not identity:
                identity = self._identify()
            producer_id, epoch, transactional = identity
            sequence = self._sequence
            batch = build_single(
                key, value, headers, timestamp_ms, producer.compression, producer_id, epoch, sequence, transactional
            )
            span = BatchSpan(0, timestamp_ms, producer_id, epoch, sequence, transactional)
            info = producer.store(topic_partition, batch, span, producer.engine.clock())
            self.alone += 1
            self.alone_bytes += len(batch)
        except EventBusError as error:
            producer.not_stored(error)
            raise
        # Only after the append has succeeded. A refused batch must not leave a gap, or the log would refuse all later
        # batches.
        if sequence >= 0:
            self._sequence = sequence + 1 if sequence < MAX_SEQUENCE else 0
        self.last_offset = offset = info[0]
        append_time_ms = info[2]
        if producer.waits:
            await producer.engine.flushes.wait_flushed(topic_partition, offset)
        else:
            producer.unwaited += 1
            if producer.unwaited >= _SENDS_PER_TURN:
                # Nothing was waited for: without this, a loop of sends would keep every other task from running.
                producer.unwaited = 0
                await anyio.lowlevel.checkpoint()
            if producer.flushes:
                producer.engine.flushes.begin_soon()
        if not producer.acks:
            offset = -1
        topic, partition = topic_partition
        return _new_metadata(
            RecordMetadata, (topic, partition, offset, timestamp_ms if append_time_ms < 0 else append_time_ms)
        )

    async def _send_in_batch(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> RecordMetadata:
        """Send the record after those that were sent without waiting, because the order of sends is the order in the
        log."""
        await self._producer.wait_for_room()
        delivery = self.append(key, value, headers, timestamp_ms)
        if not self._producer.lingers:
            self.close()
            await self._producer.settle()
        return await delivery

    def _open(self) -> BatchBuilder:
        self._limit_bytes = self._producer.opening(self)
        self._delivery = BatchDelivery(*self.topic_partition, self._producer.home)
        self._builder = BatchBuilder(self._producer.config.compression)
        return self._builder

    def _open_for(self, key: bytes | None, value: bytes | None, headers: Headers) -> BatchBuilder:
        """Return the batch for a record that may be large. A record as large as a batch gets a separate batch, to
        fail alone."""
        size_bytes = self._producer.check_size(self.topic_partition, key, value, headers)
        if size_bytes >= self._limit_bytes:
            # Closing calls delivery callbacks, and one of them may send to this partition. A callback that always does
            # so would make this loop endless: after some rounds the record shares its batch.
            for _ in range(_MOST_CLOSED):
                if self._builder is None or not self._builder.count:
                    break
                self.close()
        return self._builder or self._open()

    @property
    def open_count(self) -> int:
        """The number of records in the open batch."""
        return 0 if self._builder is None else self._builder.count

    def close(self) -> None:
        """Append the open batch to the log."""
        builder, self._builder = self._builder, None
        if builder is not None:
            self._producer.closed(self, builder, self._delivery)

    def discard(self, error: EventBusError) -> int:
        """Drop the open batch on purpose; return its number of records."""
        builder, self._builder = self._builder, None
        if builder is None:
            return 0
        self._delivery.discard(error)
        return builder.count

    # idempotence -----------------------------------------------------------------------------------------------------

    def store(self, builder: BatchBuilder) -> tuple[AppendInfo, int]:
        """Stamp the batch and append it; return its size too. Only stored batches use up a sequence."""
        producer = self._producer
        identity = producer.identity
        if self._identity is not identity:
            identity = self._identify()
        sequence = self._sequence
        data = builder.build(
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
            is_transactional=identity.is_transactional,
        )
        info = producer.store(self.topic_partition, data, read_header(data), producer.engine.clock())
        if sequence >= 0:
            self._sequence = increment_sequence(sequence, builder.count)
        self.last_offset = info.last_offset
        producer.engine.wrote(builder.count, len(data))
        return info, len(data)

    def store_each(self, builder: BatchBuilder, failures: dict[int, EventBusError]) -> tuple[AppendInfo, int] | None:
        """Append the records of a refused batch separately. Fill ``failures``; return None if nothing is stored."""
        first_offset, whole_bytes, last = -1, 0, None
        for index, record in enumerate(RecordBatch(bytes(builder.build())).records()):
            single = BatchBuilder(self._producer.config.compression)
            single.append(record.key, record.value, record.headers, record.timestamp_ms)
            try:
                last, size_bytes = self.store(single)
            except EventBusError as error:
                failures[index] = error
            else:
                whole_bytes += size_bytes
                first_offset = last.base_offset if first_offset < 0 else first_offset
        return None if last is None else (last._replace(base_offset=first_offset), whole_bytes)

    def _identify(self) -> Identity:
        """Begin with the producer's present identity: sequences start at 0."""
        identity = self._producer.identify(self)
        self._sequence = 0 if identity.producer_id >= 0 else -1
        self._identity = identity
        return identity

    def forget(self) -> None:
        """Start over, because the topic was deleted and created again."""
        # The new topic has seen no batch of this producer, so it expects sequence 0.
        self._identity = None
