"""OpenTelemetry spans for sends and handler calls, in one trace.

Names and attributes follow the semantic conventions for messaging. A record carries its trace in the W3C headers
``traceparent`` and ``tracestate``. A record that is forwarded, by an outbox's relay, to a retry topic, to the dead
letters and back, is sent again each time, and keeps its headers: each hop is a child span of the previous one.

Tracers, exporters and headers are external: their errors are logged, and the record continues without a span.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from eventbus.client.handling.current_record import current_caller
from eventbus.client.handling.middleware import CallNext, Middleware
from eventbus.client.interceptors import ProducerInterceptor, ProducerRecord
from eventbus.client.producing.serialization import pack_headers
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import ConsumerRecord, Header, Headers, RecordMetadata

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import Attributes

SYSTEM = "kafka"
"""``messaging.system``: records, topics and groups are Kafka's on every log, and tools know this name."""

_MOST_HEADER_BYTES = 8192
"""The limit for a header: W3C's maximum for ``baggage``, and more than the others allow. Larger ones are ignored."""
_MOST_KEY_CHARS = 200
_MOST_KINDS = 100

logger = logging.getLogger("eventbus.tracing")

_processed: ContextVar[Context | None] = ContextVar("eventbus_processed", default=None)
"""The span and the baggage of the record handled last: a handler's result is sent after its span has ended."""


class Tracing:
    """Adds a span for each record sent, and for each call of a handler, including retries: ``bus.include(Tracing())``.

    ``tracer_provider`` and ``propagator`` default to OpenTelemetry's global ones. A handler's span is the child of the
    span that sent the record; that of a handler of lists has a link to each. Records that a handler sends or returns
    have children of its span. Needs opentelemetry-api: raises ConfigError without it. Without a `TracerProvider` of the
    SDK nothing is recorded, and headers are passed on unchanged.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        trace = _api()
        trouble = _Trouble()
        from opentelemetry import propagate

        from eventbus.version import __version__

        tracer = trace.get_tracer("eventbus", __version__, tracer_provider)
        carrier = _Carrier(propagator or propagate.get_global_textmap())
        self._sends = _Sends(tracer, carrier, trouble)
        self._calls = _Calls(tracer, carrier, trouble)

    def __repr__(self) -> str:
        return "Tracing()"

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Return the middleware, see `Surrounds`."""
        return (self._calls.around,)

    @property
    def interceptors(self) -> Sequence[ProducerInterceptor]:
        """Return the interceptors, see `Surrounds`."""
        return (self._sends,)


class _Trouble:
    """Logs errors of tracing itself: once for each kind of error, since every record would have it."""

    def __init__(self) -> None:
        self._said: set[type[Exception]] = set()

    def said(self, error: Exception) -> None:
        kind = type(error)
        if kind not in self._said and len(self._said) < _MOST_KINDS:
            self._said.add(kind)
            logger.warning(
                "tracing failed, and the record goes on without its span; said once for a %s",
                kind.__name__, exc_info=error,
            )  # fmt: skip


class _Carrier:
    """Reads contexts from headers, and writes them."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        from opentelemetry.context import Context

        self._propagator = propagator
        self._nothing = Context()
        self._fields = frozenset(propagator.fields)

    def read(self, headers: Headers) -> Context:
        """Return the context in the headers, independent of the context that is active here."""
        found = {
            name: value.decode("latin-1")
            for name, value in headers
            if name in self._fields and value is not None and len(value) <= _MOST_HEADER_BYTES
        }
        return self._propagator.extract(found, context=self._nothing) if found else self._nothing

    def write(self, headers: Headers, context: Context) -> Headers:
        """Return the headers with this context, instead of an earlier one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(cast("Any", carrier), context=context)
        kept: list[Header] = [header for header in headers if header[0] not in carrier]
        kept.extend((name, value.encode("latin-1")) for name, value in carrier.items())
        return tuple(kept)


