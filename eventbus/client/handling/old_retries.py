"""Read the retry topic that an earlier release of a handler wrote to its end, whatever ``retry=`` is now."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus.backends.base import ConsumerConfig
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.recovering import ways_apart
from eventbus.recovery import DrainsRetries, policy_of, retry_topic_of


def with_old_retries(
    handler: Handler[Any, Any],
    group: str,
    members: Sequence[tuple[Handler[Any, Any], str]],
    partitions: Mapping[str, int],
    config: ConsumerConfig,
) -> Handler[Any, Any]:
    """Return the handler, with a policy that reads ``retry.<group>`` if that topic exists and its own policy does not.

    The topic exists whenever an earlier release had ``retry=`` with delays. It is read even when it is empty: during a
    rolling deployment members of the earlier release still write to it after this member has started.

    ``members``: of the bus. ``partitions``: how many each topic of the log has.
    """
    topic, spec = retry_topic_of(group), handler.spec
    shares_group = any(other_group == group and other is not handler for other, other_group in members)
    if topic not in partitions or shares_group or spec.delivery == "at-most-once":
        return handler
    where = f"handler {handler.__name__!r}: reading {topic!r}, which an earlier release with retry= has written"
    policy = policy_of(0, False, where) if spec.retry is None else spec.retry
    if not isinstance(policy, DrainsRetries):
        return handler
    widths = {count for name, count in partitions.items() if _reads(handler, name)}
    draining = policy.draining(topic, keeps_order=len(widths) < 2 and ways_apart(config) is None)
    if draining is None:
        return handler
    changed = copy.copy(handler)
    changed.spec = msgspec.structs.replace(spec, retry=draining)
    return changed


def _reads(handler: Handler[Any, Any], topic: str) -> bool:
    pattern = handler.spec.pattern
    return topic in handler.spec.topics if pattern is None else re.fullmatch(pattern, topic) is not None
