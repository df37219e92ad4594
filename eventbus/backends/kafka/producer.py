"""The Kafka producer: librdkafka batches and sequences; this module has the handles, and one callback per batch."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.base import Add, Append, ProducerConfig, Send, Then
from eventbus.backends.kafka.delivery_reports import NOT_ALLOWED, RecordBatch, is_of_batch
from eventbus.backends.kafka.failures import client_error, error_of, raised
from eventbus.backends.kafka.limits import UNKNOWN, TopicLimits
from eventbus.backends.kafka.partition_queue import RECORD_OVERHEAD_BYTES, PartitionQueue
from eventbus.backends.kafka.producer_client import ProducerClient
from eventbus.backends.kafka.threads import Loop, Worker
from eventbus.backends.kafka.transactions import KafkaTransactions
from eventbus.backends.transactional import TransactionalProducer, nothing, refuse_closed
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    EventBusError,
    RecordTooLarge,
)
from eventbus.types import Headers

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.producer")

_LOOK_UP_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_LARGE_SHARE = 4
"""A record of at least this fraction of the buffer waits until the buffer is empty."""
_LOOK_EVERY = 256
"""The number of records in small turns of the event loop between two checks of the reports."""
_REFUSED_SECONDS = 10.0
"""How long a producer that was not authorized refuses locally: permissions may have been granted by then."""
_SETTLE_SECONDS = 10.0
"""How long a client that has failed may wait for the answers to what it had sent."""
_LOST_ITS_PLACE = frozenset(
    (
        ClientError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ClientError.UNKNOWN_PRODUCER_ID,
        ClientError.DUPLICATE_SEQUENCE_NUMBER,
        ClientError.INVALID_PRODUCER_EPOCH,
        ClientError._GAPLESS_GUARANTEE,
        ClientError._FATAL,
    )
)
"""Errors after which librdkafka's idempotent producer is useless: its next batch could be taken for another."""
_CLOSING_SECONDS = 1.0
"""If closing takes longer, the log contains what it waits for."""


