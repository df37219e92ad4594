"""What becomes of a record whose handler failed: one pure function."""

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
"""So often a dead letter already: it is not tried again, something sends it round and round."""


class Failed(NamedTuple):
    """What is known of a record when a call with it has failed."""

    tries: int = 1
    """Calls in this go, the failed one included."""
    before: int = 0
    """Calls before this go, as the headers of a record from the retry topic say."""
    outages: int = 0
    """Calls among all these that are not held against the record."""
    first_failed_ms: int | None = None
    """None: just now."""
    hops: int = 0
    """How often it was a dead letter and was sent back."""
    over_budget: bool = False
    circuit_open: bool = False
    """The call was the one by which an open circuit was tried."""

    @property
    def attempts(self) -> int:
        """Calls so far."""
        return self.before + self.tries


class Again(msgspec.Struct, frozen=True):
    """At once, in its place."""


class RetryAt(msgspec.Struct, frozen=True):
    """Later, not before ``due_ms``."""

    due_ms: int
    is_outage: bool = False
    """The tries of this go do not count."""


class ToDeadLetters(msgspec.Struct, frozen=True):
    """For good, until somebody sends it back."""

    reason: Reason


class Skipped(msgspec.Struct, frozen=True):
    """Finished, as the handler said."""

    reason: str


class Stopped(msgspec.Struct, frozen=True):
    """Not the record's fault, and nothing that waiting mends: what ``on_error=`` says."""


Decision: TypeAlias = Again | RetryAt | ToDeadLetters | Skipped | Stopped


def decide(policy: Retry, error: Exception, failed: Failed, *, now_ms: int, chance: float = 0.0) -> Decision:
    """Pure. ``chance``: a random number from 0 up to 1, for jitter.

    What the handler says with a `FailureSignal` goes before everything else, then the kind of the error (see
    `dlq.classify`), then tries, then age:

    - An outage is tried again without end: at once as often as ``immediate`` says, then with the delays in turn, and
      with the last of them from there on. So is what failed as the probe of an open circuit, but not at once.
    - Any other error uses up the record's ``1 + immediate + len(delays)`` calls. Tries at once come in the go in which
      it failed first. Over budget they are left out, and the record waits for the first delay that much oftener: it has
      as many calls as without. (Where there are no delays, tries at once are all there is, and they stay.)
    - A delay grows by ``chance * jitter`` of itself, and is twice as long over budget. No try is earlier than asked.
    - A try that would be due later than ``max_age`` after the first failure is not made; what jitter and budget add to
      a delay ends there.
    """
    signal = signal_of(error)
    if signal is not None and not isinstance(signal, RetryLater):
        return _said(signal)
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


def _said(signal: FailureSignal) -> Decision:
    if isinstance(signal, Skip):
        return Skipped(signal.reason)
    return ToDeadLetters("parked" if isinstance(signal, Park) else "rejected")


def _at_once(policy: Retry, failed: Failed, is_outage: bool) -> bool:
    if failed.before or failed.circuit_open or (failed.over_budget and policy.tries_later):
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
    """When it is tried again, if it is."""
    calls = failed.attempts - (0 if is_outage else failed.outages)
    delay = _delay_ms(policy, error, calls, is_outage)
    if delay is None:
        return ToDeadLetters("exhausted")
    if isinstance(delay, FailureSignal):
        if not isinstance(delay, RetryLater):
            return _said(delay)
        signal, delay = delay, back_off_ms(calls)
    if signal is not None and signal.after_ms is not None:
        least_ms = most_ms = now_ms + signal.after_ms
    else:
        stretch = (1 + policy.jitter * chance) * (2 if failed.over_budget else 1)
        least_ms, most_ms = now_ms + delay, now_ms + math.ceil(delay * stretch)
    if policy.max_age_ms is None or is_outage:
        return RetryAt(most_ms, is_outage)
    last_ms = policy.max_age_ms + (now_ms if failed.first_failed_ms is None else failed.first_failed_ms)
    return ToDeadLetters("too-old") if least_ms > last_ms else RetryAt(min(most_ms, last_ms))


def _delay_ms(policy: Retry, error: Exception, calls: int, is_outage: bool) -> int | FailureSignal | None:
    """Before jitter. None: there are no more tries."""
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
    """What the user's function says. One that fails itself has no more tries to give, which is logged."""
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
