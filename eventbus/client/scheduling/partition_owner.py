"""Own one partition of scheduled records: read it, wait, and deliver records in transactions."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import anyio

from eventbus.backends.delivery import BatchDelivery
from eventbus.client.consumer import Consumer
from eventbus.client.handling.waits import Wait, tried
from eventbus.client.host import Host
from eventbus.client.producer import AddReady, Producer
from eventbus.client.scheduling.entries import Every, Item, decode
from eventbus.client.scheduling.partition_schedule import Delivery, PartitionSchedule, Pending, Place, Writes
from eventbus.errors import (
    BufferExhausted,
    EventBusError,
    InvalidProducerIdMapping,
    TopicAuthorizationFailed,
    TransactionAborted,
    UnknownProducerId,
    UnknownTopicOrPartition,
)
from eventbus.ledger import ends_of
from eventbus.types import ConsumerRecord, IsolationLevel, TopicPartition

logger = logging.getLogger("eventbus.scheduling")

_MOST = 1_000
"""Maximum number of records in a transaction."""
_MOST_BYTES = 8 << 20
_LONGEST_WAIT_SECONDS = 10.0
"""Maximum wait before the clock is read again: if it was set forward, something may be due that the wait ignores."""
_AGAIN_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
"""How long a transaction in flight may take to finish when the partition is given up."""
_TOPIC_AGAIN_MS = 5_000
"""Pause before a missing topic is tried again."""
_MAY_END = (UnknownTopicOrPartition, TopicAuthorizationFailed)
"""A topic may be created later, and its ACL granted. Until then its records wait."""
_EXPIRED = (InvalidProducerIdMapping, UnknownProducerId)
"""The log has expired a producer that was idle for long. A new one is opened at once."""
_NEAR = 500
"""A record at most this far ahead is reached by reading on instead of seeking."""
_MAX_BYTES = 100 * 1_048_576
"""High enough for every record, because topics limit the size."""
_TRANSACTION_MS = 20_000
"""Its transactions are short. The open transaction of a killed process must not delay the partition's next owner."""
_READ_MS = 5_000
"""Timeout for reading a record that exists."""


class Counts:
    """Counters over all partitions since the start."""

    def __init__(self) -> None:
        self.delivered = 0
        self.records = 0
        """Delivered records, without firings of functions."""
        self.late_ms = 0
        """Delay of the latest record in the last transaction."""


