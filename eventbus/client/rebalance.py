"""Listeners for rebalances of a group."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import msgspec

from eventbus.types import TopicPartition

Listener = Callable[[list[TopicPartition]], object]
"""Called with the partitions of a rebalance: a plain function, or an ``async def``, which is awaited."""


class RebalanceListener(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks for moved partitions. `Consumer.poll` calls them and waits for them.

    ``on_revoked`` is called before partitions are given up, for a last commit. ``on_assigned`` is called before the
    first record of a partition is returned, for a seek. ``on_lost`` is called after partitions were taken away because
    the group removed this member, so nothing can be committed; without it ``on_revoked`` is called, as in Java's
    client.
    """

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None


async def tell(listener: Listener | None, partitions: list[TopicPartition]) -> None:
    """Call a listener, and await the result if it is awaitable."""
    if listener is not None:
        result = listener(partitions)
        if inspect.isawaitable(result):
            await result
