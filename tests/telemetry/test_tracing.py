"""What spans say, and whose children they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.telemetry import Tracing
from eventbus.testing import FakeClock
from tests.telemetry.conftest import Spans, traces

pytestmark = pytest.mark.system


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    return dict(span.attributes or {})


def traced(spans: Spans, url: str = "memory://") -> EventBus:
    bus = EventBus(url)
    bus.topic("orders", partitions=1)
    bus.topic("receipts", partitions=1)
    bus.include(spans.tracing())
    return bus


async def test_spans_have_the_names_and_attributes_of_the_conventions(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="billing")
    async def bill(value: bytes | None) -> None: ...

    async with bus:
        await bus.send("orders", b"book", key=b"k")
        await bus.send("orders", None, key="k")
        await bus.drain()
    common = {"messaging.system": "kafka", "messaging.destination.name": "orders"}
    place = {"messaging.destination.partition.id": "0", "messaging.kafka.message.key": "k"}
    sent, deleted = spans.named("send orders")
    of_send = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert attributes(sent) == {
        **common, **of_send, **place, "messaging.kafka.offset": 0, "messaging.message.body.size": 4,
    }  # fmt: skip
    assert attributes(deleted) == {
        **common, **of_send, **place, "messaging.kafka.offset": 1, "messaging.kafka.message.tombstone": True,
    }  # fmt: skip
    processed, _ = spans.named("process orders")
    assert attributes(processed) == {
        **common, **place, "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing", "eventbus.handler": "bill", "messaging.kafka.offset": 0,
        "messaging.message.body.size": 4,
    }  # fmt: skip
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert sent.parent is None and len(traces(spans.ended)) == 2


async def test_what_a_handler_sends_and_what_it_returns_are_children_of_its_span(spans: Spans) -> None:
    bus = traced(spans)
    bus.topic("audit")

    @bus.consumer("orders", group="g")
    @bus.producer("receipts")
    async def bill(value: bytes) -> bytes:
        await bus.send("audit", value)
        return value

    @bus.consumer("receipts", group="h")
    def mail(value: bytes) -> None: ...

    async with bus:
        await bus.send("orders", b"a")
        await bus.send("orders", b"b")
        await bus.drain()
    below = "send orders > process orders"
    story = ["send orders", below, f"{below} > send audit", f"{below} > send receipts"]
    assert sorted(spans.tree()) == sorted([*story, f"{below} > send receipts > process receipts"] * 2)
    for trace in traces(spans.ended):
        assert sum(trace in traces([one]) for one in spans.ended) == 5


async def test_the_baggage_of_a_record_reaches_its_handler_and_what_it_sends(spans: Spans) -> None:
    """That of the bus's start reaches neither."""
    bus, seen = traced(spans), dict[str, Any]()
    bus.topic("audit")

    @bus.consumer("orders", group="g")
    @bus.producer("receipts")
    async def bill(value: bytes) -> bytes:
        seen["handler"] = dict(baggage.get_all())
        await bus.send("audit", value, headers={"baggage": b"tenant=its-own"})
        return value

    @bus.consumer("orders", group="h", batch=True)
    async def count(values: list[bytes]) -> None:
        seen["handler of lists"] = dict(baggage.get_all())

    @bus.consumer(["receipts", "audit"], group="i")
    async def mail(record: ConsumerRecord) -> None:
        seen[record.topic] = record.header("baggage")

    token = context.attach(baggage.set_baggage("startup", "deploy-7"))
    async with bus:
        context.detach(token)
        token = context.attach(baggage.set_baggage("tenant", "ada"))
        await bus.send_many("orders", [b"a", b"b"])
        context.detach(token)
        await bus.drain()
    assert seen == {
        "handler": {"tenant": "ada"},
        "handler of lists": {},
        "receipts": b"tenant=ada",
        "audit": b"tenant=its-own",
    }


@pytest.mark.parametrize("kind", ["returns", "yields", "sends"])
async def test_outputs_of_an_exactly_once_handler_are_children_of_its_span(spans: Spans, kind: str) -> None:
    bus = traced(spans)
    if kind == "returns":

        @bus.consumer("orders", group="g", exactly_once=True)
        @bus.producer("receipts")
        async def returns(value: bytes) -> bytes:
            return value

    elif kind == "yields":

        @bus.consumer("orders", group="g", exactly_once=True)
        @bus.producer("receipts")
        async def yields(value: bytes) -> object:
            yield value

    else:
        from eventbus import Transaction

        @bus.consumer("orders", group="g", exactly_once=True)
        async def sends(value: bytes, transaction: Transaction) -> None:
            await transaction.send("receipts", value)

    async with bus:
        for value in (b"a", b"b"):
            await bus.send("orders", value)
        await bus.drain()
    below = "send orders > process orders"
    assert sorted(spans.tree()) == sorted(["send orders", below, f"{below} > send receipts"] * 2)


