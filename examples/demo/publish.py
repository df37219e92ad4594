"""Publishing that can be stopped at any point and continues exactly where the log ends.

Each row's partition depends only on the row: murmur2 of its tail number, and the row's number if it has none. So a
partition of the log always holds a prefix of that partition's rows, in the file's order, however the last run ended -
Ctrl-C, kill -9, a full disk. The log's end offsets are the whole state of the import: nothing is stored next to it, and
nothing can disagree with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from demo.flights import FLIGHTS, Flight, Row, as_read, read_rows
from eventbus.cli.progress import Bar
from eventbus.client.partitioner import make_partitioner
from eventbus.errors import BufferExhausted, ConfigError, SerializationError
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import Delivery, EventBus, Producer

PARTITIONS = 6

_STEP = 500
"""The number of rows between two turns of the event loop: consumers run, a signal is handled."""


async def publish(bus: EventBus, topic: str, path: Path, limit: int, held: dict[int, int], bar: Bar) -> int:
    """Publish the rows that are not in the topic yet, and return how many those were. ``held``: see `held_records`.

    Raises:
        ConfigError: the log has other records than the rows of this file.
        StorageError: the disk refused; the log still holds a prefix.
    """
    plan = _Plan(topic, held, await _last_flights(bus, topic, held))
    done = sum(held.values())
    published = 0
    async with bus.new_producer() as producer:
        sending = _Sending(bus, producer, topic)
        for row in read_rows(path, limit):
            partition = plan.place(row)
            if partition is not None:
                await sending.send(row, partition)
                published += 1
            if row.number % _STEP == 0:
                await anyio.lowlevel.checkpoint()
                sending.check()
                bar.update(done + published)
        await producer.flush()
        sending.check()
    plan.check_all_met()
    bar.update(done + published)
    return published


class _Sending:
    """Sends without waiting, and stops at the first failed batch, before a later batch is sent.

    A later batch that succeeded would leave a hole, and the end offset would no longer show what the log holds.
    """

    def __init__(self, bus: EventBus, producer: Producer, topic: str) -> None:
        self._bus = bus
        self._producer = producer
        self._topic = topic
        self._last: dict[int, Delivery] = {}
        self._releases: set[type] = set()
        """Releases whose schema is registered."""

    async def send(self, row: Row, partition: int) -> None:
        if type(row.flight) not in self._releases:
            await self._bus.prepare(self._topic, type(row.flight))
            self._releases.add(type(row.flight))
        try:
            delivery = self._put(row, partition)
        except BufferExhausted:
            await self._producer.wait_for_room()
            self.check()
            delivery = self._put(row, partition)
        self._last[partition] = delivery
        if delivery.exception() is not None:  # this row filled its batch, which was refused
            self.check()

    def _put(self, row: Row, partition: int) -> Delivery:
        return self._producer.send_nowait(
            self._topic, row.flight, key=row.key, partition=partition, timestamp_ms=row.timestamp_ms
        )

    def check(self) -> None:
        for delivery in self._last.values():
            error = delivery.exception()
            if error is not None:
                raise error


async def held_records(bus: EventBus, topic: str) -> dict[int, int]:
    """Return how many rows each partition holds: its end offset, since nothing is ever deleted from this topic."""
    [description] = await bus.admin.describe_topics([topic])
    return {part.partition: part.log_end_offset for part in description.partitions}


def is_prefix(path: Path, limit: int, held: dict[int, int]) -> bool:
    """True if the log may hold only rows among the first ``limit``."""
    if not any(held.values()) or limit >= FLIGHTS:
        return True
    deal = _Dealer(len(held))
    expected = dict.fromkeys(held, 0)
    for row in read_rows(path, limit):
        expected[deal.partition(row)] += 1
    return all(held[partition] <= expected[partition] for partition in held)


async def _last_flights(bus: EventBus, topic: str, held: dict[int, int]) -> dict[int, Flight]:
    """Return the last record of each partition that has one, which proves that this program wrote the log.

    Raises:
        ConfigError: it is not a flight.
    """
    found: dict[int, Flight] = {}
    async with bus.new_consumer(value=Flight) as consumer:
        for partition, count in held.items():
            if not count:
                continue
            place = TopicPartition(topic, partition)
            await consumer.assign([place])
            consumer.seek(place, count - 1)
            try:
                while partition not in found:
                    for record in await consumer.poll(timeout_ms=1_000):
                        assert record.value is not None  # every flight was sent with a value
                        found[partition] = record.value
            except SerializationError:
                raise _foreign(topic, partition) from None
    return found


class _Dealer:
    """Decides the partition of each row."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._murmur2 = make_partitioner("murmur2", "flights", 1)

    def partition(self, row: Row) -> int:
        if row.key is None:
            return row.number % self._count
        return self._murmur2.partition(row.key, None, None, self._count)


class _Plan:
    """Skips the rows that are already in the log."""

    def __init__(self, topic: str, held: dict[int, int], last: dict[int, Flight]) -> None:
        self._topic = topic
        self._deal = _Dealer(len(held))
        self._left = dict(held)
        self._last = last

    def place(self, row: Row) -> int | None:
        """Return the row's partition, or None if the row is already in the log."""
        partition = self._deal.partition(row)
        left = self._left[partition]
        if not left:
            return partition
        self._left[partition] = left - 1
        if left == 1 and self._last[partition] != as_read(row.flight):
            raise _foreign(self._topic, partition)
        return None

    def check_all_met(self) -> None:
        for partition, left in self._left.items():
            if left:
                raise _foreign(self._topic, partition)


def _foreign(topic: str, partition: int) -> ConfigError:
    return ConfigError(
        f"{topic}-{partition} does not hold the rows of this file: something else was published there; "
        "start over with --fresh, or choose another --dir or --url"
    )
