"""Groups in the broker: many shards, replies in order, what is stored survives, time."""

from __future__ import annotations

import pytest

from eventbus.broker import Broker, BrokerConfig
from eventbus.coordinator import CoordinatorRecord, Decision
from eventbus.coordinator.codec import GroupMetadataValue, encode_group_key, encode_group_value
from eventbus.coordinator.requests import JoinGroup, JoinGroupResult, SyncGroupResult
from eventbus.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NonEmptyGroup,
    RebalanceInProgress,
    StorageFull,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from eventbus.log.storage import MemoryStorage
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

T0 = TopicPartition("orders", 0)


class Client:
    """A member as simple as can be: it joins, syncs, and assigns "<member id>'s" as a leader."""

    def __init__(self, world, group: str = "g", name: str = "c", **settings) -> None:
        self.world = world
        self.request = {"group": group, "client_id": name, "protocols": (("range", b"x"),), **settings}
        self.group = group
        self.joined: JoinGroupResult | None = None
        self.assignment: bytes | None = None
        self.heard: list[object] = []
        self.member_id = ""

    @property
    def metadata(self) -> GroupMetadata:
        generation_id = -1 if self.joined is None else self.joined.generation_id
        return GroupMetadata(self.group, generation_id, self.member_id, self.request.get("group_instance_id"))

    def join(self) -> Client:
        request = JoinGroup(**self.request, member_id=self.member_id)
        self.world.broker.groups.join(request, self.world.now_ms, self.on_joined)
        return self

    def on_joined(self, answer: JoinGroupResult | KafkaError) -> None:
        self.heard.append(answer)
        if isinstance(answer, JoinGroupResult):
            self.joined, self.member_id = answer, answer.member_id
            assignments = {member.member_id: f"{member.member_id}'s".encode() for member in answer.members}
            self.world.broker.groups.sync(self.metadata, assignments, self.world.now_ms, self.on_synced)

    def on_synced(self, answer: SyncGroupResult | KafkaError) -> None:
        self.heard.append(answer)
        if isinstance(answer, SyncGroupResult):
            self.assignment = answer.assignment

    def beat(self) -> None:
        self.world.broker.groups.heartbeat(self.metadata, self.world.now_ms)

    def commit(self, offset: int, tp: TopicPartition = T0):
        return self.world.broker.groups.commit_offsets(
            self.metadata, {tp: OffsetAndMetadata(offset)}, self.world.now_ms
        )

    def leave(self) -> list[KafkaError | None]:
        member = (self.member_id, self.request.get("group_instance_id"))
        return self.world.broker.groups.leave(self.group, [member], self.world.now_ms, "the test says so")


@pytest.fixture
def orders(world):
    world.create("orders", 2)
    return world


def state_of(world, group: str = "g") -> str:
    return world.broker.groups.describe([group])[0].state


def test_a_sole_member_has_its_assignment_on_return(orders) -> None:
    client = Client(orders).join()
    assert client.assignment == f"{client.member_id}'s".encode()
    assert client.member_id.startswith("c-")
    client.beat()
    assert client.commit(5).errors == {}
    assert orders.broker.groups.fetch_offsets("g") == {T0: OffsetAndMetadata(5)}
    assert client.leave() == [None]
    assert state_of(orders) == "Empty"
    with pytest.raises(UnknownMemberId, match="rejoin"):
        client.beat()


def test_members_are_told_of_a_rebalance_and_join_again(orders) -> None:
    clients = [Client(orders)]

    def rejoin(group: str) -> None:
        for client in clients[:-1]:
            client.join()

    orders.broker.groups.on_rebalance = rejoin
    clients[0].join()
    for number in range(1, 20):
        clients.append(Client(orders, name=f"c{number}"))
        clients[-1].join()
        assert {client.assignment for client in clients} == {f"{client.member_id}'s".encode() for client in clients}
        assert {client.joined.generation_id for client in clients} == {number + 1}
    assert state_of(orders) == "Stable"
    assert len({client.member_id for client in clients}) == 20


