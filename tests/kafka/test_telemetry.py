"""Metrics and traces over the network: on `eventbus serve`, and on a Kafka."""

from __future__ import annotations

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.telemetry.logs import bound
from eventbus.telemetry.prometheus import exposition
from eventbus.testing import RealKafka
from tests.kafka.targets import Node, bus_url
from tests.telemetry.conftest import Spans, traces

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

PATIENCE_SECONDS = 60


async def tells_the_story(url: str, name: str) -> None:
    spans = Spans()
    bus = EventBus(url, statistics_interval_ms=200)
    bus.topic(name, partitions=1)
    bus.topic(f"{name}-receipts", partitions=1)
    bus.include(spans.tracing())
    is_over, lines = anyio.Event(), list[dict[str, object]]()

    @bus.consumer(name, group=f"{name}-g", retry=Retry(immediate=0, delays=["1ms"], jitter=False))
    @bus.producer(f"{name}-receipts")
    async def bill(value: bytes, record: ConsumerRecord) -> bytes:
        lines.append(bound())
        if len(lines) == 1:
            raise ValueError("no account")
        return value

    @bus.consumer(f"{name}-receipts", group=f"{name}-h")
    async def mail(value: bytes) -> None:
        is_over.set()

    with anyio.fail_after(PATIENCE_SECONDS):
        async with bus:
            with spans.tracer.start_as_current_span("request"):
                await bus.send(name, b"o-1", key=b"k")
            await is_over.wait()
            await bus.drain()
            page = ""
            while "eventbus_client_sent_records_total" not in page:  # librdkafka tells at its interval
                page = exposition(bus.metrics())
                await anyio.sleep(0.05)
    tried = f"request > send {name} > send retry.{name}-g > process {name}"
    assert spans.tree()[-1] == f"{tried} > send {name}-receipts > process {name}-receipts"
    assert f"request > send {name} > process {name} !" in spans.tree()
    assert len(traces(spans.ended)) == 1
    offsets = [dict(one.attributes or {}).get("messaging.kafka.offset") for one in spans.named(f"send {name}")]
    assert offsets == [0]
    assert all(line | {"topic": name, "offset": 0, "key": "k", "handler": "bill"} == line for line in lines)
    assert len(lines) == 2
    found = {sample.name: sample for family in text_string_to_metric_families(page) for sample in family.samples}
    assert found["eventbus_handler_partition_moves_total"].value >= 0
    assert found["eventbus_broker_up"].labels["kind"] in ("producer", "consumer")
    assert "eventbus_client_batch_records" in found


@pytest.mark.slow  # the same client as on a Kafka
async def test_on_eventbus_serve(served: Node) -> None:
    await tells_the_story(bus_url(served.bootstrap), "telemetry-served")


async def test_on_a_kafka(real: RealKafka) -> None:
    await tells_the_story(bus_url(real.bootstrap), "telemetry-kafka")
