"""Trace context on its way from a consumed record to what its handler publishes through an outbox."""

from __future__ import annotations

from contextvars import ContextVar

from eventbus.types import Headers

TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""

carried: ContextVar[Headers] = ContextVar("outbox_carried", default=())
"""The headers of the record whose handler runs in this context."""
