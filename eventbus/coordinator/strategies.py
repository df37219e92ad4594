"""``partition.assignment.strategy``: names to assignors."""

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
"""Kafka's, by the names they have in a group's protocol."""


def make_assignors(chosen: Iterable[Any]) -> tuple[Assignor, ...]:
    """Assignors for one member, in order of preference: from names, `Assignor` objects, or classes of such.

    Assignors remember, so every member needs its own. Raises ConfigError.
    """
    made: dict[str, Assignor] = {}
    for one in chosen:
        assignor: Assignor = _named(one) if isinstance(one, str) else one() if isinstance(one, type) else one
        for part in ("name", "protocol", "user_data", "assign", "on_assignment"):
            if not hasattr(assignor, part):
                raise ConfigError(
                    f"{one!r} is no assignor: it has no {part}; see eventbus.coordinator.assignors.Assignor"
                )
        made.setdefault(assignor.name, assignor)
    if not made:
        raise ConfigError(f"partition_assignment_strategy=(): a group needs one; known are {', '.join(ASSIGNORS)}")
    return tuple(made.values())


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Cooperative only if all are: an eager assignor may give a partition to another before its owner gave it up."""
    return "cooperative" if all(assignor.protocol == "cooperative" for assignor in assignors) else "eager"


def _named(name: str) -> Assignor:
    # Kafka's clients take class names, too: org.apache.kafka.clients.consumer.CooperativeStickyAssignor.
    short = name.rpartition(".")[2].removesuffix("Assignor")
    kebab = "".join(f"-{c.lower()}" if c.isupper() else c for c in short).lstrip("-")
    known = ASSIGNORS.get({"round-robin": "roundrobin"}.get(kebab, kebab))
    if known is None:
        raise ConfigError(f"unknown assignor {name!r}{nearest(name, ASSIGNORS)}: known are {', '.join(ASSIGNORS)}")
    return known()
