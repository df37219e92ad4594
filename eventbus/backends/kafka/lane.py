"""What is sent to one partition, on its way into librdkafka."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.backends.kafka.failures import client_error
from eventbus.backends.kafka.reports import RecordBatch, RecordDelivery, Report
from eventbus.errors import BufferExhausted, ConfigError
from eventbus.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from eventbus.backends.kafka.producer import KafkaProducer

RECORD_OVERHEAD_BYTES = 128
"""More than the lengths and deltas around one record, and its batch's header, ever take."""
_LOOK_MASK = 0xFF
"""Of a batch, every 256th record has the event loop look at the reports."""

Given = tuple[str, bytes | None, bytes | None, int, Report, None, int, list[Any] | None]
"""The arguments of librdkafka's ``produce``, in its order; by position, for names cost a third of the call."""


class Lane:
    """Records of one partition keep their order, also when librdkafka cannot take them yet: then they are held here."""

    __slots__ = ("_batch", "_held", "_large_bytes", "_produce", "_producer", "_tell", "partition", "topic")

    def __init__(self, producer: KafkaProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._large_bytes = producer.config.max_request_size - RECORD_OVERHEAD_BYTES
        self._batch: RecordBatch | None = None
        self._tell: Report = _nobody
        self._produce: Callable[..., None] = _nobody
        self._held: deque[Given] = deque()
        self.topic = topic
        self.partition = partition

    # The next two are alike on purpose: a call for what they share would cost a tenth of each.

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
        """Hand a record to librdkafka and give its handle. The hot path of `send_nowait`."""
        batch = self._batch
        if batch is None:
            batch = self._open()
        large_bytes = self._large_bytes
        if headers or not timestamp_ms or (value and len(value) > large_bytes) or (key and len(key) > large_bytes):
            self._check(key, value, headers, timestamp_ms)
        count = batch.count + 1
        delivery = RecordDelivery(batch, count, timestamp_ms)
        packed = list(headers) if headers else None
        try:
            self._produce(self.topic, value, key, self.partition, delivery.tell, None, timestamp_ms, packed)
        except (BufferError, KafkaException) as failure:
            self._not_taken(
                failure, (self.topic, value, key, self.partition, delivery.tell, None, timestamp_ms, packed)
            )
        batch.count = count
        if not count & _LOOK_MASK:
            self._producer.look()
        return delivery

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
        """The same without a handle. The hot path of `send_many`."""
        batch = self._batch
        if batch is None:
            batch = self._open()
        large_bytes = self._large_bytes
        if headers or not timestamp_ms or (value and len(value) > large_bytes) or (key and len(key) > large_bytes):
            self._check(key, value, headers, timestamp_ms)
        count = batch.count + 1
        packed = list(headers) if headers else None
        try:
            self._produce(self.topic, value, key, self.partition, self._tell, None, timestamp_ms, packed)
        except (BufferError, KafkaException) as failure:
            self._not_taken(failure, (self.topic, value, key, self.partition, self._tell, None, timestamp_ms, packed))
        batch.count = count
        if not count & _LOOK_MASK:
            self._producer.look()
        return batch

    async def send(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> RecordMetadata:
        """Send one record and wait for its ack; before that, for room."""
        while True:
            if self._producer.is_full:
                await self._producer.wait_for_room()
            try:
                delivery = self.append(key, value, headers, timestamp_ms)
            except BufferExhausted:
                continue
            await delivery.batch.event.wait()
            return delivery.result()

    def _open(self) -> RecordBatch:
        """The first record of this turn of the event loop."""
        batch = self._batch = self._producer.open_batch(self)
        self._tell = batch.tell
        self._produce = self._hold if self._held or self._producer.is_held else self._producer.client.handle.produce
        return batch

    def _not_taken(self, failure: BufferError | KafkaException, given: Given) -> None:
        self._producer.not_taken(self, failure, given[1], given[2])  # it raises, unless the lane is held from here on
        self._hold(*given)

    def _check(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        self._producer.check_size(self, key, value, headers)
        if not timestamp_ms:
            raise ConfigError(
                "timestamp_ms=0 means 'now' to librdkafka, so the first millisecond of 1970 cannot be written: use 1"
            )

    def seal(self) -> int:
        """The turn of the event loop is over: how many records it brought."""
        batch, self._batch = self._batch, None
        self._produce = _nobody  # a client that is replaced must not be kept alive by this
        if batch is None:
            return 0
        batch.seal()
        return batch.count

    # what librdkafka cannot take yet ---------------------------------------------------------------------------------

    def hold(self) -> None:
        """From here on records wait, until `release`."""
        self._produce = self._hold

    def _hold(self, *given: Any) -> None:
        self._producer.hold_bytes(_size_bytes(given))
        self._held.append(given)

    def release(self) -> bool:
        """Hand over what was held. False: the buffer is full, and some of it is held still."""
        held = self._held
        if not held and self._batch is None:
            return True
        produce = self._producer.client.handle.produce
        while held:
            given = held[0]
            try:
                produce(*given)
            except BufferError:
                return False
            except KafkaException as failure:
                given[4](client_error(failure), None)
            held.popleft()
            self._producer.held_bytes -= _size_bytes(given)
        if self._batch is not None:
            self._produce = produce
        return True

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def fail(self, error: ClientError) -> bool:
        """What was held is not sent; whether there was something."""
        if not self._held:
            return False
        while self._held:
            given = self._held.popleft()
            self._producer.held_bytes -= _size_bytes(given)
            given[4](error, None)
        return True


def _size_bytes(given: Given) -> int:
    return len(given[1] or b"") + len(given[2] or b"")


def _nobody(*_: object, **__: object) -> None:
    """Until a batch is open."""
