"""``eventbus perf produce | consume``: how fast this log is, here; flags and lines as Kafka's perf-test tools."""

from __future__ import annotations

import argparse
import os
import time
from array import array
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, add_topic, positive, required_topic
from eventbus.cli.perf_consume import MIB, add_consume, add_interval
from eventbus.cli.properties import properties_of
from eventbus.cli.shell import open_bus, own_keywords, until_signal
from eventbus.errors import BufferExhausted, EventBusError
from eventbus.types import RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventbus import Delivery, EventBus, Producer

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
    produce.add_argument("--throughput", type=int, default=-1, metavar="N", help="records/s at most; -1: no limit")
    produce.add_argument(
        "--producer-props", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as acks=1 linger.ms=5"
    )
    produce.add_argument("--producer.config", dest="producer_config", metavar="FILE", help="the same, from a file")
    produce.add_argument("--print-metrics", action="store_true", help="batches, their fill and their bytes")
    add_interval(produce)
    produce.set_defaults(run=run_produce)

    add_consume(actions)


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
    """Return the line of ``kafka-producer-perf-test``."""
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


async def run_produce(args: argparse.Namespace) -> int:
    topic, out = required_topic(args), Output.of(args)
    if args.throughput == 0 or args.throughput < -1:
        raise UsageError(f"{args.program}: --throughput {args.throughput}: records per second, or -1 for no limit")
    properties = properties_of(args, ["producer_config"], ["producer_props"])
    config = own_keywords(properties)

    latencies = Latencies()
    async with open_bus(args, properties=properties) as bus:
        stored_before = await _topic_bytes(bus, topic, create=args.url.startswith("memory:"))
        async with until_signal() as scope:
            async with bus.new_producer(**config) as producer:
                sending = _Sending(producer, topic, args, latencies, out)
                await sending.run()
            stored_bytes = await _topic_bytes(bus, topic) - stored_before
    if scope.cancel_called:
        out.note(f"interrupted after {len(latencies.all_ms):,} records")
        return 130
    if latencies.first_error is not None:
        out.note(f"{latencies.failed:,} records were not stored, the others were")
        raise latencies.first_error
    _tell_produced(out, sending, stored_bytes, args.print_metrics)
    return 0


async def _topic_bytes(bus: EventBus, topic: str, *, create: bool = False) -> int:
    """Bytes of all partitions. A wrong name is told here, before anything is measured."""
    if create and topic not in await bus.admin.list_topics():
        await bus.admin.create_topic(topic)  # nobody else could have made it in a log that begins with this command
    [description] = await bus.admin.describe_topics([topic])
    return sum(part.size_bytes for part in description.partitions)


class _Sending:
    """Sends all, and takes the times."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        args: argparse.Namespace,
        latencies: Latencies,
        out: Output,
    ) -> None:
        self.latencies = latencies
        self.size_bytes: int = args.record_size
        self.batches = 0
        self.seconds = 0.0
        self._producer = producer
        self._topic = topic
        self._value = os.urandom(args.record_size)
        self._count: int = args.num_records
        self._throughput: int = args.throughput
        self._interval_s: float = args.reporting_interval / 1_000
        self._out = out
        self._began = self._reported = time.perf_counter()

    async def run(self) -> None:
        import anyio

        for number in range(1, self._count + 1):
            try:
                delivery = self._send()
            except BufferExhausted:
                await self._producer.wait_for_room()
                delivery = self._send()
            self.batches += delivery.index == 0
            now = time.perf_counter()
            ahead = number / self._throughput - (now - self._began) if self._throughput > 0 else 0
            if ahead > 0.001 or number % _TURN == 1:
                await anyio.sleep(max(ahead, 0))
                self._report(time.perf_counter())
        await self._producer.flush()
        self.seconds = time.perf_counter() - self._began

    def _send(self) -> Delivery:
        return self._producer.send_nowait(self._topic, self._value, on_delivery=_Sent(self.latencies))

    def _report(self, now: float) -> None:
        if now - self._reported >= self._interval_s:
            window = self.latencies.window()
            self._out.note(summary(window, now - self._reported, self.size_bytes, percentiles=False))
            self._reported = now


def _tell_produced(out: Output, sending: _Sending, stored_bytes: int, metrics: bool) -> None:
    ms, size_bytes = sending.latencies.all_ms, sending.size_bytes
    rate = len(ms) / sending.seconds
    fiftieth, ninety_fifth, ninety_ninth, last = percentile(ms)
    values = {
        "record-send-total": len(ms),
        "batch-total": sending.batches,
        "records-per-batch-avg": len(ms) / max(sending.batches, 1),
        "batch-size-avg": stored_bytes / max(sending.batches, 1),
        "stored-bytes-total": stored_bytes,
    }
    if out.json:
        answer: dict[str, Any] = {
            "records": len(ms),
            "seconds": sending.seconds,
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
    out.line(summary(ms, sending.seconds, size_bytes, percentiles=True))
    if metrics:
        out.line()
        out.table(["metric name", "value"], [(f"producer-metrics:{name}", value) for name, value in values.items()])
