"""One partition of scheduled records, as long as it is this process's: reads along, waits, delivers in transactions."""

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
from eventbus.client.scheduling.agenda import Agenda, Delivery, Pending, Place, Writes
from eventbus.client.scheduling.entries import Every, Item, decode
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
"""Records in a transaction."""
_MOST_BYTES = 8 << 20
_LONGEST_WAIT_SECONDS = 10.0
"""Then the clock is looked at again: one that was set forward makes something due that the wait knows nothing of."""
_AGAIN_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
"""What a transaction under way has to finish in, when the partition is given up."""
_TOPIC_AGAIN_MS = 5_000
"""Between two tries of a topic that is missing."""
_MAY_END = (UnknownTopicOrPartition, TopicAuthorizationFailed)
"""A topic may be created later, and its ACL granted. Until then its records wait."""
_EXPIRED = (InvalidProducerIdMapping, UnknownProducerId)
"""The log has forgotten a producer that did not write for long: the next one is opened at once."""
_NEAR = 500
"""A record that stands so few behind the last one is read on to."""
_MAX_BYTES = 100 * 1_048_576
"""How large a record may be is for the topics to say."""
_TRANSACTION_MS = 20_000
"""Its transactions are short; what a killed process left open must not keep the partition's next owner for long."""
_READ_MS = 5_000
"""For a record that is there."""


class Counts:
    """Of all partitions, since the start."""

    def __init__(self) -> None:
        self.delivered = 0
        self.records = 0
        """Those of them that were put by, and are no times of a function."""
        self.late_ms = 0
        """How late the latest of the last transaction's records was."""


