"""Who reads what: the shape of an assignor, and Kafka's two simple ones. The sticky ones stand in `sticky`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
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
    """A way to share partitions; give one to ``partition_assignment_strategy=``."""

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


class RangeAssignor:
    """Each topic by itself: its partitions in equal ranges over those who read it, the first ones one longer.

    Topics of equal size that the same members read are shared alike: partition 3 of both goes to one member.
    """

    name = "range"
    protocol: RebalanceProtocol = "eager"

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        members = in_order(subscriptions)
        shares: Assignment = {member: [] for member in members}
        for topic in sorted(partition_counts):
            readers = [member for member in members if topic in subscriptions[member].topics]
            if not readers:
                continue
            length, longer = divmod(partition_counts[topic], len(readers))
            start = 0
            for index, member in enumerate(readers):
                end = start + length + (index < longer)
                shares[member] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return shares

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        """Nothing to remember."""


class RoundRobinAssignor:
    """All partitions in order, dealt to the members in turn; who does not read a topic is passed over."""

    name = "roundrobin"
    protocol: RebalanceProtocol = "eager"

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        members = in_order(subscriptions)
        shares: Assignment = {member: [] for member in members}
        turns = cycle(members)
        for topic in sorted(partition_counts):
            readers = {member for member in members if topic in subscriptions[member].topics}
            if readers:
                for number in range(partition_counts[topic]):
                    member = next(turn for turn in turns if turn in readers)
                    shares[member].append(TopicPartition(topic, number))
        return shares

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        """Nothing to remember."""


def in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Members in Kafka's order: static ones by their instance id, then the others by member id.

    A static member gets a new member id when it restarts; by its instance id it gets the same partitions.
    """

    def rank(member: str) -> tuple[bool, str]:
        instance_id = subscriptions[member].group_instance_id
        return (True, member) if instance_id is None else (False, instance_id)

    return sorted(subscriptions, key=rank)
