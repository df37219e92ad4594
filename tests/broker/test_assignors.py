"""Who reads what: Kafka's tables for known cases, and the properties that hold for all."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import TopicPartition
from eventbus.coordinator.assignors import Assignment, RangeAssignor, RoundRobinAssignor, Subscription
from eventbus.coordinator.sticky import CooperativeStickyAssignor, StickyAssignor
from eventbus.coordinator.strategies import common_protocol, make_assignors
from eventbus.errors import ConfigError

Table = dict[str, str]
"""By member: its partitions in words, as "a0 a1 b0"."""


def table(assignment: Assignment) -> Table:
    return {member: " ".join(f"{t}{p}" for t, p in sorted(share)) for member, share in assignment.items()}


def of(text: str) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def read(**topics: str) -> dict[str, Subscription]:
    """Members and the one-letter topics each reads."""
    return {member: Subscription(topics=tuple(letters)) for member, letters in topics.items()}


def again(
    assignment: Assignment, subscriptions: dict[str, Subscription], generation: int = 1
) -> dict[str, Subscription]:
    """The same members, telling what they hold: in both ways, so that it serves both sticky assignors."""
    told: dict[str, Subscription] = {}
    for member, subscription in subscriptions.items():
        sticky = StickyAssignor()
        held = assignment.get(member)
        if held is not None:
            sticky.on_assignment(held, generation)
        told[member] = Subscription(
            topics=subscription.topics,
            user_data=sticky.user_data(subscription.topics),
            owned_partitions=tuple(held or ()),
            generation_id=generation if held is not None else -1,
        )
    return told


# eight partitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "ranges", "in_turn"),
    [
        (["c1"], ["a0 a1 a2 a3 a4 a5 a6 a7"], ["a0 a1 a2 a3 a4 a5 a6 a7"]),
        (["c1", "c2"], ["a0 a1 a2 a3", "a4 a5 a6 a7"], ["a0 a2 a4 a6", "a1 a3 a5 a7"]),
        (["c1", "c2", "c3"], ["a0 a1 a2", "a3 a4 a5", "a6 a7"], ["a0 a3 a6", "a1 a4 a7", "a2 a5"]),
        (["c1", "c2", "c3", "c4"], ["a0 a1", "a2 a3", "a4 a5", "a6 a7"], ["a0 a4", "a1 a5", "a2 a6", "a3 a7"]),
        ([f"c{n}" for n in range(9)], [*(f"a{n}" for n in range(8)), ""], [*(f"a{n}" for n in range(8)), ""]),
    ],
)
def test_eight_partitions(members: list[str], ranges: list[str], in_turn: list[str]) -> None:
    subscriptions = read(**dict.fromkeys(members, "a"))
    assert table(RangeAssignor().assign({"a": 8}, subscriptions)) == dict(zip(members, ranges, strict=True))
    for assignor in (RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
        assert table(assignor.assign({"a": 8}, subscriptions)) == dict(zip(members, in_turn, strict=True))


def test_eight_partitions_of_two_topics_range_piles_up_and_the_others_do_not() -> None:
    subscriptions = read(c1="ab", c2="ab", c3="ab")
    counts = {"a": 8, "b": 8}
    assert table(RangeAssignor().assign(counts, subscriptions)) == {
        "c1": "a0 a1 a2 b0 b1 b2",
        "c2": "a3 a4 a5 b3 b4 b5",
        "c3": "a6 a7 b6 b7",
    }
    in_turn = {"c1": "a0 a3 a6 b1 b4 b7", "c2": "a1 a4 a7 b2 b5", "c3": "a2 a5 b0 b3 b6"}
    assert table(RoundRobinAssignor().assign(counts, subscriptions)) == in_turn
    assert table(StickyAssignor().assign(counts, subscriptions)) == in_turn


def test_eight_partitions_a_member_leaves_and_comes_back() -> None:
    sticky = StickyAssignor()
    three = read(c1="a", c2="a", c3="a")
    first = sticky.assign({"a": 8}, three)
    assert table(first) == {"c1": "a0 a3 a6", "c2": "a1 a4 a7", "c3": "a2 a5"}
    left = sticky.assign({"a": 8}, again(first, read(c1="a", c3="a")))
    assert table(left) == {"c1": "a0 a1 a3 a6", "c3": "a2 a4 a5 a7"}  # round robin would have moved six
    assert table(sticky.assign({"a": 8}, again(left, three, 2))) == {"c1": "a0 a1 a3", "c2": "a6 a7", "c3": "a2 a4 a5"}


def test_eight_partitions_cooperatively_move_in_two_rounds() -> None:
    cooperative = CooperativeStickyAssignor()
    first = cooperative.assign({"a": 8}, read(c1="a", c2="a"))
    assert table(first) == {"c1": "a0 a2 a4 a6", "c2": "a1 a3 a5 a7"}
    three = read(c1="a", c2="a", c3="a")
    second = cooperative.assign({"a": 8}, again(first, three))
    assert table(second) == {"c1": "a0 a2 a4", "c2": "a1 a3 a5", "c3": ""}  # withheld: c1 and c2 still read them
    third = cooperative.assign({"a": 8}, again(second, three, 2))
    assert table(third) == {"c1": "a0 a2 a4", "c2": "a1 a3 a5", "c3": "a6 a7"}
    assert cooperative.assign({"a": 8}, again(third, three, 3)) == third


# Kafka's examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "topics", "expected"),
    [
        # RangeAssignor: of two topics of three partitions the first member gets the longer range twice.
        ({"a": 3, "b": 3}, {"c0": "ab", "c1": "ab"}, {"c0": "a0 a1 b0 b1", "c1": "a2 b2"}),
        # ... different sizes, different readers.
        ({"a": 3, "b": 2}, {"c1": "a", "c2": "ab", "c3": "a"}, {"c1": "a0", "c2": "a1 b0 b1", "c3": "a2"}),
        ({"a": 1}, {"c1": "a", "c2": "a"}, {"c1": "a0", "c2": ""}),
        ({}, {"c1": "a"}, {"c1": ""}),
    ],
)
def test_range(counts: dict[str, int], topics: Table, expected: Table) -> None:
    assert table(RangeAssignor().assign(counts, read(**topics))) == expected


@pytest.mark.parametrize(
    ("counts", "topics", "expected"),
    [
        ({"a": 3, "b": 3}, {"c0": "ab", "c1": "ab"}, {"c0": "a0 a2 b1", "c1": "a1 b0 b2"}),
        # RoundRobinAssignor's own example of unlike subscriptions: it is not even.
        ({"a": 1, "b": 2, "c": 3}, {"c0": "a", "c1": "ab", "c2": "abc"}, {"c0": "a0", "c1": "b0", "c2": "b1 c0 c1 c2"}),
        ({"a": 3, "b": 2}, {"c1": "a", "c2": "ab", "c3": "a"}, {"c1": "a0", "c2": "a1 b0 b1", "c3": "a2"}),
        ({"b": 2}, {"c1": "a", "c2": "b"}, {"c1": "", "c2": "b0 b1"}),
    ],
)
def test_round_robin(counts: dict[str, int], topics: Table, expected: Table) -> None:
    assert table(RoundRobinAssignor().assign(counts, read(**topics))) == expected


def test_sticky_with_unlike_subscriptions_is_even_where_round_robin_is_not() -> None:
    counts = {"a": 1, "b": 2, "c": 3}
    subscriptions = read(c0="a", c1="ab", c2="abc")
    first = StickyAssignor().assign(counts, subscriptions)
    assert table(first) == {"c0": "a0", "c1": "b0 b1", "c2": "c0 c1 c2"}
    del subscriptions["c0"]
    assert table(StickyAssignor().assign(counts, again(first, subscriptions))) == {"c1": "a0 b0 b1", "c2": "c0 c1 c2"}


def test_sticky_example_of_four_topics() -> None:
    counts = {"a": 2, "b": 2, "c": 2, "d": 2}
    first = StickyAssignor().assign(counts, read(c0="abcd", c1="abcd", c2="abcd"))
    assert table(first) == {"c0": "a0 b1 d0", "c1": "a1 c0 d1", "c2": "b0 c1"}
    second = StickyAssignor().assign(counts, again(first, read(c0="abcd", c2="abcd")))
    assert all(set(first[member]) <= set(second[member]) for member in second)
    assert {len(share) for share in second.values()} == {4}


def test_static_members_are_sorted_by_their_instance_id() -> None:
    def member(instance_id: str | None) -> Subscription:
        return Subscription(topics=("a",), group_instance_id=instance_id)

    before = {"m9": member("one"), "m1": member("two"), "m0": member(None)}
    after = {"m2": member("one"), "m1": member("two"), "m0": member(None)}  # "one" restarted: another member id
    for assignor in (RangeAssignor(), RoundRobinAssignor()):
        assert list(assignor.assign({"a": 3}, before)) == ["m9", "m1", "m0"]
        assert assignor.assign({"a": 3}, before)["m9"] == assignor.assign({"a": 3}, after)["m2"]


def test_a_claim_of_an_older_generation_does_not_count() -> None:
    told = again({"c1": list(of("a0 a1"))}, read(c1="a", c2="a", c3="a"), 2)
    old = again({"c2": list(of("a0 a1 a2"))}, read(c2="a"), 1)
    for assignor in (StickyAssignor(), CooperativeStickyAssignor()):
        shares = assignor.assign({"a": 6}, {**told, **old})
        assert {*of("a0 a1")} <= {*shares["c1"]}
        assert TopicPartition("a", 2) in shares["c2"]


def test_two_claims_of_one_generation_give_the_partition_to_neither() -> None:
    told = {
        "c1": Subscription(topics=("a",), owned_partitions=of("a0 a1"), generation_id=3),
        "c2": Subscription(topics=("a",), owned_partitions=of("a1 a2"), generation_id=3),
    }
    shares = CooperativeStickyAssignor().assign({"a": 4}, told)
    assert TopicPartition("a", 1) not in shares["c1"] + shares["c2"]
    assert {*of("a0")} <= {*shares["c1"]} and {*of("a2")} <= {*shares["c2"]}


def test_foreign_user_data_is_as_if_nothing_was_held() -> None:
    told = {"c1": Subscription(topics=("a",), user_data=b"\xffwhat"), "c2": Subscription(topics=("a",))}
    assert table(StickyAssignor().assign({"a": 2}, told)) == {"c1": "a0", "c2": "a1"}


# all cases -----------------------------------------------------------------------------------------------------------

TOPICS = "abcd"
topic_counts = st.fixed_dictionaries({}, optional={topic: st.integers(1, 12) for topic in TOPICS})
members = st.dictionaries(
    st.sampled_from([f"c{n}" for n in range(8)]), st.sets(st.sampled_from(TOPICS)).map("".join), min_size=1
)


def check_whole(assignment: Assignment, counts: dict[str, int], topics: dict[str, str]) -> None:
    """Every partition that somebody reads is with exactly one of its readers."""
    given_away = [tp for share in assignment.values() for tp in share]
    wanted = {
        TopicPartition(t, p) for t, n in counts.items() for p in range(n) if any(t in ts for ts in topics.values())
    }
    assert len(given_away) == len(set(given_away)) and set(given_away) == wanted
    assert assignment.keys() == topics.keys()
    assert all(tp.topic in topics[member] for member, share in assignment.items() for tp in share)


def check_even(assignment: Assignment, topics: dict[str, str]) -> None:
    """Nobody has two more than one who reads a topic of it."""
    for rich, share in assignment.items():
        for poor, less in assignment.items():
            if len(share) > len(less) + 1:
                assert not any(tp.topic in topics[poor] for tp in share), f"{poor} could take over from {rich}"


@pytest.mark.system
@given(topic_counts, members)
def test_every_assignor_gives_each_partition_to_one_of_its_readers(counts: dict[str, int], topics: Table) -> None:
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()):
        check_whole(assignor.assign(counts, read(**topics)), counts, topics)


@pytest.mark.system
@given(topic_counts, members, members, topic_counts)
def test_sticky_stays_even_and_moves_no_more_than_it_must(
    counts: dict[str, int], before: Table, after: Table, later: dict[str, int]
) -> None:
    first = StickyAssignor().assign(counts, read(**before))
    check_even(first, before)
    second = StickyAssignor().assign(later, again(first, read(**after)))
    check_whole(second, later, after)
    check_even(second, after)
    assert table(StickyAssignor().assign(later, again(second, read(**after), 2))) == table(second)


@pytest.mark.system
@given(st.integers(1, 40), st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_sticky_with_like_subscriptions_keeps_all_that_fits(count: int, before: set[int], after: set[int]) -> None:
    first = StickyAssignor().assign({"a": count}, read(**{f"c{n}": "a" for n in before}))
    stay = {f"c{n}": "a" for n in after}
    second = StickyAssignor().assign({"a": count}, again(first, read(**stay)))
    least, longer = divmod(count, len(stay))
    sizes = sorted(len(first.get(member, [])) for member in stay)
    most_kept = sum(min(size, least) for size in sizes) + min(longer, sum(size > least for size in sizes))
    assert sum(len({*first.get(member, [])} & {*share}) for member, share in second.items()) == most_kept


@pytest.mark.system
@given(topic_counts, members, members)
def test_cooperative_takes_nothing_from_an_owner_that_still_holds_it(
    counts: dict[str, int], before: Table, after: Table
) -> None:
    cooperative = CooperativeStickyAssignor()
    first = cooperative.assign(counts, read(**before))
    told = again(first, read(**after))
    second = cooperative.assign(counts, told)
    for member, share in second.items():
        others = {tp for other, one in told.items() if other != member for tp in one.owned_partitions}
        assert not {*share} & others
    for round_number in range(2, 6):  # each round a partition was withheld its owner gives it up and rejoins
        third = cooperative.assign(counts, again(second, read(**after), round_number))
        if third == second:
            break
        second = third
    check_whole(second, counts, after)
    check_even(second, after)


class Cluster:
    """As much of a cluster as the other client's assignors look at."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None

    def topics(self) -> set[str]:
        return set(self._counts)


