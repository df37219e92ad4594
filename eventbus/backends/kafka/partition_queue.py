"""Queue the records of one partition until librdkafka has accepted them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.backends.kafka.delivery_reports import ProduceArguments, RecordBatch, RecordDelivery, Report
from eventbus.backends.kafka.limits import NEVER_MS, UNKNOWN
from eventbus.backends.kafka.slices import Slices
from eventbus.errors import BufferExhausted, ConfigError
from eventbus.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from eventbus.backends.kafka.producer import KafkaProducer

RECORD_OVERHEAD_BYTES = 128
"""An upper limit for the lengths and deltas of one record, and its batch's header."""
_CHECK_MASK = 0xFF
"""Within a batch, the event loop checks the reports at every 256th record."""


class PartitionQueue:
    """The records of one partition, in order. Records that librdkafka cannot accept yet are held in this queue."""

    __slots__ = (
        "_batch",
        "_direct",
        "_first_ms",
        "_is_slowed",
        "_large_bytes",
        "_last_ms",
        "_produce",
        "_producer",
        "_report",
        "_slices",
        "_together_ms",
        "is_parked",
        "limits",
        "partition",
        "topic",
    )  # fmt: skip

    def __init__(self, producer: KafkaProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._large_bytes = producer.config.max_request_size - RECORD_OVERHEAD_BYTES
        self._batch: RecordBatch | None = None
        self._report: Report = _ignore
        self._produce: Callable[..., None] = _ignore
        self._slices = Slices(self, producer.loop)
        self._direct: dict[RecordBatch, None] = {}
        """Batches passed directly to librdkafka that are not settled: no slice may overtake them."""
        self._is_slowed = False
        """True after a batch was refused: later records wait until its valid records are stored."""
        self.is_parked = False
        """True if librdkafka does not know the partition yet."""
        self.limits = UNKNOWN
        self._first_ms = self._last_ms = self._together_ms = 0
        """The range of timestamps that no broker refuses; and the timestamp that records without a handle share."""
        self.topic = topic
        self.partition = partition

    # The next two are alike on purpose: a call for the common part would cost a tenth of each.

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
        """Pass a record to librdkafka and return its handle. The hot path of `send_nowait`."""
        batch = self._batch
        if batch is None:
            batch = self._open(timestamp_ms)
        large_bytes = self._large_bytes
        if (
            headers
            or not self._first_ms <= timestamp_ms <= self._last_ms
            or (value and len(value) > large_bytes)
            or (key and len(key) > large_bytes)
        ):
            batch = self._check(batch, key, value, headers, timestamp_ms)
        count = batch.count + 1
        delivery = RecordDelivery(batch, count, timestamp_ms)
        packed = None
        if headers:
            packed = list(headers)
            delivery.headers = headers
        try:
            self._produce(self.topic, value, key, self.partition, delivery.report, None, timestamp_ms, packed)
        except (BufferError, KafkaException) as failure:
            batch = self._refused(failure, key, value, timestamp_ms)
            count = batch.count + 1
            delivery = RecordDelivery(batch, count, timestamp_ms, headers=headers)
            self._hold(self.topic, value, key, self.partition, delivery.report, None, timestamp_ms, packed)
        batch.count = count
        if not count & _CHECK_MASK:
            self._producer.check_reports()
        return delivery

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
        """Pass a record to librdkafka without creating a handle. The hot path of `send_many`."""
        batch = self._batch
        if batch is None:
            batch = self._open(timestamp_ms)
        if timestamp_ms != self._together_ms or headers:
            # A record that differs from the others needs a handle: if its batch is refused, it is sent again from
            # there.
            return self.append(key, value, headers, timestamp_ms).batch
        large_bytes = self._large_bytes
        if (
            not self._first_ms <= timestamp_ms <= self._last_ms
            or (value and len(value) > large_bytes)
            or (key and len(key) > large_bytes)
        ):
            batch = self._check(batch, key, value, headers, timestamp_ms)
        try:
            self._produce(self.topic, value, key, self.partition, self._report, None, timestamp_ms, None)
        except (BufferError, KafkaException) as failure:
            batch = self._refused(failure, key, value, timestamp_ms)
            self._hold(self.topic, value, key, self.partition, self._report, None, timestamp_ms, None)
        count = batch.count + 1
        batch.count = count
        if not count & _CHECK_MASK:
            self._producer.check_reports()
        return batch

    async def send(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> RecordMetadata:
        """Send one record and wait for its ack; before that, for space in the buffer."""
        while True:
            if self._producer.is_full:
                await self._producer.wait_for_room()
            try:
                delivery = self.append(key, value, headers, timestamp_ms)
            except BufferExhausted:
                continue
            await delivery.batch.event.wait()
            return delivery.result()

    def _open(self, timestamp_ms: int) -> RecordBatch:
        """Begin a batch with the first record of this turn of the event loop."""
        batch = self._producer.open_batch(self)
        self._batch = batch
        batch.timestamp_ms = self._together_ms = timestamp_ms
        self._report = batch.report
        self.limits = self._producer.limits(self.topic)
        self._first_ms, self._last_ms = self._producer.accepted_times(self.limits)
        if self.limits.needs_key:
            self._first_ms = NEVER_MS  # every record is checked
        if self._is_slowed or self._producer.is_held or self._slices.is_active or self._has_small_batches:
            batch.is_direct = False
            self._produce = self._hold
        else:
            self._direct[batch] = None
            self._produce = self._producer.client.handle.produce
        return batch

    @property
    def _has_small_batches(self) -> bool:
        return self.limits.max_batch_bytes < self._producer.batch_bytes

    def _refused(
        self, failure: BufferError | KafkaException, key: bytes | None, value: bytes | None, timestamp_ms: int
    ) -> RecordBatch:
        """Raise, or return a batch whose records wait."""
        self._producer.refused(self, failure, value, key)
        return self._open_slow(timestamp_ms)

    def _open_slow(self, timestamp_ms: int) -> RecordBatch:
        """Begin a batch whose records wait for earlier records, and are sent slice by slice."""
        batch = self._batch
        if batch is not None and not batch.is_direct:
            return batch
        self.hold()
        return self._open(timestamp_ms)

    def _check(
        self, batch: RecordBatch, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> RecordBatch:
        """Return the batch for the record. Raises if the record cannot be sent."""
        self._producer.check_size(self, key, value, headers)
        if not timestamp_ms:
            raise ConfigError(
                "timestamp_ms=0 means 'now' to librdkafka, so the first millisecond of 1970 cannot be written: use 1"
            )
        is_normal = self._first_ms <= timestamp_ms <= self._last_ms
        if batch.is_direct and not is_normal and self._may_be_refused(key, timestamp_ms):
            return self._open_slow(timestamp_ms)
        return batch

    def is_alone(self, arguments: ProduceArguments) -> bool:
        """True if brokers may refuse the record for its timestamp or its missing key: it must not share a batch."""
        return self._may_be_refused(arguments[2], arguments[6])

    def _may_be_refused(self, key: bytes | None, timestamp_ms: int) -> bool:
        if self.limits.needs_key and key is None:
            return True
        first_ms, last_ms = self._producer.accepted_times(self.limits)
        return not first_ms <= timestamp_ms <= last_ms

    def seal(self) -> int:
        """End the batch with the turn of the event loop; return its number of records."""
        batch, self._batch = self._batch, None
        self._produce = _ignore  # a client that is replaced must not be kept alive by this
        if batch is None:
            return 0
        if not batch.count:
            self._direct.pop(batch, None)  # its only record was not accepted: nothing will be reported
        batch.seal()
        if not batch.is_direct:
            self._producer.release(self)
        return batch.count

    # records that wait -----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Make later records wait, until `release`."""
        self._is_slowed = True
        self.seal()

    def _hold(self, *arguments: Any) -> None:
        self._producer.hold_bytes(size_bytes_of(arguments))
        self._slices.queue.append(arguments)

    def settled(self, batch: RecordBatch) -> bool:
        """Handle a batch whose records are all reported. Return False if some of them are sent again first."""
        self._direct.pop(batch, None)
        # The broker refused the batch for one of its records. The others are valid and are sent again, before anything
        # newer.
        if batch.refused:
            self._slices.repeat(batch.take_refused())
            return False
        return True

    @property
    def is_waiting(self) -> bool:
        """True if records wait to be sent, and none are in flight."""
        return self._slices.is_holding and not self._slices.is_busy

    def release(self) -> bool:
        """Send the next slice, if nothing is in flight. Return False if the buffer is full."""
        if self._direct or self.is_parked:
            return True  # both end with another call
        if not self._slices.send(self._producer.client.handle.produce):
            return False
        if not self._slices.is_active:
            self._is_slowed = False
        return True

    def release_bytes(self, arguments: ProduceArguments) -> None:
        """Count a waiting record that was passed on or dropped."""
        self._producer.held_bytes -= size_bytes_of(arguments)

    def slice_settled(self) -> None:
        """Continue after a slice is settled."""
        self._producer.release(self)

    @property
    def may_repeat(self) -> bool:
        """False in a transaction, which librdkafka can then only abort."""
        return self._producer.transactions is None

    def fail(self, error: ClientError) -> bool:
        """Fail the held records; return True if there were any."""
        self.is_parked = False
        return self._slices.fail(error)


def size_bytes_of(arguments: ProduceArguments) -> int:
    """Return the buffer space that a record needs."""
    return len(arguments[1] or b"") + len(arguments[2] or b"")


def _ignore(*_: object, **__: object) -> None:
    """Do nothing: used before a batch is open."""
