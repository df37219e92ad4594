"""Exceptions with which a handler decides itself what happens to its record."""

from __future__ import annotations

from eventbus.durations import Duration, milliseconds


class FailureSignal(Exception):
    """Base of exceptions that handlers raise on purpose: ``raise Reject("unknown customer")``, or the bare class."""

    without_policy = "this signal has no effect: the handler has neither retry= nor dead_letter=. Add one of them"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(FailureSignal):
    """Retry the record ``after`` seconds (or ``"5m"``, or a timedelta), never earlier. Jitter is not applied.

    It counts as a try like any failure: the record becomes a dead letter once the policy's tries are used up or it is
    older than ``max_age``. Without ``after`` the policy's next delay is used.
    """

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or ("try again later" if after is None else f"try again after {after}"))
        self.after_ms = None if after is None else milliseconds(after, f"RetryLater(after={after!r})")


class Reject(FailureSignal):
    """The record is permanently unprocessable. It becomes a dead letter at once."""


class Park(FailureSignal):
    """The record needs an operator's decision. It becomes a dead letter at once, with the status "parked"."""


class Skip(FailureSignal):
    """The record need not be handled. It counts as finished, which is logged, and no dead letter is written."""
