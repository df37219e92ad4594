"""``eventbus perf produce | consume``: how fast this log is, here; flags and lines as Kafka's perf-test tools."""

from __future__ import annotations

import argparse
import os
import time
from array import array
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, add_topic, key_values, natural, positive, required_topic
from eventbus.cli.shell import open_bus, run_async, until_signal
from eventbus.errors import BufferExhausted, EventBusError
from eventbus.types import RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventbus import Consumer, EventBus, Producer

MIB = 1024 * 1024
"""Kafka's tools print mebibytes as MB; so do these."""

_TURN = 100
"""Records sent between two looks at the rest of the world."""
_PERCENTILES = (0.5, 0.95, 0.99, 0.999)


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "perf",
        help="measure producing and consuming on this log",
        description="Figures of this machine, this log and these settings, in the lines of Kafka's perf-test tools.\n"
        "MB are mebibytes, as there.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    produce = actions.add_parser("produce", help="send records, tell records/s, MB/s and latency")
    add_topic(produce)
    produce.add_argument("--num-records", type=positive, default=100_000, metavar="N", help="default: 100,000")
    produce.add_argument("--record-size", type=positive, default=100, metavar="BYTES", help="of a value; default: 100")
    produce.add_argument("--payload-file", metavar="FILE", help="lines to send in turn, in place of --record-size")
    produce.add_argument("--throughput", type=int, default=-1, metavar="N", help="records/s at most; -1: no limit")
    produce.add_argument(
        "--producer-props", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as acks=1 linger.ms=5"
    )
    produce.add_argument("--print-metrics", action="store_true", help="batches, their fill and their bytes")
    _add_interval(produce)
    produce.set_defaults(run=run_produce)

    consume = actions.add_parser("consume", help="read records, tell records/s and MB/s")
    add_topic(consume)
    consume.add_argument("--messages", "--num-records", type=positive, metavar="N", help="default: all there are now")
    consume.add_argument("--group", metavar="GROUP", help="read as a member of this group, and commit at the end")
    consume.add_argument("--timeout", type=natural, default=10_000, metavar="MS", help="give up after nothing came")
    consume.add_argument("--from-latest", action="store_true", help="only what is written from now on")
    consume.add_argument("--fetch-size", type=positive, metavar="BYTES", help="a fetch of one partition at most")
    consume.add_argument(
        "--consumer-props", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as check.crcs=false"
    )
    consume.add_argument("--hide-header", action="store_true", help="without the line of names")
    _add_interval(consume)
    consume.set_defaults(run=run_consume)


def _add_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reporting-interval", type=positive, default=5_000, metavar="MS", help="a line each; default: 5,000"
    )


# produce --------------------------------------------------------------------------------------------------------------


class Latencies:
    """Milliseconds from send to ack, of all records and of those since the last line."""

    def __init__(self) -> None:
        self.all_ms = array("d")
        self.failed = 0
        self.first_error: EventBusError | None = None
        self._reported = 0

    def window(self) -> Sequence[float]:
        """Since the last call."""
        window, self._reported = self.all_ms[self._reported :], len(self.all_ms)
        return window


