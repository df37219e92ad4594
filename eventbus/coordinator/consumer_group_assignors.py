"""The server's assignors of groups of the consumer protocol (KIP-848): ``uniform`` and ``range``. Pure.

They share with the consumers' own assignors what these do: ``uniform`` is as even as can be and then moves as little as
can be; ``range`` shares out each topic by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from eventbus.coordinator.assignors import RangeAssignor, Subscription
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicFacts, TopicsView
from eventbus.coordinator.sticky import Owners, spread
from eventbus.types import TopicPartition

ASSIGNORS = ("uniform", "range")
"""The first one is used when the members ask for none (``group.consumer.assignors``)."""

Target = Mapping[str, frozenset[TopicIdPartition]]
"""By member id."""


def assign(
    assignor: str,
    readers: Mapping[str, Set[str]],
    instance_ids: Mapping[str, str | None],
    last: Target,
    topics: TopicsView,
) -> dict[str, frozenset[TopicIdPartition]]:
    """Each member's share of the topics it reads, by topic name; topics that do not exist are passed over.

    ``last`` is the assignment before, of which ``uniform`` keeps as much as it may.
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
