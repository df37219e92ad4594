"""The metrics of a running bus, as one value or as samples for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from eventbus.backends.histogram import Histogram
from eventbus.backends.statistics import ClientStatistics, LogStatistics, Statistics, TopicStatistics
from eventbus.client.handling.invocation import HandlerCounts

Kind = Literal["counter", "gauge", "histogram"]


class Sample(NamedTuple):
    """One number with labels, named as Prometheus recommends: base units, ``_total`` for counters."""

    name: str
    labels: dict[str, str]
    value: float
    kind: Kind
    """A histogram's samples are named ``..._bucket`` (with ``le``), ``..._sum`` and ``..._count``."""
    help: str = ""
    """The meaning in one line, equal for all samples with the name."""


@runtime_checkable
class HasSamples(Protocol):
    """A `Part` of a bus that has metrics."""

    def samples(self) -> Iterable[Sample]:
        """Yield current metrics without any request. Names begin with ``eventbus_``."""
        ...


class HandlerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one handler."""

    handler: str
    group: str
    counts: HandlerCounts
    """Records by outcome since the start."""
    at_work: int
    """Calls that have not returned."""
    lag_by_partition: dict[str, int]
    """Unfinished records in this member's partitions, as of the last check, at most a few seconds ago."""

    age_seconds_by_partition: dict[str, float] = {}
    """Age of the oldest record that was fetched and is not finished."""
    deleted_unread_by_partition: dict[str, int] = {}
    """Offsets whose records retention deleted before they were read, since the start."""
    histograms: dict[str, Histogram] = {}
    """Histograms named ``call_seconds``, ``commit_seconds`` and ``fetch_records``."""
    moves: dict[str, int] = {}
    """Partitions ``assigned``, ``revoked``, and ``lost`` with records in flight, since the start."""
    failing: dict[str, float] = {}
    """Gauges of its failure policy, if any: records waiting for a retry, the circuit."""

    @property
    def lag(self) -> int:
        return sum(self.lag_by_partition.values())

    @property
    def oldest_age_seconds(self) -> float:
        return max(self.age_seconds_by_partition.values(), default=0.0)


class BusMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a bus. ``msgspec.json.encode(metrics)`` is JSON; `samples` is for a monitoring system."""

    handlers: tuple[HandlerMetrics, ...] = ()
    clients: tuple[ClientStatistics, ...] = ()
    """On ``kafka://``: librdkafka's latest statistics of each producer and consumer of this process.

    They are updated every 10 s. Set ``statistics_interval_ms=`` to change that, or to 0 for none.
    """
    topics: tuple[TopicStatistics, ...] = ()
    """On ``memory://`` and ``file://``: the contents of the log, by topic."""
    log: LogStatistics | None = None
    """On ``memory://`` and ``file://``: the log as a whole."""
    parts: tuple[Sample, ...] = ()
    """Metrics of the bus's parts, such as an outbox's relay."""

    def samples(self) -> Iterator[Sample]:
        """Yield all metrics as samples. Names begin with ``eventbus_``."""
        for handler in self.handlers:
            yield from _of_handler(handler)
        for client in self.clients:
            yield from _of_client(client)
        for topic in self.topics:
            yield from _each("eventbus_topic", {"topic": topic.topic}, topic, _TOPIC)
        if self.log is not None:
            yield from _of_log(self.log)
        yield from self.parts


def bus_metrics(handlers: tuple[HandlerMetrics, ...], log: Statistics, parts: Iterable[object] = ()) -> BusMetrics:
    """Combine all metrics of a bus, including those of parts that implement `HasSamples`."""
    samples = [sample for part in parts if isinstance(part, HasSamples) for sample in part.samples()]
    return BusMetrics(handlers=handlers, clients=log.clients, topics=log.topics, log=log.log, parts=tuple(samples))