class PartitionOwner:
    """The ownership of one partition. The reader calls `took`, and `run` is a task."""

    def __init__(
        self, partition: TopicPartition, bus: Host, counts: Counts, topic_id: Callable[[str], Awaitable[str]]
    ) -> None:
        """``topic_id`` returns the id of a topic, or "" if it is not known."""
        self.partition = partition
        self.schedule = PartitionSchedule(lambda: uuid4().hex[:16])
        self.trouble = ""
        """Why nothing is delivered now, or ""."""
        self._waits: dict[Place, tuple[Wait, int]] = {}
        """Places that the log refuses now, and when to try each again, in milliseconds since the epoch."""
        self._recreated: dict[str, str] = {}
        """The ids of recreated topics that were reported."""
        self._bus = bus
        self._counts = counts
        self._topic_id = topic_id
        self._timers = bus.context.backend.timers
        self._inbox: list[ConsumerRecord] = []
        self._read_to = 0
        self._settled_to = -1
        """Up to this offset, all records were decided on and the decisions written..."""
        self._delivered_to_ms = -1
        """...and all of them that are due before this time are delivered."""
        self._most = _MOST
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._stopping = False
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope()

    # called by the reader
    # ------------------------------------------------------------------------------------------------

    def took(self, records: Sequence[ConsumerRecord], position: int) -> None:
        """Take records that were read, and the offset to read next."""
        self._inbox.extend(records)
        self._read_to = max(self._read_to, position)
        self._wake.set()

    async def stop(self) -> None:
        """Finish the transaction in flight, and give up the partition."""
        self._stopping = True
        self._wake.set()
        with self._timers.move_on_after(_CLOSE_SECONDS):
            await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    async def until_quiet(self) -> None:
        """Return when everything due at the time of the call is delivered, or cannot be delivered now."""
        asked_ms = self._bus.context.now_ms()
        end = await self._end(IsolationLevel.READ_COMMITTED)
        while not self._ended.is_set() and not self.trouble:
            if self._settled_to >= end and self._delivered_to_ms > asked_ms:
                return
            progress = self._progress
            self._wake.set()
            await progress.wait()

    @property
    def waiting_for(self) -> str:
        """Describe what some records wait for while the others are delivered, or ""."""
        now_ms, now = self._bus.context.now_ms(), self._timers.current_time()
        # A wait is not renewed when all its records were cancelled.
        waits = [wait for wait, until_ms in self._waits.values() if now_ms < until_ms + _TOPIC_AGAIN_MS]
        return waits[0].text(now) if waits else ""

    # the task --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until `stop` is called. An error only causes a pause."""
        try:
            with self._scope:
                while not self._stopping:
                    try:
                        await self._hold()
                    except _EXPIRED as error:
                        logger.debug("scheduled records of %s: a new producer is opened: %s", self.partition, error)
                    except Exception as error:  # log any error and retry, because the service also does other work
                        self._say(error)
                        self._wake = anyio.Event()
                        with self._timers.move_on_after(_AGAIN_SECONDS):
                            while not self._stopping:
                                await self._wake.wait()
                                self._wake = anyio.Event()
        finally:
            self._ended.set()
            self._tell()

    async def _hold(self) -> None:
        """Take over the partition, read it to its end, then deliver.

        Taking the transactional id fences the previous owner and ends its open transaction, so all that it has
        delivered is now below the partition's end. Transactions of other producers may still be open below it; they are
        waited for.
        """
        async with self._open_producer() as producer:
            await producer.init()
            end = await self._end(IsolationLevel.READ_UNCOMMITTED)
            while self._read_to < end and not self._stopping:
                self._wake = anyio.Event()
                await self._wake.wait()
                self._read()  # while reading, so that values that are not kept are not buffered either
            # A second consumer for this partition, to read values again.
            async with self._bus.new_consumer(
                partitions=[self.partition], start="earliest", isolation_level=IsolationLevel.READ_UNCOMMITTED
            ) as reader:
                await self._deliver(producer, reader)

    def _open_producer(self) -> Producer:
        return self._bus.new_producer(
            transactional_id=str(self.partition),
            transaction_timeout_ms=_TRANSACTION_MS,
            max_request_size=_MAX_BYTES,
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            partitioner="murmur2",
        )

    async def _deliver(self, producer: Producer, reader: Consumer) -> None:
        while not self._stopping:
            self._wake = anyio.Event()
            read_to = self._read_to
            self._read()
            self.schedule.settle()
            now_ms = self._bus.context.now_ms()
            self.schedule.correct(now_ms, str(self.partition))
            due = self.schedule.take(now_ms, self._most, _MOST_BYTES)
            works = bool(due) or self.schedule.owes
            if works:
                await self._step(producer, reader, due, now_ms)
            due_ms = self.schedule.next_due_ms()
            if not self.schedule.owes:
                self._settled_to = read_to
                self._delivered_to_ms = sys.maxsize if due_ms is None else due_ms
                self._tell()
            if works:
                continue
            self.trouble = ""
            seconds = _LONGEST_WAIT_SECONDS if due_ms is None else (due_ms - now_ms) / 1000
            with self._timers.move_on_after(min(seconds, _LONGEST_WAIT_SECONDS)):
                await self._wake.wait()

    def _read(self) -> None:
        """Process what was read. Never during a transaction, whose own records must be `stored` before they are read
        back.
        """
        inbox, self._inbox = self._inbox, []
        for record in inbox:
            self.schedule.read(record.key, record.value, record.offset)

    async def _step(self, producer: Producer, reader: Consumer, due: Sequence[Pending], now_ms: int) -> None:
        """Run one transaction. A record that cannot be delivered is isolated and kept with its error."""
        schedule, handles = self.schedule, list[tuple[Delivery, BatchDelivery]]()
        live: list[Pending] = []
        try:
            items = await self._items(reader, due)
            live = [one for one in due if one.key in items]
            writes = schedule.writes(live, [items[one.key] for one in live], now_ms, _MOST)
            adders = await self._adders(producer, writes, now_ms)
            if adders is None:
                schedule.put_back(live)
                return
            async with producer.transaction():
                await self._write(producer, adders, writes, handles)
        except BaseException as error:
            try:
                if not isinstance(error, TransactionAborted | _Refused):
                    raise
                self._find_out(error, handles, len(live), now_ms)
            finally:
                schedule.put_back(live or due)
            return
        schedule.stored(writes)
        for one in writes.deliveries if self._waits else ():
            for place in one.places:
                self._waits.pop(place, None)
        self._most = min(_MOST, self._most * 2)
        self.trouble = ""
        counts = self._counts
        counts.delivered += len(writes.deliveries)
        counts.records += sum(not isinstance(one.pending.item, Every) for one in writes.deliveries)
        counts.late_ms = max((now_ms - one.due_ms for one in live), default=counts.late_ms)
        await self._report_recreated(writes.deliveries)

    async def _report_recreated(self, deliveries: Sequence[Delivery]) -> None:
        """Log once per topic that records went to a recreated topic.

        A send names a topic, as a record in an outbox does, so the record is delivered to the topic that has this name
        now.
        """
        for topic, topic_id in {(one.entry.topic, one.entry.topic_id) for one in deliveries if one.entry.topic_id}:
            current = await self._topic_id(topic)
            if current not in ("", topic_id, self._recreated.get(topic)):
                self._recreated[topic] = current
                logger.warning(
                    "topic %r was deleted and created again while scheduled records waited for it. They are delivered "
                    "to the topic that has this name now. To give up such records, cancel them: eventbus schedule list "
                    "--topic %s", topic, topic,
                )  # fmt: skip

    async def _adders(self, producer: Producer, writes: Writes, now_ms: int) -> dict[str, AddReady] | None:
        """Return an adder for each topic, or None if the log refuses some topics and their records are postponed."""
        adders = {self.partition.topic: await Producer.adder(producer, self.partition.topic)}
        gone: dict[Place, EventBusError | None] = {}
        for place in {place for one in writes.deliveries for place in one.places}:
            topic, partition = place
            if self._waits.get(place, (None, 0))[1] > now_ms:
                gone[place] = None
            elif partition is None:
                try:
                    # Interceptors saw the record when it was sent.
                    adders[topic] = await Producer.adder(producer, topic)
                except _MAY_END as error:
                    gone[place] = error
        firings = [
            one for one in writes.deliveries if (one.entry.topic, None) in gone and isinstance(one.pending.item, Every)
        ]
        for one in firings:
            error = gone[one.entry.topic, None]
            logger.warning("Scheduled function %s has no topic for its times: %s", one.pending.id, error)
            writes.deliveries.remove(one)
        is_late = False
        for place, error in gone.items():
            late = [one for one in writes.deliveries if place in one.places]
            self._postpone(late, place, error, now_ms)
            is_late = is_late or bool(late)
        return None if is_late else adders

    def _postpone(self, deliveries: Sequence[Delivery], place: Place, error: EventBusError | None, now_ms: int) -> None:
        """Let records for a place that the log refuses now wait in memory, for as long as necessary.

        ``error`` is None if the place was not tried, because records already wait for it.
        """
        if not deliveries:
            return
        if error is not None:
            known = self._waits.get(place)
            if known is None:
                logger.warning("scheduled records for topic %r wait, until the log accepts them: %s", place[0], error)
            reason = f"records for topic {place[0]!r} wait: {error}"
            wait = tried(None if known is None else known[0], reason, self._timers.current_time())
            self._waits[place] = wait, now_ms + _TOPIC_AGAIN_MS
        for one in deliveries:
            one.pending.due_ms = self._waits[place][1]

    async def _write(
        self,
        producer: Producer,
        adders: dict[str, AddReady],
        writes: Writes,
        handles: list[tuple[Delivery, BatchDelivery]],
    ) -> None:
        for one in writes.deliveries:
            entry = one.entry
            add = adders[entry.topic]
            try:
                handle = await _added(
                    producer, add, entry.key, entry.value, entry.headers, one.timestamp_ms, entry.partition
                )
            except EventBusError as error:
                # The topic existed a moment ago, so the partition does not exist. Waiting for it would delay all other
                # records.
                if error.retriable and not isinstance(error, UnknownTopicOrPartition):
                    raise
                raise _Refused(one, error) from error
            handles.append((one, handle))
        add, now_ms = adders[self.partition.topic], self._bus.context.now_ms()
        for key, (value, headers) in writes.own.items():
            await _added(producer, add, key, value, headers, now_ms, self.partition.partition)

    def _find_out(
        self, error: Exception, handles: list[tuple[Delivery, BatchDelivery]], count: int, now_ms: int
    ) -> None:
        """Halve the next transaction after an abort, until it holds only the record that the log refuses."""
        if isinstance(error, _Refused):
            self._refused(error.delivery, error.error, now_ms)
            return
        refused = [
            (one, handle.error) for one, handle in handles if handle.error is not None and not handle.error.retriable
        ]
        for _, expired in refused:
            if isinstance(expired, _EXPIRED):  # no record is at fault
                raise expired from error
        if not refused:
            raise error
        if count == 1:
            self._refused(*refused[0], now_ms)
        self._most = max(count // 2, 1)

    def _refused(self, delivery: Delivery, error: EventBusError, now_ms: int) -> None:
        if isinstance(error, _MAY_END):
            # The topic was looked up before, so the partition does not exist.
            partition = delivery.entry.partition if isinstance(error, UnknownTopicOrPartition) else None
            self._postpone([delivery], (delivery.entry.topic, partition), error, now_ms)
        else:
            self._put_aside(delivery, str(error))

    def _put_aside(self, delivery: Delivery, why: str) -> None:
        one = delivery.pending
        if one.is_dead:
            return
        logger.error(
            "the scheduled record %r for topic %r cannot be delivered, and is kept: %s (eventbus schedule show %s)",
            one.id, delivery.entry.topic, why, one.id,
        )  # fmt: skip
        self.schedule.die(one, delivery.entry, why)

    async def _items(self, reader: Consumer, due: Sequence[Pending]) -> dict[bytes, Item]:
        """Return the contents of entries by key. Those not kept in memory are read from the log."""
        items = {one.key: one.item for one in due if one.item is not None}
        absent = sorted((one for one in due if one.item is None), key=lambda one: one.offset)
        for one in absent:
            record = await self._record_at(reader, one.offset)
            item = decode(record.value) if record is not None and record.key == one.key and record.value else None
            if item is None:
                raise EventBusError(f"{self.partition} offset {one.offset}: scheduled record {one.id!r} is not there")
            items[one.key] = item
        return items

    async def _record_at(self, reader: Consumer, offset: int) -> ConsumerRecord | None:
        if not 0 <= offset - await reader.position(self.partition) < _NEAR:
            reader.seek(self.partition, offset)
        while await reader.position(self.partition) <= offset:
            records = await reader.poll(_READ_MS, 1)
            if not records or records[0].offset >= offset:
                return records[0] if records else None
        return None

    # helpers
    # ------------------------------------------------------------------------------------------------------------

    async def _end(self, isolation: IsolationLevel) -> int:
        return (await ends_of(self._bus.context.backend, [self.partition], isolation))[self.partition]

    def _say(self, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        if not self.trouble:
            known = isinstance(error, EventBusError)
            logger.warning(
                "scheduled records of %s are not delivered now, it is tried again: %s", self.partition, said,
                exc_info=None if known else error,
            )  # fmt: skip
        self.trouble = said
        self._tell()

    def _tell(self) -> None:
        progress, self._progress = self._progress, anyio.Event()
        progress.set()


class _Refused(Exception):
    """The client of the log permanently refuses a record."""

    def __init__(self, delivery: Delivery, error: EventBusError) -> None:
        super().__init__(str(error))
        self.delivery = delivery
        self.error = error


async def _added(producer: Producer, add: AddReady, *record: Any) -> BatchDelivery:
    try:
        return add(*record)
    except BufferExhausted:
        await producer.wait_for_room()
        return add(*record)
