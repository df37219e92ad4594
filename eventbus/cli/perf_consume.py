"""``eventbus perf consume``: how fast this log is read; flags and lines as kafka-consumer-perf-test."""

from __future__ import annotations

import argparse
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, add_topic, natural, positive, topic_of
from eventbus.cli.properties import properties_of
from eventbus.cli.shell import open_bus, own_keywords, until_signal
from eventbus.cli.topics import matching
from eventbus.errors import EventBusError
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus import Consumer, EventBus

MIB = 1024 * 1024
"""Kafka's tools print mebibytes as MB; so do these."""

_DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"
_DATE_PARTS = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
"""Of Java's SimpleDateFormat, and what they are in Python; SSS are milliseconds."""


def add_consume(actions: Subcommands) -> None:
    consume = actions.add_parser("consume", help="read records, tell records/s and MB/s")
    add_topic(consume, required=False)
    consume.add_argument("--include", metavar="PATTERN", help="all topics whose names match, instead")
    consume.add_argument("--messages", "--num-records", type=positive, metavar="N", help="default: all there are now")
    consume.add_argument("--group", metavar="GROUP", help="read as a member of this group, and commit at the end")
    consume.add_argument("--timeout", type=natural, default=10_000, metavar="MS", help="give up after nothing came")
    consume.add_argument("--from-latest", action="store_true", help="only what is written from now on")
    consume.add_argument("--fetch-size", type=positive, metavar="BYTES", help="a fetch of one partition at most")
    consume.add_argument(
        "--consumer-props", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as check.crcs=false"
    )
    consume.add_argument("--consumer.config", dest="consumer_config", metavar="FILE", help="the same, from a file")
    consume.add_argument("--hide-header", action="store_true", help="without the line of names")
    consume.add_argument("--print-metrics", action="store_true", help="polls, and what each brought")
    consume.add_argument("--show-detailed-stats", action="store_true", help="a line of figures for each interval")
    consume.add_argument("--date-format", default=_DATE_FORMAT, metavar="FORMAT", help="as Java writes it")
    consume.add_argument("--socket-buffer-size", type=positive, metavar="BYTES", help=argparse.SUPPRESS)
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


_DETAILED_COLUMNS = _COLUMNS.replace("start.time, end.time", "time, threadId")


async def run_consume(args: argparse.Namespace) -> int:
    topic, out = topic_of(args), Output.of(args)
    if (topic is None) == (args.include is None):
        raise UsageError(f"{args.program}: which topic? Give its name, or --include PATTERN, one of the two")
    if args.from_latest and args.messages is None:
        raise UsageError(f"{args.program}: --from-latest waits for what comes: say how many, with --messages")
    java_date(args.date_format, datetime.now())
    properties = properties_of(args, ["consumer_config"], ["consumer_props"])
    config = own_keywords(properties)
    config |= {"max_partition_fetch_bytes": args.fetch_size} if args.fetch_size else {}
    group: str | None = args.group or config.pop("group_id", None)

    async with open_bus(args, properties=properties) as bus, until_signal() as scope:
        names = matching(topic or args.include, await bus.admin.list_topics(internal=True))
        ends = await _ends(bus, names)
        start = "latest" if args.from_latest else "earliest"
        reading = _Reading(ends, args, group, out)
        topics = () if group is None else tuple(names)
        async with bus.new_consumer(*topics, group=group, start=start, **config) as consumer:
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


def java_date(format: str, at: datetime) -> str:
    """Return a time as Java's SimpleDateFormat writes it. Raises UsageError for a part that is not known here."""

    def part(found: re.Match[str]) -> str:
        letters = found[0]
        if letters == "SSS":
            return f"{at.microsecond // 1_000:03}"
        if letters not in _DATE_PARTS:
            raise UsageError(f"--date-format {format!r}: {letters!r}; there are {', '.join(_DATE_PARTS)} and SSS")
        return at.strftime(_DATE_PARTS[letters])

    return re.sub(r"([A-Za-z])\1*", part, format)