def histogram_samples(name: str, labels: dict[str, str], one: Histogram, help: str = "") -> Iterator[Sample]:
    """Yield a histogram in Prometheus' form: cumulative buckets, sum, and count."""
    count = 0
    for bound, seen in zip((*one.bounds, None), one.counts, strict=True):
        count += seen
        le = "+Inf" if bound is None else f"{bound:.10g}"
        yield Sample(f"{name}_bucket", {**labels, "le": le}, count, "histogram", help)
    yield Sample(f"{name}_sum", labels, one.total, "histogram", help)
    yield Sample(f"{name}_count", labels, count, "histogram", help)


_COUNTS = {
    "handled": "Records whose calls returned.",
    "failed": "Calls that raised or took too long, and values that cannot be read.",
    "skipped": "Records that failed and were skipped.",
    "timed_out": "Calls that took longer than timeout=.",
    "filtered": "Records that filter= kept from the handler.",
    "retried": "Records that failed and were set aside for a later try.",
    "dead_lettered": "Records that failed and went to the dead-letter topic.",
}
_HISTOGRAMS = {
    "call_seconds": "How long calls of the handler take; quick ones at the mean of their fetch.",
    "commit_seconds": "How long it takes until a commit is stored.",
    "fetch_records": "Records that come from the log at a time.",
}
_FAILING = {
    "retry_waiting_records": "Records that wait for their next try.",
    "retry_overdue_seconds": "For how long the oldest of them should have been tried by now.",
    "dead_letters_last_minute_records": "Records that went to the dead-letter topic in the last minute.",
    "circuit_open_ratio": "The circuit breaker: 0 closed, 0.5 trying, 1 open (nothing is tried).",
}
_TOPIC = {
    "partitions": "Partitions of the topic.",
    "records": "Offsets between the beginning and the end of the topic.",
    "size_bytes": "What the topic takes in the log.",
}
_CLIENT_GAUGES = {
    "queued_records": "A producer's records without an outcome, or a consumer's that were fetched ahead.",
    "queued_bytes": "Their size.",
}
_CLIENT_COUNTERS = {
    "sent_records": "Records sent.",
    "sent_bytes": "Bytes of records sent.",
    "received_records": "Records received.",
    "received_bytes": "Bytes of records received.",
    "rebalances": "Rebalances of the group that the client took part in.",
}
_BROKER_GAUGES = {
    "up": "Whether the client is connected to the broker.",
    "requests_waiting": "Requests that were sent and not answered yet.",
    "round_trip_seconds": "How long answers of the broker take, on average.",
    "round_trip_p99_seconds": "The time within which 99 of 100 answers came.",
    "throttle_seconds": "How long the broker has the client wait for a quota, on average.",
}
_BROKER_COUNTERS = {
    "sent_bytes": "Bytes sent to the broker.",
    "received_bytes": "Bytes received from the broker.",
    "errors": "Requests that failed or were not answered in time.",
    "connects": "Connections made to the broker.",
    "disconnects": "Connections to the broker that ended.",
}


def _of_handler(one: HandlerMetrics) -> Iterator[Sample]:
    labels, name = {"handler": one.handler, "group": one.group}, "eventbus_handler"
    for what, help in _COUNTS.items():
        yield Sample(f"{name}_{what}_records_total", labels, getattr(one.counts, what), "counter", help)
    yield Sample(f"{name}_at_work", labels, one.at_work, "gauge", "Calls that have not returned.")
    for what, histogram in one.histograms.items():
        yield from histogram_samples(f"{name}_{what}", labels, histogram, _HISTOGRAMS.get(what, ""))
    for what, value in one.failing.items():
        yield Sample(f"{name}_{what}", labels, value, "gauge", _FAILING.get(what, ""))
    for move, count in one.moves.items():
        said = "Partitions that the group gave to this member, took from it, and that it lost with records in hand."
        yield Sample(f"{name}_partition_moves_total", {**labels, "move": move}, count, "counter", said)
    said = "Records of this member's partitions that are not finished, as of the last look."
    for partition, lag in one.lag_by_partition.items():
        yield Sample(f"{name}_lag_records", {**labels, **_partition(partition)}, lag, "gauge", said)
    said = "Offsets whose records were deleted before the handler read them."
    for partition, count in one.deleted_unread_by_partition.items():
        yield Sample(
            f"{name}_deleted_unread_offsets_total", {**labels, **_partition(partition)}, count, "counter", said
        )
    said = "Age of the oldest record that was fetched and is not finished; 0: there is none."
    for partition, age in one.age_seconds_by_partition.items():
        yield Sample(f"{name}_oldest_unfinished_age_seconds", {**labels, **_partition(partition)}, age, "gauge", said)


