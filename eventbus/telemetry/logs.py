"""Log lines that say which record they are about: for the standard library's logging, and for structlog.

Within a handler every line has ``topic``, ``partition``, ``offset``, ``key``, ``group`` and ``handler``; and
``trace_id`` and ``span_id`` where a span of OpenTelemetry is active. They are looked up when a line is written: a
record that logs nothing pays nothing.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from eventbus.client.handling.here import record_here
from eventbus.errors import ConfigError
from eventbus.suggest import nearest

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_MOST_KEY_CHARS = 200
_FIELDS = ("handler", "group", "topic", "partition", "offset", "key", "trace_id", "span_id")
_OWN = frozenset((*logging.LogRecord("", 0, "", 0, "", (), None).__dict__, "message", "asctime", "taskName"))
"""What a log record always has; all else came with ``extra=``."""
_SPELLED_OUT = {number: repr(chr(number))[1:-1] for number in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
"""What would make one line of text look like two, or tell a terminal something: a record's key may hold anything."""


def bound() -> dict[str, Any]:
    """What a line written here should say; empty outside of handlers and spans."""
    fields: dict[str, Any] = {}
    found = record_here()
    if found is not None:
        fields = {name: value for name, value in found._asdict().items() if value is not None}
        if found.key is not None:
            fields["key"] = found.key.decode(errors="backslashreplace")[:_MOST_KEY_CHARS]
    if "opentelemetry.trace" in sys.modules:  # else nobody has a span
        from opentelemetry import trace

        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            fields["trace_id"] = trace.format_trace_id(context.trace_id)
            fields["span_id"] = trace.format_span_id(context.span_id)
    return fields


class RecordFilter(logging.Filter):
    """Adds what is `bound` to log records, for a formatter of your own: ``%(topic)s``, ``%(bound)s`` for all of it.

    Put it on a handler of logging, `bind_logs` does. Fields that are not known are empty.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = bound()
        for name in _FIELDS:
            if name not in record.__dict__:
                setattr(record, name, fields.get(name, ""))
        record.bound = fields
        return True


class JsonLogs(logging.Formatter):
    """A line of JSON for each log record: time, level, logger, message, what is `bound`, ``extra=``, the error."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. A value that is no JSON is written as its ``str``, or as the name of its type if that fails."""
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
        except Exception:  # a service's own value, whatever it does: no line is lost for it
            line = json.dumps({name: _plain(value) for name, value in fields.items()}, ensure_ascii=False)
        return _encodable(line)


class TextLogs(logging.Formatter):
    """A line of text, and behind it what is `bound`: ``... [handler=bill group=billing topic=orders offset=17]``.

    Line feeds and other control characters are spelled out; a traceback stands below the line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback."""
        fields = " ".join(f"{name}={value}" for name, value in (record.__dict__.get("bound") or bound()).items())
        said = f"{record.getMessage()}{f' [{fields}]' if fields else ''}".translate(_SPELLED_OUT)
        line = f"{_time_of(record)} {record.levelname} {record.name}: {said}"
        return _encodable(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def _encodable(line: str) -> str:
    """Half of a surrogate pair, as of a file name that is no UTF-8, spelled out: streams refuse it."""
    return line if line.isascii() else line.encode(errors="backslashreplace").decode()


def _plain(value: object) -> object:
    """The value, where it is JSON in itself; else what can be said of it."""
    try:
        json.dumps(value, allow_nan=False)
    except Exception:  # a circle, a key that is no text, NaN, an object
        try:
            return str(value)
        except Exception:  # its __str__ raises too
            return f"<{type(value).__name__}>"
    return value


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bind_logs(handler: logging.Handler | None = None) -> None:
    """Have a handler of logging, or all of the root logger's, know what is `bound`: see `RecordFilter`."""
    for one in [handler] if handler is not None else logging.getLogger().handlers:
        if not any(isinstance(known, RecordFilter) for known in one.filters):
            one.addFilter(RecordFilter())


def bind_record(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor for structlog: ``structlog.configure(processors=[bind_record, ...])``. What is given goes before."""
    for name, value in bound().items():
        event.setdefault(name, value)
    return event


def configure_logging(level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Log to ``stream`` (standard error), in place of what the root logger did before.

    ``format``: "text", or "json" for a line of JSON each. Raises ConfigError for another one, or another level.
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
