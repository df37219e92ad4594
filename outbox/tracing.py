"""Trace context on its way from a consumed record to what its handler publishes through an outbox."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

from eventbus.types import Headers

TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""

logger = logging.getLogger("outbox")

carried: ContextVar[Headers] = ContextVar("outbox_carried", default=())
"""The headers of the record whose handler runs in this context."""


def current_trace() -> Headers:
    """The headers that name the trace which is being recorded: of the span that is active, else of the record."""
    if "opentelemetry.trace" in sys.modules:  # else nobody has a span, and importing it is not for us
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
    except Exception as error:  # anything of a propagator: the event is written without its trace
        logger.debug("the trace of an event could not be told", exc_info=error)
        return ()