class _Sent:
    """One record on its way; called with its outcome. A class: a closure per record costs more."""

    __slots__ = ("at", "latencies")

    def __init__(self, latencies: Latencies) -> None:
        self.latencies = latencies
        self.at = time.perf_counter()

    def __call__(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        if error is None:
            self.latencies.all_ms.append((time.perf_counter() - self.at) * 1_000)
        else:
            self.latencies.failed += 1
            self.latencies.first_error = self.latencies.first_error or error


def summary(ms: Sequence[float], seconds: float, size_bytes: int, *, percentiles: bool) -> str:
    """The line of ``kafka-producer-perf-test``."""
    rate = len(ms) / seconds if seconds > 0 else 0.0
    line = f"{len(ms)} records sent, {rate:.1f} records/sec ({rate * size_bytes / MIB:.2f} MB/sec)"
    if not ms:
        return line
    line += f", {sum(ms) / len(ms):.2f} ms avg latency, {max(ms):.2f} ms max latency"
    if percentiles:
        names = ("50th", "95th", "99th", "99.9th")
        line += "".join(f", {value:.2f} ms {name}" for value, name in zip(percentile(ms), names, strict=True))
    return line


def percentile(ms: Sequence[float]) -> list[float]:
    """The 50th, 95th, 99th and 99.9th: of so many records in order, the one at that place. As in Kafka's tool."""
    ordered = sorted(ms)
    return [ordered[min(int(part * len(ordered)), len(ordered) - 1)] for part in _PERCENTILES]


def run_produce(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    if args.throughput == 0 or args.throughput < -1:
        raise UsageError(f"{args.program}: --throughput {args.throughput}: records per second, or -1 for no limit")
    payloads = _payloads(args)
    size_bytes = sum(map(len, payloads)) // len(payloads)
    config: dict[str, Any] = key_values(args.producer_props, "--producer-props")

    async def main() -> int:
        latencies = Latencies()
        async with open_bus(args) as bus:
            stored_before = await _topic_bytes(bus, topic, create=args.url.startswith("memory:"))
            async with until_signal() as scope:
                async with bus.new_producer(**config) as producer:
                    began = time.perf_counter()
                    batches = await _send(producer, topic, payloads, args, latencies, out)
                    seconds = time.perf_counter() - began
                stored_bytes = await _topic_bytes(bus, topic) - stored_before
        if scope.cancel_called:
            out.note(f"interrupted after {len(latencies.all_ms):,} records")
            return 130
        if latencies.first_error is not None:
            out.note(f"{latencies.failed:,} records were not stored, the others were")
            raise latencies.first_error
        _tell_produced(out, latencies.all_ms, seconds, size_bytes, batches, stored_bytes, args.print_metrics)
        return 0

    return run_async(main)


def _payloads(args: argparse.Namespace) -> list[bytes]:
    if args.payload_file is None:
        return [os.urandom(args.record_size)]
    try:
        lines = Path(args.payload_file).read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{args.program}: --payload-file {args.payload_file}: {error.strerror}") from None
    if not lines:
        raise UsageError(f"{args.program}: --payload-file {args.payload_file} is empty: one record per line")
    return lines


async def _topic_bytes(bus: EventBus, topic: str, *, create: bool = False) -> int:
    """Bytes of all partitions. A wrong name is told here, before anything is measured."""
    if create and topic not in await bus.admin.list_topics():
        await bus.admin.create_topic(topic)  # nobody else could have made it in a log that begins with this command
    [description] = await bus.admin.describe_topics([topic])
    return sum(part.size_bytes for part in description.partitions)


async def _send(
    producer: Producer, topic: str, payloads: list[bytes], args: argparse.Namespace, latencies: Latencies, out: Output
) -> int:
    """Send all; the number of batches they left in."""
    import anyio

    began = reported = time.perf_counter()
    batches = 0
    for number in range(args.num_records):
        try:
            delivery = producer.send_nowait(topic, payloads[number % len(payloads)], on_delivery=_Sent(latencies))
        except BufferExhausted:
            await producer.wait_for_room()
            delivery = producer.send_nowait(topic, payloads[number % len(payloads)], on_delivery=_Sent(latencies))
        batches += delivery.index == 0
        ahead = (number + 1) / args.throughput - (time.perf_counter() - began) if args.throughput > 0 else 0
        if ahead > 0.001 or number % _TURN == 0:
            await anyio.sleep(max(ahead, 0))
            now = time.perf_counter()
            if now - reported >= args.reporting_interval / 1_000:
                size_bytes = sum(map(len, payloads)) // len(payloads)
                out.note(summary(latencies.window(), now - reported, size_bytes, percentiles=False))
                reported = now
    await producer.flush()
    return batches


def _tell_produced(
    out: Output, ms: Sequence[float], seconds: float, size_bytes: int, batches: int, stored: int, metrics: bool
) -> None:
    rate = len(ms) / seconds
    fiftieth, ninety_fifth, ninety_ninth, last = percentile(ms)
    values = {
        "record-send-total": len(ms),
        "batch-total": batches,
        "records-per-batch-avg": len(ms) / batches,
        "batch-size-avg": stored / batches,
        "stored-bytes-total": stored,
    }
    if out.json:
        answer: dict[str, Any] = {
            "records": len(ms),
            "seconds": seconds,
            "records_per_s": rate,
            "mib_per_s": rate * size_bytes / MIB,
            "latency_ms": {
                "avg": sum(ms) / len(ms),
                "max": max(ms),
                "p50": fiftieth,
                "p95": ninety_fifth,
                "p99": ninety_ninth,
                "p99_9": last,
            },
        }
        if metrics:
            answer["metrics"] = {name.replace("-", "_"): value for name, value in values.items()}
        out.data(answer)
        return
    out.line(summary(ms, seconds, size_bytes, percentiles=True))
    if metrics:
        out.line()
        out.table(["metric name", "value"], [(f"producer-metrics:{name}", value) for name, value in values.items()])


# consume --------------------------------------------------------------------------------------------------------------

_COLUMNS = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


def run_consume(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    if args.from_latest and args.messages is None:
        raise UsageError(f"{args.program}: --from-latest waits for what comes: say how many, with --messages")
    config: dict[str, Any] = key_values(args.consumer_props, "--consumer-props")
    config |= {"max_partition_fetch_bytes": args.fetch_size} if args.fetch_size else {}

    async def main() -> int:
        async with open_bus(args) as bus, until_signal() as scope:
            ends = await _ends(bus, topic)
            topics = () if args.group is None else (topic,)
            start = "latest" if args.from_latest else "earliest"
            reading = _Reading(ends, args, out)
            async with bus.new_consumer(*topics, group=args.group, start=start, **config) as consumer:
                if args.group is None:
                    await consumer.assign(ends)
                else:
                    await consumer.assigned()
                reading.assigned()
                await reading.run(consumer)
        reading.tell(args.hide_header)
        if scope.cancel_called:
            return 130
        return 1 if reading.gave_up else 0

    return run_async(main)


async def _ends(bus: EventBus, topic: str) -> dict[TopicPartition, int]:
    """Up to where each partition can be read now. EventBusError when there is nothing."""
    [description] = await bus.admin.describe_topics([topic])
    if all(part.log_end_offset == part.log_start_offset for part in description.partitions):
        raise EventBusError(f"topic {topic!r} is empty: fill it first, as with: eventbus perf produce {topic}")
    return {TopicPartition(topic, part.partition): part.last_stable_offset for part in description.partitions}


class _Reading:
    """Reads so many records, or what was there at the start: offsets tell, since not each of them is a record."""

    def __init__(self, ends: dict[TopicPartition, int], args: argparse.Namespace, out: Output) -> None:
        self.count = self.size_bytes = 0
        self.gave_up = False
        self._ends = ends
        self._wanted: int | None = args.messages
        self._out = out
        self._timeout_ms: int = args.timeout
        self._interval_s: float = args.reporting_interval / 1_000
        self._group: str | None = args.group
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
        own = [partition for partition in consumer.assignment() if partition in self._ends]
        return all([await consumer.position(partition) >= self._ends[partition] for partition in own])

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
            _moment(self._began_at),
            _moment(ended_at),
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


def _moment(at: datetime) -> str:
    """As Kafka's tool: 2013-01-31 18:00:00:123."""
    return f"{at:%Y-%m-%d %H:%M:%S}:{at.microsecond // 1_000:03}"
