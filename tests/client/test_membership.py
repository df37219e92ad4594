"""The client's half of the group protocol, step by step, against a coordinator that answers what the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from eventbus import GroupMetadata, TopicPartition
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.membership import GiveUp, Membership, Sight, Take
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_protocol import decode_subscription, encode_assignment, encode_subscription
from eventbus.coordinator.requests import JoinedMember, JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    StorageFull,
    UnknownMemberId,
)

T = [TopicPartition("t", n) for n in range(4)]


class Coordinator:
    """Keeps what it was asked; answers when the test does."""

    def __init__(self) -> None:
        self.joins: list[tuple[JoinGroup, Callable[[JoinGroupResult | KafkaError], None]]] = []
        self.syncs: list[tuple[GroupMetadata, Mapping[str, bytes], Callable[[SyncGroupResult | KafkaError], None]]] = []
        self.left: list[tuple[str, str | None]] = []
        self.beats = 0
        self.heartbeat_error: KafkaError | None = None
        self.leave_error: KafkaError | None = None

    def join(self, request: JoinGroup, now_ms: int, reply: Any) -> None:
        self.joins.append((request, reply))

    def sync(self, group: GroupMetadata, assignments: Mapping[str, bytes], now_ms: int, reply: Any, **_: Any) -> None:
        self.syncs.append((group, assignments, reply))

    def heartbeat(self, group: GroupMetadata, now_ms: int) -> None:
        self.beats += 1
        if self.heartbeat_error is not None:
            raise self.heartbeat_error

    def leave(self, group: str, members: list[tuple[str, str | None]], now_ms: int, reason: str = "") -> list[Any]:
        if self.leave_error is not None:
            raise self.leave_error
        self.left += members
        return [None] * len(members)


class Host:
    def __init__(self) -> None:
        self.groups = Coordinator()
        self.time_ms = 1_000_000
        self.topics: dict[str, Sight] = {"t": ("id", 4)}
        self.members: list[Membership] = []

    def now_ms(self) -> int:
        return self.time_ms

    def sight(self, topic: str) -> Sight:
        return self.topics.get(topic, ("", 0))

    def members_of(self, group: str) -> list[Membership]:
        return self.members


class Member:
    """A membership, its fake surroundings, and what it called."""

    def __init__(self, **config: Any) -> None:
        self.host = Host()
        self.groups = self.host.groups
        self.wakes = 0
        self.lost: list[TopicPartition] = []
        self.it = Membership(self.host, ConsumerConfig(group="g", **config), "g", self._wake, self.lost.extend)
        self.host.members.append(self.it)
        self.it.subscribe(["t"])

    def _wake(self) -> None:
        self.wakes += 1

    def answer_join(self, generation: int = 1, leader: bool = False, member_id: str = "me") -> None:
        request, reply = self.groups.joins[-1]
        name, metadata = request.protocols[0]
        reply(
            JoinGroupResult(
                generation_id=generation,
                protocol_type="consumer",
                protocol_name=name,
                leader_id=member_id if leader else "other",
                member_id=member_id,
                members=(JoinedMember(member_id, request.group_instance_id, metadata),) if leader else (),
            )
        )

    def answer_sync(self, *partitions: TopicPartition) -> None:
        name = self.groups.joins[-1][0].protocols[0][0]
        self.groups.syncs[-1][2](SyncGroupResult("consumer", name, encode_assignment(partitions)))

    def settle(self, *partitions: TopicPartition, generation: int = 1, leader: bool = False) -> None:
        """Through a whole round, giving up and taking what is asked."""
        self.run()
        self.answer_join(generation, leader)
        self.run()
        self.answer_sync(*partitions)
        self.run()
        assert self.it.is_settled or self.groups.joins[-1][0].reason.startswith("gave up")

    def run(self) -> list[GiveUp | Take]:
        steps: list[GiveUp | Take] = []
        while (step := self.it.advance()) is not None:
            steps.append(step)
            if isinstance(step, GiveUp):
                self.it.given_up(step)
            else:
                self.it.taken(step)
        return steps


def test_a_round() -> None:
    member = Member()
    assert member.it.advance() is None and not member.it.is_settled  # parked
    request, _ = member.groups.joins[0]
    assert request.require_known_member_id and request.reason == "subscribed"
    assert [name for name, _ in request.protocols] == ["range", "cooperative-sticky"]
    assert decode_subscription(request.protocols[0][1]).topics == ("t",)
    member.groups.joins[0][1](MemberIdRequired("take this", "given-id"))
    assert member.it.advance() is None and member.groups.joins[1][0].member_id == "given-id"
    member.answer_join(generation=5, leader=True, member_id="given-id")
    wakes = member.wakes
    assert member.it.advance() is None
    group, assignments, _ = member.groups.syncs[0]
    assert group == GroupMetadata("g", 5, "given-id")
    assert assignments == {"given-id": encode_assignment(T)}
    member.answer_sync(*T)
    assert member.wakes > wakes
    assert member.run() == [Take(T)]
    assert member.it.is_settled and member.it.metadata == group


def test_a_repeated_step_is_the_same_step() -> None:
    """A step in which a consumer was cancelled is repeated."""
    member = Member()
    member.run()
    member.answer_join()
    member.run()
    member.answer_sync(T[0])
    assert member.it.advance() == member.it.advance() == Take([T[0]])
    member.run()
    member.it.rebalancing()
    assert member.it.advance() == member.it.advance() == GiveUp([T[0]])
    assert len(member.groups.joins) == 1  # nobody joins before everything is given up


@pytest.mark.parametrize("error", [UnknownMemberId("gone"), IllegalGeneration("old")])
def test_a_refused_sync_loses_the_place_and_joins_again(error: KafkaError) -> None:
    member = Member(assignors=("cooperative-sticky",))
    member.settle(T[0], T[1])
    member.it.rebalancing()
    member.run()
    member.answer_join(2)
    member.run()
    member.groups.syncs[-1][2](error)
    assert member.lost == [T[0], T[1]] and member.it.owned == set()
    member.run()
    again = member.groups.joins[-1][0]
    assert again.member_id == ("" if isinstance(error, UnknownMemberId) else "me")
    assert decode_subscription(again.protocols[0][1]).owned_partitions == ()


def test_a_sync_that_meets_a_rebalance_joins_again_and_keeps_what_it_has() -> None:
    member = Member(assignors=("cooperative-sticky",))
    member.settle(T[0], T[1])
    member.it.rebalancing()
    member.run()
    member.answer_join(2)
    member.run()
    member.groups.syncs[-1][2](RebalanceInProgress("again"))
    assert member.run() == [] and member.lost == []
    told = decode_subscription(member.groups.joins[-1][0].protocols[0][1])
    assert told.owned_partitions == (T[0], T[1]) and told.generation_id == 2


def test_a_member_that_has_to_join_again_keeps_its_session_and_hears_of_being_fenced() -> None:
    member = Member(assignors=("cooperative-sticky",), group_instance_id="a")
    member.settle(T[0], T[1])
    member.it.rebalancing()
    member.run()
    member.answer_join(2)
    member.run()
    member.groups.syncs[-1][2](RebalanceInProgress("again"))
    beats = member.groups.beats
    for _ in range(3):
        member.host.time_ms += 5_000
        member.it.beat(member.host.time_ms)
    assert member.groups.beats == beats + 3 and member.lost == []
    member.groups.heartbeat_error = FencedInstanceId("another")
    member.it.heartbeat()
    assert member.lost == [T[0], T[1]]  # it still held them


def test_cooperative_gives_up_what_moves_and_joins_once_more() -> None:
    member = Member(assignors=("cooperative-sticky",))
    member.settle(T[0], T[1], T[2])
    member.it.rebalancing()
    assert member.run() == []  # nothing stops before it is known what moves
    member.answer_join(2)
    member.run()
    member.answer_sync(T[0], T[3])
    assert member.run() == [GiveUp([T[1], T[2]]), Take([T[3]])]
    assert member.it.owned == {T[0], T[3]}
    assert len(member.groups.joins) == 3 and member.groups.joins[-1][0].reason.startswith("gave up partitions")


def test_cooperative_gives_up_topics_it_no_longer_reads_before_it_joins() -> None:
    member = Member(assignors=("cooperative-sticky",))
    member.settle(T[0])
    member.it.subscribe(["u"])
    assert member.run() == [GiveUp([T[0]])]
    assert decode_subscription(member.groups.joins[-1][0].protocols[0][1]).topics == ("u",)


def test_answers_to_requests_that_were_given_up_are_ignored() -> None:
    member = Member()
    member.run()
    _, late = member.groups.joins[0]
    member.it.leave("closed")
    late(JoinGroupResult(generation_id=1, protocol_type="c", protocol_name="range", leader_id="x", member_id="me"))
    assert member.it.advance() is None and member.groups.syncs == [] and len(member.groups.joins) == 1


def test_an_error_of_a_join_is_raised_once_and_the_next_poll_tries_again() -> None:
    member = Member()
    member.run()
    member.groups.joins[-1][1](GroupMaxSizeReached("full"))
    with pytest.raises(GroupMaxSizeReached):
        member.it.advance()
    assert member.it.advance() is None and len(member.groups.joins) == 2


def test_a_coordinator_that_cannot_store_is_asked_again() -> None:
    member = Member()
    member.run()
    member.answer_join(leader=True)
    member.run()
    member.groups.syncs[-1][2](StorageFull("no room"))
    with pytest.raises(StorageFull):
        member.it.advance()
    member.run()
    assert len(member.groups.joins) == 2


def test_a_join_that_raises_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member()

    def refuse(*_: Any) -> None:
        raise StorageFull("closed")

    monkeypatch.setattr(member.groups, "join", refuse)
    monkeypatch.setattr(member.groups, "sync", lambda *_, **__: refuse())
    with pytest.raises(StorageFull):
        member.it.advance()
    monkeypatch.undo()
    member.settle(T[0])
    assert member.it.owned == {T[0]}


def test_fenced_is_for_good() -> None:
    member = Member(group_instance_id="a")
    member.settle(T[0])
    assert not member.groups.joins[0][0].require_known_member_id  # static members have no handshake
    member.groups.heartbeat_error = FencedInstanceId("another")
    member.it.heartbeat()
    assert member.lost == [T[0]]
    for _ in range(3):
        with pytest.raises(FencedInstanceId):
            member.it.advance()
    member.it.leave("closed")
    assert member.groups.left == []  # the place is the other one's


def test_who_held_the_static_id_before_finds_out_at_once() -> None:
    member = Member(group_instance_id="a")
    member.settle(T[0])
    newer = Membership(member.host, ConsumerConfig(group="g", group_instance_id="a"), "g", lambda: None, lambda _: None)
    member.host.members.append(newer)
    newer.subscribe(["t"])
    member.groups.heartbeat_error = FencedInstanceId("newer")
    newer.advance()
    assert member.lost == [T[0]]  # while the newer one's join is parked: others may be given the partition already


def test_an_assignment_that_cannot_be_read_names_the_group() -> None:
    member = Member()
    member.run()
    member.answer_join()
    member.run()
    member.groups.syncs[-1][2](SyncGroupResult("consumer", "range", b"\x00"))
    with pytest.raises(InconsistentGroupProtocol, match=r"group 'g': what its leader assigned cannot be read.*'range'"):
        member.it.advance()


def test_a_member_whose_subscription_cannot_be_read_is_named_to_the_leader() -> None:
    member = Member()
    member.run()
    members = (
        JoinedMember("me", None, encode_subscription(Subscription(topics=("t",)))),
        JoinedMember("odd", None, b"?"),
    )
    member.groups.joins[-1][1](
        JoinGroupResult(
            generation_id=1, protocol_type="consumer", protocol_name="range", leader_id="me", member_id="me",
            members=members,
        )
    )  # fmt: skip
    with pytest.raises(InconsistentGroupProtocol, match="what member odd subscribes to cannot be read"):
        member.it.advance()


def test_a_static_leader_that_is_back_does_not_assign_again() -> None:
    member = Member(group_instance_id="a")
    member.run()
    request, reply = member.groups.joins[-1]
    reply(
        JoinGroupResult(
            generation_id=3, protocol_type="consumer", protocol_name="range", leader_id="me", member_id="me",
            members=(JoinedMember("me", "a", request.protocols[0][1]),), skip_assignment=True,
        )
    )  # fmt: skip
    assert request.supports_skipping_assignment
    member.run()
    assert member.groups.syncs[-1][1] == {}
    member.answer_sync(T[2])
    assert member.run() == [Take([T[2]])]
    member.host.topics["t"] = ("id", 9)  # it still watches the topics for its group
    member.it.topics_changed()
    member.run()
    assert len(member.groups.joins) == 2


@pytest.mark.parametrize("leader", [True, False])
def test_the_leader_alone_answers_to_changes_of_topics(leader: bool) -> None:
    member = Member()
    member.settle(*T, leader=leader)
    member.host.topics["unrelated"] = ("other", 1)
    member.it.topics_changed()
    assert member.run() == [] and len(member.groups.joins) == 1
    for sight in (("id", 5), ("anew", 4), ("", 0)):
        joins = len(member.groups.joins)
        member.host.topics["t"] = sight
        member.it.topics_changed()
        assert member.it.is_waited_for() is leader
        member.run()
        assert len(member.groups.joins) == joins + leader
        if leader:
            member.settle(generation=2, leader=True)


def test_partitions_that_vanished_meanwhile_are_not_taken() -> None:
    member = Member()
    member.run()
    member.answer_join()
    member.run()
    member.host.topics["t"] = ("id", 1)
    member.answer_sync(*T)
    assert member.run() == [Take([T[0]])]


# time ----------------------------------------------------------------------------------------------------------------


def test_heartbeats_go_out_at_their_interval_and_tell_of_rebalances() -> None:
    member = Member(heartbeat_interval_ms=1_000)
    member.settle(T[0])
    for _ in range(10):
        member.host.time_ms += 500
        member.it.beat(member.host.time_ms)
    assert member.groups.beats == 5
    member.groups.heartbeat_error = RebalanceInProgress("join")
    member.host.time_ms += 1_000
    member.it.beat(member.host.time_ms)
    assert not member.it.is_settled and member.lost == []


def test_a_member_that_is_not_polled_leaves_and_one_in_a_poll_does_not() -> None:
    member = Member(max_poll_interval_ms=5_000)
    member.it.poll_begins()
    member.settle(T[0])
    member.host.time_ms += 60_000
    member.it.beat(member.host.time_ms)
    assert member.lost == []
    member.it.poll_ends()
    member.host.time_ms += 5_001
    member.it.beat(member.host.time_ms)
    assert member.lost == [T[0]] and member.groups.left == [("me", None)]
    assert member.it.metadata.member_id == "me"  # so that a late commit is refused, not taken for nobody's
    member.it.beat(member.host.time_ms)
    member.run()
    assert member.groups.joins[-1][0].member_id == ""


def test_a_static_member_that_is_not_polled_keeps_its_place_until_its_session_ends() -> None:
    member = Member(max_poll_interval_ms=5_000, group_instance_id="a")
    member.settle(T[0])
    member.host.time_ms += 5_001
    member.it.beat(member.host.time_ms)
    assert member.lost == [T[0]] and member.groups.left == []


def test_a_full_disk_does_not_keep_a_member_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    member.settle(T[0])
    member.groups.leave_error = StorageFull("no room")
    member.it.leave("closed")
    assert "me could not leave: no room" in caplog.text


def test_what_a_refused_commit_means() -> None:
    member = Member()
    member.settle(T[0])
    old, error = member.it.metadata, UnknownMemberId("gone")
    member.it.commit_refused(GroupMetadata("g", 0, "earlier"), error)
    assert member.it.is_settled  # a commit of an older place says nothing of this one
    member.it.commit_refused(old, RebalanceInProgress("join"))
    assert not member.it.is_settled and member.lost == []
    member.it.commit_refused(old, error)
    assert member.lost == [T[0]]


def test_a_line_says_where_it_stands() -> None:
    member = Member()
    assert repr(member.it) == "<member ? of g: out -1 owned=0>"
    member.settle(T[0])
    assert repr(member.it) == "<member me of g: in 1 owned=1>"
