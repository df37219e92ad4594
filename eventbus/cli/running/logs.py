"""What a service logs, on stderr: as lines for people, or as JSON for whoever collects them."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from eventbus.cli.output import Output, one_line
from eventbus.client.signals import RUNNING

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was bound to it by who logs (``extra=``)."""


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, what is bound to the record, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        bound = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line |= {name: value for name, value in bound.items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


class TextLines(logging.Formatter):
    """Time, level, logger, message on one line; the traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.name}: {one_line(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure(level: str | None, format: Literal["text", "json"] | None, stream: TextIO | None = None) -> bool:
    """Have all loggers write to stderr. Does nothing when neither is said: then it is the service's own business."""
    if level is None and format is None:
        return False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(level=(level or "info").upper(), handlers=[handler], force=True)
    return True


class LifeAsNotes(logging.Handler):
    """What is said of starts, signals and ends, which is no warning, as lines on stderr, while inside."""

    def __init__(self, out: Output, *, prefix: str = "") -> None:
        """``prefix``: of each line, where several processes write to one terminal."""
        super().__init__()
        self.running = RUNNING
        """What to say once signals are heard."""
        self._out = out
        self._prefix = prefix
        self._logger = logging.getLogger("eventbus.life")
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING:  # warnings are shown anyway
            self._out.note(self._prefix + (self.running if record.msg == RUNNING else record.getMessage()))

    def __enter__(self) -> LifeAsNotes:
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
