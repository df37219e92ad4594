"""Choose librdkafka's assignors by name. The bus's assignors in Python cannot take part."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from eventbus.coordinator.strategies import make_assignors
from eventbus.errors import ConfigError

logger = logging.getLogger("eventbus.kafka")

_EAGER = ("range", "roundrobin")
_COOPERATIVE = ("cooperative-sticky",)


def librdkafka_assignors(chosen: Iterable[Any]) -> tuple[str, bool]:
    """Return ``partition.assignment.strategy`` for librdkafka, and True if it is cooperative.

    librdkafka accepts eager or cooperative assignors, never both: the first assignor decides which. Raises ConfigError
    if librdkafka has none of them.
    """
    names = [one.name for one in make_assignors(chosen)]
    known = [name for name in names if name in _EAGER + _COOPERATIVE]
    if not known:
        raise ConfigError(
            f"partition_assignment_strategy={', '.join(names)}: on kafka:// librdkafka assigns, and knows "
            f"{', '.join(_EAGER + _COOPERATIVE)}; assignors of one's own work on memory:// and file://"
        )
    if len(known) < len(names):
        logger.warning(
            "partition_assignment_strategy=%s: librdkafka knows only %s of them", ", ".join(names), ", ".join(known)
        )
    family = _COOPERATIVE if known[0] in _COOPERATIVE else _EAGER
    return ",".join(name for name in known if name in family), family is _COOPERATIVE
