"""Report a handler's failures: log them, call the hooks, and count them."""

from __future__ import annotations

import logging
from collections import deque
from contextvars import copy_context
from typing import Any

from dlq.circuit import Breaker, CircuitState
from dlq.decisions import Failed
from dlq.events import (
    CircuitClosed,
    CircuitHalfOpen,
    CircuitOpened,
    DeadLettered,
    FailureEvent,
    RetryScheduled,
    Signals,
)
from dlq.failures import class_of, message_of
from dlq.header_text import one_line
from dlq.policy import Retry
from eventbus.recovery import Handling
from eventbus.types import ConsumerRecord

logger = logging.getLogger("dlq")

MESSAGE_HEADER = "__dlq.errors.message"
"""The header name passed to ``Retry(redact=)`` along with an error's message."""
_MOST_MESSAGE = 1024
_MINUTE_MS = 60_000


class Reporter:
    """Reports the failures of one handler."""

    def __init__(self, policy: Retry, handling: Handling) -> None:
        self._hooks = policy.hooks
        self._redact = policy.redact
        self._handler, self._group = handling.handler, handling.group
        self._circuit: CircuitState = "closed"
        self._dead_letters = _Count()
        self._retries = 0

    def message(self, error: BaseException) -> str:
        """Return the error's message, redacted and shortened."""
        text: str | None = message_of(error)
        if self._redact is not None:
            try:
                text = self._redact(MESSAGE_HEADER, text)
            except Exception:  # the user's redact= may raise anything
                logger.exception("handler %r: redact=%r raised; the message is left out", self._handler, self._redact)
                text = None
        return (text or "")[:_MOST_MESSAGE]

    def retry(
        self, record: ConsumerRecord, error: Exception, message: str, failed: Failed, due_ms: int, now_ms: int
    ) -> None:
        self._retries += 1
        logger.info(
            "handler %r: %s-%d offset %d is tried again in %g s, call %d failed: %s: %s", self._handler, record.topic,
            record.partition, record.offset, (due_ms - now_ms) / 1000, failed.attempts, class_of(error),
            one_line(message),
        )  # fmt: skip
        if self._hooks:
            about = self._about(record, error, message, failed, now_ms)
            self._tell(RetryScheduled(**about, due_ms=due_ms))

    def dead_letter(
        self,
        record: ConsumerRecord,
        error: Exception,
        message: str,
        failed: Failed,
        reason: str,
        topic: str,
        now_ms: int,
    ) -> None:
        self._dead_letters.add(now_ms)
        logger.error(
            "handler %r: %s-%d offset %d goes to %s (%s, call %d): %s: %s", self._handler, record.topic,
            record.partition, record.offset, topic, reason, failed.attempts, class_of(error),
            one_line(message),
        )  # fmt: skip
        if self._hooks:
            about = self._about(record, error, message, failed, now_ms)
            self._tell(DeadLettered(**about, reason=reason, dead_letter_topic=topic))

    def _about(
        self, record: ConsumerRecord, error: Exception, message: str, failed: Failed, now_ms: int
    ) -> dict[str, Any]:
        """Return the fields of an event about a record."""
        return {
            "handler": self._handler, "group": self._group, "at_ms": now_ms, "topic": record.topic,
            "partition": record.partition, "offset": record.offset, "attempts": failed.attempts,
            "error_class": class_of(error), "message": message,
        }  # fmt: skip

    def circuit(self, breaker: Breaker, now_ms: int) -> None:
        """Report a change of the circuit's state."""
        before, self._circuit = self._circuit, breaker.state
        if breaker.state == before:
            return
        who = {"handler": self._handler, "group": self._group}
        if breaker.state == "open":
            logger.warning("handler %r: its circuit is open, no record is tried for a while", self._handler)
            self._tell(CircuitOpened(**who, at_ms=now_ms, until_ms=breaker.until_ms))
        elif breaker.state == "half-open":
            logger.info("handler %r: its circuit is half-open, one record is tried", self._handler)
            self._tell(CircuitHalfOpen(**who, at_ms=now_ms))
        else:
            logger.warning("handler %r: its circuit is closed again", self._handler)
            self._tell(CircuitClosed(**who, at_ms=now_ms))

    def signals(self, waiting: int, oldest_due_ms: int | None, breaker: Breaker | None, now_ms: int) -> Signals:
        return Signals(
            handler=self._handler,
            group=self._group,
            dead_letters=self._dead_letters.total,
            dead_letters_last_minute=self._dead_letters.of_last_minute(now_ms),
            retries=self._retries,
            waiting=waiting,
            overdue_ms=0 if oldest_due_ms is None else max(now_ms - oldest_due_ms, 0),
            circuit=None if breaker is None else breaker.state,
        )

    def _tell(self, event: FailureEvent) -> None:
        """Call the hooks. An exception in one of them is logged and does not stop the record from being moved."""
        for hook in self._hooks:
            try:
                # in a copy, so that a context variable set by the hook does not leak into the next record
                copy_context().run(hook, event)
            except Exception:  # the user's hook may raise anything
                logger.exception("handler %r: on_event=%r raised", self._handler, hook)


class _Count:
    """Counts events in total and within the last minute."""

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[list[int]] = deque(maxlen=_MINUTE_MS // 1000)
        """Pairs of second and count, without empty seconds."""

    def add(self, now_ms: int) -> None:
        self.total += 1
        second = now_ms // 1000
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += 1

    def of_last_minute(self, now_ms: int) -> int:
        return sum(count for second, count in self._seconds if 0 <= now_ms - second * 1000 < _MINUTE_MS)
