"""Parse and validate ``retry=`` and ``dead_letter=`` of a handler."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args
from weakref import WeakSet

import msgspec

from dlq import checks
from dlq.circuit import Circuit
from dlq.classify import Classify, classifier
from dlq.events import Hook, Signals
from dlq.signals import FailureSignal
from eventbus.durations import Duration, positive, shown
from eventbus.errors import ConfigError
from eventbus.recovery import FailurePolicy, Handling, Recovery, RetryOrder, retry_topic_of

if TYPE_CHECKING:
    from dlq.recovery import PolicyRecovery

Delays: TypeAlias = Callable[[int, Exception], Duration | FailureSignal | type[FailureSignal] | None]
"""``(attempt, error)``: returns the delay until the next try, or None to give up. ``attempt`` counts calls from 1."""
Redact: TypeAlias = Callable[[str, str], str | None]
"""``(header name, text)``: returns the text to write, or None to omit the header."""

DEFAULT_DELAYS: Final = ("5s", "1m", "10m")
_DEFAULT_JITTER = 0.5
_EXAMPLE = 'Retry(immediate=2, delays=["5s", "1m", "10m"])'


_ORDERS: dict[str, RetryOrder] = {"none": "none", "global": "partition"}
"""Retry order of handlers whose ``order=`` is "none" or "global". All others keep the order of keys."""


class Retry:
    """How often and when a failing record is retried before it becomes a dead letter.

    A record is called ``1 + immediate + len(delays)`` times in all, across restarts and members. ``immediate`` is the
    number of retries at once, while the record keeps its place. Then it waits in the retry topic, for one of ``delays``
    before each further try. ``delays=None`` means no later tries; a function ``(attempt, error)`` returns the next
    delay, None to give up, or `Reject`, `Park`, `Skip`. ``jitter`` lengthens each delay by a random share of it, so
    that records which failed together do not return together: up to half (True), none (False), or the given share. A
    try is never earlier than its delay. A try that would be later than ``max_age`` after the first failure is not made.

    ``on``: only these errors are retried. ``never``: these errors are not retried. ``outages``: these errors mean that
    something which all records need is down. The record is retried until the outage is over, at the end with the last
    delay; neither tries nor age make it a dead letter, and these calls do not count as tries. By default
    ConnectionError and retriable eventbus errors are outages (see `dlq.classify`).

    ``order``: which later records wait for a waiting record: "key" (those of its key), "partition" or "none"; by
    default it follows the handler's ``order=``. Up to ``max_waiting`` records (and ``max_waiting_bytes``) per partition
    wait in memory, then reading pauses. ``topic``: the name of the retry topic, by default ``retry.<group>``.
    ``circuit``: a `Circuit`. ``crashes``: a record that was
    being handled in this many crashes of the process becomes a dead letter. ``redact``: filters texts before they are
    written into headers of dead letters. ``on_event``: one or several functions, called with each event.

    Raises ConfigError. One `Retry` may serve several handlers; each has its own circuit.
    """

    def __init__(
        self,
        *,
        immediate: int = 2,
        delays: Sequence[Duration] | Delays | None = DEFAULT_DELAYS,
        jitter: bool | float = True,
        max_age: Duration | None = None,
        on: Collection[type[Exception]] | None = None,
        never: Collection[type[Exception]] = (),
        outages: Collection[type[Exception]] = (),
        order: RetryOrder | None = None,
        topic: str | None = None,
        circuit: Circuit | None = None,
        crashes: int | None = None,
        max_waiting: int = 100_000,
        max_waiting_bytes: int = 256 << 20,
        redact: Redact | None = None,
        on_event: Hook | Sequence[Hook] | None = None,
    ) -> None:
        self.immediate: Final = checks.whole("Retry(immediate", immediate, 0)
        self.delays_ms: Final = _delays(delays)
        """Delays in milliseconds. None if records are not retried later, or a function decides."""
        self.delay_function: Final = _function("delays", delays, "(attempt, error)") if callable(delays) else None
        self.jitter: Final = _jitter(jitter)
        self.max_age_ms: Final = None if max_age is None else positive(max_age, f"Retry(max_age={max_age!r})")
        self.kind_of: Final = _classifier(on, never, outages)
        self.order: Final = _order(order)
        self.topic: Final = None if topic is None else checks.topic(f"Retry(topic={topic!r})", topic)
        self.circuit: Final = _circuit(circuit, has_delays=self.tries_later)
        self.crashes: Final = None if crashes is None else checks.whole("Retry(crashes", crashes, 1)
        self.max_waiting: Final = checks.whole("Retry(max_waiting", max_waiting, 1)
        self.max_waiting_bytes: Final = checks.whole("Retry(max_waiting_bytes", max_waiting_bytes, 1)
        self.redact: Final = None if redact is None else _function("redact", redact, "(name, text)")
        self.hooks: Final = _hooks(on_event)
        self._opened: WeakSet[PolicyRecovery] = WeakSet()

    @property
    def tries_later(self) -> bool:
        """True if there is a retry topic."""
        return self.delays_ms is not None or self.delay_function is not None

    def open(self, handling: Handling) -> Recovery:
        """Implement `FailurePolicy`, with the dead-letter topic named after the group."""
        return Policy(self).open(handling)

    def signals(self, now_ms: int | None = None) -> list[Signals]:
        """Return failure statistics of each handler in this process that uses this policy."""
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        found = [recovery.signals(now_ms) for recovery in self._opened]
        return sorted(found, key=lambda signals: (signals.group, signals.handler))

    def opened(self, recovery: PolicyRecovery) -> None:
        """Include a handler's statistics in `signals`, for as long as its recovery exists."""
        self._opened.add(recovery)

    def __repr__(self) -> str:
        if self.delay_function is not None:
            delays = getattr(self.delay_function, "__name__", repr(self.delay_function))
        else:
            delays = None if self.delays_ms is None else [shown(ms) for ms in self.delays_ms]
        return f"Retry(immediate={self.immediate}, delays={delays})"


