"""The scheduled records of a bus: store them, cancel them, and deliver those in its partitions.

All buses of a service on a log share a topic, and form a group that reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import anyio

from eventbus.backends.base import Backend
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.broker import TopicSpec
from eventbus.client.health import PartHealth
from eventbus.client.host import Host
from eventbus.client.metrics import Sample
from eventbus.client.producer import Producer
from eventbus.client.producing.joining import joined, refuse_waiting
from eventbus.client.scheduling.cancelling import ask_to_cancel, partition_for
from eventbus.client.scheduling.entries import (
    EVERY,
    TOPIC_CONFIG,
    Entry,
    Every,
    Item,
    check_id,
    encode,
    key_of,
    topic_of,
)
from eventbus.client.scheduling.partition_owner import Counts, PartitionOwner
from eventbus.client.scheduling.times import Delay, DeliverAt, Scheduled, due_at, moment
from eventbus.client.scheduling.timetable import Timetable
from eventbus.client.sending import SendOptions
from eventbus.errors import ConfigError, EventBusError, UnknownTopicOrPartition
from eventbus.ledger import ends_of, find_or_create
from eventbus.types import ConsumerRecord, TopicPartition

logger = logging.getLogger("eventbus.scheduling")

_AGAIN_SECONDS = 1.0
_LOOK_SECONDS = 15.0
"""Interval of checks for records scheduled by another process, as long as this one has none."""
_POLL_MS = 10_000
_MOST_POLLED = 5_000
_ID_SECONDS = 5.0
"""How long the id of a topic is used before it is looked up again."""
_STUCK_MS = 60_000
"""A record that is later than this makes the health degraded."""


class Schedules:
    """A part of the bus that starts with the first scheduled record, or with the bus if there are any already."""

    def __init__(self, bus: Host) -> None:
        self._bus = bus
        self.functions: dict[str, Timetable] = {}
        """Functions of ``@bus.every`` by name. The topics of their firings are in `firings`."""
        self.firings: dict[str, str] = {}
        self.counts = Counts()
        self._owners: dict[TopicPartition, PartitionOwner] = {}
        self._forget()

    def _forget(self) -> None:
        self._partitions = 0
        self._is_closing = False
        self._looked = anyio.Event()
        self._polled = anyio.Event()
        self._ended = anyio.Event()
        self._beginning = anyio.Lock()
        self._scope: anyio.CancelScope | None = None
        self._trouble = ""
        self._may_be_empty = False
        """True if the topic may have been recreated, so that the next times of functions must be written again."""
        self._topic_ids: dict[str, tuple[str, float]] = {}
        """Ids of topics, and until when each may be used."""
        self._topic_id = ""
        """The id of the topic of schedules."""
        self._drained = self.counts.records
        """Number of delivered records when `drain` last returned."""
        self._owners.clear()

    @property
    def backend(self) -> Backend:
        return self._bus.context.backend

    def now_ms(self) -> int:
        return self._bus.context.now_ms()

    @property
    def topic(self) -> str:
        return topic_of(self._bus.context.service_name)

    # start and stop
    # -----------------------------------------------------------------------------------------------------

    async def start(self, bus: Host) -> None:
        """Deliver from now on, if there is anything to deliver. The log need not answer yet."""
        self._forget()
        if self.functions or not (isinstance(self.backend, EmbeddedBackend) and self.backend.is_private):
            bus.context.start_soon(self._look)
        else:
            self._looked.set()  # a private log has no records of other processes

    async def _look(self) -> None:
        """Start with the first function, or once the topic exists, which another process may create before it ends."""
        try:
            while not self._is_closing and not self._partitions:
                seconds = _LOOK_SECONDS
                try:
                    if self.functions or await self.backend.describe_topics([self.topic]):
                        await self.begin()
                except UnknownTopicOrPartition:
                    self._looked.set()
                except EventBusError as error:
                    logger.debug("whether there are scheduled records is not known: %s", error)
                    seconds = _AGAIN_SECONDS
                if not self._partitions:
                    await self.backend.timers.sleep(seconds)
            await self._declare_all()
        finally:
            self._looked.set()

    async def _find_topic(self) -> bool:
        """Find or create the topic of schedules. Return True, and log it, if another topic had this name before."""
        topic = await find_or_create(self.backend, TopicSpec(self.topic, 1, configs=TOPIC_CONFIG))
        is_another = self._topic_id not in ("", topic.topic_id)
        if is_another:
            logger.error("topic %r was deleted, and is created again. Records that waited in it are lost", self.topic)
        self._topic_id, self._partitions = topic.topic_id, len(topic.partitions)
        return is_another

    async def topic_id(self, topic: str) -> str:
        """Return the id of a topic, or "" if it is not known. The id is looked up again after `_ID_SECONDS`."""
        topic_id, until = self._topic_ids.get(topic, ("", 0.0))
        if (now := self.backend.timers.current_time()) >= until:
            try:
                [described] = await self.backend.describe_topics([topic])
                topic_id = described.topic_id
            except EventBusError as error:
                logger.debug("the id of topic %r is not known: %s", topic, error)
                topic_id = ""
            self._topic_ids[topic] = topic_id, now + _ID_SECONDS
        return topic_id

    async def _declare_all(self) -> None:
        left = dict(self.functions)
        while left and not self._is_closing:
            try:
                for name in list(left):
                    await self._declare(name, left[name])
                    del left[name]
            except EventBusError as error:
                logger.debug("the next times of functions are not written yet: %s", error)
                await self.backend.timers.sleep(_AGAIN_SECONDS)

    async def _declare(self, name: str, table: Timetable) -> None:
        item = Every(table.after(self.now_ms()), self.firings[name], name, table)
        await self._put(self._bus.context.main_producer(), EVERY + name, item)

    async def begin(self) -> None:
        """Make sure that the topic exists, and that this bus takes part in delivering."""
        if self._partitions:
            return
        async with self._beginning:
            if self._partitions:
                return
            await self._find_topic()
            if not self._is_closing:
                self._bus.context.start_soon(self._live)
                self._bus.context.has_begun(self)

    async def aclose(self) -> None:
        """Finish the transactions in flight, and give up the partitions."""
        self._is_closing = True
        if self._scope is not None:
            self._scope.cancel()
        if self._partitions:
            await self._ended.wait()

    # the task --------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Read the bus's partitions. After an outage of the log it continues."""
        try:
            with anyio.CancelScope() as self._scope:
                while not self._is_closing:
                    try:
                        await self._read()
                    except UnknownTopicOrPartition as error:
                        self._trouble, self._may_be_empty = str(error), True
                        await self._restore()
                    except Exception as error:  # the service must survive any error, because it also does other work
                        self._trouble = f"{type(error).__name__}: {error}"
                        logger.warning(
                            "scheduled records are not read now, it is tried again: %s", error,
                            exc_info=None if isinstance(error, EventBusError) else error,
                        )  # fmt: skip
                        await self.backend.timers.sleep(_AGAIN_SECONDS)
        finally:
            self._ended.set()
            self._polled.set()

    async def _restore(self) -> None:
        """Write the times of our functions again if the topic was deleted; create it if no other process has."""
        while not self._is_closing:
            try:
                if await self._find_topic() or self._may_be_empty:
                    self._may_be_empty = False
                    self._bus.context.start_soon(self._declare_all)
                return
            except EventBusError as refusal:
                self._trouble = str(refusal)
                await self.backend.timers.sleep(_AGAIN_SECONDS)

    async def _read(self) -> None:
        consumer = self._bus.new_consumer(
            self.topic,
            group=self.topic,
            start="earliest",
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            enable_auto_commit=False,
        )
        looked_at = self.backend.timers.current_time()
        async with consumer:
            while not self._is_closing:
                records = await consumer.poll(_POLL_MS, _MOST_POLLED)
                now = self.backend.timers.current_time()
                # other processes own all partitions, or the topic was deleted
                if not self._owners and now - looked_at >= _LOOK_SECONDS:
                    looked_at = now
                    await self._restore()
                by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
                for record in records:
                    by_partition.setdefault(record.topic_partition, []).append(record)
                for partition, position in (await consumer.positions()).items():
                    if partition in self._owners:
                        self._owners[partition].took(by_partition.get(partition, ()), position)
                self._trouble = ""
                self._polled.set()

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            owner = self._owners[partition] = PartitionOwner(partition, self._bus, self.counts, self.topic_id)
            self._bus.context.start_soon(owner.run)
        self._bus.context.start_soon(self._restore)

    async def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Give up partitions, perhaps because the topic was deleted and created again, without any function's times."""
        self._may_be_empty = True
        await self._revoked(partitions)

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            owner = self._owners.pop(partition, None)
            if owner is not None:
                await owner.stop()

    # called by the bus
    # ---------------------------------------------------------------------------------------------------

    async def add(
        self,
        producer: Producer,
        topic: str,
        value: Any,
        deliver_at: DeliverAt | None,
        delay: Delay | None,
        schedule_id: str | None,
        options: SendOptions,
        *,
        transactional: bool = True,
    ) -> Scheduled:
        """Store a record to be sent later, with ``producer``, as a part of its open transaction if there is one."""
        if transactional:
            producer = joined(producer, "send")
        self._bus.context.check_service(f"send({topic!r}, ...) with a delay")
        due_ms = due_at(self.now_ms(), deliver_at, delay)
        id = uuid4().hex if schedule_id is None else check_id(schedule_id)
        if id.startswith(EVERY):
            raise ConfigError(f"schedule_id={id!r}: ids that begin with {EVERY!r} belong to @bus.every")
        ready = await producer.ready(topic, value, **options)
        timestamp_ms = ready.timestamp_ms if options.get("timestamp_ms") is not None else None
        await self.begin()
        entry = Entry(
            due_ms,
            topic,
            ready.partition,
            ready.key,
            ready.data,
            tuple(ready.headers),
            timestamp_ms,
            delay_ms=None if delay is None else due_at(0, None, delay),
            topic_id=await self.topic_id(topic),
        )
        await self._put(producer, id, entry, transactional=transactional)
        return Scheduled(id=id, topic=topic, due_ms=due_ms)

    async def _put(self, producer: Producer, id: str, item: Item, *, transactional: bool = True) -> None:
        key, partition = key_of(id, uuid4().hex[:16]), partition_for(id, self._partitions)
        # Interceptors saw the record itself. This is an internal record.
        await Producer.send(
            producer, self.topic, encode(item), key=key, partition=partition, transactional=transactional
        )

    async def cancel(self, id: str | Scheduled, timeout: float, *, transactional: bool = True) -> bool:
        """Cancel a record. Return True if it had not been delivered, and now never is."""
        if transactional:
            refuse_waiting("cancel_scheduled()")
        name = id.id if isinstance(id, Scheduled) else check_id(id)
        await self.begin()
        return await ask_to_cancel(self._bus, self.topic, self._partitions, name, timeout)

    async def drain(self) -> bool:
        """Wait until everything due now is delivered, as far as this bus does it.

        Returns True if records were delivered since the last call. Firings do not count, because there is always a next
        one.
        """
        await self._looked.wait()
        if self._partitions:
            await self._polled.wait()
            for owner in list(self._owners.values()):
                await owner.until_quiet()
        before, self._drained = self._drained, self.counts.records
        return self._drained > before

    async def fired(self) -> dict[TopicPartition, int]:
        """Let functions fire that are due now. Return the end offsets of the topics of their firings."""
        if not self.firings:
            return {}
        await self.drain()
        return await ends_of(self.backend, [TopicPartition(topic, 0) for topic in self.firings.values()])

    # metrics and health
    # ---------------------------------------------------------------------------------------------------

    def _next_due_ms(self) -> int | None:
        dues = (owner.schedule.next_due_ms() for owner in self._owners.values())
        return min((due for due in dues if due is not None), default=None)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the partitions that this bus delivers."""
        schedules = [owner.schedule for owner in self._owners.values()]
        due_ms = self._next_due_ms()
        gauges = {
            "eventbus_scheduled_pending_records": sum(map(len, schedules)),
            "eventbus_scheduled_dead_records": sum(one.dead for one in schedules),
            "eventbus_scheduled_held_bytes": sum(one.held_bytes for one in schedules),
            "eventbus_scheduled_late_seconds": self.counts.late_ms / 1000,
            **({} if due_ms is None else {"eventbus_scheduled_next_due_timestamp_seconds": due_ms / 1000}),
        }
        for name, value in gauges.items():
            yield Sample(name, {}, float(value), "gauge")
        yield Sample("eventbus_scheduled_delivered_records_total", {}, float(self.counts.delivered), "counter")

    def health(self) -> PartHealth:
        """Return whether due records are delivered, as far as this bus is concerned."""
        now_ms = self.now_ms()
        trouble = self._trouble or next((one.trouble for one in self._owners.values() if one.trouble), "")
        next_due_ms = self._next_due_ms()
        late_ms = 0 if next_due_ms is None else now_ms - next_due_ms
        pending = sum(len(one.schedule) for one in self._owners.values())
        dead = sum(one.schedule.dead for one in self._owners.values())
        details: dict[str, object] = {"partitions": len(self._owners), "pending": pending, "dead": dead}
        until = ""
        if next_due_ms is not None:
            details["next_due"] = moment(next_due_ms).isoformat()
            until = f", the next one until {details['next_due']}"
        part = f"scheduled records in {self.topic}"
        if trouble:
            reason = f"nothing is delivered now, it is tried again: {trouble}"
            return PartHealth(part=part, status="degraded", reason=reason, details=details)
        if waits := next((one.waiting_for for one in self._owners.values() if one.waiting_for), ""):
            return PartHealth(part=part, status="degraded", reason=waits, details=details)
        if late_ms > _STUCK_MS:
            reason = f"the next record is late by {late_ms // 1000:,} s: the log is slow, or a transaction stays open"
            return PartHealth(part=part, status="degraded", reason=reason, details=details)
        if dead:
            reason = f"records that cannot be delivered: {dead:,}. See: eventbus schedule list --dead"
            return PartHealth(part=part, status="degraded", reason=reason, details=details)
        return PartHealth(part=part, status="ok", reason=f"{pending:,} wait{until}", details=details)
