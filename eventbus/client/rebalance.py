"""Who is told when a group moves partitions."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import msgspec

from eventbus.types import TopicPartition

Listener = Callable[[list[TopicPartition]], object]
"""Told of partitions by a rebalance: a plain function, or an ``async def``, which is awaited."""


class RebalanceListener(msgspec.Struct, frozen=True, kw_only=True):
    """What to call when the group moves partitions; all from inside `Consumer.poll`, which waits for it.

    ``on_revoked`` is called before they are given up: the place for a last commit. ``on_assigned`` is called before
    their first record is returned: the place for a seek. ``on_lost`` is called when they are gone already (the group
    gave this member up), so that nothing can be committed; without it ``on_revoked`` is called, as Java's client does.
    """

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None


async def tell(listener: Listener | None, partitions: list[TopicPartition]) -> None:
    """Call it, and wait for it if it is to be waited for."""
    if listener is not None:
        told = listener(partitions)
        if inspect.isawaitable(told):
            await told
