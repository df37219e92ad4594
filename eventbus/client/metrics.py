"""Numbers of a running bus, in one value: for a page of one's own, or line by line for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from eventbus.backends.statistics import ClientStatistics, Statistics, TopicStatistics
from eventbus.client.handling.calls import Counts

Kind = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    """One number with its labels, named as Prometheus does it: base units, ``_total`` for what only grows."""

    name: str
    labels: dict[str, str]
    value: float
    kind: Kind
    """A histogram's samples are named ``..._bucket`` (with ``le``), ``..._sum`` and ``..._count``."""
    help: str = ""
    """What the number means, in a line: the same for all of a name."""


@runtime_checkable
class HasSamples(Protocol):
    """A `Part` of a bus with numbers of its own."""

    def samples(self) -> Iterable[Sample]:
        """As of now, and without asking anybody; names begin with ``eventbus_``."""
        ...


class HandlerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One handler of the bus."""

    handler: str
    group: str
    counts: Counts
    """What became of records since the start."""
    at_work: int
    """Calls that have not returned."""
    lag_by_partition: dict[str, int]
    """Records of this member's partitions that are not finished, as of the last look, a few seconds ago at most."""

    failing: dict[str, float] = {}
    """How its failure policy stands, where it has one: what waits for a next try, the circuit, the budget."""

    @property
    def lag(self) -> int:
        return sum(self.lag_by_partition.values())


class BusMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a bus counts; ``msgspec.json.encode(metrics)`` makes it JSON, `samples` what a monitoring system reads."""

    handlers: tuple[HandlerMetrics, ...] = ()
    clients: tuple[ClientStatistics, ...] = ()
    """On ``kafka://``: each producer and consumer of this process, as librdkafka last told (every 10 s; say
    ``statistics_interval_ms=`` to change it, 0 for none)."""
    topics: tuple[TopicStatistics, ...] = ()
    """On ``memory://`` and ``file://``: what the log holds."""
    parts: tuple[Sample, ...] = ()
    """Of what lives with the bus: an outbox's relay, say."""

    def samples(self) -> Iterator[Sample]:
        """All of it, number by number. Names begin with ``eventbus_``."""
        for handler in self.handlers:
            yield from _of_handler(handler)
        for client in self.clients:
            yield from _of_client(client)
        for topic in self.topics:
            labels = {"topic": topic.topic}
            yield Sample("eventbus_topic_partitions", labels, topic.partitions, "gauge")
            yield Sample("eventbus_topic_records", labels, topic.records, "gauge")
            yield Sample("eventbus_topic_size_bytes", labels, topic.size_bytes, "gauge")
        yield from self.parts


def bus_metrics(handlers: tuple[HandlerMetrics, ...], log: Statistics, parts: Iterable[object] = ()) -> BusMetrics:
    """All in one. ``parts``: of the bus; those that `HasSamples` are asked for them."""
    samples = [sample for part in parts if isinstance(part, HasSamples) for sample in part.samples()]
    return BusMetrics(handlers=handlers, clients=log.clients, topics=log.topics, parts=tuple(samples))


def _of_handler(one: HandlerMetrics) -> Iterator[Sample]:
    labels = {"handler": one.handler, "group": one.group}
    for what, count in msgspec.structs.asdict(one.counts).items():
        yield Sample(f"eventbus_handler_{what}_records_total", labels, count, "counter")
    yield Sample("eventbus_handler_at_work", labels, one.at_work, "gauge")
    for name, value in one.failing.items():
        yield Sample(f"eventbus_handler_{name}", labels, value, "gauge")
    for partition, lag in one.lag_by_partition.items():
        topic, _, number = partition.rpartition("-")
        yield Sample("eventbus_handler_lag_records", {**labels, "topic": topic, "partition": number}, lag, "gauge")


def _of_client(one: ClientStatistics) -> Iterator[Sample]:
    labels = {"client": one.name, "client_id": one.client_id, "kind": one.kind}
    yield from _each(
        "eventbus_client",
        labels,
        {"queued_records": one.queued_records, "queued_bytes": one.queued_bytes},
        {
            "sent_records": one.sent_records,
            "sent_bytes": one.sent_bytes,
            "received_records": one.received_records,
            "received_bytes": one.received_bytes,
            "rebalances": one.rebalances,
        },
    )
    for broker in one.brokers:
        yield from _each(
            "eventbus_broker",
            {**labels, "broker": str(broker.broker_id)},
            {
                "up": broker.is_up,
                "requests_waiting": broker.requests_waiting,
                "round_trip_seconds": broker.round_trip_ms / 1000,
                "round_trip_p99_seconds": broker.round_trip_p99_ms / 1000,
                "throttle_seconds": broker.throttle_ms / 1000,
            },
            {
                "sent_bytes": broker.sent_bytes,
                "received_bytes": broker.received_bytes,
                "errors": broker.errors,
                "connects": broker.connects,
                "disconnects": broker.disconnects,
            },
        )
    for part in one.partitions:
        where = {"topic": part.topic_partition.topic, "partition": str(part.topic_partition.partition)}
        known = {} if part.lag is None else {"lag_records": part.lag}
        yield from _each(
            "eventbus_partition", {**labels, **where}, {"queued_records": part.queued_records, **known}, {}
        )


def _each(
    prefix: str, labels: dict[str, str], gauges: Mapping[str, float], counters: Mapping[str, float]
) -> Iterator[Sample]:
    for name, value in gauges.items():
        yield Sample(f"{prefix}_{name}", labels, float(value), "gauge")
    for name, value in counters.items():
        yield Sample(f"{prefix}_{name}_total", labels, float(value), "counter")