class Policy(msgspec.Struct, frozen=True):
    """A `Retry` together with its dead-letter topic: ``dlq.<group>`` of each group, a named topic, or none."""

    retry: Retry
    dead_letter: bool | str = True
    prefix: str = ""
    """Prefix of the topics named here."""
    old_retry_topic: str | None = None
    """The retry topic to read if ``retry`` has no later tries, for redriven records and those of earlier releases.
    """
    keeps_order: bool = True
    """True if later records of a key can wait until entries of ``old_retry_topic`` are handled."""

    def retry_topic(self, group: str) -> str | None:
        """Return the retry topic of a group that runs with this policy, or None if it has none."""
        if not self.retry.tries_later:
            return self.old_retry_topic
        return self.prefix + self.retry.topic if self.retry.topic else retry_topic_of(group)

    def is_redriven(self, group: str) -> bool:
        """True if redriven dead letters come through the group's retry topic."""
        topic = retry_topic_of(group)
        named = f"{self.prefix}{self.dead_letter}" if isinstance(self.dead_letter, str) else None
        return self.dead_letter is not False and checks.is_topic(topic) and named != topic

    def draining(self, topic: str, *, keeps_order: bool) -> Policy:
        """Return a copy that also reads the retry topic of an earlier release until it is empty."""
        return msgspec.structs.replace(self, old_retry_topic=topic, keeps_order=keeps_order)

    def under(self, prefix: str) -> Policy:
        """Return a copy whose topics have a prefix, as those of a router have."""
        return msgspec.structs.replace(self, prefix=prefix + self.prefix)

    def open(self, handling: Handling) -> Recovery:
        """Raise ConfigError for a handler that the policy does not suit."""
        from dlq.recovery import PolicyRecovery  # imported late: a program that only declares handlers need not load it

        where = f"handler {handling.handler!r}"
        order = self._order(handling, where)
        retry_topic = self._retry_topic(handling, where)
        dead_letter_topic = self._dead_letter_topic(handling, where)
        if retry_topic is not None and retry_topic == dead_letter_topic:
            raise ConfigError(f"{where}: {retry_topic!r} is its retry topic and its dead-letter topic: name two topics")
        opened = PolicyRecovery(self.retry, handling, order, retry_topic, dead_letter_topic)
        self.retry.opened(opened)
        return opened

    def _order(self, handling: Handling, where: str) -> RetryOrder:
        if not self.keeps_order:
            return "none"
        chosen = self.retry.order
        if handling.pattern is not None:
            if chosen in ("key", "partition"):
                raise ConfigError(
                    f"{where}: Retry(order={chosen!r}) and pattern={handling.pattern!r} contradict each other: the "
                    "retry topic has as many partitions as the widest topic that is read, which a pattern does not "
                    'tell; name the topics, or say order="none"'
                )
            return "none"
        if chosen is not None:
            return chosen
        return _ORDERS.get(handling.order, "key")

    def _retry_topic(self, handling: Handling, where: str) -> str | None:
        name = self.retry_topic(handling.group)
        return name and _topic_name(name, handling.group, where, "retry=Retry(topic=...)")

    def _dead_letter_topic(self, handling: Handling, where: str) -> str | None:
        if isinstance(self.dead_letter, str):
            return self.prefix + self.dead_letter
        if not self.dead_letter:
            return None
        return _topic_name(f"dlq.{handling.group}", handling.group, where, 'dead_letter="..."')


