"""Who reads what: Kafka's partition assignors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from eventbus.types import TopicPartition

RebalanceProtocol = Literal["eager", "cooperative"]
"""Eager: a member gives up all partitions before each rebalance. Cooperative: only those that move (KIP-429)."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What a member tells its leader (ConsumerProtocolSubscription)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    """Of the assignment that ``owned_partitions`` come from (version 2)."""
    rack_id: str | None = None
    group_instance_id: str | None = None
    """Not on the wire: the leader knows it from the join."""


Assignment = dict[str, list[TopicPartition]]
"""By member id."""


class Assignor(Protocol):
    """A way to share partitions; give one to ``assignors=`` (``partition.assignment.strategy``)."""

    @property
    def name(self) -> str:
        """The protocol's name, the same in all members."""
        ...

    @property
    def protocol(self) -> RebalanceProtocol: ...

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        """What this member adds to its subscription."""
        ...

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        """Called in the leader, with the partition count of every topic somebody subscribed to that exists."""
        ...

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        """Called in every member once it has its share."""
        ...
