"""What is asked of a server about groups of the consumer protocol, and what it answers: to compare with a real Kafka's.

`play_on` gives one line per question. Member ids that differ from run to run are told as ``*``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from eventbus.protocol import messages as m
from eventbus.types import TopicPartition
from tests.server.groups import Identity, Member
from tests.server.wire import WireClient

Request = m.ConsumerGroupHeartbeatRequest
Held = Request.TopicPartitions
PATIENCE_SECONDS = 20
NOT_READY = (5, 14, 15, 16)
BAD: tuple[dict[str, Any], ...] = (
    {"group_id": ""},
    {"instance_id": ""},
    {"rack_id": ""},
    {"rebalance_timeout_ms": -1},
    {"topic_partitions": None},
    {"topic_partitions": [Held(topic_id=bytes(16), partitions=[0])]},
    {"subscribed_topic_names": None},
    {"member_epoch": -3},
    {"member_epoch": -2},
    {"server_assignor": "sticky"},
    {"subscribed_topic_regex": "("},
    {"subscribed_topic_regex": "(?=a)"},
    {"subscribed_topic_regex": "a**"},
    {"member_id": ""},
)


class Consumer:
    """A member of the consumer protocol that does what it is told, when the test says so."""

    def __init__(self, client: WireClient, member_id: str = "m1", group: str = "g", version: int = 1) -> None:
        self.client, self.member_id, self.group, self.version = client, member_id, group, version
        self.epoch = 0
        self.told: dict[bytes, list[int]] = {}

    async def beat(self, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        request = Request(**{"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch, **fields})
        told = await self.client.call(request, self.version)
        if not told.error_code:
            self.member_id, self.epoch = told.member_id, told.member_epoch
        if told.assignment is not None:
            self.told = {one.topic_id: one.partitions for one in told.assignment.topic_partitions}
        return told

    async def join(self, *topics: str, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        first = {"member_epoch": 0, "rebalance_timeout_ms": 60_000, "topic_partitions": []}
        return await self.beat(**{**first, "subscribed_topic_names": list(topics), **fields})

    async def done(self, **fields: Any) -> m.ConsumerGroupHeartbeatResponse:
        """It holds what it was told."""
        held = [Held(topic_id=topic_id, partitions=numbers) for topic_id, numbers in self.told.items()]
        return await self.beat(topic_partitions=held, **fields)

    @property
    def partitions(self) -> list[int]:
        """Of the one topic it reads."""
        assert len(self.told) <= 1
        return next(iter(self.told.values()), [])


async def create(client: WireClient, name: str, partitions: int) -> None:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    (told,) = (await client.call(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)).topics
    assert told.error_code == 0


async def describe(client: WireClient, group: str = "g", version: int = 1) -> Any:
    (found,) = (await client.call(m.ConsumerGroupDescribeRequest(group_ids=[group]), version)).groups
    return found


async def send_offset(
    client: WireClient, group: str, member_id: str, epoch: int, partition: int = 0, version: int = 9
) -> int:
    kind = m.OffsetCommitRequest
    partitions = [kind.OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)]
    request = kind(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        topics=[kind.OffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    return (await client.call(request, version)).topics[0].partitions[0].error_code


async def fetch_offsets(client: WireClient, group: str, member_id: str | None, epoch: int) -> Any:
    wanted = m.OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        topics=[m.OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])],
    )
    return (await client.call(m.OffsetFetchRequest(groups=[wanted]), 9)).groups[0]


async def ready(client: WireClient, *groups: str) -> None:
    """Kafka's coordinator takes its time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        for group in groups:
            found = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            while (await client.call(found, 4)).coordinators[0].error_code:
                pass
            while (await describe(client, group)).error_code in NOT_READY:
                pass