def other_client(assignor: Any, counts: dict[str, int], subscriptions: dict[str, Subscription]) -> Assignment:
    from kafka.protocol.consumer.group import JoinGroupResponse
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

    told = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member,
            group_instance_id=None,
            metadata=ConsumerProtocolSubscription(version=0, topics=list(one.topics), user_data=one.user_data or b""),
        )
        for member, one in subscriptions.items()
    ]
    result = assignor.assign(Cluster(counts), told)
    return {member: [TopicPartition(*tp) for tp in share.partitions()] for member, share in result.items()}


@pytest.mark.system
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@given(topic_counts, members)
def test_range_and_round_robin_are_those_of_kafka_python(counts: dict[str, int], topics: Table) -> None:
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    subscriptions = read(**topics)
    theirs = other_client(RangePartitionAssignor, counts, subscriptions)
    assert table(RangeAssignor().assign(counts, subscriptions)) == table(theirs)
    # Its round robin fails on unlike subscriptions (kafka-python 3.0), so those are compared with Kafka's tables only.
    alike = read(**dict.fromkeys(topics, "ab"))
    theirs = other_client(RoundRobinPartitionAssignor, counts, alike)
    assert table(RoundRobinAssignor().assign(counts, alike)) == {m: "" for m in topics} | table(theirs)