class _Sends(ProducerInterceptor):
    """Adds a span of kind PRODUCER from the send to the acknowledgement."""

    def __init__(self, tracer: Tracer, carrier: _Carrier, trouble: _Trouble) -> None:
        from opentelemetry import baggage, context, trace

        self._baggage, self._context, self._trace = baggage, context, trace
        self._tracer = tracer
        self._carrier = carrier
        self._trouble = trouble

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Start the span, see `ProducerInterceptor`."""
        if record.topic.startswith("_"):  # internal records of the framework: their subjects have spans
            return record
        headers = pack_headers(record.headers) if record.headers else ()
        try:
            carried = self._carrier.read(headers)
            parent = self._parent(carried)
            span = self._tracer.start_span(
                f"send {record.topic}", parent, self._trace.SpanKind.PRODUCER, _of_send(record)
            )
            if span.is_recording():
                record.on_delivery = _Outcome(span, self._trouble)
            context = self._trace.set_span_in_context(span, parent)
            for name, value in self._baggage.get_all(carried).items():  # the record's own takes precedence
                context = self._baggage.set_baggage(name, value, context)
            record.headers = self._carrier.write(headers, context)
        except Exception as error:  # anything raised by a tracer, a sampler, a propagator
            self._trouble.said(error)
        return record

    def _parent(self, carried: Context) -> Context:
        """Return the context that the record comes from: ``carried``, unless the active span belongs to its trace."""
        trace, active = self._trace, self._trace.get_current_span().get_span_context()
        sender = trace.get_current_span(carried).get_span_context()
        if sender.is_valid and (not active.is_valid or active.trace_id != sender.trace_id):
            return carried
        processed = _processed.get()
        return self._context.get_current() if active.is_valid or processed is None else processed


class _Outcome:
    """Ends a sender's span when the record's outcome is known."""

    __slots__ = ("_span", "_trouble")

    def __init__(self, span: Span, trouble: _Trouble) -> None:
        self._span = span
        self._trouble = trouble

    def __call__(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        try:
            if metadata is not None:
                self._span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
                self._span.set_attribute("messaging.kafka.offset", metadata.offset)
            if error is not None:
                note_error(self._span, error)
            self._span.end()
        except Exception as failure:  # anything raised by an exporter
            self._trouble.said(failure)


class _Calls:
    """Adds a span of kind CONSUMER around a handler's call."""

    def __init__(self, tracer: Tracer, carrier: _Carrier, trouble: _Trouble) -> None:
        from opentelemetry import context, trace

        self._context, self._trace = context, trace
        self._tracer = tracer
        self._carrier = carrier
        self._trouble = trouble

    async def around(self, record: ConsumerRecord | list[ConsumerRecord], call_next: CallNext) -> Any:
        """Call the handler within a span, see `Middleware`."""
        try:
            carried = self._carried(record)
            span = self._begin(record, carried)
            context = self._trace.set_span_in_context(span, carried)
            token = self._context.attach(context)
            _processed.set(context)
        except Exception as error:  # anything raised by a tracer, a sampler, a propagator
            self._trouble.said(error)
            _processed.set(None)
            return await call_next(record)
        failure: BaseException | None = None
        try:
            return await call_next(record)
        except BaseException as error:  # whatever ends the call is recorded in its span, and raised
            failure = error
            raise
        finally:
            self._context.detach(token)
            self._end(span, failure)

    def _end(self, span: Span, failure: BaseException | None) -> None:
        try:
            if failure is not None:
                (note_error if isinstance(failure, Exception) else note_cut_off)(span, failure)
            span.end()
        except Exception as error:  # anything raised by an exporter
            self._trouble.said(error)

    def _carried(self, record: ConsumerRecord | list[ConsumerRecord]) -> Context:
        """Return the context of the record. Several records have several, and none of them is that of the call."""
        if not isinstance(record, list):
            return self._carrier.read(record.headers)
        return self._carrier.read(record[0].headers if len(record) == 1 else ())

    def _begin(self, record: ConsumerRecord | list[ConsumerRecord], carried: Context) -> Span:
        trace, kind = self._trace, self._trace.SpanKind.CONSUMER
        if isinstance(record, list) and len(record) != 1:
            found = [trace.get_current_span(self._carrier.read(one.headers)).get_span_context() for one in record]
            links = [trace.Link(one) for one in {one.span_id: one for one in found}.values() if one.is_valid]
            topic, attributes = (record[0].topic, _of_batch(record)) if record else ("", None)
            return self._tracer.start_span(f"process {topic}", carried, kind, attributes, links)
        one = record[0] if isinstance(record, list) else record
        return self._tracer.start_span(f"process {one.topic}", carried, kind, _of_record(one))


def note_error(span: Span, error: BaseException) -> None:
    """Record an error in a span."""
    from opentelemetry.trace import Status, StatusCode

    name = type(error).__name__
    span.set_attribute("error.type", type(error).__qualname__)
    try:
        said = f"{name}: {error}"
        span.record_exception(error)
    except Exception:  # raised by its own __str__
        said = name
    span.set_status(Status(StatusCode.ERROR, said))


def note_cut_off(span: Span, _: BaseException) -> None:
    """Record in a span that its call was cancelled: neither done nor failed, and its record is handled again."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", "Cancelled")
    span.set_status(Status(StatusCode.ERROR, "the call was cut off before its end"))


def _of_send(record: ProducerRecord) -> Attributes:
    attributes: dict[str, str | int | bool] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": record.topic,
    }
    _add_content(attributes, record.key, record.value)
    return attributes


def _of_record(record: ConsumerRecord) -> Attributes:
    attributes = _of_process(record.topic)
    attributes["messaging.destination.partition.id"] = str(record.partition)
    attributes["messaging.kafka.offset"] = record.offset
    _add_content(attributes, record.key, record.value)
    return attributes


def _of_batch(records: list[ConsumerRecord]) -> Attributes:
    attributes = _of_process(records[0].topic)
    if len({record.partition for record in records}) == 1:
        attributes["messaging.destination.partition.id"] = str(records[0].partition)
    attributes["messaging.batch.message_count"] = len(records)
    return attributes


def _of_process(topic: str) -> dict[str, str | int | bool]:
    attributes: dict[str, str | int | bool] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
    }
    if (found := current_caller.get()) is not None and found.handler is not None:
        attributes["messaging.consumer.group.name"] = found.handler.group
        attributes["eventbus.handler"] = found.handler.name
    return attributes


def _add_content(attributes: dict[str, str | int | bool], key: object, value: object) -> None:
    if isinstance(key, bytes):
        key = key.decode(errors="replace")
    if isinstance(key, str | int):
        attributes["messaging.kafka.message.key"] = str(key)[:_MOST_KEY_CHARS]
    if value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    elif isinstance(value, bytes):
        attributes["messaging.message.body.size"] = len(value)


def _api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ConfigError('Tracing needs OpenTelemetry: pip install "eventbus-log[otel]"') from error
    return trace