class _Play:
    def __init__(self, client: WireClient, another: WireClient) -> None:
        self.client, self.another = client, another
        self.lines: list[str] = []

    def consumer(self, member_id: str, group: str) -> Consumer:
        return Consumer(self.client, member_id, group)

    def heard(self, what: str, told: m.ConsumerGroupHeartbeatResponse) -> None:
        if told.error_code:
            self.say(what, f"error {told.error_code}")
            return
        assignment = told.assignment
        count = "-" if assignment is None else sum(len(one.partitions) for one in assignment.topic_partitions)
        self.say(what, f"epoch {told.member_epoch}, partitions {count}")

    def say(self, what: str, answer: object) -> None:
        self.lines.append(f"{what}: {answer}")

    async def who(self, group: str) -> None:
        found = await describe(self.client, group)

        def count(assignment: m.ConsumerGroupDescribeResponse.Assignment) -> int:
            return sum(len(one.partitions) for one in assignment.topic_partitions)

        members = [
            f"{one.member_id if len(one.member_id) < 5 else '*'}@{one.member_epoch} type {one.member_type} "
            f"holds {count(one.assignment)} of {count(one.target_assignment)} "
            f"reads {','.join(one.subscribed_topic_names)} ~{one.subscribed_topic_regex}"
            for one in found.members
        ]
        head = f"{found.error_code} {found.group_state} {found.group_epoch}/{found.assignment_epoch}"
        self.say(f"who is in {group}", f"{head} {found.assignor_name} {sorted(members)}")

    async def kind(self, group: str) -> None:
        groups = (await self.client.call(m.ListGroupsRequest(), 5)).groups
        self.say(f"list {group}", [(one.group_type, one.group_state) for one in groups if one.group_id == group])

    # questions -------------------------------------------------------------------------------------------------------

    async def first_members(self) -> None:
        a, b = self.consumer("a", "g"), self.consumer("b", "g")
        self.heard("beat in an unknown group", await a.beat(member_epoch=3))
        self.heard("leave an unknown group", await a.beat(member_epoch=-1))
        self.heard("a joins", await a.join("t"))
        await self.who("g")
        self.heard("a beats", await a.beat())
        self.heard("a holds all", await a.done())
        self.heard("b joins", await b.join("t"))
        await self.who("g")
        for what in ("a beats", "a beats again"):
            self.heard(what, await a.beat())
        await self.who("g")
        self.heard("b beats", await b.done())
        self.heard("a gave up", await a.done())
        await self.who("g")
        for what in ("b beats", "b holds its share"):
            self.heard(what, await b.done())
        await self.who("g")
        self.heard("a tells all", await a.done(rebalance_timeout_ms=60_000, subscribed_topic_names=["t"]))
        self.heard("a with its last epoch", await a.beat(member_epoch=a.epoch - 1, topic_partitions=[]))
        self.heard("a with its last epoch, not told what it holds", await a.beat(member_epoch=a.epoch - 1))
        self.heard("a with a later epoch", await a.beat(member_epoch=a.epoch + 9))
        self.heard("a joins again", await a.join("t"))
        self.heard("a reads another topic", await a.beat(subscribed_topic_names=["u"]))
        await self.who("g")
        for what, member in (("a", a), ("b", b), ("a", a), ("b", b)):
            self.heard(f"{what} does as told", await member.done())
        await self.who("g")
        self.heard("a leaves", await a.beat(member_epoch=-1))
        await self.who("g")
        for what in ("b beats", "b does as told"):
            self.heard(what, await b.done())
        self.heard("a that left beats", await a.beat(member_epoch=5))
        self.heard("b leaves", await b.beat(member_epoch=-1))
        await self.who("g")

    async def refused(self) -> None:
        for fields in BAD:
            ((name, value),) = fields.items()
            shown = "another" if isinstance(value, list) else repr(value)
            self.heard(
                f"a join with {name} {shown}",
                await self.consumer("q", "x").join(**{**{"subscribed_topic_names": ["t"]}, **fields}),
            )

    async def static(self) -> None:
        one, two, three = self.consumer("s1", "s"), self.consumer("s2", "s"), self.consumer("s3", "s")
        self.heard("s1 joins as i1", await one.join("t", instance_id="i1"))
        self.heard("s2 joins as i2", await two.join("t", instance_id="i2"))
        for member in (one, one, two, two):
            self.heard(f"{member.member_id} does as told", await member.done())
        self.heard("s3 joins as i1", await three.join("t", instance_id="i1"))
        self.heard("s1 is away", await one.beat(member_epoch=-2, instance_id="i1"))
        await self.who("s")
        self.heard("s3 joins as i1", await three.join("t", instance_id="i1"))
        self.heard("s1 beats as i1", await one.beat(member_epoch=3, instance_id="i1"))
        self.heard("s1 beats", await one.beat(member_epoch=3))
        await self.who("s")
        self.heard("s3 joins as i1 without having left", await three.join("t", instance_id="i1"))
        self.heard("s3 beats as i9", await three.beat(instance_id="i9"))
        self.heard("s3 leaves as i2", await three.beat(member_epoch=-1, instance_id="i2"))
        self.heard("s3 leaves as i1", await three.beat(member_epoch=-1, instance_id="i1"))
        await self.who("s")

    async def offsets(self) -> None:
        member, other, client = self.consumer("k1", "k"), self.consumer("k2", "k"), self.client
        self.say("commit of nobody, no members", await send_offset(client, "k", "", -1))
        self.heard("k1 joins", await member.join("t"))
        epoch = member.epoch
        for what, member_id, given, version in (
            ("its epoch", "k1", epoch, 9),
            ("a later epoch", "k1", epoch + 1, 9),
            ("an epoch before", "k1", epoch - 1, 9),
            ("its epoch in v8", "k1", epoch, 8),
            ("an unknown member", "zz", epoch, 9),
            ("nobody", "", -1, 9),
        ):
            self.say(f"commit of {what}", await send_offset(client, "k", member_id, given, version=version))
        for version in (8, 9):
            self.say(
                f"commit v{version} in an unknown group", await send_offset(client, "no", "k1", 4, version=version)
            )
        for group, member_id, given in (
            ("k", "k1", epoch), ("k", "k1", epoch + 1), ("k", "zz", 1), ("k", None, -1), ("k", "", -1), ("no", "k1", 3),
            ("no", None, -1),
        ):  # fmt: skip
            found = await fetch_offsets(client, group, member_id, given)
            told = [one.committed_offset for topic in found.topics for one in topic.partitions]
            self.say(f"fetch of {group} by {member_id} at {given}", f"{found.error_code} {told}")
        self.heard("k2 joins", await other.join("t"))
        for _ in range(2):
            self.heard("k1 does as told", await member.done())
        codes = [await send_offset(client, "k", "k1", epoch, partition) for partition in range(4)]
        self.say("commits of the epoch before", sorted(codes))

    async def conversion(self) -> None:
        old = Member(self.another, "c", version=5, metadata=encode_subscription(Subscription(topics=("t",))))
        old.protocol_type = "consumer"
        await old.join()
        all_of_it = encode_assignment([TopicPartition("t", number) for number in range(4)])
        self.say("the only classic member syncs", (await old.sync({old.member_id: all_of_it})).error_code)
        new = self.consumer("n", "c")
        self.heard("n joins", await new.join("t"))
        await self.who("c")
        await self.kind("c")
        self.say("classic heartbeat", await old.heartbeat())
        self.say("classic sync", (await old.sync()).error_code)
        owned = tuple(TopicPartition("t", number) for number in range(4))
        for holds in (owned, owned[:0]):
            old.metadata = encode_subscription(Subscription(topics=("t",), owned_partitions=holds))
            joined = await old.join()
            told = (joined.error_code, joined.generation_id, joined.leader, joined.protocol_name, len(joined.members))
            self.say(f"classic join, holding {len(holds)}", told)
            synced = await old.sync()
            self.say("classic sync", (synced.error_code, len(decode_assignment(synced.assignment))))
            self.say("classic heartbeat", await old.heartbeat())
            await self.who("c")
        for _ in range(2):
            self.heard("n does as told", await new.done())
        await self.who("c")
        for version in (5, 6):
            (found,) = (await self.client.call(m.DescribeGroupsRequest(groups=["c"]), version)).groups
            self.say(f"DescribeGroups v{version}", (found.error_code, found.group_state))
        self.heard("n leaves", await new.beat(member_epoch=-1))
        await self.kind("c")
        self.heard("n that left beats", await new.beat(member_epoch=3))
        joined = await old.join()
        self.say("classic join", (joined.error_code, joined.leader == old.member_id))

    async def taking_over(self) -> None:
        first = self.consumer("st", "x")
        self.heard("st joins as i", await first.join("t", instance_id="i"))
        old = Member(
            self.another, "x", version=5, instance="i", metadata=encode_subscription(Subscription(topics=("t",)))
        )
        old.protocol_type = "consumer"
        joined = await old.join()
        self.say("a classic member takes its place", (joined.error_code, joined.leader, joined.protocol_name))
        synced = await old.sync()
        self.say("and syncs", (synced.error_code, len(decode_assignment(synced.assignment))))
        await self.kind("x")
        self.heard("a consumer takes it back", await self.consumer("st2", "x").join("t", instance_id="i"))
        await self.who("x")
        request = m.LeaveGroupRequest(
            group_id="x", members=[Identity(member_id="zz"), Identity(member_id="", group_instance_id="i")]
        )
        left = (await self.client.call(request, 5)).members
        self.say("LeaveGroup", [one.error_code for one in left])
        deleted = (await self.client.call(m.DeleteGroupsRequest(groups_names=["k", "x"]), 2)).results
        self.say("delete one with members, one without", sorted((one.group_id, one.error_code) for one in deleted))

    async def another_kind(self) -> None:
        await Member(self.another, "y", version=3).join()
        self.heard("join a group of another type", await self.consumer("q", "y").join("t"))
        self.heard("beat in a classic group", await self.consumer("q", "y").beat(member_epoch=2))


PARTS: tuple[Callable[[_Play], Any], ...] = (
    _Play.first_members, _Play.refused, _Play.static, _Play.offsets, _Play.conversion, _Play.taking_over,
    _Play.another_kind,
)  # fmt: skip


async def play_on(server: Any) -> list[str]:
    """Every question in order, and the answers of the server (anything with ``listeners``)."""
    async with WireClient(server) as client, WireClient(server) as another:
        run = _Play(client, another)
        await create(client, "t", 4)
        await create(client, "u", 2)
        await ready(client, "g", "x", "s", "k", "no", "c", "y")
        for part in PARTS:
            run.lines += ["", f"# {part.__name__}"]
            await part(run)
    return run.lines
