"""Retries and dead letters of handlers, and the tools for dead letters.

``@consumer("orders", retry=Retry(delays=["5s", "1m"]))`` needs only `Retry`. Handlers may raise `RetryLater`, `Reject`,
`Park` and `Skip`. `DeadLetters` lists, edits and redrives the letters.

A dead letter is decided in ``recovery``, built in ``headers``, and written by `eventbus.client.handling.forwarding` in
the transaction that commits its record.

- ``policy``, ``decisions``, ``classify``, ``circuit``: the retry policy, pure
- ``recovery``, ``reporting``, ``events``, ``metrics``: the policy in a running handler
- ``headers``, ``letters``, ``foreign_headers``: dead letters, also those of other systems
- ``dead_letters``, ``index``, ``index_queries``, ``selection``, ``state``, ``state_writer``: find and mark them
- ``redrive``, ``targets``, ``redriven_record``, ``editing``: send them back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from dlq.circuit import Circuit as Circuit
    from dlq.dead_letters import Case as Case
    from dlq.dead_letters import DeadLetters as DeadLetters
    from dlq.dead_letters import DeadLetterTopic as DeadLetterTopic
    from dlq.events import CircuitClosed as CircuitClosed
    from dlq.events import CircuitHalfOpen as CircuitHalfOpen
    from dlq.events import CircuitOpened as CircuitOpened
    from dlq.events import DeadLettered as DeadLettered
    from dlq.events import FailureEvent as FailureEvent
    from dlq.events import RetryScheduled as RetryScheduled
    from dlq.events import Signals as Signals
    from dlq.letters import DeadLetter as DeadLetter
    from dlq.metrics import DeadLetterMetrics as DeadLetterMetrics
    from dlq.policy import Retry as Retry
    from dlq.redrive import Redrive as Redrive
    from dlq.redrive import Redriven as Redriven
    from dlq.selection import Selection as Selection
    from dlq.signals import FailureSignal as FailureSignal
    from dlq.signals import Park as Park
    from dlq.signals import Reject as Reject
    from dlq.signals import RetryLater as RetryLater
    from dlq.signals import Skip as Skip

# Import each module on first use: a program that only raises Reject does not pay for the rest.
_HOMES = {
    "circuit": ("Circuit",),
    "dead_letters": ("Case", "DeadLetterTopic", "DeadLetters"),
    "events": (
        "CircuitClosed",
        "CircuitHalfOpen",
        "CircuitOpened",
        "DeadLettered",
        "FailureEvent",
        "RetryScheduled",
        "Signals",
    ),
    "letters": ("DeadLetter",),
    "metrics": ("DeadLetterMetrics",),
    "policy": ("Retry",),
    "redrive": ("Redrive", "Redriven"),
    "selection": ("Selection",),
    "signals": ("FailureSignal", "Park", "Reject", "RetryLater", "Skip"),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
