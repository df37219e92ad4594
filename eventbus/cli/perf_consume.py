"""``eventbus perf consume``: how fast this log is read; flags and lines as kafka-consumer-perf-test."""

from __future__ import annotations

import argparse
import time
from datetime import datetime
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, add_topic, natural, positive, required_topic
from eventbus.cli.properties import properties_of
from eventbus.cli.shell import open_bus, own_keywords, until_signal
from eventbus.errors import EventBusError
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import Consumer, EventBus

MIB = 1024 * 1024
"""Kafka's tools print mebibytes as MB; so do these."""


def add_consume(actions: Subcommands) -> None:
    consume = actions.add_parser("consume", help="read records, tell records/s and MB/s")
    add_topic(consume)
    consume.add_argument("--messages", "--num-records", type=positive, metavar="N", help="default: all there are now")
    consume.add_argument("--group", metavar="GROUP", help="read as a member of this group, and commit at the end")
    consume.add_argument("--timeout", type=natural, default=10_000, metavar="MS", help="give up after nothing came")
    consume.add_argument(
        "--consumer-props", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as check.crcs=false"
    )
    consume.add_argument("--consumer.config", dest="consumer_config", metavar="FILE", help="the same, from a file")
    consume.add_argument("--hide-header", action="store_true", help="without the line of names")
    add_interval(consume)
    consume.set_defaults(run=run_consume)


def add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reporting-interval", type=positive, default=5_000, metavar="MS", help="a line each; default: 5,000"
    )


_COLUMNS = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


async def run_consume(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    properties = properties_of(args, ["consumer_config"], ["consumer_props"])
    config = own_keywords(properties)
    group: str | None = args.group or config.pop("group_id", None)

    async with open_bus(args, properties=properties) as bus, until_signal() as scope:
        ends = await _ends(bus, topic)
        reading = _Reading(ends, args, group, out)
        topics = () if group is None else (topic,)
        async with bus.new_consumer(*topics, group=group, start="earliest", **config) as consumer:
            if group is None:
                await consumer.assign(ends)
            else:
                await consumer.assigned()
            reading.assigned()
            await reading.run(consumer)
    reading.tell(args.hide_header)
    if scope.cancel_called:
        return 130
    return 1 if reading.gave_up else 0


async def _ends(bus: EventBus, topic: str) -> dict[TopicPartition, int]:
    """Up to where each partition can be read now. EventBusError when there is nothing."""
    [described] = await bus.admin.describe_topics([topic])
    if all(part.log_end_offset == part.log_start_offset for part in described.partitions):
        raise EventBusError(f"topic {topic!r} is empty: fill it first, as with: eventbus perf produce {topic}")
    return {TopicPartition(topic, part.partition): part.last_stable_offset for part in described.partitions}


class _Reading:
    """Reads so many records, or what was there at the start: offsets tell, since not each of them is a record."""

    def __init__(
        self, ends: dict[TopicPartition, int], args: argparse.Namespace, group: str | None, out: Output
    ) -> None:
        self.count = self.size_bytes = 0
        self.gave_up = False
        self._ends = ends
        self._wanted: int | None = args.messages
        self._out = out
        self._timeout_ms: int = args.timeout
        self._interval_s: float = args.reporting_interval / 1_000
        self._group = group
        self._began_at = datetime.now()
        self._began = self._assigned = self._ended = time.perf_counter()

    def assigned(self) -> None:
        self._assigned = self._ended = time.perf_counter()

    async def run(self, consumer: Consumer) -> None:
        reported, reported_count = self._assigned, 0
        while not await self._is_done(consumer):
            room = 10_000 if self._wanted is None else min(10_000, self._wanted - self.count)
            asked = time.perf_counter()
            records = await consumer.poll(timeout_ms=self._timeout_ms, max_records=room)
            if not records:
                if (time.perf_counter() - asked) * 1_000 < self._timeout_ms:
                    continue  # a poll also ends early when a position has passed what is no record
                self._out.note(f"gave up after {self._timeout_ms} ms without a record, at {self.count:,} records")
                self.gave_up = True
                break
            self.count += len(records)
            self.size_bytes += sum(len(record.value or b"") + len(record.key or b"") for record in records)
            self._ended = time.perf_counter()
            if self._ended - reported >= self._interval_s:
                rate = (self.count - reported_count) / (self._ended - reported)
                self._out.note(f"{self.count:,} records read, {rate:,.0f} records/sec")
                reported, reported_count = self._ended, self.count
        if self._group is not None:
            await consumer.commit()

    async def _is_done(self, consumer: Consumer) -> bool:
        if self._wanted is not None:
            return self.count >= self._wanted
        positions = await consumer.positions()
        return all(at >= self._ends[partition] for partition, at in positions.items() if partition in self._ends)

    def tell(self, hide_header: bool) -> None:
        seconds, fetching = max(self._ended - self._began, 1e-9), max(self._ended - self._assigned, 1e-9)
        mib = self.size_bytes / MIB
        ended_at = datetime.now()
        if self._out.json:
            self._out.data(
                {
                    "records": self.count,
                    "bytes": self.size_bytes,
                    "seconds": seconds,
                    "records_per_s": self.count / seconds,
                    "mib_per_s": mib / seconds,
                    "rebalance_ms": (self._assigned - self._began) * 1_000,
                    "fetch_ms": fetching * 1_000,
                }
            )
            return
        if not hide_header:
            self._out.line(_COLUMNS)
        cells = (
            _date(self._began_at),
            _date(ended_at),
            f"{mib:.4f}",
            f"{mib / seconds:.4f}",
            str(self.count),
            f"{self.count / seconds:.4f}",
            f"{(self._assigned - self._began) * 1_000:.0f}",
            f"{fetching * 1_000:.0f}",
            f"{mib / fetching:.4f}",
            f"{self.count / fetching:.4f}",
        )
        self._out.line(", ".join(cells))


def _date(at: datetime) -> str:
    """Return a time as Kafka's tool writes it."""
    return f"{at:%Y-%m-%d %H:%M:%S}:{at.microsecond // 1_000:03}"