def test_replies_are_never_nested(orders) -> None:
    """What a reply asks for is carried out at once and answered after it has returned: no stack grows with a group."""
    depth = deepest = 0

    class Nested(Client):
        def on_joined(self, answer) -> None:
            nonlocal depth, deepest
            depth += 1
            deepest = max(depth, deepest)
            super().on_joined(answer)
            depth -= 1

        def on_synced(self, answer) -> None:
            nonlocal depth, deepest
            depth += 1
            deepest = max(depth, deepest)
            super().on_synced(answer)
            depth -= 1

    first, second = Nested(orders).join(), Nested(orders)
    orders.broker.groups.on_rebalance = lambda group: first.join()
    second.join()
    assert second.assignment is not None
    assert deepest == 1


def test_an_error_in_a_reply_does_not_silence_the_others(orders) -> None:
    first, second, third = Client(orders).join(), Client(orders), Client(orders)
    second.join()
    third.join()

    def broken(answer: object) -> None:
        raise RuntimeError("a bug of this client")

    first.on_joined = broken
    with pytest.raises(RuntimeError, match="a bug of this client"):
        first.join()
    assert [type(answer) for answer in (*second.heard, *third.heard)] == [JoinGroupResult] * 2
    orders.broker.groups.leave("g", [(first.member_id, None)], orders.now_ms)
    second.join()
    third.join()
    assert second.assignment and third.assignment


@pytest.mark.parametrize("clean", [True, False])
def test_groups_survive_restarts(orders, clean: bool) -> None:
    clients = [Client(orders, group=f"g{number}").join() for number in range(60)]
    for client in clients:
        client.commit(int(client.group[1:]))
    clients[7].leave()
    before = repr(orders.broker.groups)
    orders.flush()
    orders.restart(clean=clean)
    assert repr(orders.broker.groups) == before
    assert len(orders.broker.groups.list()) == 60
    assert [listing.group for listing in orders.broker.groups.list(["Empty"])] == ["g7"]
    clients[8].beat()
    clients[8].commit(80)
    with pytest.raises(UnknownMemberId):
        clients[7].beat()


def test_sessions_begin_anew_at_open_and_end_by_tick(orders) -> None:
    client = Client(orders, session_timeout_ms=10_000).join()
    orders.now_ms += 9_000
    orders.flush()
    orders.restart()
    assert orders.broker.next_deadline_ms() <= orders.now_ms + 10_000
    orders.now_ms += 9_999
    orders.broker.tick(orders.now_ms)
    assert state_of(orders) == "Stable"
    orders.now_ms += 1
    assert orders.broker.next_deadline_ms() <= orders.now_ms
    orders.broker.tick(orders.now_ms)
    assert state_of(orders) == "Empty"
    with pytest.raises(UnknownMemberId):
        client.commit(1)


def test_what_is_said_at_a_tick_may_open_another_group(orders) -> None:
    first, second = Client(orders, session_timeout_ms=6_000).join(), Client(orders)
    orders.broker.groups.join(JoinGroup(**second.request), orders.now_ms, second.heard.append)
    orders.broker.groups.join(JoinGroup(**first.request, member_id=first.member_id), orders.now_ms, first.heard.append)
    (joined,) = second.heard
    metadata = GroupMetadata("g", joined.generation_id, joined.member_id)
    others = [Client(orders, group=f"h{number}") for number in range(9)]
    orders.broker.groups.sync(metadata, {}, orders.now_ms, lambda answer: [other.join() for other in others])
    assert not others[0].heard
    orders.now_ms += 6_000
    orders.broker.tick(orders.now_ms)  # the leader is gone, and the follower told
    assert all(other.assignment for other in others)


def test_clients_of_a_dead_process_are_dropped_but_for_static_ones(orders) -> None:
    Client(orders, "dynamic").join()
    static = Client(orders, "static", group_instance_id="i1").join()
    mixed = Client(orders, "mixed", group_instance_id="i1").join()
    other = Client(orders, "mixed").join()
    mixed.join()
    assert other.assignment
    orders.flush()
    orders.restart(clean=False)
    rebalanced: list[str] = []
    orders.broker.groups.on_rebalance = rebalanced.append
    orders.broker.groups.drop_clients(orders.now_ms)
    states = {listing.group: listing.state for listing in orders.broker.groups.list()}
    assert states == {"dynamic": "Empty", "static": "Stable", "mixed": "PreparingRebalance"}
    assert rebalanced == ["mixed"]
    static.member_id = ""
    generation_id = static.joined.generation_id
    static.join()
    assert static.joined.generation_id == generation_id
    assert static.assignment