def policy_of(retry: Any, dead_letter: Any, where: str) -> FailurePolicy | None:
    """Return the policy of ``@consumer(retry=..., dead_letter=...)``, or None if there is none. Raises ConfigError."""
    if dead_letter is not None and not isinstance(dead_letter, bool):
        dead_letter = checks.topic(f"{where}: dead_letter={dead_letter!r}", dead_letter, "True, False, or ")
    if isinstance(retry, bool):  # as dead_letter=True: the defaults
        retry = Retry() if retry else None
    if retry is None:
        return Policy(Retry(immediate=0, delays=None), dead_letter) if dead_letter else None
    where = f"{where}: retry={checks.shown(retry)}"
    if isinstance(retry, Retry):
        return Policy(retry, True if dead_letter is None else dead_letter)
    if isinstance(retry, int) and retry >= 0:
        return policy_of(Retry(immediate=retry, delays=None), dead_letter, where)
    if isinstance(retry, type):
        raise ConfigError(f"{where}: the class; an object of it, Retry() with parentheses")
    if callable(getattr(retry, "open", None)):
        if dead_letter is not None:
            raise ConfigError(f"{where}: a custom policy decides on its dead letters: leave dead_letter= out")
        return cast("FailurePolicy", retry)
    if callable(retry):
        checks.function(where, retry, "(attempt, error)")
        return policy_of(Retry(immediate=0, delays=cast("Delays", retry)), dead_letter, where)
    raise ConfigError(f"{where}: {_hint(retry)}")


def _hint(retry: Any) -> str:
    if isinstance(retry, int):
        return "how many tries, 0 or more"
    if isinstance(retry, (str, float, timedelta)):
        return f"one delay is retry=Retry(delays=[{retry!r}]); the whole of it {_EXAMPLE}"
    if isinstance(retry, (list, tuple)):
        return f"delays are retry=Retry(delays={retry!r})"
    return f"{_EXAMPLE}, a number of tries at once, or a function of attempt and error that returns the next delay"


def _delays(delays: Any) -> tuple[int, ...] | None:
    """Validate delays. Returns None if there are none or a function decides."""
    if delays is None or callable(delays):
        return None
    what = f"Retry(delays={delays!r})"
    if not isinstance(delays, (list, tuple)):
        raise ConfigError(f'{what}: a list, one delay for each further try: delays=["5s", "1m", "10m"]')
    given = cast("Sequence[Any]", delays)
    if not given:
        raise ConfigError(f"{what}: an empty list; delays=None means no later tries")
    return tuple(positive(delay, f"{what}: {delay!r}") for delay in given)


def _jitter(jitter: Any) -> float:
    if isinstance(jitter, bool):
        return _DEFAULT_JITTER if jitter else 0.0
    meaning = "True (a delay grows by up to a half), False, or by which share of it at most, 0 to 1"
    return checks.share("Retry(jitter=", jitter, meaning)


def _classifier(on: Any, never: Any, outages: Any) -> Classify:
    classes = checks.error_classes("Retry", on=() if on is None else on, never=never, outages=outages)
    if on is not None and not classes["on"]:
        raise ConfigError("Retry(on=[]): nothing would be retried; leave it out to retry all errors")
    return classifier(None if on is None else classes["on"], classes["never"], classes["outages"])


def _order(order: Any) -> RetryOrder | None:
    if order is not None and order not in get_args(RetryOrder):
        raise ConfigError(
            f'Retry(order={order!r}): which later records wait for one that waits: "key", "partition" or "none"'
        )
    return order


def _topic_name(name: str, group: str, where: str, option: str) -> str:
    if not checks.is_topic(name):
        raise ConfigError(f"{where}: of group {group!r:.300} no topic's name can be made ({name!r:.300}): say {option}")
    return name


def _circuit(circuit: Any, *, has_delays: bool) -> Circuit | None:
    if circuit is None:
        return None
    if not isinstance(circuit, Circuit):
        raise ConfigError(f'Retry(circuit={checks.shown(circuit)}): Circuit(failures=0.5, of=20, open="30s"), or None')
    if not has_delays:
        raise ConfigError(
            "Retry(circuit=..., delays=None): the record that an open circuit is tried with waits in the retry topic "
            'afterwards, and there is none without delays: delays=["5s"]'
        )
    return circuit


def _function(option: str, given: Any, signature: str) -> Any:
    return checks.function(f"Retry({option}={checks.shown(given)})", given, signature)


def _hooks(on_event: Any) -> tuple[Hook, ...]:
    if on_event is None:
        return ()
    several = cast("Sequence[Any]", on_event) if isinstance(on_event, (list, tuple)) else (on_event,)
    return tuple(_function("on_event", hook, "(event)") for hook in several)
