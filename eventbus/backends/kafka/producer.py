"""The Kafka producer: librdkafka batches and sequences; here are the handles, and one hop per batch of reports."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message, Producer
from confluent_kafka import KafkaError as ClientError

from eventbus.backends.base import Add, Append, ProducerConfig, Send
from eventbus.backends.delivery import BatchDelivery, Delivery, OnDelivery
from eventbus.backends.kafka.failures import client_error, error_of, raised
from eventbus.backends.kafka.settings import config_refused
from eventbus.backends.kafka.threads import Loop
from eventbus.backends.kafka.transactions import KafkaTransactions
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    EventBusError,
    InvalidTxnState,
    ProducerClosed,
    RecordTooLarge,
)
from eventbus.types import GroupMetadata, Headers, OffsetAndMetadata, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.producer")
Report = Callable[[ClientError | None, Message], None]

_POLL_SECONDS = 0.1
"""How long a thread waits for reports before it looks whether it is still wanted."""
_LOOK_UP_SECONDS = 5.0
_RECORD_OVERHEAD_BYTES = 128
"""More than the lengths and deltas around one record, and its batch's header, ever take."""
_NO_OPTIONS: dict[str, Any] = {}
_LARGE_SHARE = 4
"""A record of a quarter of the buffer or more waits until the buffer is empty."""


class RecordBatch(BatchDelivery):
    """Records given in one turn of the event loop for one partition. Told of one by one, for they travel as they may.

    ``count`` grows in the event loop until the batch is sealed; the reports come in a thread of librdkafka's.
    """

    __slots__ = ("_finished", "append_times_ms", "failures", "first_failure", "is_sealed", "offsets", "untold")

    def __init__(self, topic: str, partition: int, home: object, finished: Callable[[RecordBatch], object]) -> None:
        super().__init__(topic, partition, home)
        self._finished = finished
        self.is_sealed = False
        self.offsets: dict[int, int] = {}
        """By position in the batch, of records with a handle; of what is not stored, -1."""
        self.untold: list[int] = []
        """The same for those without."""
        self.append_times_ms: dict[int, int] = {}
        """Where the log sets the time."""
        self.failures: dict[int, ClientError] = {}
        self.first_failure: ClientError | None = None

    def report(self, index: int, error: ClientError | None, message: Message) -> None:
        """The outcome of a record that has a handle, in a thread."""
        if error is not None:
            self.failures[index] = self.first_failure = error
            self.offsets[index] = -1
        else:
            kind, time_ms = message.timestamp()
            if kind == TIMESTAMP_LOG_APPEND_TIME:
                self.append_times_ms[index] = time_ms
            self.offsets[index] = _offset(message)
        if self.is_sealed and len(self.offsets) + len(self.untold) == self.count:
            self._finished(self)

    def tell(self, error: ClientError | None, message: Message) -> None:
        """The outcome of one that has none, in a thread."""
        if error is not None:
            self.first_failure = error
        self.untold.append(-1 if error is not None or self.untold else _offset(message))  # one is enough, as a witness
        if self.is_sealed and len(self.offsets) + len(self.untold) == self.count:
            self._finished(self)

    @property
    def some_offset(self) -> int:
        """Where a record of it was stored; -1: nowhere."""
        return max(*self.offsets.values(), *self.untold, -1, -1)

    def seal(self) -> None:
        """No record is added any more."""
        self.is_sealed = True
        if not self.open_count:
            self._finished(self)

    @property
    def open_count(self) -> int:
        """Records without an outcome."""
        return self.count - len(self.offsets) - len(self.untold)

    def failure(self, index: int) -> EventBusError | None:
        """What kept one record from the log, or None."""
        error = self.failures.get(index)
        if error is not None:
            return error_of(error, self._what())
        return None if index in self.offsets else self.error  # given up

    def finish(self) -> None:
        """Tell everybody who waits; in the event loop."""
        if self.done:
            return
        if self.first_failure is not None:
            self.error = error_of(self.first_failure, self._what())
            logger.error("records for %s-%d were not stored: %s", self.topic, self.partition, self.error)
        self._finish()

    def _what(self) -> str:
        return f"a record for {self.topic}-{self.partition} was not stored"


