"""Carry trace context from a consumed record to the events that its handler publishes through an outbox."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

from eventbus.types import Headers

TRACE_HEADERS = ("traceparent", "tracestate")
"""The headers of W3C Trace Context."""

logger = logging.getLogger("outbox")

carried: ContextVar[Headers] = ContextVar("outbox_carried", default=())
"""The headers of the record whose handler runs in this context."""


def current_trace() -> Headers:
    """Return the trace headers of the active span, or else those of the current record."""
    if "opentelemetry.trace" in sys.modules:  # not imported means that no span is active
        found = _of_span()
        if found:
            return found
    of_record = carried.get()
    return tuple(header for header in of_record if header[0] in TRACE_HEADERS) if of_record else ()


def _of_span() -> Headers:
    from opentelemetry import trace
    from opentelemetry.propagate import inject

    carrier: dict[str, str] = {}
    try:
        if trace.get_current_span().get_span_context().is_valid:
            inject(carrier)
        return tuple((name, value.encode()) for name, value in carrier.items())
    except Exception as error:  # a propagator may raise anything; the event is written without its trace
        logger.debug("the trace context of an event could not be determined", exc_info=error)
        return ()
