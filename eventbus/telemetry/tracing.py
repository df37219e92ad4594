"""Spans of OpenTelemetry: what was sent where, and what became of it, in one trace.

Names and attributes are those of the semantic conventions for messaging. A record carries its trace in the W3C headers
``traceparent`` and ``tracestate``. What is moved on, by an outbox's relay, to a retry topic, to the dead letters and
back from there, is sent anew each time, and keeps its headers: each hop is a span below the one before it.

Tracers, exporters and headers are somebody else's: what they raise is logged, and the record goes on without a span.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from eventbus.client.handling.here import here
from eventbus.client.handling.middleware import CallNext, Middleware
from eventbus.client.interceptors import ProducerInterceptor, ProducerRecord
from eventbus.client.producing.packing import pack_headers
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import ConsumerRecord, Header, Headers, RecordMetadata

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import Attributes

SYSTEM = "kafka"
"""``messaging.system``: records, topics and groups are Kafka's on every log, and tools know them by this name."""

_MOST_HEADER_BYTES = 8192
"""Of a header that is read: W3C's most for ``baggage``, and more than the others may take. A larger one is no trace."""
_MOST_KEY_CHARS = 200
_MOST_KINDS = 100

logger = logging.getLogger("eventbus.tracing")

_processed: ContextVar[Context | None] = ContextVar("eventbus_processed", default=None)
"""The span and the baggage of the record handled last: what its handler returned is sent after the span has ended."""


class Tracing:
    """``bus.include(Tracing())``: a span for each record sent, and for each call of a handler, a retry's included.

    ``tracer_provider`` and ``propagator`` are OpenTelemetry's global ones if not given. A handler's span is the child
    of the one that sent the record; that of a handler of lists has a link to each. What a handler sends, and what it
    returns, are children of its span. Needs opentelemetry-api: raises ConfigError without it. Without a
    `TracerProvider` of the SDK nothing is recorded, and headers are passed on as they are.
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
        """See `Surrounds`."""
        return (self._calls.around,)

    @property
    def interceptors(self) -> Sequence[ProducerInterceptor]:
        """See `Surrounds`."""
        return (self._sends,)


class _Trouble:
    """What tracing itself raises: said once for each kind of error, since it is the same for each record."""

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
    """Contexts in and out of headers."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        from opentelemetry.context import Context

        self._propagator = propagator
        self._nothing = Context()
        self._fields = frozenset(propagator.fields)

    def read(self, headers: Headers) -> Context:
        """The context that headers carry, apart from the one that is active here."""
        found = {
            name: value.decode("latin-1")
            for name, value in headers
            if name in self._fields and value is not None and len(value) <= _MOST_HEADER_BYTES
        }
        return self._propagator.extract(found, context=self._nothing) if found else self._nothing

    def write(self, headers: Headers, context: Context) -> Headers:
        """The headers with this context in place of another one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(cast("Any", carrier), context=context)
        kept: list[Header] = [header for header in headers if header[0] not in carrier]
        kept.extend((name, value.encode("latin-1")) for name, value in carrier.items())
        return tuple(kept)


class _Sends(ProducerInterceptor):
    """A span of kind PRODUCER from the send to the acknowledgement."""

    def __init__(self, tracer: Tracer, carrier: _Carrier, trouble: _Trouble) -> None:
        from opentelemetry import baggage, context, trace

        self._baggage, self._context, self._trace = baggage, context, trace
        self._tracer = tracer
        self._carrier = carrier
        self._trouble = trouble

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """See `ProducerInterceptor`."""
        if record.topic.startswith("_"):  # the framework's own books: what they are about has spans
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
        except Exception as error:  # anything of a tracer, a sampler, a propagator
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
        except Exception as failure:  # anything of an exporter
            self._trouble.said(failure)


class _Calls:
    """A span of kind CONSUMER around a handler's call."""

    def __init__(self, tracer: Tracer, carrier: _Carrier, trouble: _Trouble) -> None:
        from opentelemetry import context, trace

        self._context, self._trace = context, trace
        self._tracer = tracer
        self._carrier = carrier
        self._trouble = trouble

    async def around(self, record: ConsumerRecord | list[ConsumerRecord], call_next: CallNext) -> Any:
        """See `Middleware`."""
        try:
            carried = self._carried(record)
            span = self._begin(record, carried)
            context = self._trace.set_span_in_context(span, carried)
            token = self._context.attach(context)
            _processed.set(context)
        except Exception as error:  # anything of a tracer, a sampler, a propagator
            self._trouble.said(error)
            _processed.set(None)
            return await call_next(record)
        failure: BaseException | None = None
        try:
            return await call_next(record)
        except BaseException as error:  # whatever ends the call is said of its span, and goes on
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
        except Exception as error:  # anything of an exporter
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
    """Say on a span what went wrong."""
    from opentelemetry.trace import Status, StatusCode

    name = type(error).__name__
    span.set_attribute("error.type", type(error).__qualname__)
    try:
        said = f"{name}: {error}"
        span.record_exception(error)
    except Exception:  # of its own __str__
        said = name
    span.set_status(Status(StatusCode.ERROR, said))


def note_cut_off(span: Span, _: BaseException) -> None:
    """Say on a span that its call was cancelled: neither done nor failed, and its record is handled again."""
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
    if (found := here.get()) is not None and found.member is not None:
        attributes["messaging.consumer.group.name"] = found.member.group
        attributes["eventbus.handler"] = found.member.name
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