class RecordDelivery(Delivery):
    """The handle of one record: of a batch some may fail, and their offsets need not follow one another."""

    def exception(self) -> EventBusError | None:
        return cast("RecordBatch", self.batch).failure(self.index) if self.batch.done else None

    def result(self) -> RecordMetadata:
        batch = cast("RecordBatch", self.batch)
        if not batch.done:
            raise RuntimeError("the record is still on its way: await the delivery, or flush the producer first")
        error = batch.failure(self.index)
        if error is not None:
            raise error
        time_ms = batch.append_times_ms.get(self.index, self.timestamp_ms)
        return RecordMetadata(batch.topic, batch.partition, max(batch.offsets[self.index], -1), time_ms)

    def add_callback(self, on_delivery: OnDelivery) -> None:
        def call() -> None:
            error = self.exception()
            on_delivery(None if error is not None else self.result(), error)

        self.batch.when_done(call)


class Client:
    """One producer of librdkafka's, and the thread that its reports come in."""

    def __init__(self, settings: dict[str, Any]) -> None:
        try:
            self.handle = Producer(settings)
        except KafkaException as failure:
            raise config_refused(failure) from None
        self._is_wanted = True
        threading.Thread(target=self._serve, name="eventbus-kafka-producer", daemon=True).start()

    def _serve(self) -> None:
        while self._is_wanted:
            self._look(_POLL_SECONDS)
        with contextlib.suppress(KafkaException):
            self.handle.purge()
        self._look(0)
        del self.handle  # it waits for its threads to end: here, not in the event loop

    def _look(self, wait_seconds: float) -> None:
        try:
            self.handle.poll(wait_seconds)
        except KafkaException as failure:  # a fatal error, which whoever uses the producer is told of
            logger.debug("librdkafka: %s", failure)

    def stop(self) -> None:
        """What is still in it is given up."""
        self._is_wanted = False