def test_a_generation_that_cannot_go_on_is_rebalanced_at_open(orders) -> None:
    """A group without leader or protocol, as another program may have left it, or larger than is allowed now."""
    groups = orders.broker.groups
    clients = {name: Client(orders, name).join() for name in ("no protocol", "no leader")}
    for name, client in clients.items():
        shard_log = groups._shards[groups.partition_of(name).partition]
        (member,) = shard_log.shard.groups[name].stored.members
        protocol_name, leader_id = (None, client.member_id) if name == "no protocol" else ("range", "nobody")
        value = GroupMetadataValue("consumer", 7, protocol_name, leader_id, orders.now_ms, (member,))
        record = CoordinatorRecord(encode_group_key(name), encode_group_value(value))
        shard_log.execute(Decision((record,), None), orders.now_ms)
    first, second = Client(orders, "large").join(), Client(orders, "large")
    second.join()
    first.join()
    assert state_of(orders, "large") == "Stable"
    orders.flush()
    orders.restart(group_max_size=1)
    assert state_of(orders, "no protocol") == "Empty"
    assert state_of(orders, "no leader") == state_of(orders, "large") == "PreparingRebalance"
    second.join()
    first.join()
    assert [type(client.heard[-1]) for client in (first, second)] == [GroupMaxSizeReached, SyncGroupResult]
    for client in clients.values():
        client.join()
    assert type(clients["no protocol"].heard[-1]) is UnknownMemberId
    assert clients["no leader"].joined.generation_id == 8
    assert state_of(orders, "no leader") == "Stable"


def test_commits_are_fenced_and_each_partition_answers_for_itself(orders) -> None:
    client = Client(orders, group_instance_id="i1").join()
    unknown = TopicPartition("order", 0)
    stored = orders.broker.groups.commit_offsets(
        client.metadata, {unknown: OffsetAndMetadata(1), T0: OffsetAndMetadata(2)}, orders.now_ms
    )
    assert {tp: type(error) for tp, error in stored.errors.items()} == {unknown: UnknownTopicOrPartition}
    commit = {T0: OffsetAndMetadata(9)}
    for metadata, error in [
        ("g", UnknownMemberId),
        (GroupMetadata("g"), UnknownMemberId),
        (client.metadata._replace(generation_id=0), IllegalGeneration),
        (client.metadata._replace(member_id="other"), FencedInstanceId),
        (client.metadata._replace(member_id="other", group_instance_id=None), UnknownMemberId),
        (client.metadata._replace(group="h"), IllegalGeneration),
        (GroupMetadata(""), InvalidGroupId),
    ]:
        with pytest.raises(error):
            orders.broker.groups.commit_offsets(metadata, commit, orders.now_ms)
    Client(orders).join()
    assert client.commit(3).errors == {}
    with pytest.raises(RebalanceInProgress):
        client.beat()
    assert orders.broker.groups.fetch_offsets("g") == {T0: OffsetAndMetadata(3)}
    with pytest.raises(NonEmptyGroup, match="stop them first"):
        orders.broker.groups.delete("g", orders.now_ms)


def test_errors_of_joins_are_told_by_the_reply(orders) -> None:
    for settings, error in [
        ({"group": ""}, InvalidGroupId),
        ({"group": "\ud800"}, InvalidGroupId),
        ({"session_timeout_ms": 100}, InvalidSessionTimeout),
    ]:
        client = Client(orders, **settings).join()
        assert [type(answer) for answer in client.heard] == [error]
    client = Client(orders)
    client.member_id = "nobody"
    client.join()
    orders.broker.groups.sync(GroupMetadata("h", 1, "m"), {}, orders.now_ms, client.heard.append)
    assert [type(answer) for answer in client.heard] == [UnknownMemberId] * 2
    assert orders.broker.groups.leave("h", [("m", None)], orders.now_ms)[0].code == UnknownMemberId.code
    assert orders.broker.groups.list() == []


