"""The interface of an assignor, and Kafka's range and round-robin assignors. Pure. For the sticky ones see `sticky`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Literal, Protocol

import msgspec

from eventbus.types import TopicPartition

RebalanceProtocol = Literal["eager", "cooperative"]
"""Eager: a member gives up all partitions before each rebalance. Cooperative: only those that move (KIP-429)."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription that a member sends to the group's leader (ConsumerProtocolSubscription)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = -1
    """The generation of the assignment that ``owned_partitions`` come from (version 2)."""
    rack_id: str | None = None
    group_instance_id: str | None = None
    """Taken from the join request, because it is not part of the wire format."""


Assignment = dict[str, list[TopicPartition]]
"""Assigned partitions, by member id."""


class Assignor(Protocol):
    """A strategy for sharing out partitions; pass one to ``partition_assignment_strategy=``."""

    @property
    def name(self) -> str:
        """The protocol's name, which all members must share."""
        ...

    @property
    def protocol(self) -> RebalanceProtocol: ...

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        """Return what this member adds to its subscription."""
        ...

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        """Assign the partitions. Called in the leader, with the partition counts of all subscribed topics that
        exist."""
        ...

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        """Called in every member once it has its assignment."""
        ...


class RangeAssignor:
    """Divide each topic separately: its readers get equal ranges, and the first readers one partition more.

    Topics with equal partition counts and readers are divided alike: partition 3 of both goes to one member.
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

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None: ...


class RoundRobinAssignor:
    """Deal all partitions in order to the members in turn, skipping members that do not read the topic."""

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

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None: ...


def in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Return the members in Kafka's order: static members by their instance id, then dynamic members by member id.

    A static member gets a new member id when it restarts; its instance id keeps its place, and so its partitions.
    """

    def rank(member: str) -> tuple[bool, str]:
        instance_id = subscriptions[member].group_instance_id
        return (True, member) if instance_id is None else (False, instance_id)

    return sorted(subscriptions, key=rank)
