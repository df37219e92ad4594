"""What a service logs, on stderr: as lines for people, or as JSON for whoever collects them."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

from eventbus.cli.output import Output
from eventbus.client.running.signals import RUNNING
from eventbus.telemetry.logs import JsonLogs, TextLogs

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")


def configure(level: str | None, format: Literal["text", "json"] | None, stream: TextIO | None = None) -> bool:
    """Have all loggers write to stderr. Does nothing when neither is said: then it is the service's own business."""
    if level is None and format is None:
        return False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLogs() if format == "json" else TextLogs())
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
        self._logger = logging.getLogger("eventbus.bus_run")
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
