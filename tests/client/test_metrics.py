"""The numbers of a bus, and how they are exported."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from eventbus import BusMetrics, ConsumerRecord, EventBus
from eventbus.backends.statistics import BrokerStatistics, ClientStatistics, PartitionStatistics
from eventbus.client.health import PartHealth
from eventbus.client.metrics import Sample
from eventbus.testing import FakeClock
from eventbus.types import TopicPartition

PATIENCE_SECONDS = 10


@pytest.mark.system
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
    """A part of a bus, with health and numbers."""

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


def _of(bus: EventBus, name: str, **labels: str) -> float:
    """The value of the one sample of that name and these labels."""
    (found,) = [
        one.value for one in bus.metrics().samples() if one.name == name and labels.items() <= one.labels.items()
    ]
    return found


async def test_slow_calls_are_timed_one_by_one() -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        await clock.sleep(float(value))

    async with bus:
        for seconds in (b"0.2", b"3", b"0.2"):
            bus.send_nowait("orders", seconds)
        await bus.flush()
        await clock.advance(seconds=2)
        assert _of(bus, "eventbus_handler_call_seconds_count") == 1  # the second one is at work
        assert _of(bus, "eventbus_handler_at_work") == 1
        await clock.advance(seconds=2)
        assert _of(bus, "eventbus_handler_call_seconds_count") == 3
        assert _of(bus, "eventbus_handler_call_seconds_sum") == pytest.approx(3.4)
        assert _of(bus, "eventbus_handler_call_seconds_bucket", le="0.25") == 2
        assert _of(bus, "eventbus_handler_call_seconds_bucket", le="5") == 3


@pytest.mark.parametrize("kind", ["payload", "record", "plain", "manual", "key", "none", "batch", "yields", "exactly"])
async def test_every_call_of_any_kind_of_handler_is_counted_once(kind: str) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=2)
    bus.topic("receipts")
    calls = 0

    def seen() -> None:
        nonlocal calls
        calls += 1

    async def payload(value: bytes) -> None:
        seen()

    async def record(value: bytes, record: ConsumerRecord) -> None:
        seen()

    def plain(value: bytes) -> None:
        seen()

    async def manual(value: bytes, record: ConsumerRecord) -> None:
        seen()
        record.ack()

    async def batch(values: list[bytes]) -> None:
        seen()

    async def yields(value: bytes) -> AsyncGenerator[bytes]:
        seen()
        yield value

    functions: dict[str, Any] = {"record": record, "plain": plain, "manual": manual, "batch": batch, "yields": yields}
    options: dict[str, Any] = {
        "manual": {"ack": "manual"},
        "key": {"order": "key", "concurrency": 3},
        "none": {"order": "none", "concurrency": 3},
        "batch": {"batch": 7},
        "exactly": {"exactly_once": True},
    }
    function = functions.get(kind, payload)
    bus.consumer("orders", group="g", **options.get(kind, {}))(
        bus.producer("receipts")(function) if kind == "yields" else function
    )
    async with bus:
        for _ in range(3):  # the first fetch is timed by call, the next ones perhaps not
            for number in range(40):
                bus.send_nowait("orders", b"%d" % number, key=b"%d" % (number % 9))
            await bus.drain()
        assert calls and _of(bus, "eventbus_handler_call_seconds_count") == calls
        assert _of(bus, "eventbus_handler_fetch_records_sum") == 120


async def test_the_oldest_record_that_is_not_finished_has_an_age() -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders", partitions=1)
    bus.topic("quiet", partitions=1)

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        await clock.sleep(10)

    async with bus:
        bus.send_nowait("orders", b"1")
        await bus.flush()
        await clock.advance(seconds=5)
        bus.send_nowait("orders", b"2")
        await bus.flush()
        await clock.advance(seconds=2)
        ages = {"handler": "handle", "topic": "orders", "partition": "0"}
        assert _of(bus, "eventbus_handler_oldest_unfinished_age_seconds", **ages) == 7
        await clock.advance(seconds=5)  # the first one is handled, the second one at work since 10
        assert _of(bus, "eventbus_handler_oldest_unfinished_age_seconds", **ages) == 7
        await clock.advance(seconds=20)
        assert _of(bus, "eventbus_handler_oldest_unfinished_age_seconds", **ages) == 0
        assert bus.metrics().handlers[0].oldest_age_seconds == 0


async def test_the_oldest_record_of_a_partition_that_has_stopped_grows_older() -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="g", order="key", concurrency=2)
    async def handle(value: bytes) -> None:
        if value == b"2":
            raise ValueError(value)

    async with bus:
        for value in (b"1", b"2", b"3"):
            bus.send_nowait("orders", value, key=value)
        await bus.flush()
        await clock.advance(seconds=3)
        assert bus.metrics().handlers[0].oldest_age_seconds == 3


async def test_commits_batches_and_flushes_are_counted(tmp_path: Path) -> None:
    bus = EventBus(f"file://{tmp_path}")
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="g", commit_every=1)
    async def handle(value: bytes) -> None: ...

    async with bus:
        await bus.send("orders", b"x" * 1_000)
        for _ in range(20):
            bus.send_nowait("orders", b"y" * 1_000)
        assert _of(bus, "eventbus_producer_queued_records") == 20
        assert _of(bus, "eventbus_producer_queued_bytes") >= 20_000
        await bus.flush()
        await bus.drain()
        assert _of(bus, "eventbus_producer_queued_records") == 0
        assert _of(bus, "eventbus_producer_batch_records_sum") == 21
        assert _of(bus, "eventbus_producer_batch_records_bucket", le="1") == 1
        assert 21_000 < _of(bus, "eventbus_producer_batch_bytes_sum") < 23_000
        assert _of(bus, "eventbus_log_flush_seconds_count") >= 2
        assert _of(bus, "eventbus_log_flush_seconds_sum") > 0
        assert _of(bus, "eventbus_handler_commit_seconds_count") >= 1


async def test_a_log_in_memory_needs_no_disk() -> None:
    bus = EventBus("memory://")
    bus.topic("orders")
    async with bus:
        await bus.send("orders", b"a")
        assert _of(bus, "eventbus_log_flush_seconds_count") == 0


async def test_rebalances_are_counted_by_their_cause() -> None:
    bus, other = EventBus("memory://causes"), EventBus("memory://causes")
    for one in (bus, other):
        one.topic("orders", partitions=2)

        @one.consumer("orders", group="g")
        async def handle(value: bytes) -> None: ...

    def causes() -> dict[str, float]:
        found = [one for one in bus.metrics().samples() if one.name == "eventbus_group_rebalances_total"]
        assert all(one.labels["group"] == "g" for one in found)
        return {one.labels["cause"]: one.value for one in found}

    async with bus:
        await bus.drain()
        assert causes() == {"member_joined": 1}
        assert _of(bus, "eventbus_handler_partition_moves_total", move="assigned") == 2
        async with other:
            await bus.drain()
            await other.drain()
            assert causes() == {"member_joined": 2}
        await bus.drain()
        assert causes() == {"member_joined": 2, "member_left": 1}
        await bus.admin.add_partitions("orders", 3)
        await bus.drain()
        assert causes()["metadata_changed"] == 1
        assert _of(bus, "eventbus_handler_partition_moves_total", move="revoked") >= 1


async def test_a_policy_tells_how_it_stands_by_names_that_are_explained() -> None:
    from dlq import Circuit, Retry

    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="g", retry=Retry(circuit=Circuit()))
    async def handle(value: bytes) -> None: ...

    async with bus:
        (handler,) = bus.metrics().handlers
        samples = [
            one for one in bus.metrics().samples() if one.name.removeprefix("eventbus_handler_") in handler.failing
        ]
    assert len(samples) == 4 and all(one.help for one in samples)


async def test_a_plain_program_has_the_metrics_too() -> None:
    bus = EventBus("memory://")
    bus.topic("orders")

    def ask() -> BusMetrics:
        with bus.blocking() as b:
            return b.metrics()

    assert {one.topic for one in (await anyio.to_thread.run_sync(ask)).topics} >= {"orders"}
