"""Log each record that a handler has finished, or failed."""

from __future__ import annotations

import logging
from typing import Any

from eventbus.client.handling.middleware import CallNext
from eventbus.errors import ConfigError
from eventbus.middleware.base import Timed, place_of, records_of, whole


class Logging(Timed):
    """Logs each call with topic, partition, offset and duration, also as ``extra`` fields of the log record.

    ``level`` is that of successful calls, of which each ``every``-th is logged (a batch is one call). Failures are
    always logged, as errors, without the traceback, which the failure handling logs. ``starts``: log, at DEBUG, before
    each call too.
    """

    def __init__(
        self, *, level: int = logging.INFO, every: int = 1, starts: bool = False, logger: str = "eventbus.handled"
    ) -> None:
        """Check the arguments. Raises ConfigError."""
        super().__init__()
        if isinstance(level, bool) or level not in logging.getLevelNamesMapping().values():
            raise ConfigError(f"Logging(level={level!r}): one of logging's, level=logging.DEBUG")
        self._level = level
        self._every = whole("Logging(every", every)
        self._starts = starts
        self._logger = logging.getLogger(logger)
        self._count = 0

    async def __call__(self, record: Any, call_next: CallNext) -> Any:
        records = records_of(record)
        first = records[0]
        extra: dict[str, Any] = {"topic": first.topic, "partition": first.partition, "offset": first.offset}
        if self._starts:
            self._logger.debug("%s begins", place_of(records), extra=extra)
        began = self._timers.current_time()
        try:
            result = await call_next(record)
        except Exception as error:
            extra["duration_ms"] = self._ms_since(began)
            place = place_of(records)
            self._logger.error("%s failed in %.1f ms: %r", place, extra["duration_ms"], error, extra=extra)
            raise
        self._count += 1
        if self._count % self._every == 0:
            extra["duration_ms"] = self._ms_since(began)
            self._logger.log(self._level, "%s in %.1f ms", place_of(records), extra["duration_ms"], extra=extra)
        return result

    def _ms_since(self, began: float) -> float:
        return (self._timers.current_time() - began) * 1000
