"""The service of the demo, as a user would write it, and the run that uses it.

flights --(validate)--> delays --(count)--> a running table per carrier and month
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from eventbus import ConsumerRecord, EventBus
from eventbus.cli.shell import until_signal
from eventbus.demo.display import Bar, Display
from eventbus.demo.flights import FLIGHTS, Delay, FirstFlight, Flight, Table, add_delay
from eventbus.demo.names import Names, Places
from eventbus.demo.publish import PARTITIONS, held_records, is_prefix, publish
from eventbus.demo.releases import Releases, look_at
from eventbus.types import TopicPartition
from serdes import Avro

_KEEP = {"retention.ms": "-1", "segment.ms": str(10 * 365 * 86_400_000)}
"""The records have the time of their flight, in 2013: Kafka's default retention of a week would delete them, and its
week per segment would make 53 files of each partition's year."""

_UPDATE_EVERY = 500
_POLL_MS = 50
_POLL_RECORDS = 2_000


class Outcome(msgspec.Struct):
    """The results of one run of the service."""

    published: int = 0
    held: int = 0
    """Flights in the log at the end."""
    delays_made: int = 0
    counted: int = 0
    doubled: int = 0
    """Records of ``delays`` that a killed run had published before it could commit; the table skips them."""
    interrupted: bool = False
    publish_seconds: float = 0.0
    handle_seconds: float = 0.0
    count_seconds: float = 0.0
    """Time until all was published, handled and counted; the three run concurrently."""
    table: Table = {}
    releases: Releases = Releases()


def build_bus(url: str, names: Names, avro: Avro, on_delay: Callable[[], None]) -> EventBus:
    """Declare the topics and the handler: flights are Avro, delays JSON.

    The handler uses the exporter's first release, and so it can read what the second one writes.
    """
    bus = EventBus(url, service="demo", serdes={FirstFlight: avro, Flight: avro})
    bus.topic(names.flights, partitions=PARTITIONS, configs=_KEEP)
    bus.topic(names.delays, partitions=PARTITIONS, configs=_KEEP)

    @bus.consumer(names.flights, group=names.delay_maker)
    @bus.producer(names.delays, key=lambda delay: delay.tailnum, partitioner=as_the_flight)
    def make_delay(flight: FirstFlight, record: ConsumerRecord) -> Delay:
        on_delay()
        return Delay(flight.carrier, flight.month, flight.tailnum, flight.dep_delay, record.partition, record.offset)

    del make_delay  # the bus has it
    return bus


def as_the_flight(topic: str, key: bytes | None, delay: Any, count: int) -> int:
    """Send a delay to the partition of its flight. For a keyed flight the hash gives that too; this rule covers all."""
    return delay.source_partition % count


class CarrierTable:
    """The running table. It is in memory, so every run counts ``delays`` from the beginning and commits nothing.

    With at-least-once delivery a record may come twice: a run that was killed had published delays and not yet
    committed the offset of their flights, and the next run made them again. Each delay contains its flight; a byte per
    flight marks those that were counted.
    """

    def __init__(self) -> None:
        self.table: Table = {}
        self.flights = 0
        self.doubled = 0
        self.until: dict[TopicPartition, int] | None = None
        """The offsets at which to stop; None as long as more may come."""
        self._seen: dict[int, bytearray] = {}
        self._position: dict[TopicPartition, int] = {}

    def add(self, delay: Delay) -> None:
        seen = self._seen.setdefault(delay.source_partition, bytearray())
        if delay.source_offset >= len(seen):
            seen.extend(bytes(delay.source_offset + 1 - len(seen)))
        elif seen[delay.source_offset]:
            self.doubled += 1
            return
        seen[delay.source_offset] = 1
        self.flights += 1
        add_delay(self.table, delay)

    async def follow(self, bus: EventBus, delays: str, on_progress: Callable[[int], None]) -> None:
        """Count until `until` is reached."""
        async with bus.new_consumer(delays, start="earliest", value=Delay) as consumer:
            while not self._finished():
                for record in await consumer.poll(timeout_ms=_POLL_MS, max_records=_POLL_RECORDS):
                    assert record.value is not None  # the service publishes no null
                    self.add(record.value)
                    self._position[record.topic_partition] = record.next_offset
                on_progress(self.flights)

    def _finished(self) -> bool:
        return self.until is not None and all(
            self._position.get(topic_partition, 0) >= end for topic_partition, end in self.until.items()
        )


class Story:
    """One run: publish what is missing, let the handler catch up, count."""

    def __init__(self, places: Places, csv: Path, limit: int, display: Display) -> None:
        self.outcome = Outcome()
        self.limit = limit
        """The number of rows of the file; all of them if the log holds more than the requested slice."""
        self._names = places.names
        self._csv = csv
        self._display = display
        self._table = CarrierTable()
        self._url = places.url
        self._avro = Avro("log")
        self._bus = build_bus(places.url, places.names, self._avro, self._one_delay)
        self._delays_bar: Bar | None = None
        self._already_made = 0

    async def run(self) -> None:
        """Run until everything is done, or until Ctrl-C; then records in flight are finished and committed."""
        outcome = self.outcome
        async with self._bus as bus:
            async with until_signal() as scope:
                await self._tell(bus)
            with anyio.CancelScope(shield=True):
                outcome.held = sum((await held_records(bus, self._names.flights)).values())
        outcome.interrupted = scope.cancel_called
        outcome.counted = self._table.flights
        outcome.doubled = self._table.doubled
        outcome.table = self._table.table

    async def _tell(self, bus: EventBus) -> None:
        held = await held_records(bus, self._names.flights)
        if not is_prefix(self._csv, self.limit, held):
            self.limit = FLIGHTS
            self._display.say("  the log holds more than the slice: going on with the whole file")
        committed = await bus.admin.group_offsets(self._names.delay_maker)
        self._already_made = sum(offset.offset for offset in committed.values())
        publishing = self._display.bar("publish flights", self.limit, sum(held.values()))
        making = self._delays_bar = self._display.bar("flights -> delays", self.limit, self._already_made)
        counting = self._display.bar("delays -> table per carrier", self.limit)
        outcome, started = self.outcome, time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._table.follow, bus, self._names.delays, counting.update)
            outcome.published = await publish(bus, self._names.flights, self._csv, self.limit, held, publishing)
            outcome.publish_seconds = time.monotonic() - started
            await bus.drain()
            outcome.handle_seconds = time.monotonic() - started
            making.update(self._already_made + outcome.delays_made)
            self._table.until = await _ends(bus, self._names.delays)
        outcome.count_seconds = time.monotonic() - started
        outcome.releases = await look_at(self._avro.source, self._url, self._names)

    def _one_delay(self) -> None:
        self.outcome.delays_made += 1
        if self._delays_bar is not None and self.outcome.delays_made % _UPDATE_EVERY == 0:
            self._delays_bar.update(self._already_made + self.outcome.delays_made)


async def _ends(bus: EventBus, topic: str) -> dict[TopicPartition, int]:
    [description] = await bus.admin.describe_topics([topic])
    return {TopicPartition(topic, part.partition): part.log_end_offset for part in description.partitions}
