"""The server-side assignors of the consumer protocol (KIP-848): ``uniform`` and ``range``. Pure.

They share code with the client-side assignors: ``uniform`` balances as evenly as possible and then moves as little as
possible; ``range`` divides each topic separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from eventbus.coordinator.assignors import RangeAssignor, Subscription
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicFacts, TopicsView
from eventbus.coordinator.sticky import Owners, spread
from eventbus.types import TopicPartition

ASSIGNORS = ("uniform", "range")
"""The first assignor is the default of members that request none (``group.consumer.assignors``)."""

Target = Mapping[str, frozenset[TopicIdPartition]]
"""Assigned partitions, by member id."""


def assign(
    assignor: str,
    readers: Mapping[str, Set[str]],
    instance_ids: Mapping[str, str | None],
    last: Target,
    topics: TopicsView,
) -> dict[str, frozenset[TopicIdPartition]]:
    """Return each member's share of the topics that it reads, given by name; topics that do not exist are skipped.

    ``last`` is the previous assignment, of which ``uniform`` keeps as much as possible.
    """
    facts: dict[str, TopicFacts] = {}
    for name in frozenset[str]().union(*readers.values()):
        fact = topics.get(name)
        if fact is not None:
            facts[name] = fact
    counts = {name: fact.partitions for name, fact in facts.items()}
    subscriptions = {
        member_id: Subscription(topics=tuple(names), group_instance_id=instance_ids.get(member_id))
        for member_id, names in readers.items()
    }
    if assignor == "range":
        shares = RangeAssignor().assign(counts, subscriptions)
    else:
        shares = spread(counts, subscriptions, _owners(last, facts))
    return {
        member_id: frozenset(TopicIdPartition(facts[tp.topic].topic_id, tp.partition) for tp in share)
        for member_id, share in shares.items()
    }


def _owners(last: Target, facts: Mapping[str, TopicFacts]) -> Owners:
    names = {fact.topic_id: name for name, fact in facts.items()}
    return {
        TopicPartition(names[topic_id], partition): member_id
        for member_id, share in last.items()
        for topic_id, partition in share
        if topic_id in names and partition < facts[names[topic_id]].partitions
    }
