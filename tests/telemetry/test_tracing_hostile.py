"""Whatever spans, tracers, exporters, headers and errors do: no record is lost or handled twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.errors import UnknownTopicOrPartition
from eventbus.telemetry import Tracing
from tests.telemetry.conftest import Spans, traces

pytestmark = pytest.mark.system

TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Broken(RuntimeError):
    """What these tests' tracers raise."""


class RaisesOn(SpanProcessor):
    def __init__(self, *moments: str) -> None:
        self._moments = moments

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if "start" in self._moments:
            raise Broken("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        if "end" in self._moments:
            raise Broken("on_end")


class RaisingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise Broken("export")


class RaisingSampler(Sampler):
    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        raise Broken("sampler")

    def get_description(self) -> str:
        return "raises"


class RaisingPropagator(TextMapPropagator):
    """Reads or writes nothing, or what headers cannot hold."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    @property
    def fields(self) -> set[str]:
        return {"traceparent"}

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        if self._moment == "extract":
            raise Broken("extract")
        return Context()

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        if self._moment == "inject":
            raise Broken("inject")
        carrier["traceparent"] = "\u65e5\ud800" if self._moment == "charset" else "x"


def processed_by(*processors: SpanProcessor) -> Tracing:
    provider = TracerProvider()
    for one in processors:
        provider.add_span_processor(one)
    return Tracing(provider)


def shut_down() -> Tracing:
    provider = TracerProvider()
    provider.shutdown()
    return Tracing(provider)


TROUBLES: dict[str, Callable[[], Tracing]] = {
    "a processor's on_start": lambda: processed_by(RaisesOn("start")),
    "a processor's on_end": lambda: processed_by(RaisesOn("end")),
    "an exporter": lambda: processed_by(SimpleSpanProcessor(RaisingExporter())),
    "a sampler": lambda: Tracing(TracerProvider(sampler=RaisingSampler())),
    "a propagator that reads": lambda: Tracing(TracerProvider(), RaisingPropagator("extract")),
    "a propagator that writes": lambda: Tracing(TracerProvider(), RaisingPropagator("inject")),
    "a header that is no text of headers": lambda: Tracing(TracerProvider(), RaisingPropagator("charset")),
    "a provider that was shut down": shut_down,
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("form", ["one by one", "lists", "exactly once"])
async def test_tracing_that_fails_loses_and_stops_no_record(
    trouble: str, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)
    bus.topic("receipts", partitions=1)
    bus.include(TROUBLES[trouble]())
    seen: list[bytes] = []
    replies: list[bytes] = []
    if form == "lists":

        @bus.consumer("orders", group="g", batch=2)
        async def handle_all(values: list[bytes]) -> None:
            seen.extend(values)
            for value in values:
                await bus.send("receipts", value)

    else:

        @bus.consumer("orders", group="g", exactly_once=form == "exactly once")
        @bus.producer("receipts")
        async def handle(value: bytes) -> bytes:
            seen.append(value)
            return value

    @bus.consumer("receipts", group="h")
    async def mail(value: bytes) -> None:
        replies.append(value)

    async with bus:
        for number in range(3):
            await bus.send("orders", b"%d" % number, headers={"traceparent": TRACEPARENT})
        await bus.drain()
    assert (seen, replies) == ([b"0", b"1", b"2"], [b"0", b"1", b"2"])
    said = [line for line in caplog.records if line.name == "eventbus.tracing"]
    assert len(said) <= 1, "once for each kind of error, not once for each record"
    if "exporter" not in trouble and "shut down" not in trouble:
        assert said[0].levelno == logging.WARNING and "goes on" in said[0].getMessage()


class Unspeakable(Exception):
    """An error that has nothing to say, and fails even at that."""

    def __str__(self) -> str:
        raise Broken("__str__")

    __repr__ = __str__


async def test_an_error_that_cannot_be_shown_is_still_the_handlers_error(spans: Spans) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)
    bus.include(spans.tracing())
    tries: list[bytes] = []

    @bus.consumer("orders", group="g", retry=Retry(immediate=1, delays=None, on=[Unspeakable]))
    async def handle(value: bytes) -> None:
        tries.append(value)
        if len(tries) == 1:
            raise Unspeakable

    async with bus:
        await bus.send("orders", b"a")
        await bus.drain()
    assert tries == [b"a", b"a"], "it was judged by its own class"
    first, *_ = spans.named("process orders")
    assert not first.status.is_ok and dict(first.attributes or {})["error.type"] == "Unspeakable"


async def test_a_call_that_is_cut_off_says_so(spans: Spans) -> None:
    bus = EventBus("memory://", drain_timeout_ms=10)
    bus.topic("orders", partitions=1)
    bus.include(spans.tracing())
    begun = anyio.Event()

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        begun.set()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        async with bus:
            await bus.send("orders", b"a")
            await begun.wait()
            scope.cancel()
    cut = spans.one("process orders")
    assert dict(cut.attributes or {})["error.type"] == "Cancelled" and not cut.status.is_ok
    assert not any(event.name == "exception" for event in cut.events), "no error of the handler's"


HEADERS: dict[str, list[tuple[str, bytes | None]]] = {
    "too long": [("traceparent", TRACEPARENT + b"-" + b"0" * 1_000_000)],
    "wrong characters": [("traceparent", b"\xff\xfe\x00" + TRACEPARENT[3:])],
    "zeros": [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
    "a version there is not": [("traceparent", b"ff" + TRACEPARENT[2:])],
    "a megabyte of members": [("tracestate", b"a=1," * 250_000), ("baggage", b"k=v," * 250_000)],
    "the same many times": [("traceparent", b"00-zz")] * 1_000,
    "a byte order mark": [("traceparent", b"\xef\xbb\xbf" + TRACEPARENT)],
}


@pytest.mark.parametrize("kind", HEADERS)
async def test_headers_that_are_no_trace_begin_a_new_one(
    kind: str, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    sending = EventBus("memory://hostile")
    sending.topic("orders", partitions=1, configs={"max.message.bytes": 10_000_000})
    reading = EventBus("memory://hostile")
    reading.include(spans.tracing())
    seen: list[ConsumerRecord] = []

    @reading.consumer("orders", group="g")
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        seen.append(record)

    async with sending, sending.new_producer(max_request_size=10_000_000) as producer:
        await producer.send("orders", b"a", headers=HEADERS[kind])
        async with reading:
            await reading.drain()
    assert [record.value for record in seen] == [b"a"]
    assert len(seen[0].headers) == len(HEADERS[kind]), "the handler sees what was sent"
    assert spans.tree() == ["process orders"]
    assert len(caplog.records) <= 2


async def test_of_two_traces_the_last_counts_and_one_is_left(spans: Spans) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)
    bus.include(spans.tracing())
    seen: list[ConsumerRecord] = []

    @bus.consumer("orders", group="g")
    async def handle(value: bytes, record: ConsumerRecord) -> None:
        seen.append(record)

    other = TRACEPARENT.replace(b"0af7", b"1111")
    async with bus:
        await bus.send("orders", b"a", headers=[("traceparent", TRACEPARENT), ("x", b"1"), ("traceparent", other)])
        await bus.drain()
    assert [name for name, _ in seen[0].headers] == ["x", "traceparent"]
    assert {f"{trace:032x}" for trace in traces(spans.ended)} == {other[3:35].decode()}


async def test_a_list_from_many_traces_links_to_each_once_and_broken_ones_are_left_out(spans: Spans) -> None:
    sending = EventBus("memory://links")
    sending.topic("orders", partitions=1)
    reading = EventBus("memory://links")
    reading.include(spans.tracing())
    calls: list[list[bytes]] = []

    @reading.consumer("orders", group="g", batch=500)
    async def handle(values: list[bytes]) -> None:
        calls.append(values)
        raise KeyError("all of them")

    async with sending:
        for number in range(300):
            parent = b"00-%032x-%016x-01" % (1 + number % 200, 1 + number % 200)
            sending.send_nowait("orders", b"%d" % number, headers={"traceparent": parent if number % 3 else b"broken"})
        await sending.flush()
        with pytest.raises(Exception, match="all of them"):
            async with reading:
                await reading.drain()
    (span,) = spans.named("process orders")
    links = [link.context.span_id for link in span.links]
    assert len(links) == len(set(links)) <= 128 and links, "OpenTelemetry keeps 128"
    assert sum(map(len, calls)) == 300 and not span.status.is_ok and span.parent is None


async def test_a_key_of_a_megabyte_is_cut_in_its_span(spans: Spans) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)
    bus.include(spans.tracing())

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None: ...

    async with bus:
        await bus.send("orders", b"a", key=b"k" * 500_000)
        await bus.drain()
    for span in spans.ended:
        assert dict(span.attributes or {})["messaging.kafka.message.key"] == "k" * 200


async def test_a_send_that_fails_beside_a_tracer_that_fails_fails_as_itself() -> None:
    bus = EventBus("memory://")
    bus.include(processed_by(RaisesOn("end")))
    async with bus:
        with pytest.raises(UnknownTopicOrPartition):
            await bus.send("nowhere", b"a")


async def test_spans_a_handler_leaves_open_do_not_adopt_the_next_record(spans: Spans) -> None:
    from opentelemetry import context, trace

    bus = EventBus("memory://")
    bus.topic("orders", partitions=1)
    bus.include(spans.tracing())

    @bus.consumer("orders", group="g")
    async def handle(value: bytes) -> None:
        context.attach(trace.set_span_in_context(spans.tracer.start_span("left open")))  # and never detached

    async with bus:
        for value in (b"a", b"b"):
            await bus.send("orders", value)
        await bus.drain()
    processed = spans.named("process orders")
    assert len(traces(processed)) == 2
    assert sorted(spans.tree()) == sorted(["send orders", "send orders > process orders"] * 2)


def test_an_event_of_an_outbox_is_written_without_a_trace_that_cannot_be_told(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import propagate

    from outbox.tracing import current_trace

    with spans.tracer.start_as_current_span("request"):
        assert [name for name, _ in current_trace()] == ["traceparent"]
        monkeypatch.setattr(propagate, "inject", RaisingPropagator("inject").inject)
        assert current_trace() == ()
