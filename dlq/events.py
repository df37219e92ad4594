"""Events and statistics of a handler's failure policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from dlq.circuit import CircuitState


def _dashed(name: str) -> str:
    """Return the name used in JSON: ``CircuitOpened`` becomes ``circuit-opened``."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


class FailureEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_dashed):
    """Base of all events. Events do not contain keys or values of records."""

    handler: str
    group: str
    at_ms: int


class RecordEvent(FailureEvent, frozen=True, kw_only=True):
    """An event about one record, identified by where it was first read.

    It is sent when the decision is made. If the transaction that should write the decision fails, the record is handled
    again, and the new decision is sent as well.
    """

    topic: str
    partition: int
    offset: int
    attempts: int
    """Number of calls so far."""
    error_class: str
    message: str
    """The error's message, redacted by ``Retry(redact=)`` and shortened."""


class RetryScheduled(RecordEvent, frozen=True, kw_only=True):
    """The record was sent to the retry topic."""

    due_ms: int


class DeadLettered(RecordEvent, frozen=True, kw_only=True):
    """The record was sent to the dead-letter topic."""

    reason: str
    dead_letter_topic: str


class CircuitOpened(FailureEvent, frozen=True, kw_only=True):
    """Most calls failed, so no record is tried until ``until_ms``."""

    until_ms: int


class CircuitHalfOpen(FailureEvent, frozen=True, kw_only=True):
    """One record is being tried as a probe."""


class CircuitClosed(FailureEvent, frozen=True, kw_only=True):
    """The probe succeeded, and records are handled again."""


Hook: TypeAlias = Callable[[FailureEvent], object]
"""Called on the event loop with each event, so it must not block. Its exceptions are logged."""


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """Failure statistics of one handler in this process."""

    handler: str
    group: str
    dead_letters: int
    """Dead letters since the start."""
    dead_letters_last_minute: int
    retries: int
    """Retries scheduled in the retry topic since the start."""
    waiting: int
    """Records in this member's partitions of the retry topic, including those being written back into it."""
    overdue_ms: int
    """How long ago the first of them was due. 0 if none is due."""
    circuit: CircuitState | None
    """None if the handler has no circuit."""
