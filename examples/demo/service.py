"""The service of the demo, as a user would write it, and one run of it.

flights --(make_delay)--> delays --(CarrierTable)--> a running table per carrier and month
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from demo.flights import FLIGHTS, Delay, FirstFlight, Flight, GateFlight, Table, add_delay
from demo.places import Places
from demo.publish import PARTITIONS, held_records, is_prefix, publish
from eventbus import ConsumerRecord, EventBus
from eventbus.cli.progress import Bars
from eventbus.cli.shell import until_signal
from eventbus.errors import ConfigError
from eventbus.types import TopicPartition
from serdes import Avro

_KEEP = {"retention.ms": "-1", "segment.ms": str(10 * 365 * 86_400_000)}
"""The records carry the time of their flight, in 2013: Kafka's default retention of a week would delete them, and its
week per segment would make 53 files of each partition's year."""
_UPDATE_EVERY = 500


class Outcome(msgspec.Struct):
    """The result of one run of the service."""

    limit: int
    """How many rows of the file the log is to hold."""
    published: int = 0
    held: int = 0
    """Flights in the log at the end."""
    delays_made: int = 0
    counted: int = 0
    doubled: int = 0
    """Records of ``delays`` that a killed run had published before it could commit; the table skips them."""
    seconds: float = 0.0
    table: Table = {}
    refusal: str = ""
    """Why the third release of the exporter may not write; empty if it may."""


def build_bus(places: Places, on_delay: Callable[[], None]) -> EventBus:
    """The topics and the handler: flights are Avro, delays JSON.

    The handler reads with the exporter's first release, also what the second one has written.
    """
    avro = Avro("log")
    bus = EventBus(places.url, service="demo", serdes={FirstFlight: avro, Flight: avro})
    flights, delays = f"{places.prefix}flights", f"{places.prefix}delays"
    bus.topic(flights, partitions=PARTITIONS, configs=_KEEP)
    bus.topic(delays, partitions=PARTITIONS, configs=_KEEP)

    @bus.consumer(flights, group=f"{places.prefix}delay-maker")
    @bus.producer(delays, key=lambda delay: delay.tailnum, partitioner=_as_the_flight)
    def make_delay(flight: FirstFlight, record: ConsumerRecord) -> Delay:
        on_delay()
        return Delay(flight.carrier, flight.month, flight.tailnum, flight.dep_delay, record.partition, record.offset)

    del make_delay  # the bus has it
    return bus


def _as_the_flight(topic: str, key: bytes | None, delay: Delay, count: int) -> int:
    return delay.source_partition % count


class CarrierTable:
    """The running table. It is in memory, so every run counts ``delays`` from the beginning and commits nothing.

    At-least-once means that a record may come twice: a run that was killed had published delays and not yet committed
    the offset of their flights, and the next run made them again. Each delay names its flight; a byte per flight
    remembers those that were counted.
    """

    def __init__(self) -> None:
        self.table: Table = {}
        self.flights = 0
        self.doubled = 0
        self.until: dict[TopicPartition, int] | None = None
        """The end offsets at which to stop; None as long as more records may come."""
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
            while self.until is None or any(self._position.get(at, 0) < end for at, end in self.until.items()):
                for record in await consumer.poll(timeout_ms=50, max_records=2_000):
                    assert record.value is not None  # the service publishes no null
                    self.add(record.value)
                    self._position[record.topic_partition] = record.next_offset
                on_progress(self.flights)


async def run_service(places: Places, csv: Path, limit: int, bars: Bars) -> Outcome | None:
    """Publish what is missing, let the handler catch up, count. None after Ctrl-C: what was handled is committed."""
    outcome, table, started = Outcome(limit), CarrierTable(), time.monotonic()
    flights, delays = f"{places.prefix}flights", f"{places.prefix}delays"
    made = [0]

    def one_delay() -> None:
        made[0] += 1
        if made[0] % _UPDATE_EVERY == 0:
            making.update(made[0])

    async with build_bus(places, one_delay) as bus:
        held = await held_records(bus, flights)
        if not is_prefix(csv, limit, held):
            outcome.limit = limit = FLIGHTS
            bars.say("  the log holds more than the slice: going on with the whole file")
        committed = await bus.admin.group_offsets(f"{places.prefix}delay-maker")
        already = sum(offset.offset for offset in committed.values())
        publishing = bars.bar("publish flights", limit, sum(held.values()))
        making, counting = bars.bar("flights -> delays", limit), bars.bar("delays -> table per carrier", limit)
        async with until_signal() as scope, anyio.create_task_group() as tasks:
            tasks.start_soon(table.follow, bus, delays, counting.update)
            outcome.published = await publish(bus, flights, csv, limit, held, publishing)
            await bus.drain()
            making.update(already + made[0])
            [described] = await bus.admin.describe_topics([delays])
            table.until = {TopicPartition(delays, part.partition): part.log_end_offset for part in described.partitions}
        if scope.cancel_called:
            return None
        outcome.held = sum((await held_records(bus, flights)).values())
        outcome.refusal = await _refusal_of_a_third_release(places)
    outcome.delays_made, outcome.counted, outcome.doubled = made[0], table.flights, table.doubled
    outcome.table, outcome.seconds = table.table, time.monotonic() - started
    return outcome


async def _refusal_of_a_third_release(places: Places) -> str:
    """Start a service that demands a gate of every flight. It is refused at its start, before it writes anything."""
    bus = EventBus(places.url, service="demo-third-release", serdes={GateFlight: Avro("log")})

    @bus.producer(f"{places.prefix}flights")
    def export(flight: GateFlight) -> GateFlight:
        return flight

    del export  # the bus has it
    try:
        async with bus:
            return ""
    except ConfigError as error:
        findings = getattr(error.__cause__, "findings", ())
        return "; ".join(finding.explanation for finding in findings) or str(error)