@pytest.mark.system
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@given(topic_counts, members, members)
def test_sticky_is_as_even_as_kafka_python_and_sticks_at_least_as_well_when_all_read_the_same(
    counts: dict[str, int], before: Table, after: Table
) -> None:
    from kafka.coordinator.assignors.sticky.sticky_assignor import (
        StickyAssignmentExecutor,
        StickyAssignorMemberMetadataV1,
    )

    def unevenness(assignment: Assignment) -> int:
        return sum(len(share) ** 2 for share in assignment.values())

    first = StickyAssignor().assign(counts, read(**before))
    told = again(first, read(**after))
    executor = StickyAssignmentExecutor(
        Cluster(counts),
        {
            member: StickyAssignorMemberMetadataV1(list(one.topics), list(one.owned_partitions), one.generation_id)
            for member, one in told.items()
        },
    )
    executor.perform_initial_assignment()
    executor.balance()
    theirs = {
        member: [TopicPartition(topic, n) for topic, numbers in executor.get_final_assignment(member) for n in numbers]
        for member in told
    }
    ours = StickyAssignor().assign(counts, told)
    assert unevenness(ours) <= unevenness(theirs)
    if len({frozenset(topics) for topics in after.values()}) == 1:
        kept, they_kept = (
            sum(len({*first.get(member, [])} & {*share}) for member, share in one.items()) for one in (ours, theirs)
        )
        assert kept >= they_kept


