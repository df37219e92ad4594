"""Retries and dead letters of handlers, and the tools for dead letters.

``@consumer("orders", retry=Retry(delays=["5s", "1m"]))`` needs only `Retry`. Handlers may raise `RetryLater`, `Reject`,
`Park` and `Skip`. `DeadLetters` lists, edits and redrives the letters.

A dead letter is decided in ``recovery``, built in ``headers``, and written by `eventbus.client.handling.moves` in the
transaction that commits its record.

- ``policy``, ``decisions``, ``classify``, ``circuit``, ``budget``: the retry policy, pure
- ``recovery``, ``reporting``, ``events``, ``webhook``, ``metrics``: the policy in a running handler
- ``headers``, ``letters``, ``families``, ``stacks``: dead letters, also those of other systems
- ``dead_letters``, ``index``, ``selection``, ``views``, ``state``, ``state_writer``: find them and keep their status
- ``redrive``, ``targets``, ``redriven_record``, ``editing``: send them back
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from dlq.budget import Budget
    from dlq.circuit import Circuit
    from dlq.dead_letters import Case, DeadLetters, DeadLetterTopic
    from dlq.events import (
        BudgetExhausted,
        CircuitClosed,
        CircuitHalfOpen,
        CircuitOpened,
        DeadLettered,
        FailureEvent,
        RetryScheduled,
        Signals,
    )
    from dlq.letters import DeadLetter
    from dlq.metrics import DeadLetterMetrics
    from dlq.policy import Retry
    from dlq.redrive import Redrive, Redriven
    from dlq.selection import Selection
    from dlq.signals import FailureSignal, Park, Reject, RetryLater, Skip
    from dlq.webhook import Webhook

__all__ = [
    "Budget",
    "BudgetExhausted",
    "Case",
    "Circuit",
    "CircuitClosed",
    "CircuitHalfOpen",
    "CircuitOpened",
    "DeadLetter",
    "DeadLetterMetrics",
    "DeadLetterTopic",
    "DeadLettered",
    "DeadLetters",
    "FailureEvent",
    "FailureSignal",
    "Park",
    "Redrive",
    "Redriven",
    "Reject",
    "Retry",
    "RetryLater",
    "RetryScheduled",
    "Selection",
    "Signals",
    "Skip",
    "Webhook",
]

# Import each module on first use: a program that only raises Reject does not pay for the rest.
_HOMES = {
    "budget": ("Budget",),
    "circuit": ("Circuit",),
    "dead_letters": ("Case", "DeadLetterTopic", "DeadLetters"),
    "events": (
        "BudgetExhausted",
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
    "webhook": ("Webhook",),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
