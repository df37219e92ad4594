"""Decide what happens to a record whose handler failed, in one pure function."""

from __future__ import annotations

import logging
import math
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from dlq import checks
from dlq.classify import signal_of
from dlq.policy import Delays, Retry
from dlq.signals import FailureSignal, Park, RetryLater, Skip
from eventbus.durations import milliseconds
from eventbus.outages import back_off_ms

logger = logging.getLogger("dlq")

Reason: TypeAlias = Literal["exhausted", "rejected", "parked", "unreadable", "never", "too-old", "crashed", "loop"]
"""Why a record is a dead letter."""

MOST_HOPS = 10
"""A record that was a dead letter this often is not retried again: something sends it round in a loop."""


class Failed(NamedTuple):
    """The history of a record whose handler has just failed."""

    tries: int = 1
    """Calls since the record was last fetched, including the one that failed."""
    before: int = 0
    """Earlier calls, according to the headers of an entry from the retry topic."""
    outages: int = 0
    """Calls that ended in an outage. They are not counted against the record."""
    first_failed_ms: int | None = None
    """None if this is the first failure."""
    hops: int = 0
    """How often the record was a dead letter and was sent back."""
    circuit_open: bool = False
    """True if the call was the probe of an open circuit."""

    @property
    def attempts(self) -> int:
        """Total number of calls so far."""
        return self.before + self.tries


class Again(msgspec.Struct, frozen=True):
    """Retry at once, without moving the record."""


class RetryAt(msgspec.Struct, frozen=True):
    """Retry later, not before ``due_ms``."""

    due_ms: int
    is_outage: bool = False
    """True if the calls since the record was last fetched do not count as tries."""


class ToDeadLetters(msgspec.Struct, frozen=True):
    """Move the record to the dead letters. It returns only if it is redriven."""

    reason: Reason


class Skipped(msgspec.Struct, frozen=True):
    """Skip the record, because the handler raised `Skip`."""

    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """Leave the record where it is and apply ``on_error=``: it is not at fault, and waiting does not help."""


Decision: TypeAlias = Again | RetryAt | ToDeadLetters | Skipped | Stopped


def decide(policy: Retry, error: Exception, failed: Failed, *, now_ms: int, chance: float = 0.0) -> Decision:
    """Decide what happens next. Pure; ``chance`` is a random number from 0 up to 1, used for jitter.

    A `FailureSignal` of the handler takes precedence, then the kind of the error (see `dlq.classify`), then the number
    of tries, then age:

    - An outage is retried without limit: at once ``immediate`` times, then with the delays in turn, and then with the
      last delay. A failed probe of an open circuit is treated like an outage, but is not retried at once.
    - Any other error uses up the record's ``1 + immediate + len(delays)`` calls. Immediate retries are made only before
      the record first goes to the retry topic.
    - A delay grows by ``chance * jitter`` of itself. No retry is earlier than its delay.
    - A retry that would be due later than ``max_age`` after the first failure is not made. Jitter does not extend a
      delay beyond that.
    """
    signal = signal_of(error)
    if signal is not None and not isinstance(signal, RetryLater):
        return _of_signal(signal)
    kind = "retry" if signal is not None else policy.kind_of(error)
    if kind == "fatal":
        return Stopped()
    if kind == "crashed":
        is_last = policy.crashes is not None and failed.tries >= policy.crashes
        return ToDeadLetters("crashed") if is_last else Again()
    is_outage = kind == "outage" or (kind == "retry" and failed.circuit_open)
    if not is_outage:
        if kind == "unreadable" or kind == "never":
            return ToDeadLetters(kind)
        if failed.hops >= MOST_HOPS:
            return ToDeadLetters("loop")
    if signal is None and _at_once(policy, failed, is_outage):
        return Again()
    return _later(policy, error, signal, failed, is_outage, now_ms, chance)


def _of_signal(signal: FailureSignal) -> Decision:
    if isinstance(signal, Skip):
        return Skipped(signal.reason)
    return ToDeadLetters("parked" if isinstance(signal, Park) else "rejected")


def _at_once(policy: Retry, failed: Failed, is_outage: bool) -> bool:
    if failed.before or failed.circuit_open:
        return False
    return (failed.tries if is_outage else failed.tries - failed.outages) <= policy.immediate


def _later(
    policy: Retry,
    error: Exception,
    signal: RetryLater | None,
    failed: Failed,
    is_outage: bool,
    now_ms: int,
    chance: float,
) -> Decision:
    """Return when the record is retried, or a final decision if it is not."""
    calls = failed.attempts - (0 if is_outage else failed.outages)
    delay = _delay_ms(policy, error, calls, is_outage)
    if delay is None:
        return ToDeadLetters("exhausted")
    if isinstance(delay, FailureSignal):
        if not isinstance(delay, RetryLater):
            return _of_signal(delay)
        signal, delay = delay, back_off_ms(calls)
    if signal is not None and signal.after_ms is not None:
        least_ms = most_ms = now_ms + signal.after_ms
    else:
        least_ms, most_ms = now_ms + delay, now_ms + math.ceil(delay * (1 + policy.jitter * chance))
    if policy.max_age_ms is None or is_outage:
        return RetryAt(most_ms, is_outage)
    last_ms = policy.max_age_ms + (now_ms if failed.first_failed_ms is None else failed.first_failed_ms)
    return ToDeadLetters("too-old") if least_ms > last_ms else RetryAt(min(most_ms, last_ms))


def _delay_ms(policy: Retry, error: Exception, calls: int, is_outage: bool) -> int | FailureSignal | None:
    """Return the delay before jitter, or None if no tries are left."""
    if policy.delay_function is not None:
        answer = _asked(policy.delay_function, calls, error)
        return back_off_ms(calls) if answer is None and is_outage else answer
    delays = policy.delays_ms or ()
    if calls > policy.immediate + len(delays) and not is_outage:
        return None
    if not delays:
        return back_off_ms(calls)
    return delays[min(max(calls - 1 - policy.immediate, 0), len(delays) - 1)]


def _asked(function: Delays, calls: int, error: Exception) -> int | FailureSignal | None:
    """Call the user's delay function. If it fails, that is logged and counts as None: no tries are left."""
    try:
        answer = function(calls, error)
        if isinstance(answer, type):
            answer = answer()
        if answer is None or isinstance(answer, FailureSignal):
            return answer
        return milliseconds(answer, f"it returned {answer!r:.200}")
    except Exception:  # the user's delays= may raise anything
        logger.exception(
            "Retry(delays=%s) gave no answer to call %d, which failed with %s: taken for None",
            checks.shown(function), calls, type(error).__name__,
        )  # fmt: skip
        return None
