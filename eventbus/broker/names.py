"""Kafka's rules for topic names (``org.apache.kafka.common.internals.Topic``)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from eventbus.errors import InvalidTopic

CONSUMER_OFFSETS = "__consumer_offsets"
"""Committed offsets, in Kafka's record format."""
CLUSTER_METADATA = "__cluster_metadata"
"""Topics and their configs, in our own record format; one partition."""
TRANSACTION_STATE = "__transaction_state"
"""The state of transactional ids, in Kafka's record format."""

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, CLUSTER_METADATA, TRANSACTION_STATE})
"""Written by the log itself, never by a producer; not created, altered or deleted by name."""

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic unless Kafka would accept the name too."""
    rule = f"1 to {MAX_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
    if not name:
        raise InvalidTopic(f"a topic needs a name: {rule}")
    if name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r} means a directory: choose {rule}, not '.' or '..'")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopic(f"topic name {name[:40]!r}... has {len(name):,} characters: choose {rule}")
    if not _LEGAL.fullmatch(name):
        wrong = sorted({letter for letter in name if not _LEGAL.fullmatch(letter)})
        raise InvalidTopic(f"topic name {name!r} holds {' '.join(map(repr, wrong[:5]))}: choose {rule}")


def check_not_internal(name: str, action: str) -> None:
    """Raise InvalidTopic if ``name`` is internal; ``action`` completes "is internal: it cannot be ..."."""
    if name in INTERNAL_TOPICS:
        raise InvalidTopic(f"topic {name!r} is internal: it cannot be {action}; choose another topic")


def collision_warning(name: str, others: Iterable[str]) -> str | None:
    """Return Kafka's warning: metric names turn '.' into '_', so ``a.b`` and ``a_b`` collide there."""
    unified = name.replace(".", "_")
    for other in sorted(others):
        if other != name and other.replace(".", "_") == unified:
            return (
                f"topics {name!r} and {other!r} differ only in '.' and '_', which metric names do not tell apart: "
                "use either, but not both"
            )
    return None