class _Lane:
    """What is sent to one partition."""

    __slots__ = ("_batch", "_large_bytes", "_produce", "_producer", "_tell", "partition", "topic")

    def __init__(self, producer: KafkaProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._large_bytes = producer.config.max_request_size - _RECORD_OVERHEAD_BYTES
        self._batch: RecordBatch | None = None
        self._tell: Report = _nobody
        self._produce: Callable[..., None] = _nobody
        self.topic = topic
        self.partition = partition

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> Delivery:
        """Hand a record to librdkafka and give its handle. The hot path of `send_nowait`."""
        batch = self._batch
        if batch is None:
            batch = self._open()
        index = batch.count
        self._add(key, value, headers, timestamp_ms, partial(batch.report, index))
        batch.count = index + 1
        return RecordDelivery(batch, index, timestamp_ms)

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> BatchDelivery:
        """The same without a handle. The hot path of `send_many`."""
        batch = self._batch
        if batch is None:
            batch = self._open()
        self._add(key, value, headers, timestamp_ms, self._tell)
        batch.count += 1
        return batch

    async def send(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> RecordMetadata:
        """Send one record and wait for its ack."""
        await self._producer.wait_for_room()
        return await self.append(key, value, headers, timestamp_ms)

    def _open(self) -> RecordBatch:
        """The first record of this turn of the event loop."""
        batch = self._batch = self._producer.open_batch(self)
        self._tell = batch.tell
        self._produce = self._producer.client.handle.produce
        return batch

    def _add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, report: Report) -> None:
        large_bytes = self._large_bytes
        if headers or (value and len(value) > large_bytes) or (key and len(key) > large_bytes) or not timestamp_ms:
            self._check(key, value, headers, timestamp_ms)
        options: dict[str, Any] = {"headers": list(headers)} if headers else _NO_OPTIONS
        try:
            self._produce(self.topic, value, key, self.partition, report, timestamp=timestamp_ms, **options)
        except (BufferError, KafkaException) as failure:
            if not self._producer.has_grown(self, failure):
                raise self._producer.not_taken(self, failure, value, key) from None
            self._produce(self.topic, value, key, self.partition, report, timestamp=timestamp_ms, **options)

    def _check(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> None:
        self._producer.check_size(self, key, value, headers)
        if not timestamp_ms:
            raise ConfigError(
                "timestamp_ms=0 means 'now' to librdkafka, so the first millisecond of 1970 cannot be written: use 1"
            )

    def seal(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.seal()


class KafkaProducer:
    """See `BackendProducer`."""

    def __init__(self, backend: KafkaBackend, config: ProducerConfig) -> None:
        self.backend = backend
        self.config = config
        self.on_topics_changed: Callable[[], object] = _nothing
        self.loop = Loop()
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._open: list[_Lane] = []
        """Lanes with a batch of this turn."""
        self._pending: dict[RecordBatch, None] = {}
        """Batches whose outcome is not known, oldest first."""
        self._finished: deque[RecordBatch] = deque()
        """Known in a thread, and not yet told in the event loop."""
        self._is_woken = False
        self._is_full = False
        self._needs_bytes = 0
        self._closed = False
        self._refuses: Callable[[], object] | None = None
        self._settings = backend.settings.producer(config)
        self.client = Client(self._settings)
        self.transactions = (
            None if config.transactional_id is None else KafkaTransactions(self, config.transactional_id)
        )
        backend.topic_listeners.append(self._topics_changed)
        backend.producers.append(self)

    def partition_count(self, topic: str) -> int:
        return self.backend.partition_count(topic)

    def _topics_changed(self) -> None:
        self.on_topics_changed()

    # sending ---------------------------------------------------------------------------------------------------------

    def appender(self, topic: str, partition: int) -> Append:
        return self._lane(topic, partition).append

    def adder(self, topic: str, partition: int) -> Add:
        return self._lane(topic, partition).add

    def sender(self, topic: str, partition: int) -> Send:
        return self._lane(topic, partition).send

    def _lane(self, topic: str, partition: int) -> _Lane:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[(topic, partition)] = _Lane(self, topic, partition)
        return lane

    def check_size(self, lane: _Lane, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Raises RecordTooLarge beyond ``max_request_size``."""
        size_bytes = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD_BYTES
        size_bytes += sum([4 * len(name) + len(data or b"") + 10 for name, data in headers])
        if size_bytes > self.config.max_request_size:
            too_large = RecordTooLarge(
                f"a record of {size_bytes:,} bytes for {lane.topic}-{lane.partition} is larger than the producer's "
                f"max_request_size={self.config.max_request_size:,}: send less (or a pointer to the payload), "
                "or raise max_request_size and the topic's max.message.bytes"
            )
            self._not_stored(too_large)
            raise too_large

    def open_batch(self, lane: _Lane) -> RecordBatch:
        """A lane's first record of this turn of the event loop. Raises why none can be taken now."""
        if self._refuses is not None:
            self._refuses()
        if not self._open:
            self.loop.later(self.seal)
        self._open.append(lane)
        batch = RecordBatch(lane.topic, lane.partition, self.loop.token, self._is_finished)
        self._pending[batch] = None
        if self.transactions is not None:
            self.transactions.note(batch)
        return batch

    def refuse(self, why: Callable[[], object] | None) -> None:
        """From here on ``why`` is called for each record, and raises; None: records are taken."""
        self.seal()
        self._refuses = why

    def seal(self) -> None:
        """What was given so far is complete."""
        lanes, self._open = self._open, []
        for lane in lanes:
            lane.seal()

    def has_grown(self, lane: _Lane, failure: BufferError | KafkaException) -> bool:
        """librdkafka has not heard yet of a partition that was added: it is asked to look, which blocks."""
        if isinstance(failure, BufferError) or client_error(failure).code() != ClientError._UNKNOWN_PARTITION:
            return False
        try:
            found = self.client.handle.list_topics(lane.topic, _LOOK_UP_SECONDS).topics[lane.topic]
        except (KafkaException, KeyError):
            return False
        return lane.partition in found.partitions

    def not_taken(
        self, lane: _Lane, failure: BufferError | KafkaException, value: bytes | None, key: bytes | None
    ) -> EventBusError:
        """Why librdkafka refused a record."""
        if isinstance(failure, BufferError) or client_error(failure).code() == ClientError._QUEUE_FULL:
            self._is_full = True
            self._needs_bytes = len(value or b"") + len(key or b"")
            return BufferExhausted(
                f"the producer's buffer is full (buffer_memory={self.config.buffer_memory:,} bytes wait to be stored): "
                "`await producer.wait_for_room()` between sends, or `await bus.send(...)`"
            )
        error = raised(failure, f"a record for {lane.topic}-{lane.partition} was not taken")
        if self.transactions is not None:
            return self.transactions.refused(client_error(failure), error)
        return error

    def _not_stored(self, error: EventBusError) -> None:
        if self.transactions is not None:
            self.transactions.spoil(error)

    # reports ---------------------------------------------------------------------------------------------------------

    def _is_finished(self, batch: RecordBatch) -> None:
        """In any thread: one hop for all that is finished by the time the event loop looks."""
        self._finished.append(batch)
        if not self._is_woken:
            self._is_woken = True
            self.loop.tell(self._settle)

    def _settle(self) -> None:
        """In the event loop."""
        self._is_woken = False
        finished = self._finished
        while finished:
            batch = finished.popleft()
            self._pending.pop(batch, None)
            batch.finish()
            if batch.first_failure is not None and batch.error is not None and self.transactions is not None:
                self.transactions.failed(batch.first_failure, batch.error)

    async def wait_for_room(self) -> None:
        if not self._is_full:
            return
        at_first = len(self.client.handle)
        is_large = self._needs_bytes * _LARGE_SHARE > self.config.buffer_memory
        wanted = 0 if is_large else at_first // 2
        with self.backend.timers.move_on_after(self.config.max_block_ms / 1000) as scope:
            while len(self.client.handle) > wanted and self._pending:
                self.seal()
                await next(iter(self._pending)).wait()
        if scope.cancelled_caught:
            raise BufferExhausted(
                f"no room in the producer's buffer of {self.config.buffer_memory:,} bytes for "
                f"{self.config.max_block_ms:,} ms (max_block_ms): the brokers are slower than the sends, or away"
            )
        self._is_full = False

    async def flush(self) -> None:
        self.seal()
        for batch in list(self._pending):
            await batch.wait()

    # life ------------------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Go on with another client, as if the process had been started anew. What the old one holds is given up."""
        self.seal()
        self.client.stop()
        self.client = Client(self._settings)

    async def run(self) -> None:
        await anyio.Event().wait()  # librdkafka's threads do it

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._leave()
        try:
            if self.transactions is not None:
                await self.transactions.aclose()
            await self.flush()
        finally:
            self.refuse(_refuse)
            if not self._pending:
                self.client.stop()

    def _leave(self) -> None:
        if self in self.backend.producers:
            self.backend.producers.remove(self)
            self.backend.topic_listeners.remove(self._topics_changed)

    def give_up(self, error: EventBusError) -> int:
        self._leave()
        self.refuse(_refuse)
        count = 0
        self.seal()
        for batch in self._pending:
            count += batch.open_count
            batch.discard(error)
        self._pending.clear()
        self.client.stop()
        return count

    # transactions ----------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        await self._transactional().init()

    def begin_transaction(self) -> None:
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        await self._transactional().send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        await self._transactional().commit()

    async def abort_transaction(self) -> None:
        await self._transactional().abort()

    def _transactional(self) -> KafkaTransactions:
        if self._closed:
            _refuse()
        if self.transactions is None:
            raise InvalidTxnState(
                "this producer has no transactional id: open one with bus.new_producer(transactional_id=...), "
                "or use `async with bus.transaction(id)`"
            )
        return self.transactions


def _offset(message: Message) -> int:
    """-1 with acks=0: nobody says."""
    offset = message.offset()
    return -1 if offset is None else offset


def _nobody(*_: object, **__: object) -> None:
    """Until a batch is open."""


def _refuse() -> None:
    raise ProducerClosed("this producer is closed: send inside `async with`, or open a new one")


def _nothing() -> None:
    """Until a client says what it wants to hear."""