def _partition(text: str) -> dict[str, str]:
    topic, _, number = text.rpartition("-")
    return {"topic": topic, "partition": number}


def _of_log(one: LogStatistics) -> Iterator[Sample]:
    yield from histogram_samples(
        "eventbus_log_flush_seconds", {}, one.flush_seconds, "How long the disk takes to store what was written."
    )
    said = "What producers write at a time."
    yield from histogram_samples("eventbus_producer_batch_records", {}, one.batch_records, said)
    yield from histogram_samples("eventbus_producer_batch_bytes", {}, one.batch_bytes, said)
    said = "What producers hold that has no outcome yet."
    yield Sample("eventbus_producer_queued_records", {}, one.queued_records, "gauge", said)
    yield Sample("eventbus_producer_queued_bytes", {}, one.queued_bytes, "gauge", f"{said} An open batch counts whole.")
    for group, causes in one.rebalances.items():
        for cause, count in causes.items():
            labels = {"group": group, "cause": cause}
            yield Sample("eventbus_group_rebalances_total", labels, count, "counter", "Rebalances, by their cause.")


def _of_client(one: ClientStatistics) -> Iterator[Sample]:
    labels = {"client": one.name, "client_id": one.client_id, "kind": one.kind}
    yield from _each("eventbus_client", labels, one, _CLIENT_GAUGES, _CLIENT_COUNTERS)
    for batches in one.batches:
        where = {**labels, "topic": batches.topic}
        said = "What the producer sends at a time to a partition of the topic, on average, lately."
        yield Sample("eventbus_client_batch_records", where, batches.records, "gauge", said)
        yield Sample("eventbus_client_batch_bytes", where, batches.size_bytes, "gauge", said)
    for broker in one.brokers:
        yield from _each(
            "eventbus_broker", {**labels, "broker": str(broker.broker_id)}, broker, _BROKER_GAUGES, _BROKER_COUNTERS
        )
    for part in one.partitions:
        where = {**labels, "topic": part.topic_partition.topic, "partition": str(part.topic_partition.partition)}
        said = "Records of the partition that wait to be sent, or that were fetched ahead."
        yield Sample("eventbus_partition_queued_records", where, part.queued_records, "gauge", said)
        if part.lag is not None:
            said = "Records between what a consumer has read and the end of the partition."
            yield Sample("eventbus_partition_lag_records", where, part.lag, "gauge", said)


def _each(
    prefix: str, labels: dict[str, str], one: object, gauges: Mapping[str, str], counters: Mapping[str, str] = {}
) -> Iterator[Sample]:
    """Yield the attributes of ``one`` that are listed, with their help texts."""
    for name, help in gauges.items():
        yield Sample(f"{prefix}_{name}", labels, _value(one, name), "gauge", help)
    for name, help in counters.items():
        yield Sample(f"{prefix}_{name}_total", labels, _value(one, name), "counter", help)


def _value(one: object, name: str) -> float:
    if hasattr(one, name):
        return float(getattr(one, name))
    if name.endswith("_seconds"):
        return getattr(one, name.removesuffix("seconds") + "ms") / 1000
    return float(getattr(one, f"is_{name}"))
