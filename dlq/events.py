"""What a policy tells of its work: events as they happen, and numbers of now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from dlq.circuit import CircuitState


def _dashed(name: str) -> str:
    """``CircuitOpened`` is ``circuit-opened`` in JSON."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


class FailureEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_dashed):
    """The root of all events. Neither keys nor values of records are in them."""

    handler: str
    group: str
    at_ms: int


class RecordEvent(FailureEvent, frozen=True, kw_only=True):
    """Of one record, by where it was read first.

    It is told when it is decided. When the transaction that should write it fails, the record is handled again, and
    what is decided then is told too.
    """

    topic: str
    partition: int
    offset: int
    attempts: int
    """Calls so far."""
    error_class: str
    message: str
    """Of the error, capped, as ``Retry(redact=)`` left it."""


class RetryScheduled(RecordEvent, frozen=True, kw_only=True):
    """The record waits in the retry topic."""

    due_ms: int


class DeadLettered(RecordEvent, frozen=True, kw_only=True):
    """The record goes to the dead letters."""

    reason: str
    dead_letter_topic: str


class CircuitOpened(FailureEvent, frozen=True, kw_only=True):
    """Most calls failed: no record is tried until ``until_ms``."""

    until_ms: int


class CircuitHalfOpen(FailureEvent, frozen=True, kw_only=True):
    """One record is tried."""


class CircuitClosed(FailureEvent, frozen=True, kw_only=True):
    """It was handled: all goes on."""


class BudgetExhausted(FailureEvent, frozen=True, kw_only=True):
    """Too much of the work is retries: they are slowed down. Told once, until there is budget again."""


EventName: TypeAlias = Literal[
    "retry-scheduled",
    "dead-lettered",
    "circuit-opened",
    "circuit-half-open",
    "circuit-closed",
    "budget-exhausted",
]

Hook: TypeAlias = Callable[[FailureEvent], object]
"""Called on the event loop, so it must not wait; what it raises is logged."""


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """How one handler of this process fails, in numbers."""

    handler: str
    group: str
    dead_letters: int
    """Since the start."""
    dead_letters_last_minute: int
    retries: int
    """Later tries that were scheduled since the start."""
    waiting: int
    """Records in this member's partitions of the retry topic, or on their way back into it."""
    overdue_ms: int
    """For how long the first of them is due; 0: none is."""
    circuit: CircuitState | None
    """None: there is none."""
    budget_left: int | None
    """Retries that may be made now; None: there is no limit."""
