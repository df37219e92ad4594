"""Log lines with the record that they are about: for the standard library's logging, and for structlog.

Within a handler every line has ``topic``, ``partition``, ``offset``, ``key``, ``group`` and ``handler``; and
``trace_id`` and ``span_id`` if a span of OpenTelemetry is active. They are looked up when a line is written: a record
that logs nothing costs nothing.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from eventbus.client.handling.current_record import current_record
from eventbus.errors import ConfigError
from eventbus.suggest import nearest

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_MOST_KEY_CHARS = 200
_FIELDS = ("handler", "group", "topic", "partition", "offset", "key", "trace_id", "span_id")
_OWN = frozenset((*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime", "taskName"))
"""The attributes that every log record has; all others came with ``extra=``."""
_SPELLED_OUT = {number: repr(chr(number))[1:-1] for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
"""Escapes for characters that split a line or control a terminal, because a record's key may contain anything."""


def bound() -> dict[str, Any]:
    """Return the fields for a line logged here; empty outside of handlers and spans."""
    fields: dict[str, Any] = {}
    found = current_record()
    if found is not None:
        fields = {name: value for name, value in found._asdict().items() if value is not None}
        if found.key is not None:
            fields["key"] = found.key.decode(errors="backslashreplace")[:_MOST_KEY_CHARS]
    if "opentelemetry.trace" in sys.modules:  # otherwise there are no spans
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            fields["trace_id"] = trace.format_trace_id(context.trace_id)
            fields["span_id"] = trace.format_span_id(context.span_id)
    return fields


class RecordFilter(logging.Filter):
    """Adds the `bound` fields to log records, for a custom formatter: ``%(topic)s``, or ``%(bound)s`` for all of them.

    Add it to a logging handler, as `bind_logs` does. Unknown fields are empty.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = bound()
        for name in _FIELDS:
            if name not in record.__dict__:
                setattr(record, name, fields.get(name, ""))
        record.bound = fields
        return True


class JsonLogs(logging.Formatter):
    """Formats each log record as JSON: time, level, logger, message, `bound` fields, ``extra=``, the error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. A value that cannot be JSON is written as its ``str``, or, if that fails, as its type's
        name."""
        fields: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = dict(record.__dict__)
        fields |= given.pop("bound", None) or bound()
        for name, value in given.items():
            if name not in _OWN and name not in fields and not (name in _FIELDS and value == ""):
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        try:
            line = json.dumps(fields, ensure_ascii=False, allow_nan=False, default=str)
        except Exception:  # a value of the service, whatever it raises: no line is lost because of it
            line = json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False)
        return _encodable(line)


class TextLogs(logging.Formatter):
    """Formats a line of text, then the `bound` fields: ``... [handler=bill group=billing topic=orders offset=17]``.

    Line feeds and other control characters are escaped; a traceback follows below the line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback."""
        fields = " ".join(f"{name}={value}" for name, value in (record.__dict__.get("bound") or bound()).items())
        said = f"{record.getMessage()}{f' [{fields}]' if fields else ''}".translate(_SPELLED_OUT)
        line = f"{_time_of(record)} {record.levelname} {record.name}: {said}"
        return _encodable(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def _encodable(line: str) -> str:
    """Escape lone surrogates, as in a file name that cannot be decoded: streams refuse them."""
    return line if line.isascii() else line.encode(errors="backslashreplace").decode()


def _plain(value: object) -> object:
    """Return the value if it is JSON; otherwise a text for it."""
    try:
        json.dumps(value, allow_nan=False)
    except Exception:  # a cycle, a key of the wrong type, NaN, an object
        try:
            return str(value)
        except Exception:  # its __str__ raises too
            return f"<{type(value).__name__}>"
    return value


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bind_logs(handler: logging.Handler | None = None) -> None:
    """Add the `bound` fields to a logging handler, or to all of the root logger's: see `RecordFilter`."""
    for one in [handler] if handler is not None else logging.getLogger().handlers:
        if not any(isinstance(known, RecordFilter) for known in one.filters):
            one.addFilter(RecordFilter())


def bind_record(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the `bound` fields to a structlog event, whose own take precedence: ``processors=[bind_record, ...]``."""
    for name, value in bound().items():
        event.setdefault(name, value)
    return event


def configure_logging(level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Log to ``stream`` (standard error), instead of the root logger's previous handlers.

    ``format``: "text", or "json" for JSON lines. Raises ConfigError for another format or an unknown level.
    """
    name = level.lower()
    if name not in LEVELS:
        raise ConfigError(f"log level {level!r} is none{nearest(name, LEVELS)}: one of {', '.join(LEVELS)}")
    if format not in FORMATS:
        raise ConfigError(f"log format {format!r} is none{nearest(format, FORMATS)}: one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogs() if format == "json" else TextLogs())
    root = logging.getLogger()
    for one in list(root.handlers):
        root.removeHandler(one)
    root.addHandler(handler)
    root.setLevel(name.upper())
