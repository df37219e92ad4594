"""Publish rows as records. One transaction of the log contains both the records and their receipt."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel
import msgspec

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.delivery import BatchDelivery
from eventbus.backends.kafka.limits import TopicLimits
from eventbus.errors import (
    BufferExhausted,
    EventBusError,
    SerializationError,
    TopicAlreadyExists,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from eventbus.types import OffsetAndMetadata, TopicPartition
from outbox.headers import EVENT_ID
from outbox.headers import published as published_headers
from outbox.relay.poison import Refused, is_about_times, is_poison, is_unknown_topic
from outbox.relay.receipts import Receipt, decode, encode
from outbox.relay.rows import Row
from outbox.status import written_at_ms
from outbox.table_names import name_in_log

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.client.producer import AddReady, Producer

logger = logging.getLogger("outbox")

At = Callable[[str], Awaitable[object]]
"""Awaited after each step with its name. Tests use it to kill a relay there."""
_TRANSACTION_MS = 30_000
"""How long an open transaction of a dead relay blocks read_committed readers if no other relay reaps it."""
_MOST_RECORD_BYTES = 100 * 1_048_576
"""High enough for every record: the outbox limits the size when an event is written, and the topic does too."""
_SLICE = 1_000
"""Number of rows after which other tasks get a turn."""


def receipts_topic(name: str) -> str:
    """Return the internal topic whose committed offsets are the receipts. It has one partition, and never a record."""
    return f"_outbox.{name_in_log(name)}"


def transactional_id(name: str, identity: str, slot: int) -> str:
    """Return the transactional id of a slot, also the group of its receipts. ``identity`` distinguishes databases on a
    log.
    """
    return f"outbox.{name_in_log(name)}.{identity}.{slot}"


class Publisher(ABC):
    """Publishes batches for one slot. After any error, call `take_up` before anything else."""

    def __init__(self, bus: EventBus, at: At) -> None:
        self._bus = bus
        self._at = at
        self._producer: Producer | None = None
        self._limits: dict[str, TopicLimits] = {}
        """Accepted timestamps of topics that refused an event because of its timestamp."""
        self._topics: frozenset[str] = frozenset()
        """The topics of the last batch that exist."""
        self.log_id = ""
        """Id of the log when the slot was taken up; "" if it does not matter."""
        self.number = 0
        """Number of the last batch published for the slot."""

    @abstractmethod
    async def take_up(self) -> Receipt | None:
        """Fence all other publishers of the slot. Return its receipt, or None if this publisher writes none."""

    @abstractmethod
    async def publish(self, rows: Sequence[Row], receipt: str) -> None:
        """Publish rows: they are in the log when it returns. Raises Refused for rows that the log will never accept."""

    @abstractmethod
    async def check(self) -> None:
        """Check right after `take_up` that the log accepts anything from this relay. Raises the log's error."""

    async def learn_limits(self, rows: Sequence[Row], refusal: EventBusError) -> bool:
        """Look up the timestamps that the topics of a refused batch accept. Return True if the batch can be published
        again.

        Events without an explicit timestamp have the time at which they were written. It may be older than the topic
        allows if no relay ran for a while, or newer if the writer's clock was ahead. Waiting would not help, so they
        are sent with the current time.
        """
        if not is_about_times(refusal):
            return False
        before = dict(self._limits)
        for topic in {row[2] for row in rows if _has_time_of_writing(row)}:
            try:
                [found] = await self._bus.admin.describe_topics([topic])
                limits = TopicLimits.read({name: str(entry.value) for name, entry in found.configs.items()})
            except EventBusError as error:
                logger.debug("outbox: the configs of %r are not known: %s", topic, error)
                limits = TopicLimits(before_ms=0, after_ms=0)  # never send the time of writing
            self._limits[topic] = limits
        return self._limits != before

    def _accepted(self, now_ms: int) -> dict[str, tuple[int, int]]:
        """Return the first and last timestamp that each topic in `learn_limits` accepts."""
        return {topic: limits.accepted_times(now_ms) for topic, limits in self._limits.items()}

    def has_topic(self, topic: str) -> bool:
        """True if the topic existed when the last batch began, so that only the partition is missing."""
        return topic in self._topics

    async def aclose(self) -> None:
        """Close the producer and abort its open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await producer.aclose()
            except EventBusError as error:
                logger.debug("closing the producer of a relay: %s", error)

    async def _adders(self, producer: Producer, rows: Sequence[Row]) -> dict[str, AddReady]:
        """Return the function that adds records to each topic. All topics are looked up before anything is sent."""
        adders: dict[str, AddReady] = {}
        self._topics = frozenset()
        for topic in dict.fromkeys(row[2] for row in rows):
            try:
                adders[topic] = await producer.adder(topic)
            except EventBusError as error:
                if is_poison(error) or is_unknown_topic(error):
                    raise Refused([row[0] for row in rows if row[2] == topic], error) from error
                raise
        self._topics = frozenset(adders)
        return adders

    async def _send(self, producer: Producer, rows: Sequence[Row], adders: dict[str, AddReady]) -> list[BatchDelivery]:
        """Hand over all records in the order of the rows. Return the deliveries of their batches."""
        batches: dict[int, BatchDelivery] = {}
        # Rows are stamped with the system clock. A log whose own clock is slower, such as a test's, would refuse them
        # as records from the future.
        log_now_ms, system_now_ms = self._bus.context.now_ms(), system_clock()
        accepted = self._accepted(log_now_ms)
        for number, row in enumerate(rows, 1):
            id_, event_id, topic, key, value, headers, partition, timestamp_ms, _, _ = row
            if log_now_ms < timestamp_ms <= system_now_ms:
                timestamp_ms = log_now_ms
            elif topic in accepted and _has_time_of_writing(row):
                first_ms, last_ms = accepted[topic]
                timestamp_ms = timestamp_ms if first_ms <= timestamp_ms <= last_ms else log_now_ms
            if isinstance(key, str):
                key = key.encode()
            if isinstance(value, str):  # written by hand: SQLite stores text as text even in a column of bytes
                value = value.encode()
            add = adders[topic]
            try:
                packed = ((EVENT_ID, event_id.encode()),) if headers is None else published_headers(headers, event_id)
                try:
                    batch = add(key, value, packed, timestamp_ms, partition)
                except BufferExhausted:
                    await producer.wait_for_room()
                    batch = add(key, value, packed, timestamp_ms, partition)
            except EventBusError as error:
                if is_poison(error) or is_unknown_topic(error):
                    raise Refused([id_], error) from error
                raise
            except (msgspec.DecodeError, TypeError, ValueError, OverflowError) as error:
                raise Refused([id_], _no_event(row, error)) from error
            batches[id(batch)] = batch
            if not number % _SLICE:
                await anyio.lowlevel.checkpoint()
        return list(batches.values())


class ExactlyOnce(Publisher):
    """Publishes in transactions, so it is safe however many relays believe that they hold the slot."""

    def __init__(self, bus: EventBus, at: At, name: str, identity: str, slot: int) -> None:
        super().__init__(bus, at)
        self._id = transactional_id(name, identity, slot)
        self._place = TopicPartition(receipts_topic(name), 0)
        self._receipt = ""
        """The receipt when the transactional id was taken up."""

    async def take_up(self) -> Receipt:
        await self.aclose()
        # The log may have been replaced since.
        self.log_id = await create_receipts_topic(self._bus, self._place.topic)
        self._producer = producer = self._bus.new_producer(
            transactional_id=self._id,
            acks="all",
            enable_idempotence=True,
            transaction_timeout_ms=_TRANSACTION_MS,
            max_request_size=_MOST_RECORD_BYTES,
        )
        await producer.init()
        await self._at("fenced")
        receipt = await read_receipt(self._bus, self._id, self._place)
        self.number, self._receipt = receipt.number, encode(receipt.parts)
        return receipt

    async def check(self) -> None:
        producer = self._producer
        assert producer is not None
        await producer.begin()
        await self._give_receipt(producer, self.number, self._receipt)
        await producer.commit()

    async def renew_receipt(self) -> None:
        """Commit a receipt with the next number that lists no rows."""
        self.number, self._receipt = self.number + 1, encode(())
        await self.check()

    async def publish(self, rows: Sequence[Row], receipt: str) -> None:
        producer = self._producer
        assert producer is not None
        adders = await self._adders(producer, rows)
        await producer.begin()
        await self._at("begun")
        await self._send(producer, rows, adders)
        await self._at("sent")
        await self._give_receipt(producer, self.number + 1, receipt)
        await self._at("receipt")
        await producer.commit()
        self.number += 1

    async def _give_receipt(self, producer: Producer, number: int, receipt: str) -> None:
        await producer.send_offsets({self._place: OffsetAndMetadata(number, receipt)}, self._id)


class AtLeastOnce(Publisher):
    """Publishes without transactions. Rows may be published again after a crash, or by a relay that was considered
    dead.
    """

    async def take_up(self) -> None:
        await self.aclose()
        self._producer = self._bus.new_producer(
            acks="all", enable_idempotence=True, max_request_size=_MOST_RECORD_BYTES
        )
        await self._at("fenced")

    async def check(self) -> None:
        pass  # nothing but rows is written to the log

    async def publish(self, rows: Sequence[Row], receipt: str) -> None:
        producer = self._producer
        assert producer is not None
        adders = await self._adders(producer, rows)
        await self._at("begun")
        batches = await self._send(producer, rows, adders)
        await producer.flush()
        await self._at("sent")
        for batch in batches:
            await batch.wait()
            if batch.error is not None:
                raise batch.error


def _has_time_of_writing(row: Row) -> bool:
    """True if the writer set no ``timestamp_ms=``, so that the timestamp is that in the event's id, a UUIDv7."""
    return written_at_ms(row[1], -1) == row[7]