@pytest.mark.parametrize("alike", [True, False])
def test_a_hundred_members_over_two_hundred_partitions(alike: bool) -> None:
    counts = {f"{n:02}": 10 for n in range(20)}
    topics = tuple(counts)
    subscriptions = {f"c{n:03}": Subscription(topics=topics if alike else topics[n % 7 :]) for n in range(100)}
    first = CooperativeStickyAssignor().assign(counts, dict(list(subscriptions.items())[:50]))
    told = again(first, subscriptions)
    second = CooperativeStickyAssignor().assign(counts, told)
    third = CooperativeStickyAssignor().assign(counts, again(second, subscriptions, 2))
    assert {len(share) for share in third.values()} == {2}


# choosing ------------------------------------------------------------------------------------------------------------


class Mine:
    """All to the first member."""

    name = "mine"
    protocol = "eager"

    def user_data(self, topics: tuple[str, ...]) -> bytes | None:
        return None

    def assign(self, partition_counts: Any, subscriptions: Any) -> Assignment:
        return {}

    def on_assignment(self, partitions: Any, generation_id: int) -> None: ...


def test_assignors_are_chosen_by_name_class_and_object() -> None:
    mine = Mine()
    chosen = make_assignors(["roundrobin", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor", mine, Mine])
    assert [one.name for one in chosen] == ["roundrobin", "cooperative-sticky", "mine"]
    assert chosen[2] is mine
    names = ("RangeAssignor", "RoundRobinAssignor", "StickyAssignor")
    assert [one.name for one in make_assignors(names)] == ["range", "roundrobin", "sticky"]
    (one,), (two,) = make_assignors(["sticky"]), make_assignors(["sticky"])
    assert one is not two  # each member remembers for itself


def test_the_protocol_is_cooperative_only_if_all_are() -> None:
    assert common_protocol(make_assignors(["cooperative-sticky"])) == "cooperative"
    assert common_protocol(make_assignors(["range", "cooperative-sticky"])) == "eager"


def test_wrong_assignors_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown assignor 'stiky'.*sticky"):
        make_assignors(["stiky"])
    with pytest.raises(ConfigError, match="is not an assignor: it has no name"):
        make_assignors([object()])
    with pytest.raises(ConfigError, match="a group needs one"):
        make_assignors([])


def test_sticky_passes_partitions_along_where_nobody_can_take_from_the_fullest_directly() -> None:
    counts = {"a": 9, "c": 6}
    first = StickyAssignor().assign(counts, read(c0="a", c3="ac"))
    told = again(first, read(c0="", c1="ac", c2="a", c3="ac"))
    shares = StickyAssignor().assign(counts, told)
    assert sorted(len(share) for share in shares.values()) == [0, 5, 5, 5]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from("ab"), st.integers(1, 3), min_size=1),
    st.dictionaries(st.sampled_from(["c0", "c1", "c2"]), st.sampled_from(["", "a", "b", "ab"]), min_size=1),
    st.dictionaries(st.sampled_from(["c0", "c1", "c2"]), st.sampled_from(["", "a", "b", "ab"]), min_size=1),
)
def test_sticky_is_as_even_as_can_be(counts: dict[str, int], before: Table, after: Table) -> None:
    sticky = StickyAssignor()
    told = again(sticky.assign(counts, read(**before)), read(**after))
    shares = [len(share) for share in StickyAssignor().assign(counts, told).values()]
    partitions = [topic for topic, count in counts.items() for _ in range(count)]
    readers = [[member for member, topics in after.items() if topic in topics] for topic in partitions]
    ways = itertools.product(*[some for some in readers if some])
    assert sum(n * n for n in shares) == min(sum(n * n for n in Counter(way).values()) for way in ways)
