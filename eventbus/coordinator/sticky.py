"""The sticky assignors (KIP-54, KIP-429): balance as evenly as possible, then move as little as possible. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from eventbus.coordinator.assignors import Assignment, RebalanceProtocol, Subscription
from eventbus.coordinator.consumer_protocol import decode_sticky_user_data, encode_sticky_user_data
from eventbus.types import TopicPartition

Claims = Mapping[str, tuple[Sequence[TopicPartition], int]]
"""The partitions that each member reports it held, and the generation."""

Owners = dict[TopicPartition, str | None]
"""The last owner of each partition; None if two members claim it in the same generation, so that neither keeps it."""


class StickyAssignor:
    """Eager: all members give up all their partitions, and get back as many of them as balance allows."""

    name = "sticky"
    protocol: RebalanceProtocol = "eager"

    def __init__(self) -> None:
        self._held: list[TopicPartition] | None = None
        self._generation_id = -1

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None if self._held is None else encode_sticky_user_data(self._held, self._generation_id)

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        self._held, self._generation_id = list(partitions), generation_id

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        claims = {member: _remembered(subscription.user_data) for member, subscription in subscriptions.items()}
        return spread(partition_counts, subscriptions, last_owners(partition_counts, claims))


class CooperativeStickyAssignor:
    """Cooperative: a partition that moves is withheld for one round, until its owner has given it up."""

    name = "cooperative-sticky"
    protocol: RebalanceProtocol = "cooperative"

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None

    def on_assignment(self, partitions: list[TopicPartition], generation_id: int) -> None:
        """Do nothing: the partitions that a member owns are sent in its subscription."""

    def assign(self, partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription]) -> Assignment:
        claims = {member: (one.owned_partitions, one.generation_id) for member, one in subscriptions.items()}
        owners = last_owners(partition_counts, claims)
        return {
            # Withheld until the next round. Its owner sees that it lost the partition, revokes it and joins again, and
            # then the partition is free (KIP-429).
            member: [tp for tp in share if owners.get(tp, member) == member]
            for member, share in spread(partition_counts, subscriptions, owners).items()
        }


def _remembered(user_data: bytes | None) -> tuple[Sequence[TopicPartition], int]:
    if not user_data:
        return (), -1
    try:
        return decode_sticky_user_data(user_data)
    except ValueError:
        return (), -1  # another client's format of user data: as in Kafka, treated as no partitions held


def last_owners(partition_counts: Mapping[str, int], claims: Claims) -> Owners:
    """Return the last owner of each partition: the claimant with the newest generation."""
    owners: Owners = {}
    generations: dict[TopicPartition, int] = {}
    for member in sorted(claims):
        partitions, generation_id = claims[member]
        for topic_partition in partitions:
            if topic_partition.partition >= partition_counts.get(topic_partition.topic, 0):
                continue
            newest = generations.get(topic_partition)
            if newest is None or generation_id > newest:
                owners[topic_partition] = member
                generations[topic_partition] = generation_id
            # Two members claim a partition of the same generation, which only a bug of a client can cause. Neither
            # keeps it.
            elif generation_id == newest and owners[topic_partition] != member:
                owners[topic_partition] = None
    return owners


def spread(
    partition_counts: Mapping[str, int], subscriptions: Mapping[str, Subscription], owners: Owners
) -> Assignment:
    """Assign every partition to one of the members that read its topic."""
    if not subscriptions:
        return {}
    topics = {member: frozenset(one.topics).intersection(partition_counts) for member, one in subscriptions.items()}
    # The common case, equal subscriptions, has a linear algorithm. The general one compares members pairwise.
    if len(set(topics.values())) > 1:
        return _Unequal(partition_counts, topics, owners).spread()
    read = next(iter(topics.values()))
    partitions = [TopicPartition(topic, n) for topic in sorted(read) for n in range(partition_counts[topic])]
    return _spread_equally(partitions, sorted(subscriptions), owners)


def _spread_equally(partitions: list[TopicPartition], members: list[str], owners: Owners) -> Assignment:
    """Assign when all members read the same topics: equal numbers, or one more. Kafka's constrained
    assignment."""
    least, longer = divmod(len(partitions), len(members))
    held: Assignment = {member: [] for member in members}
    for topic_partition in partitions:
        owner = owners.get(topic_partition)
        if owner in held:
            held[owner].append(topic_partition)
    shares: Assignment = {}
    short: deque[str] = deque()
    """Members with less than their share."""
    exact: deque[str] = deque()
    """Members with their exact share, who may get one more."""
    for member in members:
        keep = least
        if longer and len(held[member]) > least:
            keep = least + 1
            longer -= 1
        elif len(held[member]) < least:
            short.append(member)
        else:
            exact.append(member)
        shares[member] = held[member][:keep]
    kept = {topic_partition for share in shares.values() for topic_partition in share}
    for topic_partition in partitions:
        if topic_partition in kept:
            continue
        member = short.popleft() if short else exact.popleft()
        share = shares[member]
        share.append(topic_partition)
        if len(share) < least:
            short.append(member)
        elif len(share) == least:
            exact.append(member)
    return shares


class _Unequal:
    """Assign when members read different topics. In the end no member has two partitions more than another that
    could take over one of them."""

    def __init__(
        self, partition_counts: Mapping[str, int], topics: Mapping[str, frozenset[str]], owners: Owners
    ) -> None:
        self._counts = partition_counts
        self._topics = topics
        self._owners = owners
        self._shares: Assignment = {member: [] for member in sorted(topics)}
        self._readers: dict[str, list[str]] = {}
        for member in self._shares:
            for topic in topics[member]:
                self._readers.setdefault(topic, []).append(member)
        self._holders: dict[str, dict[str, list[TopicPartition]]] = {topic: {} for topic in self._readers}
        """The partitions held, by topic and then by member."""

    def spread(self) -> Assignment:
        for topic_partition in self._keep_held():
            # Partitions with the fewest readers come first; each goes to the reader that has the fewest.
            readers = self._readers[topic_partition.topic]
            self._give(min(readers, key=lambda member: (len(self._shares[member]), member)), topic_partition)
        # Direct moves first, because a chain moves several partitions to even out a single one.
        while self._level() or self._pass_along():
            pass
        return self._shares

    def _keep_held(self) -> list[TopicPartition]:
        """Let all members keep what they held; return the other partitions in the order in which to assign them."""
        rest: list[TopicPartition] = []
        for topic in sorted(self._readers, key=lambda topic: (len(self._readers[topic]), topic)):
            for number in range(self._counts[topic]):
                topic_partition = TopicPartition(topic, number)
                owner = self._owners.get(topic_partition)
                if owner is not None and owner in self._topics and topic in self._topics[owner]:
                    self._give(owner, topic_partition)
                else:
                    rest.append(topic_partition)
        return rest

    def _give(self, member: str, topic_partition: TopicPartition) -> None:
        self._shares[member].append(topic_partition)
        self._holders[topic_partition.topic].setdefault(member, []).append(topic_partition)

    def _level(self) -> bool:
        """Move partitions directly from loaded members to less loaded ones, as long as that makes both more even."""
        moved = False
        for member in sorted(self._shares, key=lambda member: (len(self._shares[member]), member)):
            while (topic_partition := self._partition_to_take(member)) is not None:
                donor = next(m for m, held in self._holders[topic_partition.topic].items() if topic_partition in held)
                self._move(topic_partition, donor, member)
                moved = True
        return moved

    def _move(self, topic_partition: TopicPartition, donor: str, member: str) -> None:
        self._shares[donor].remove(topic_partition)
        self._holders[topic_partition.topic][donor].remove(topic_partition)
        self._give(member, topic_partition)

    def _pass_along(self) -> bool:
        """Move partitions along a chain of members from the most loaded to the least loaded, until they differ by at
        most one."""
        for member in sorted(self._shares, key=lambda member: (len(self._shares[member]), member)):
            steps = self._chain_to_donor(member)
            for taker, topic, holder in steps:
                held = self._holders[topic][holder]
                self._move(min(held, key=lambda tp: (self._owners.get(tp) == holder, tp)), holder, taker)
            if steps:
                return True
        return False

    def _chain_to_donor(self, member: str) -> list[tuple[str, str, str]]:
        """Return the shortest chain from ``member`` to a member with two more: (taker, topic, holder), nearest
        first. Or []."""
        enough = len(self._shares[member]) + 2
        came_by: dict[str, tuple[str, str]] = {member: ("", "")}
        seen_topics: set[str] = set()
        line = deque([member])
        while line:
            taker = line.popleft()
            for topic in sorted(self._topics[taker] - seen_topics):
                seen_topics.add(topic)
                for holder in sorted(holder for holder, held in self._holders[topic].items() if held):
                    if holder in came_by:
                        continue
                    came_by[holder] = taker, topic
                    line.append(holder)
                    if len(self._shares[holder]) >= enough:
                        steps: list[tuple[str, str, str]] = []
                        while holder != member:
                            taker, topic = came_by[holder]
                            steps.append((taker, topic, holder))
                            holder = taker
                        return steps[::-1]
        return []

    def _partition_to_take(self, member: str) -> TopicPartition | None:
        """Return a partition that ``member`` should take from its holder, preferably one that its holder did not
        have before."""
        most = len(self._shares[member]) + 2
        found: list[tuple[int, bool, TopicPartition]] = []
        for topic in self._topics[member]:
            for holder, held in self._holders[topic].items():
                size = len(self._shares[holder])
                if held and size >= most:
                    most = size
                    found += [(-size, self._owners.get(tp) == holder, tp) for tp in held]
        return min(found)[2] if found else None
