"""``partition.assignment.strategy``: assignors by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from eventbus.coordinator.assignors import Assignor, RangeAssignor, RebalanceProtocol, RoundRobinAssignor
from eventbus.coordinator.sticky import CooperativeStickyAssignor, StickyAssignor
from eventbus.errors import ConfigError
from eventbus.suggest import nearest

ASSIGNORS: dict[str, Callable[[], Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
"""Kafka's assignors, by their names in a group's protocol."""


def make_assignors(chosen: Iterable[Any]) -> tuple[Assignor, ...]:
    """Return assignors for one member, in order of preference: from names, `Assignor` objects, or assignor classes.

    Assignors have state, so every member needs its own. Raises ConfigError.
    """
    made: dict[str, Assignor] = {}
    for one in chosen:
        assignor: Assignor = _named(one) if isinstance(one, str) else one() if isinstance(one, type) else one
        for part in ("name", "protocol", "user_data", "assign", "on_assignment"):
            if not hasattr(assignor, part):
                raise ConfigError(
                    f"{one!r} is not an assignor: it has no {part}; see eventbus.coordinator.assignors.Assignor"
                )
        made.setdefault(assignor.name, assignor)
    if not made:
        raise ConfigError(f"partition_assignment_strategy=(): a group needs one; known are {', '.join(ASSIGNORS)}")
    return tuple(made.values())


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Return cooperative only if all are: an eager assignor may reassign a partition before its owner has given it
    up."""
    return "cooperative" if all(assignor.protocol == "cooperative" for assignor in assignors) else "eager"


def _named(name: str) -> Assignor:
    # Kafka's clients accept class names too: org.apache.kafka.clients.consumer.CooperativeStickyAssignor.
    short = name.rpartition(".")[2].removesuffix("Assignor")
    kebab = "".join(f"-{c.lower()}" if c.isupper() else c for c in short).lstrip("-")
    known = ASSIGNORS.get({"round-robin": "roundrobin"}.get(kebab, kebab))
    if known is None:
        raise ConfigError(f"unknown assignor {name!r}{nearest(name, ASSIGNORS)}: known are {', '.join(ASSIGNORS)}")
    return known()
