"""What a bus counts, and how it is told."""

from __future__ import annotations

import re

import anyio
import msgspec

from eventbus import BusMetrics, EventBus
from eventbus.backends.statistics import BrokerStatistics, ClientStatistics, PartitionStatistics
from eventbus.client.health import PartHealth
from eventbus.client.metrics import Sample
from eventbus.types import TopicPartition

PATIENCE_SECONDS = 10


async def test_what_a_bus_of_an_embedded_log_counts() -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=2)

    @bus.consumer("orders", group="g", on_error="skip")
    async def handle(value: bytes) -> None:
        if value == b"3":
            raise ValueError(value)

    assert bus.metrics() == BusMetrics()
    async with bus:
        for number in range(10):
            await bus.send("orders", b"%d" % number, partition=number % 2)
        await bus.drain()
        with anyio.fail_after(PATIENCE_SECONDS):
            while (await bus.health()).handlers[0].lag:  # noqa: ASYNC110 - what is finished is committed in its own time
                await anyio.sleep(0.01)
        metrics = bus.metrics()
    (handler,) = metrics.handlers
    assert (handler.handler, handler.group, handler.at_work, handler.lag) == ("handle", "g", 0, 0)
    assert (handler.counts.handled, handler.counts.failed, handler.counts.skipped) == (9, 1, 1)
    topics = {one.topic: one for one in metrics.topics}
    assert (topics["orders"].partitions, topics["orders"].records) == (2, 10)
    assert topics["orders"].size_bytes > 10
    assert msgspec.json.decode(msgspec.json.encode(metrics))["handlers"][0]["counts"]["handled"] == 9


def test_samples_are_named_as_prometheus_wants_them() -> None:
    broker = BrokerStatistics(
        broker_id=3, address="h:1", is_up=True, requests_waiting=1, sent_bytes=2, received_bytes=3, errors=4,
        connects=5, disconnects=6, round_trip_ms=7.0, round_trip_p99_ms=8.0, throttle_ms=9.0,
    )  # fmt: skip
    partition = PartitionStatistics(
        topic_partition=TopicPartition("t-1", 2), leader=3, queued_records=1, queued_bytes=2, sent_records=3,
        sent_bytes=4, received_records=5, received_bytes=6, lag=7,
    )  # fmt: skip
    client = ClientStatistics(
        name="shop#consumer-1", client_id="shop", kind="consumer", age_ms=10, queued_records=1, queued_bytes=2,
        sent_records=3, sent_bytes=4, received_records=5, received_bytes=6, rebalances=7, brokers=(broker,),
        partitions=(partition, msgspec.structs.replace(partition, lag=None)),
    )  # fmt: skip
    samples = list(BusMetrics(clients=(client,)).samples())
    for one in samples:
        assert re.fullmatch(r"eventbus_[a-z0-9_]+", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
    found = {one.name: one for one in samples}
    assert found["eventbus_client_received_records_total"].value == 5
    assert found["eventbus_broker_round_trip_seconds"].value == 0.007
    assert found["eventbus_broker_up"].labels["broker"] == "3"
    lags = [one for one in samples if one.name == "eventbus_partition_lag_records"]
    assert [(one.labels["topic"], one.labels["partition"], one.value) for one in lags] == [("t-1", "2", 7)]


class _Part:
    """Of a bus, with health and numbers of its own."""

    async def start(self, bus: EventBus) -> None:
        self.events = 3

    async def aclose(self) -> None:
        self.events = 0

    def health(self) -> PartHealth:
        return PartHealth(part="shelf", status="degraded", reason=f"{self.events} things wait")

    def samples(self) -> list[Sample]:
        return [Sample("eventbus_shelf_things", {"shelf": "a"}, self.events, "gauge")]


async def test_parts_of_a_bus_tell_their_health_and_numbers() -> None:
    bus = EventBus("memory://")
    bus.include(_Part())
    assert not bus.metrics().parts
    async with bus:
        health, metrics = await bus.health(), bus.metrics()
    assert (health.status, health.reason) == ("degraded", "shelf: 3 things wait") and len(health.parts) == 1
    assert [one for one in metrics.samples() if one.name == "eventbus_shelf_things"] == list(metrics.parts)
    assert metrics.parts[0].value == 3
    assert not (await bus.health()).parts and not bus.metrics().parts
