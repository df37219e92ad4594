"""Telemetry of a running bus: metrics for Prometheus, spans for OpenTelemetry, log lines with their record."""

from __future__ import annotations

from eventbus.telemetry.logs import JsonLogs, RecordFilter, bind_logs, bind_record, configure_logging
from eventbus.telemetry.tracing import Tracing

__all__ = ["JsonLogs", "RecordFilter", "Tracing", "bind_logs", "bind_record", "configure_logging"]
