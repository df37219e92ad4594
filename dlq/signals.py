"""What a handler raises to say itself what becomes of its record."""

from __future__ import annotations

from eventbus.durations import Duration, milliseconds


class FailureSignal(Exception):
    """The root of what a handler raises on purpose. ``raise Reject("no such customer")``, or the bare class."""

    without_policy = "nobody hears this: the handler has neither retry= nor dead_letter="

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(FailureSignal):
    """Try the record again ``after`` seconds (or ``"5m"``, or a timedelta), not earlier; jitter does not touch it.

    It counts as a try like any failure: when the policy's tries are used up, or the record is older than ``max_age``,
    it is a dead letter. Without ``after`` the policy's next delay is taken.
    """

    def __init__(self, after: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason or ("try again later" if after is None else f"try again after {after}"))
        self.after_ms = None if after is None else milliseconds(after, f"RetryLater(after={after!r})")


class Reject(FailureSignal):
    """The record is bad for good: a dead letter at once."""


class Park(FailureSignal):
    """Somebody has to look at the record: a dead letter at once, which is listed as parked."""


class Skip(FailureSignal):
    """The record need not be handled: it is finished, which is logged, and there is no dead letter."""