def _no_event(row: Row, error: Exception) -> EventBusError:
    """Return the error for a row that was not written by the outbox, and cannot be turned into a record."""
    kinds = ", ".join(f"{name} {type(row[at]).__name__}" for name, at in (("key", 3), ("value", 4), ("headers", 5)))
    return SerializationError(
        f"the row is not an event ({error}): key and value are bytes or NULL, and headers as outbox.publish packs them "
        f"or NULL; here they are {kinds}"
    )


async def read_receipt(bus: EventBus, group: str, place: TopicPartition) -> Receipt:
    """Return the last receipt. No earlier transaction can change it any more.

    Call it only after taking over or fencing the transactional id. Raises ConfigError for an invalid receipt.
    """
    reader = bus.context.backend.consumer(ConsumerConfig(group=group))  # waits until the offset is stable (KIP-447)
    try:
        found = (await reader.committed([place])).get(place)
    finally:
        await reader.aclose()
    return _receipt(found)


async def peek_receipts(bus: EventBus, name: str, identity: str, slots: int) -> dict[int, Receipt]:
    """Return the last receipts of the first ``slots`` slots, and of further ones that were in use.

    Nothing is fenced, so the receipt of a slot in use may be outdated when this returns.
    """
    place = TopicPartition(receipts_topic(name), 0)
    receipts: dict[int, Receipt] = {}
    slot = 0
    while slot == len(receipts):
        found = await bus.admin.group_offsets(transactional_id(name, identity, slot))
        if place in found or slot < slots:
            receipts[slot] = _receipt(found.get(place))
        slot += 1
    return receipts


def _receipt(found: OffsetAndMetadata | None) -> Receipt:
    return Receipt() if found is None else Receipt(found.offset, tuple(decode(found.metadata)))


async def create_receipts_topic(bus: EventBus, topic: str) -> str:
    """Create the topic if it is missing. Return its id, which is unique to this log."""
    try:
        [found] = await bus.admin.describe_topics([topic])
    except UnknownTopicOrPartition:
        with contextlib.suppress(TopicAlreadyExists):  # another relay created it first
            await bus.admin.create_topic(topic)
        [found] = await bus.admin.describe_topics([topic])
    return found.topic_id


async def fence(bus: EventBus, transactional_id: str) -> None:
    """Fence all producers with this id, and end their open transaction."""
    with contextlib.suppress(TransactionalIdNotFound):  # the id was never used
        await bus.admin.fence_producer(transactional_id)
