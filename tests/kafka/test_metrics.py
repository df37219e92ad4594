"""What librdkafka counts reaches `bus.metrics`, and brokers that are away reach `bus.health` and the log: once."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from eventbus import BusMetrics, EventBus
from eventbus.backends.kafka.client_statistics import LatestStatistics
from eventbus.types import TopicPartition
from tests.kafka.targets import KillableServer, Node, bus_url

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 30


async def test_clients_tell_what_they_count(served: Node) -> None:
    bus = EventBus(bus_url(served.bootstrap, **{"statistics.interval.ms": "100"}), service="shop")
    topic = f"counted-{id(bus)}"
    bus.topic(topic, partitions=2)

    @bus.consumer(topic)
    async def handle(value: bytes) -> None: ...

    def is_complete(metrics: BusMetrics) -> bool:
        kinds = {one.kind: one for one in metrics.clients if one.client_id == "shop"}
        return (
            {"producer", "consumer"} <= kinds.keys()
            and kinds["producer"].sent_records == kinds["consumer"].received_records == 10
            and any(part.lag == 0 for part in kinds["consumer"].partitions)
        )

    async with bus:
        for number in range(10):
            await bus.send(topic, b"x", partition=number % 2)
        await bus.drain()
        with anyio.fail_after(PATIENCE_SECONDS):
            while not is_complete(metrics := bus.metrics()):  # noqa: ASYNC110 - librdkafka tells at times of its own
                await anyio.sleep(0.05)
        (producer,) = [one for one in metrics.clients if one.kind == "producer"]
        assert [(one.broker_id, one.is_up) for one in producer.brokers] == [(1, True)]
        assert {one.topic_partition for one in producer.partitions} == {TopicPartition(topic, n) for n in (0, 1)}
        assert any(one.name == "eventbus_broker_round_trip_seconds" for one in metrics.samples())
    assert bus.metrics() == BusMetrics()


def test_numbers_of_clients_that_are_closed_go() -> None:
    now = 0.0
    counts = LatestStatistics(lambda: now, keep_seconds=30)
    counts.store('{ "name": "a#producer-1", "client_id": "a", "type": "producer", "txmsgs": 5 }')
    now = 20.0
    counts.store('{ "name": "a#producer-2", "client_id": "a", "type": "producer", "txmsgs": 7 }')
    assert [(one.sent_records, one.age_ms) for one in counts.clients()] == [(5, 20_000), (7, 0)]
    now = 31.0
    assert [one.name for one in counts.clients()] == ["a#producer-2"]
    counts.store("no JSON of theirs")
    assert [one.name for one in counts.clients()] == ["a#producer-2"]


async def test_an_outage_is_told_once_and_its_end_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = KillableServer(tmp_path)
    with node:
        async with EventBus(bus_url(node.bootstrap)) as bus:
            await bus.admin.create_topic("t")
            await bus.send("t", b"before")
            caplog.clear()
            await anyio.to_thread.run_sync(node.kill)
            delivery = bus.send_nowait("t", b"while it was away")
            with anyio.fail_after(PATIENCE_SECONDS):
                while "no broker answers" not in (await bus.health()).reason:  # noqa: ASYNC110 - it is found out by looking
                    await anyio.sleep(0.05)
            assert (await bus.health()).status == "degraded"
            await anyio.to_thread.run_sync(node.start)
            with anyio.fail_after(PATIENCE_SECONDS):
                await delivery
                while (await bus.health()).status != "ok":  # noqa: ASYNC110 - the same
                    await anyio.sleep(0.05)
    told = [one for one in caplog.records if one.name.startswith("eventbus") and one.levelno >= logging.INFO]
    assert [one.levelname for one in told] == ["WARNING", "WARNING"], [one.getMessage() for one in told]
    away, back = (one.getMessage() for one in told)
    assert f"no broker answers of kafka://{node.bootstrap}" in away
    assert f"broker {node.bootstrap} answers again after" in back