async def _ends(bus: EventBus, topics: list[str]) -> dict[TopicPartition, int]:
    """Up to where each partition can be read now. EventBusError when there is nothing."""
    described = await bus.admin.describe_topics(topics)
    parts = [(TopicPartition(topic.name, part.partition), part) for topic in described for part in topic.partitions]
    if all(part.log_end_offset == part.log_start_offset for _, part in parts):
        shown = ", ".join(map(repr, topics))
        raise EventBusError(f"topic {shown} is empty: fill it first, as with: eventbus perf produce {topics[0]}")
    return {topic_partition: part.last_stable_offset for topic_partition, part in parts}


class _Reading:
    """Reads so many records, or what was there at the start: offsets tell, since not each of them is a record."""

    def __init__(
        self, ends: dict[TopicPartition, int], args: argparse.Namespace, group: str | None, out: Output
    ) -> None:
        self.count = self.size_bytes = self.polls = 0
        self.gave_up = False
        self._ends = ends
        self._wanted: int | None = args.messages
        self._out = out
        self._timeout_ms: int = args.timeout
        self._interval_s: float = args.reporting_interval / 1_000
        self._group = group
        self._date_format: str = args.date_format
        self._detailed: bool = args.show_detailed_stats and not out.json
        self._metrics: bool = args.print_metrics
        if self._detailed and not args.hide_header:
            out.line(_DETAILED_COLUMNS)
        self._began_at = datetime.now()
        self._began = self._assigned = self._ended = time.perf_counter()

    def assigned(self) -> None:
        self._assigned = self._ended = time.perf_counter()

    async def run(self, consumer: Consumer) -> None:
        reported, reported_count, reported_bytes = self._assigned, 0, 0
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
            self.polls += 1
            self.count += len(records)
            self.size_bytes += sum(len(record.value or b"") + len(record.key or b"") for record in records)
            self._ended = time.perf_counter()
            if self._ended - reported >= self._interval_s:
                since = self._ended - reported
                rate = (self.count - reported_count) / since
                if self._detailed:
                    self._detail(since, rate, (self.size_bytes - reported_bytes) / MIB / since)
                else:
                    self._out.note(f"{self.count:,} records read, {rate:,.0f} records/sec")
                reported, reported_count, reported_bytes = self._ended, self.count, self.size_bytes
        if self._group is not None:
            await consumer.commit()

    async def _is_done(self, consumer: Consumer) -> bool:
        if self._wanted is not None:
            return self.count >= self._wanted
        positions = await consumer.positions()
        return all(at >= self._ends[partition] for partition, at in positions.items() if partition in self._ends)

    def _detail(self, seconds: float, records_per_s: float, mib_per_s: float) -> None:
        """One interval: what there is by now, and how fast it came since the last line."""
        cells = (
            self._moment(datetime.now()),
            "0",
            f"{self.size_bytes / MIB:.4f}",
            f"{mib_per_s:.4f}",
            str(self.count),
            f"{records_per_s:.4f}",
            "0",
            f"{seconds * 1_000:.0f}",
            f"{mib_per_s:.4f}",
            f"{records_per_s:.4f}",
        )
        self._out.line(", ".join(cells))

    def _moment(self, at: datetime) -> str:
        return java_date(self._date_format, at)

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
        if self._detailed:
            return
        if not hide_header:
            self._out.line(_COLUMNS)
        cells = (
            self._moment(self._began_at),
            self._moment(ended_at),
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
        if self._metrics:
            self._out.line()
            values = {"records-consumed-total": self.count, "bytes-consumed-total": self.size_bytes,
                      "poll-total": self.polls, "records-per-poll-avg": self.count / max(self.polls, 1)}  # fmt: skip
            rows = [(f"consumer-metrics:{name}", value) for name, value in values.items()]
            self._out.table(["metric name", "value"], rows)
