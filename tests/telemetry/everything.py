"""Every sample that there is, made up: what the page of metrics and the dashboard are checked against."""

from __future__ import annotations

from dlq.metrics import samples_of as samples_of_dead_letters
from dlq.retry_topics import WaitingRecords
from dlq.selection import DeadLetterTopic
from eventbus.backends.histogram import BYTES, RECORDS, SECONDS, Histogram
from eventbus.backends.statistics import (
    BatchStatistics,
    BrokerStatistics,
    ClientStatistics,
    LogStatistics,
    PartitionStatistics,
    TopicStatistics,
)
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.metrics import BusMetrics, HandlerMetrics, Sample
from eventbus.types import TopicPartition
from outbox.relay.metrics import RelayMetrics
from outbox.status import Backlog, OpenTransaction, Stall
from outbox.watch import Seen, samples_of

GAUGES_OF_POLICIES = (
    "retry_waiting_records",
    "retry_overdue_seconds",
    "dead_letters_last_minute_records",
    "circuit_open_ratio",
)


def everything() -> list[Sample]:
    """Of a bus on an embedded log, of one on a Kafka, and of an outbox."""
    return [*everything_of_a_bus().samples(), *_of_an_outbox(), *_of_dead_letters()]


def everything_of_a_bus() -> BusMetrics:
    handler = HandlerMetrics(
        handler="bill", group="billing", counts=HandlerCounts(handled=5, failed=1), at_work=2,
        lag_by_partition={"orders-0": 7}, age_seconds_by_partition={"orders-0": 1.5},
        histograms={
            "call_seconds": _seen(SECONDS, 0.01), "commit_seconds": _seen(SECONDS, 0.002),
            "fetch_records": _seen(RECORDS, 300),
        },
        moves={"assigned": 3, "revoked": 1, "lost": 0}, deleted_unread_by_partition={"orders-0": 2},
        failing={name: 0.5 for name in GAUGES_OF_POLICIES},
    )  # fmt: skip
    log = LogStatistics(
        flush_seconds=_seen(SECONDS, 0.0004), batch_records=_seen(RECORDS, 20), batch_bytes=_seen(BYTES, 5_000),
        queued_records=3, queued_bytes=100, rebalances={"billing": {"member_joined": 2}},
    )  # fmt: skip
    broker = BrokerStatistics(
        broker_id=3, address="h:1", is_up=True, requests_waiting=1, sent_bytes=2, received_bytes=3, errors=4,
        connects=5, disconnects=6, round_trip_ms=7.0, round_trip_p99_ms=8.0, throttle_ms=9.0,
    )  # fmt: skip
    partition = PartitionStatistics(
        topic_partition=TopicPartition("orders", 0), leader=3, queued_records=1, queued_bytes=2, sent_records=3,
        sent_bytes=4, received_records=5, received_bytes=6, lag=7,
    )  # fmt: skip
    client = ClientStatistics(
        name="shop#producer-1", client_id="shop", kind="producer", age_ms=10, queued_records=1, queued_bytes=2,
        sent_records=3, sent_bytes=4, received_records=5, received_bytes=6, rebalances=7, brokers=(broker,),
        partitions=(partition,), batches=(BatchStatistics(topic="orders", records=5.5, size_bytes=900.0),),
    )  # fmt: skip
    topic = TopicStatistics(topic="orders", partitions=2, records=10, size_bytes=1_000)
    return BusMetrics(handlers=(handler,), clients=(client,), topics=(topic,), log=log)


def _seen(bounds: tuple[float, ...], value: float) -> Histogram:
    one = Histogram(bounds)
    one.add(value, 3)
    one.add(bounds[-1] * 2)
    return one


def _of_dead_letters() -> list[Sample]:
    topic = DeadLetterTopic(
        name="dlq.billing", count=3, statuses={"open": 2, "redriven": 1}, oldest_open_ms=1_700_000_000_500,
        newest_ms=1_700_000_001_000, groups=("billing",), cases=1,
    )  # fmt: skip
    waiting = WaitingRecords(
        topic="retry.billing", group="billing", count=2, next_due_ms=1_700_000_002_000, has_members=True
    )
    return list(samples_of_dead_letters([topic], [waiting]))


def _of_an_outbox() -> list[Sample]:
    relay = RelayMetrics(outbox="shop", slot=0, shards=8, published=10)
    relay.add_lags([1_000, 1_950], 2_000)
    writer = OpenTransaction(age_ms=500, who="app")
    seen = Seen(Backlog(4, True, 2_000), Stall(writer=writer, snapshot=writer))
    return [*relay.samples(), *samples_of("shop", seen)]