class Tenure:
    """`took` is called by who reads the partition; `run` is a task."""

    def __init__(
        self, partition: TopicPartition, bus: Host, counts: Counts, topic_id: Callable[[str], Awaitable[str]]
    ) -> None:
        """``topic_id`` returns the id of a topic, or "" if it is not known."""
        self.partition = partition
        self.agenda = Agenda(lambda: uuid4().hex[:16])
        self.trouble = ""
        """What keeps it from delivering now."""
        self._waits: dict[Place, tuple[Wait, int]] = {}
        """The places that the log refuses now, and when each is tried again, in milliseconds since the epoch."""
        self._recreated: dict[str, str] = {}
        """The ids of topics that were reported as created again."""
        self._bus = bus
        self._counts = counts
        self._topic_id = topic_id
        self._timers = bus.context.backend.timers
        self._inbox: list[ConsumerRecord] = []
        self._read_to = 0
        self._settled_to = -1
        """All that stands below was decided about, and what came of it is written..."""
        self._delivered_to_ms = -1
        """...and all of it that is due before then is delivered."""
        self._most = _MOST
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        self._stopping = False
        self._ended = anyio.Event()
        self._scope = anyio.CancelScope()

    # what others tell it ---------------------------------------------------------------------------------------------

    def took(self, records: Sequence[ConsumerRecord], position: int) -> None:
        """What was read, and the offset that is read next."""
        self._inbox.extend(records)
        self._read_to = max(self._read_to, position)
        self._wake.set()

    async def stop(self) -> None:
        """Finish the transaction at work, and let go of the partition."""
        self._stopping = True
        self._wake.set()
        with self._timers.move_on_after(_CLOSE_SECONDS):
            await self._ended.wait()
        self._scope.cancel()
        await self._ended.wait()

    async def until_quiet(self) -> None:
        """Return when what is due now is delivered, whatever falls due meanwhile; or cannot be, now."""
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
        """Until `stop`. What goes wrong costs a wait, and nothing else."""
        try:
            with self._scope:
                while not self._stopping:
                    try:
                        await self._hold()
                    except _EXPIRED as error:
                        logger.debug("scheduled records of %s: a new producer is opened: %s", self.partition, error)
                    except Exception as error:  # whatever it is, it is said and tried again: its service has other work
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
        """Take the partition over, read up to where it ends, then deliver.

        Taking the transactional id over fences whoever had the partition before, and ends what that one had open: all
        that it has delivered stands in the partition by now, below its end. Transactions of others may be open below
        it; they are waited for.
        """
        async with self._open_producer() as producer:
            await producer.init()
            end = await self._end(IsolationLevel.READ_UNCOMMITTED)
            while self._read_to < end and not self._stopping:
                self._wake = anyio.Event()
                await self._wake.wait()
                self._read()  # as it comes, so that what is not held is not kept either
            # Of the partition alone, to read values again.
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
            self.agenda.settle()
            now_ms = self._bus.context.now_ms()
            self.agenda.correct(now_ms, str(self.partition))
            due = self.agenda.take(now_ms, self._most, _MOST_BYTES)
            works = bool(due) or self.agenda.owes
            if works:
                await self._step(producer, reader, due, now_ms)
            due_ms = self.agenda.next_due_ms()
            if not self.agenda.owes:
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
        """Never while a transaction is at work: what that writes is read only when it is `stored`."""
        inbox, self._inbox = self._inbox, []
        for record in inbox:
            self.agenda.read(record.key, record.value, record.offset)

    async def _step(self, producer: Producer, reader: Consumer, due: Sequence[Pending], now_ms: int) -> None:
        """One transaction. What cannot be delivered is found out alone, and put aside."""
        agenda, handles = self.agenda, list[tuple[Delivery, BatchDelivery]]()
        live: list[Pending] = []
        try:
            items = await self._items(reader, due)
            live = [one for one in due if one.key in items]
            writes = agenda.writes(live, [items[one.key] for one in live], now_ms, _MOST)
            adders = await self._adders(producer, writes, now_ms)
            if adders is None:
                agenda.put_back(live)
                return
            async with producer.transaction():
                await self._write(producer, adders, writes, handles)
        except BaseException as error:
            try:
                if not isinstance(error, TransactionAborted | _Refused):
                    raise
                self._find_out(error, handles, len(live), now_ms)
            finally:
                agenda.put_back(live or due)
            return
        agenda.stored(writes)
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
        """Log once that records went to another topic than the one that had its name when they were sent.

        A send names a topic, as a record in an outbox does. So the record is delivered to the topic with this name.
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
                    # Interceptors saw it when it was sent.
                    adders[topic] = await Producer.adder(producer, topic)
                except _MAY_END as error:
                    gone[place] = error
        firings = [
            one for one in writes.deliveries if (one.entry.topic, None) in gone and isinstance(one.pending.item, Every)
        ]
        for one in firings:
            said = gone[one.entry.topic, None]
            logger.warning("Scheduled function %s has no topic for its times: %s", one.pending.id, said)
            writes.deliveries.remove(one)
        is_late = False
        for place, error in gone.items():
            late = [one for one in writes.deliveries if place in one.places]
            self._postpone(late, place, error, now_ms)
            is_late = is_late or bool(late)
        return None if is_late else adders

    def _postpone(self, deliveries: Sequence[Delivery], place: Place, error: EventBusError | None, now_ms: int) -> None:
        """Records for a place that the log refuses now wait in memory, for as long as it takes.

        ``error``: None if the place was not tried, because others wait for it.
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
                # The topic was there a moment ago, so it is the partition that does not exist. Waiting for it
                # would hold up all other records.
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
        """The transaction was aborted: the next one is smaller, until it holds nothing but what the log refuses."""
        if isinstance(error, _Refused):
            self._refused(error.delivery, error.error, now_ms)
            return
        refused = [
            (one, handle.error) for one, handle in handles if handle.error is not None and not handle.error.retriable
        ]
        for _, expired in refused:
            if isinstance(expired, _EXPIRED):  # no record is to blame
                raise expired from error
        if not refused:
            raise error
        if count == 1:
            self._refused(*refused[0], now_ms)
        self._most = max(count // 2, 1)

    def _refused(self, delivery: Delivery, error: EventBusError, now_ms: int) -> None:
        if isinstance(error, _MAY_END):
            # The topic was looked up before, so it is the partition that does not exist.
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
        self.agenda.die(one, delivery.entry, why)

    async def _items(self, reader: Consumer, due: Sequence[Pending]) -> dict[bytes, Item]:
        """What they are, by key; of those that are not kept in memory, what stands in the log."""
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

    # parts -----------------------------------------------------------------------------------------------------------

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
    """The log's client does not take a record, ever."""

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