class KafkaProducer(TransactionalProducer[KafkaTransactions]):
    """The producer of a Kafka cluster, see `BackendProducer`."""

    def __init__(self, backend: KafkaBackend, config: ProducerConfig) -> None:
        super().__init__()
        self.backend = backend
        self.config = config
        self.loop = Loop()
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._open: list[PartitionQueue] = []
        """Queues with a batch of this turn."""
        self._pending: dict[RecordBatch, None] = {}
        """Batches without an outcome, oldest first."""
        self._finished: deque[RecordBatch] = deque()
        """Batches whose outcome is known in a thread, and not yet set in the event loop."""
        self._is_woken = False
        self.is_full = False
        self._needs_bytes = 0
        self.is_held = False
        """True while records wait in their queues: the client has failed, and has not been replaced yet."""
        self.held_bytes = 0
        self._crowded: dict[PartitionQueue, None] = {}
        """Queues with records that wait for space in the buffer."""
        self._unlooked_count = 0
        """Records since the last check of the reports."""
        self._is_busy = False
        """True if the event loop takes the reports instead of the client's thread."""
        self._leaving = threading.Event()
        """Set when the results of lookups in a thread are no longer needed."""
        self._refuses: Callable[[], object] | None = None
        self._looking_up: dict[str, list[Then]] = {}
        self._worker: Worker | None = None
        self._settings = told = backend.settings.producer(config)
        self._room_bytes = 1024 * int(told["queue.buffering.max.kbytes"])
        self.batch_bytes = int(told["batch.size"])
        """The limit of librdkafka's batches; a single record may exceed it."""
        self.client = ProducerClient(self._settings, self._has_failed)
        self.transactions = (
            None if config.transactional_id is None else KafkaTransactions(self, config.transactional_id)
        )
        backend.topic_listeners.append(self._topics_changed)
        backend.producers.append(self)

    # topics ----------------------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int | None:
        # Without the limits a record that the topic refuses could share a batch with others, which would be refused
        # with it.
        if topic not in self.backend.known_limits:
            return None  # `look_up` finds both
        return self.backend.known_counts.get(topic)

    def limits(self, topic: str) -> TopicLimits:
        return self.backend.known_limits.get(topic, UNKNOWN)

    def accepted_times(self, limits: TopicLimits) -> tuple[int, int]:
        """Return the first and the last timestamp that no broker refuses now."""
        return limits.accepted_times(self.backend.clock())

    def look_up(self, topic: str, then: Then) -> None:
        waiting = self._looking_up.setdefault(topic, [])
        waiting.append(then)
        # A lookup is under way: one request for all records that wait for the topic.
        if len(waiting) > 1:
            return
        found: list[EventBusError] = []

        def look() -> None:
            try:
                self.backend.partition_count(topic)
                self.backend.learn_limits([topic])
            except EventBusError as error:
                found.append(error)
            except Exception as error:  # raised by the client library: the sends that wait for the topic must end
                found.append(ConfigError(f"Topic {topic!r} cannot be looked up. {type(error).__name__}: {error}"))

        def tell() -> None:
            for told in self._looking_up.pop(topic, ()):
                told(found[0] if found else None)

        self._in_thread(look, tell)

    def _in_thread(self, look: Callable[[], None], then: Callable[[], object]) -> None:
        """Query the cluster in a thread; then continue in the event loop."""
        if self._worker is None:
            self._worker = Worker("eventbus-kafka-look-up", self.loop)
        self._worker.do(look, then)

    def _topics_changed(self) -> None:
        self.on_topics_changed()

    # sending ---------------------------------------------------------------------------------------------------------

    def appender(self, topic: str, partition: int) -> Append:
        return self._queue(topic, partition).append

    def adder(self, topic: str, partition: int) -> Add:
        return self._queue(topic, partition).add

    def sender(self, topic: str, partition: int) -> Send:
        return self._queue(topic, partition).send

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        queue = self._queues.get((topic, partition))
        if queue is None:
            queue = self._queues[(topic, partition)] = PartitionQueue(self, topic, partition)
        return queue

    def check_size(self, queue: PartitionQueue, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Raise RecordTooLarge beyond ``max_request_size``."""
        size_bytes = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        size_bytes += sum([4 * len(name) + len(data or b"") + 10 for name, data in headers])
        if size_bytes > self.config.max_request_size:
            too_large = RecordTooLarge(
                f"a record of {size_bytes:,} bytes for {queue.topic}-{queue.partition} is larger than the producer's "
                f"max_request_size={self.config.max_request_size:,}: send less (or a pointer to the payload), "
                "or raise max_request_size and the topic's max.message.bytes"
            )
            self._not_stored(too_large)
            raise too_large

    def open_batch(self, queue: PartitionQueue) -> RecordBatch:
        """Begin a batch with a queue's first record of this turn of the event loop. Raises if no record is accepted
        now."""
        if self._refuses is not None:
            self._refuses()
        # The first batch of this turn of the event loop: all batches are sealed together at its end.
        if not self._open:
            self.loop.later(self.seal)
        self._open.append(queue)
        batch = RecordBatch(queue.topic, queue.partition, self.loop.token, self._is_finished)
        if self.transactions is None:
            # Not in a transaction, which librdkafka can only abort after a refused batch.
            batch.may_repeat = self._is_refused
        self._pending[batch] = None
        if self.transactions is not None:
            self.transactions.note(batch)
        return batch

    def refuse(self, why: Callable[[], object] | None) -> None:
        """Call ``why``, which raises, for each record from now on; None: accept records."""
        self.seal()
        self._refuses = why

    def seal(self) -> None:
        """End all open batches."""
        queues, self._open = self._open, []
        for queue in queues:
            self._unlooked_count += queue.seal()
        if self._unlooked_count >= _LOOK_EVERY:
            self.check_reports()
        if self._is_busy:
            self.loop.later(self._rest)

    def check_reports(self) -> None:
        """Take the reports of earlier records while many records are being sent."""
        self._unlooked_count = 0
        if not self.client.is_stopped:
            if not self._is_busy:
                self._is_busy = True
                self.client.claim()
            self.client.look()

    def _rest(self) -> None:
        """Return the reports to the thread a turn later, unless the load continues."""
        if self._is_busy and not self._open:
            self._is_busy = False
            self.client.rest()

    def refused(
        self, queue: PartitionQueue, failure: BufferError | KafkaException, value: bytes | None, key: bytes | None
    ) -> None:
        """Handle a record that librdkafka refused: raise, or hold it in the queue until it can be sent."""
        error = ClientError(ClientError._QUEUE_FULL) if isinstance(failure, BufferError) else client_error(failure)
        if error.code() == ClientError._QUEUE_FULL:
            raise self._has_no_room(len(value or b"") + len(key or b"")) from None
        is_fatal = error.code() == ClientError._FATAL
        error = self.client.cause_of(error)
        # librdkafka's metadata may be older than ours: the partition was just added. The record waits until librdkafka
        # has it.
        if error.code() == ClientError._UNKNOWN_PARTITION and queue.partition < (
            self.partition_count(queue.topic) or 0
        ):
            queue.is_parked = True
            self._in_thread(partial(self._until_seen, queue), partial(self._unpark, queue))
        elif is_fatal and self.transactions is None:
            self._replace(self.client, error)
            if self._refuses is not None:
                self._refuses()
        else:
            reason = raised(KafkaException(error), f"a record for {queue.topic}-{queue.partition} was not taken")
            if self.transactions is not None:
                reason = self.transactions.refused(error, reason)
            raise reason from reason.__cause__

    def _has_no_room(self, size_bytes: int) -> EventBusError:
        if size_bytes > self._room_bytes:  # there never will be enough space
            too_large = RecordTooLarge(
                f"a record of {size_bytes:,} bytes is larger than the producer's whole buffer "
                f"(buffer_memory={self.config.buffer_memory:,}): send less (or a pointer to the payload), or raise it"
            )
            self._not_stored(too_large)
            return too_large
        self.is_full = True
        self._needs_bytes = size_bytes
        return BufferExhausted(
            f"the producer's buffer is full (buffer_memory={self.config.buffer_memory:,} bytes wait to be stored): "
            "`await producer.wait_for_room()` between sends, or `await bus.send(...)`"
        )

    def hold_bytes(self, size_bytes: int) -> None:
        """Count a record that is held in its queue. Raises BufferExhausted."""
        if self.held_bytes + size_bytes > self.config.buffer_memory:
            raise self._has_no_room(size_bytes)
        self.held_bytes += size_bytes

    def _until_seen(self, queue: PartitionQueue) -> None:
        """Return, in a thread, when librdkafka knows a partition that was added, or after ``max_block_ms``.

        Also returns if the topic no longer has the partition, because it was created again with fewer. The thread looks
        up other topics, too, which would otherwise wait for nothing.
        """
        deadline = time.monotonic() + self.config.max_block_ms / 1000
        while queue.is_parked and time.monotonic() < deadline:
            try:
                found = self.client.handle.list_topics(queue.topic, _LOOK_UP_SECONDS).topics[queue.topic]
                if queue.partition in found.partitions:
                    return
                if queue.partition >= self.backend.known_counts.get(queue.topic, 0):
                    return
            # No answer; the topic does not exist; the client was replaced.
            except (KafkaException, KeyError, AttributeError):
                pass
            if self._leaving.wait(_PAUSE_SECONDS):
                return

    def _unpark(self, queue: PartitionQueue) -> None:
        queue.is_parked = False
        self.release(queue)

    def release(self, queue: PartitionQueue) -> None:
        """Pass on what a queue held, or try again when there is space."""
        if self.is_held or self._leaving.is_set():
            return  # `_take_over` does it, unless the producer is closed
        if queue.release():
            self._crowded.pop(queue, None)
        else:
            self._crowded[queue] = None

    def drop_held(self, why: ClientError | None = None) -> bool:
        """Fail the records that wait in their queues; return True if there were any."""
        self.seal()
        self._crowded.clear()
        dropped = [queue.fail(why or ClientError(ClientError._PURGE_QUEUE)) for queue in self._queues.values()]
        return any(dropped)

    def _not_stored(self, error: EventBusError) -> None:
        if self.transactions is not None:
            self.transactions.spoil(error)

    # reports ---------------------------------------------------------------------------------------------------------

    def _is_finished(self, batch: RecordBatch) -> None:
        """Schedule `_settle`, from any thread: a single call for all batches that are finished by then."""
        self._finished.append(batch)
        # Reports come in bursts, from several threads. One wake-up of the event loop serves all of them.
        if not self._is_woken:
            self._is_woken = True
            self.loop.tell(self._settle)

    def settle_again(self, batches: list[RecordBatch]) -> None:
        """Settle batches in the event loop whose cause of failure may be known now."""
        self._finished.extend(batches)
        self._settle()

    def _is_refused(self, batch: RecordBatch) -> None:
        """Schedule the end of direct sends to the partition of ``batch``. Called in any thread."""
        self.loop.tell(partial(self._hold_after, batch))

    def _hold_after(self, batch: RecordBatch) -> None:
        """Make later records wait for those of ``batch``; the topic's limits may have changed."""
        self._queue(batch.topic, batch.partition).hold()
        self._learn_limits(batch.topic)

    def _learn_limits(self, topic: str) -> None:
        if not self._leaving.is_set():
            self._in_thread(partial(self.backend.learn_limits, [topic]), nothing)

    def _settle(self) -> None:
        """Set the outcomes of finished batches, in the event loop."""
        # Reset before the queue is emptied: a batch that finishes from now on wakes the loop again.
        self._is_woken = False
        finished = self._finished
        while finished:
            batch = finished.popleft()
            queue = self._queue(batch.topic, batch.partition)
            if not queue.settled(batch):
                self.release(queue)
                continue
            failure = batch.first_failure
            if self.transactions is not None and not self.transactions.explain(batch):
                continue
            self._pending.pop(batch, None)
            if self.transactions is None and failure is not None and failure.code() in _LOST_ITS_PLACE:
                # librdkafka reports the consequence, a lost sequence number, and has the cause in its queue.
                batch.lost_with = self.client.cause_of(failure)
                self._replace(self.client, batch.lost_with)  # the report may come before the error that caused it
            batch.finish()
            if self.transactions is not None and failure is not None and batch.error is not None:
                self.transactions.failed(batch, failure, batch.error)
                if is_of_batch(failure):
                    self._learn_limits(batch.topic)
            if queue.is_waiting:
                self.release(queue)
        for queue in list(self._crowded):
            self.release(queue)

    async def wait_for_room(self) -> None:
        if not self.is_full:
            return
        # Waiting until half of the buffer is free, and not for a single record, avoids a wake-up per record.
        at_first = 0 if self.is_held else len(self.client)
        is_large = self._needs_bytes * _LARGE_SHARE > self.config.buffer_memory
        wanted = 0 if is_large else at_first // 2
        with self.backend.timers.move_on_after(self.config.max_block_ms / 1000) as scope:
            while self._pending and (self.is_held or self.held_bytes or len(self.client) > wanted):
                self.seal()
                await next(iter(self._pending)).wait()
        if scope.cancelled_caught:
            raise BufferExhausted(
                f"no room in the producer's buffer of {self.config.buffer_memory:,} bytes for "
                f"{self.config.max_block_ms:,} ms (max_block_ms): the brokers are slower than the sends, or away"
            )
        self.is_full = False

    async def flush(self) -> None:
        self.seal()
        for batch in list(self._pending):
            await batch.wait()

    # a client that fails ---------------------------------------------------------------------------------------------

    def _has_failed(self, client: ProducerClient, error: ClientError) -> None:
        """Schedule the replacement of a client whose idempotent producer is useless; called in any thread."""
        self.loop.tell(partial(self._replace, client, error))

    def _replace(self, client: ProducerClient, error: ClientError) -> None:
        """Replace a failed client after its records are settled: no record may overtake one that may yet be
        acknowledged."""
        # Several threads may report the same failure.
        if client is not self.client or client.is_stopped or self.transactions is not None:
            return  # a transaction ends with the client that it began with
        count = 0
        for batch in self._pending:
            batch.lost_with = error
            count += batch.open_count
        if error.code() in NOT_ALLOWED:
            self._refuse_for_a_while(client, error, count)
            return
        self.is_held = True
        for queue in list(self._open):
            queue.hold()
        logger.error(
            "the producer to kafka://%s failed (%s): another takes over. %d record(s) were on their way; whoever sent "
            "those that were not acknowledged is told", self.backend.settings.bootstrap, error.str(), count,
        )  # fmt: skip
        client.stop(_SETTLE_SECONDS, partial(self.loop.tell, self._take_over))

    def _refuse_for_a_while(self, client: ProducerClient, error: ClientError, count: int) -> None:
        """Handle a client without permission: another client would be refused too, so none is tried for a while."""
        logger.error(
            "the producer to kafka://%s is refused (%s): %d record(s) are not stored",
            self.backend.settings.bootstrap, error.str(), count,
        )  # fmt: skip
        refused_at = time.monotonic()

        def check() -> None:
            if time.monotonic() - refused_at < _REFUSED_SECONDS:
                raise error_of(error, "a record was not taken")
            self.refuse(None)
            self.client = ProducerClient(self._settings, self._has_failed)

        client.stop()
        self.drop_held(error)
        self.refuse(check)

    def _take_over(self) -> None:
        """Continue with a new client, which has a new producer id, and send the held records."""
        if self._leaving.is_set():
            return
        self.client = ProducerClient(self._settings, self._has_failed)
        self.is_held = False
        for batch in self._pending:
            if batch.first_failure is None:
                batch.lost_with = None
        for queue in self._queues.values():
            self.release(queue)

    # life ------------------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Continue with a new client, as after a restart of the process. The old client's records are dropped."""
        self.drop_held()
        self.client.stop()
        self.client = ProducerClient(self._settings, self._has_failed)

    async def run(self) -> None:
        await anyio.Event().wait()  # librdkafka's threads do the work

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._leave()
        try:
            if self.transactions is not None:
                await self.transactions.aclose()
            self.refuse(refuse_closed)  # otherwise there would always be another record to wait for
            await self._last_flush()
        finally:
            self.refuse(refuse_closed)
            if not self._pending:
                self._stop()

    async def _last_flush(self) -> None:
        with self.backend.timers.move_on_after(_CLOSING_SECONDS):
            await self.flush()
        if self._pending:
            logger.warning(
                "the producer to kafka://%s closes, and %d record(s) are not acknowledged yet: waiting for the brokers",
                self.backend.settings.bootstrap, sum(batch.open_count for batch in self._pending),
            )  # fmt: skip
            await self.flush()

    def _leave(self) -> None:
        if self in self.backend.producers:
            self.backend.producers.remove(self)
            self.backend.topic_listeners.remove(self._topics_changed)

    def _stop(self) -> None:
        self._leaving.set()
        if self._worker is not None:
            self._worker.stop()
        if self.transactions is not None:
            self.transactions.stop()
        self.client.stop()

    def give_up(self, error: EventBusError) -> int:
        self._leave()
        self.refuse(refuse_closed)
        count = 0
        self.seal()
        for batch in self._pending:
            count += batch.open_count
            batch.discard(error)
        self._pending.clear()
        self.drop_held()
        if self.transactions is not None:
            self.transactions.give_up()
        self._stop()
        return count