async def test_a_request_and_its_reply_are_one_trace(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g", replies=True)
    async def price(value: bytes) -> bytes:
        return value + b"!"

    async with bus:
        with spans.tracer.start_as_current_span("GET /price"):
            assert await bus.request("orders", b"book", returns=bytes) == b"book!"
    reply = spans.tree()[-1]
    assert reply.startswith("GET /price > send orders > process orders > send ") and len(traces(spans.ended)) == 1


async def test_a_handler_of_lists_has_links_to_what_it_was_sent_by(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g", batch=10)
    async def handle(values: list[bytes]) -> None: ...

    async with bus:
        bus.send_nowait("orders", b"a")
        bus.send_nowait("orders", b"b")
        await bus.flush()
        await bus.drain()
    processed = spans.named("process orders")
    linked = {link.context.span_id for one in processed for link in one.links}
    parents = {one.parent.span_id for one in processed if one.parent is not None}
    assert linked | parents == {one.context.span_id for one in spans.named("send orders") if one.context is not None}
    if len(processed) == 1:
        assert attributes(processed[0])["messaging.batch.message_count"] == 2


async def test_headers_passed_on_by_a_handler_do_not_cut_its_span_out(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g")
    async def copy(value: bytes, record: ConsumerRecord) -> None:
        await bus.send("receipts", value, headers=record.headers)

    async with bus:
        await bus.send("orders", b"a", headers={"tenant": "t"})
        await bus.drain()
    assert spans.tree()[-1] == "send orders > process orders > send receipts"


async def test_a_trace_from_elsewhere_is_gone_on_with(spans: Spans) -> None:
    bus = traced(spans)
    seen: list[ConsumerRecord] = []

    @bus.consumer("orders", group="g")
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        seen.append(record)

    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with bus:
        with spans.tracer.start_as_current_span("another"):
            await bus.send("orders", b"a", headers={"traceparent": traceparent, "tracestate": "a=1", "tenant": "t"})
        await bus.drain()
    sent = spans.one("send orders")
    assert sent.parent is not None and f"{sent.parent.span_id:x}" == "b7ad6b7169203331"
    headers = dict(seen[0].headers)
    assert headers["tenant"] == b"t" and headers["tracestate"] == b"a=1"
    assert sent.context is not None
    assert headers["traceparent"] == b"00-0af7651916cd43dd8448eb211c80319c-%016x-01" % sent.context.span_id
    assert len(seen[0].headers) == 3


@pytest.mark.parametrize("value", [b"", b"00-zz-1-01", b"\xff\xfe", None])
async def test_a_header_that_is_no_trace_begins_a_new_one(spans: Spans, value: bytes | None) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None: ...

    async with bus:
        await bus.send("orders", b"a", headers=[("traceparent", value)])
        await bus.drain()
    assert spans.tree() == ["send orders", "send orders > process orders"]


async def test_a_send_that_fails_says_so_on_its_span(spans: Spans) -> None:
    bus = traced(spans)
    async with bus:
        with pytest.raises(UnknownTopicOrPartition):
            await bus.send("nowhere", b"a")
    sent = spans.one("send nowhere")
    assert attributes(sent)["error.type"] == "UnknownTopicOrPartition" and not sent.status.is_ok


async def test_a_handler_that_fails_says_so_on_its_span(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g", on_error="skip")
    async def handle(value: bytes) -> None:
        raise KeyError("sku")

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
    processed = spans.one("process orders")
    assert attributes(processed)["error.type"] == "KeyError" and processed.status.description == "KeyError: 'sku'"
    assert [event.name for event in processed.events] == ["exception"]


async def test_spans_of_records_side_by_side_are_their_own(spans: Spans) -> None:
    bus = traced(spans)

    @bus.consumer("orders", group="g", order="none", concurrency=4)
    @bus.producer("receipts")
    async def handle(value: bytes) -> bytes:
        await anyio.lowlevel.checkpoint()
        return value

    async with bus:
        for number in range(8):
            await bus.send("orders", b"%d" % number)
        await bus.drain()
    below = "send orders > process orders"
    assert sorted(spans.tree()) == sorted(["send orders", below, f"{below} > send receipts"] * 8)
    assert len(traces(spans.ended)) == 8


async def test_what_is_not_sampled_carries_its_trace_all_the_same(spans: Spans) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    bus = EventBus("memory://")
    bus.topic("orders")
    bus.include(Tracing(TracerProvider(sampler=ALWAYS_OFF)))
    seen: list[ConsumerRecord] = []

    @bus.consumer("orders", group="g")
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        seen.append(record)

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
    traceparent = dict(seen[0].headers)["traceparent"]
    assert traceparent is not None and not int(traceparent[-2:], 16) & 1


async def test_without_a_provider_records_go_through_as_they_are() -> None:
    bus = EventBus("memory://")
    bus.topic("orders")
    bus.include(Tracing())
    seen: list[ConsumerRecord] = []

    @bus.consumer("orders", group="g")
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        seen.append(record)

    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with bus:
        await bus.send("orders", b"a")
        await bus.send("orders", b"b", headers={"traceparent": traceparent})
        await bus.drain()
    assert [record.headers for record in seen] == [(), (("traceparent", traceparent.encode()),)]


def test_tracing_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r'pip install "eventbus-log\[otel\]"'):
        Tracing()


async def test_a_record_for_later_goes_on_with_its_trace_in_its_time(spans: Spans) -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders")
    bus.include(spans.tracing())

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None: ...

    async with bus:
        with spans.tracer.start_as_current_span("request"):
            await bus.send("orders", b"a", delay=60)
        await clock.advance(seconds=61)
        await bus.drain()
    assert spans.tree() == ["request", "request > send orders", "request > send orders > process orders"]


def test_spans_under_trio(spans: Spans, tmp_path: Path) -> None:
    async def main() -> None:
        bus = traced(spans, f"file://{tmp_path}/log")

        @bus.consumer("orders", group="g")
        @bus.producer("receipts")
        def bill(value: bytes) -> bytes:
            return value

        async with bus:
            with spans.tracer.start_as_current_span("request"):
                await bus.send("orders", b"a")
            await bus.drain()

    anyio.run(main, backend="trio")
    assert spans.tree()[-1] == "request > send orders > process orders > send receipts"