def test_groups_that_do_not_exist(world) -> None:
    """Nothing is created by a look."""
    groups = world.broker.groups
    with pytest.raises(UnknownMemberId):
        groups.heartbeat(GroupMetadata("g", 1, "m"), world.now_ms)
    for call in (groups.delete, lambda group, now_ms: groups.delete_offsets(group, [T0], now_ms)):
        with pytest.raises(GroupIdNotFound):
            call("g", world.now_ms)
    assert groups.describe(["g"])[0][1:] == ("Dead", "", "", -1, ())
    assert groups.fetch_offsets("g", require_stable=True) == {}
    assert not world.broker.has_topic("__consumer_offsets")
    assert groups.partition_of("g") == ("__consumer_offsets", 3)
    assert world.broker.has_topic("__consumer_offsets")


def test_offsets_and_groups_expire_by_tick(orders) -> None:
    orders.restart(offsets_retention_ms=1000, offsets_retention_check_interval_ms=500)
    Client(orders, "gone").join().leave()
    alive = Client(orders, "alive", session_timeout_ms=1_800_000).join()
    alive.commit(1)
    orders.broker.groups.commit_offsets("simple", {T0: OffsetAndMetadata(1)}, orders.now_ms)
    orders.now_ms += 999
    orders.broker.tick(orders.now_ms)
    assert orders.broker.next_deadline_ms() <= orders.now_ms + 500
    assert [listing.group for listing in orders.broker.groups.list()] == [
        "alive",
        "simple",
    ]  # nothing to keep of "gone"
    orders.now_ms += 501
    orders.broker.tick(orders.now_ms)
    assert [listing.group for listing in orders.broker.groups.list()] == ["alive"]
    orders.restart()
    assert [listing.group for listing in orders.broker.groups.list()] == ["alive"]


def test_deleting_a_topic_forgets_its_offsets_of_live_groups_too(orders) -> None:
    client = Client(orders).join()
    client.commit(5)
    orders.broker.delete_topics(["orders"], orders.now_ms)
    assert orders.broker.groups.fetch_offsets("g") == {}
    client.beat()


def test_a_rebalance_is_stored_once_however_many_members_it_has(orders) -> None:
    """One record for a generation: neither joins nor heartbeats are written."""
    clients = [Client(orders, name=f"c{number}") for number in range(100)]
    orders.restart(group_initial_rebalance_delay_ms=3000)
    for client in clients:
        client.join()
    partition = orders.broker.groups.partition_of("g")
    end = orders.broker.log(partition).log_end_offset
    orders.now_ms += 3000
    orders.broker.tick(orders.now_ms)
    orders.now_ms += 3000
    orders.broker.tick(orders.now_ms)
    assert state_of(orders) == "Stable"
    assert all(client.assignment for client in clients)
    for client in clients:
        client.beat()
    assert orders.broker.log(partition).log_end_offset == end + 1


def test_a_full_disk_is_told_to_everybody_who_waits(world) -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    world = type(world)(None)
    world.storage = storage
    world.open()
    world.create("orders", 2)
    first, second = Client(world).join(), Client(world)
    second.join()
    storage.fail_at = storage.calls_count + 1
    first.join()
    assert isinstance(first.heard[-1], StorageFull)
    assert isinstance(second.heard[-1], JoinGroupResult)
    assert second.leave() == [None]
    with pytest.raises(StorageFull):  # the last one: that the group is empty is stored
        first.leave()
    world.now_ms += 60_000
    world.broker.tick(world.now_ms)
    storage.heal()
    world.now_ms += 60_000
    world.broker.tick(world.now_ms)
    assert state_of(world) == "Empty"
    third = Client(world).join()
    assert third.assignment
    world.broker.check()
    world.broker.close(world.now_ms)


def test_settings_are_kafkas(world) -> None:
    config = BrokerConfig()
    assert (config.group_min_session_timeout_ms, config.group_max_session_timeout_ms) == (6_000, 1_800_000)
    assert config.offsets_retention_ms == 7 * 24 * 3600 * 1000
    broker = Broker.open(
        MemoryStorage(),
        BrokerConfig(group_min_session_timeout_ms=1),
        now_ms=world.now_ms,
        new_id=world.new_id,
    )
    heard: list[object] = []
    request = JoinGroup(group="g", protocols=(("range", b""),), session_timeout_ms=1)
    broker.groups.join(request, world.now_ms, heard.append)
    assert isinstance(heard[0], JoinGroupResult)
    broker.close(world.now_ms)
