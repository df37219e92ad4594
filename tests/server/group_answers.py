"""What is asked of a server about groups and transactions, and what it answers: to compare ours with a real Kafka's.

`play` gives one line per question. Ids that differ from run to run are numbered as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

from eventbus.protocol import messages as m
from tests.server.groups import (
    CommitPartition,
    CommitTopic,
    FetchGroup,
    FetchTopics,
    Identity,
    JoinProtocol,
    Member,
    TransactionalProducer,
    create,
)
from tests.server.wire import WireClient

LATER = {3, 5, 6, 14, 15, 16, 51}
"""Kafka is not ready yet: the topic's leader, the coordinator, the markers of the last transaction."""
PATIENCE_SECONDS = 20


class Node(Protocol):
    """Where a `WireClient` connects to."""

    listeners: Any


class Play:
    """The questions, asked over connections of their own."""

    def __init__(self, connect: Callable[[], Awaitable[WireClient]]) -> None:
        self.connect = connect
        self.lines: list[str] = []

    def say(self, what: str, *answer: object) -> None:
        told = [sorted(one.items()) if isinstance(one, dict) else one for one in answer]  # Kafka's order is any
        self.lines.append(f"{what}: {' '.join(map(str, told))}")

    async def eventually(self, ask: Callable[[], Awaitable[int]]) -> int:
        """The code, once it is none of those that ask to try again."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (code := await ask()) in LATER:
                pass
        return code


async def play(connect: Callable[[], Awaitable[WireClient]]) -> list[str]:
    """Every question in order, and the answers."""
    run = Play(connect)
    client = await connect()
    await create(client)
    await _ready(run, client)
    for part in (
        _joins,
        _members,
        _static,
        _commits,
        _fetches,
        _admin,
        _producers,
        _transactions,
        _ends,
        _descriptions,
        _transactions_v2,
    ):
        run.lines += ["", f"# {part.__name__.removeprefix('_')}"]
        await part(run, client)
    return run.lines


async def _ready(run: Play, client: WireClient) -> None:
    """Coordinators are found, topics led, before anything is compared."""
    for key_type in (0, 1):
        request = m.FindCoordinatorRequest(key="ready", key_type=key_type)

        async def find(request: Any = request) -> int:
            return (await client.call(request, 2)).error_code

        assert await run.eventually(find) == 0

    member = Member(client, "ready", version=3)

    async def join() -> int:
        return (await member.join()).error_code

    assert await run.eventually(join) == 0
    producer = TransactionalProducer(client, "ready")

    async def init() -> int:
        return (await producer.init()).error_code

    assert await run.eventually(init) == 0

    async def add() -> int:
        return (await producer.add(("t", 0)))["t", 0]

    assert await run.eventually(add) == 0

    async def send() -> int:
        return await producer.send("t", 0, "x")

    assert await run.eventually(send) == 0
    assert await producer.end() == 0


# groups ---------------------------------------------------------------------------------------------------------------


async def _joins(run: Play, client: WireClient) -> None:
    for version in range(10):
        for name, change in (
            ("without a group", {"group_id": ""}),
            ("of an unknown member", {"member_id": "nobody"}),
            ("with too short a session", {"session_timeout_ms": 10}),
            ("without a protocol", {"protocols": []}),
            ("without a protocol type", {"protocol_type": ""}),
            ("of a new member", {}),
        ):
            request = Member(client, f"joins{version}").join_request()
            for field, value in change.items():
                setattr(request, field, value)
            answer = await client.call(request, version)
            shown = "-" if answer.member_id == "" else "same" if answer.member_id == request.member_id else "new"
            run.say(
                f"join v{version} {name}", answer.error_code, answer.generation_id, repr(answer.protocol_type),
                repr(answer.protocol_name), repr(answer.leader and "leader"), shown, len(answer.members),
            )  # fmt: skip
    for name, change in (
        ("another protocol type", {"protocol_type": "connect"}),
        ("another protocol", {"protocols": [JoinProtocol(name="other", metadata=b"")]}),
    ):
        request = Member(client, "joins3").join_request()
        for field, value in change.items():
            setattr(request, field, value)
        run.say(f"join with {name}", (await client.call(request, 3)).error_code)


async def _members(run: Play, client: WireClient) -> None:
    member = Member(client, "members")
    run.say("heartbeat of an unknown group", await member.heartbeat())
    run.say("sync of an unknown group", (await member.sync()).error_code)
    for version in (2, 3):
        left = await member.leave(version)
        run.say(f"leave of an unknown group v{version}", left.error_code, [one.error_code for one in left.members])
    await member.join()
    run.say("heartbeat before the sync", await member.heartbeat())
    run.say("commit before the sync", await member.commit({("t", 0): 1}))
    run.say("sync", (answer := await member.sync({member.member_id: b"x"})).error_code, answer.assignment)
    run.say("sync again", (answer := await member.sync()).error_code, answer.assignment)
    for protocol in ((None, "range"), ("test", None), ("other", "range"), ("test", "other")):
        request = member.sync_request()
        request.protocol_type, request.protocol_name = protocol
        run.say(f"sync with {protocol}", (await client.call(request, 5)).error_code)
    again = await client.call(member.join_request(), 9)
    run.say("a leader that joins again", again.error_code, again.generation_id, len(again.members))
    run.say("heartbeat of the generation before", await member.heartbeat())
    member.generation += 1
    await member.sync({member.member_id: b"y"})
    member.generation += 1
    run.say("heartbeat of the next generation", await member.heartbeat())
    run.say("sync of the next generation", (await member.sync()).error_code)
    run.say("commit of the next generation", await member.commit({("t", 0): 1}))
    member.generation -= 1
    known, member.member_id = member.member_id, "somebody"
    run.say("heartbeat of somebody", await member.heartbeat())
    run.say("commit of somebody", await member.commit({("t", 0): 1}))
    member.member_id = known
    request = m.LeaveGroupRequest(group_id="members", members=[Identity(member_id=one) for one in ("somebody", known)])
    left = await client.call(request, 3)
    run.say("leave of somebody and a member", left.error_code, [one.error_code for one in left.members])
    run.say("heartbeat after it left", await member.heartbeat())


async def _static(run: Play, client: WireClient) -> None:
    for version in (8, 9):
        group = f"static{version}"
        old, new = (
            Member(client, group, version=version, instance="i"),
            Member(client, group, version=version, instance="i"),
        )
        await old.enter()
        answer = await new.join()
        run.say(
            f"static leader back v{version}", answer.error_code, answer.generation_id, answer.skip_assignment,
            {old.member_id: "old", new.member_id: "new"}[answer.leader], len(answer.members),
        )  # fmt: skip
        run.say("the old one's heartbeat", await old.heartbeat())
        run.say("the old one's sync", (await old.sync()).error_code)
        run.say("the old one's commit", await old.commit({("t", 0): 1, ("t", 9): 1}))
        run.say("the old one's join", (await client.call(old.join_request(), version)).error_code)
        left = await old.leave()
        run.say("the old one's leave", left.error_code, [one.error_code for one in left.members])
        run.say("the new one's sync", (await new.sync()).assignment)
        new.instance = "j"
        run.say("with an instance nobody has", await new.heartbeat())
        request = m.LeaveGroupRequest(
            group_id=group, members=[Identity(member_id="", group_instance_id=name) for name in ("j", "i", "i")]
        )
        left = await client.call(request, 5)
        run.say("leave by instance", left.error_code, [one.error_code for one in left.members])


async def _commits(run: Play, client: WireClient) -> None:
    async def ask(name: str, version: int, group: str = "commits", **fields: Any) -> None:
        parts = [
            CommitPartition(partition_index=number, committed_offset=offset, committed_metadata=metadata)
            for number, offset, metadata in ((0, 5, "a"), (9, 5, "a"), (1, -2, None), (1, 5, "x" * 4097))
        ]
        topics = [CommitTopic(name="t", partitions=[part]) for part in parts[: fields.pop("count", 4)]]
        answer = await client.call(m.OffsetCommitRequest(group_id=group, topics=topics, **fields), version)
        found = sorted((one.partition_index, one.error_code) for topic in answer.topics for one in topic.partitions)
        run.say(f"commit v{version} {name}", found)

    for version in range(2, 10):
        await ask("of nobody", version, count=2)
        await ask("below zero", version, count=3)
        await ask(
            "of a member, to a group without members", version, generation_id_or_member_epoch=1, member_id="x", count=1
        )
        await ask(
            "to no group, of a generation", version, "none", generation_id_or_member_epoch=1, member_id="x", count=1
        )
    run.say("metadata too long", (await _commit_long(client)).topics[0].partitions[0].error_code)
    member = Member(client, "commits")
    await member.enter()
    await ask("of nobody, to a group with members", 8, count=2)
    await ask("of the member", 8, count=2, generation_id_or_member_epoch=member.generation, member_id=member.member_id)


async def _commit_long(client: WireClient) -> m.OffsetCommitResponse:
    part = CommitPartition(partition_index=1, committed_offset=5, committed_metadata="x" * 4097)
    request = m.OffsetCommitRequest(group_id="commits", topics=[CommitTopic(name="t", partitions=[part])])
    return await client.call(request, 8)


async def _fetches(run: Play, client: WireClient) -> None:
    for version in (8, 9):
        for group in ("commits", "nobody"):
            for topics in (None, [FetchTopics(name="t", partition_indexes=[0, 1, 9]), FetchTopics(name="none")]):
                request = m.OffsetFetchRequest(groups=[FetchGroup(group_id=group, topics=topics)])
                (found,) = (await client.call(request, version)).groups
                parts = sorted(
                    (topic.name, one.partition_index, one.committed_offset, one.metadata, one.error_code)
                    for topic in found.topics
                    for one in topic.partitions
                )
                run.say(f"fetch v{version} {group} {'all' if topics is None else 'some'}", found.error_code, parts)


async def _admin(run: Play, client: WireClient) -> None:
    for version in range(7):
        (found,) = (await client.call(m.DescribeGroupsRequest(groups=["nobody"]), version)).groups
        run.say(f"describe v{version} an unknown group", found.error_code, found.group_state, repr(found.protocol_type))
    (found,) = (await client.call(m.DescribeGroupsRequest(groups=["commits"]), 5)).groups
    run.say(
        "describe", found.error_code, found.group_state, found.protocol_type, found.protocol_data,
        [(one.member_metadata, one.member_assignment, one.group_instance_id) for one in found.members],
    )  # fmt: skip
    for filters in ({"states_filter": ["stable"]}, {"types_filter": ["CLASSIC"]}, {"types_filter": ["consumer"]}):
        groups = (await client.call(m.ListGroupsRequest(**filters), 5)).groups
        run.say(f"list {filters}", [one.group_type for one in groups if one.group_id == "commits"])
    results = (await client.call(m.DeleteGroupsRequest(groups_names=["commits", "nobody", "members"]), 2)).results
    run.say("delete", sorted((one.group_id, one.error_code) for one in results))
    topic, part = m.OffsetDeleteRequest.OffsetDeleteRequestTopic, m.OffsetDeleteRequest.OffsetDeleteRequestPartition
    for group in ("commits", "nobody", "static9"):
        topics = [topic(name="t", partitions=[part(partition_index=number) for number in (0, 9)])]
        answer = await client.call(m.OffsetDeleteRequest(group_id=group, topics=topics), 0)
        codes = sorted((one.partition_index, one.error_code) for topic_ in answer.topics for one in topic_.partitions)
        run.say(f"delete offsets of {group}", answer.error_code, codes)


# transactions ---------------------------------------------------------------------------------------------------------


async def _producers(run: Play, client: WireClient) -> None:
    for version in range(6):
        for name, fields in (
            ("empty id", {"transactional_id": ""}),
            ("timeout 0", {"transactional_id": "p", "transaction_timeout_ms": 0}),
            ("timeout too long", {"transactional_id": "p", "transaction_timeout_ms": 900_001}),
            ("no id", {"transactional_id": None, "transaction_timeout_ms": 0}),
        ):
            request = m.InitProducerIdRequest(**{"transaction_timeout_ms": 60_000, **fields})
            answer = await client.call(request, version)
            given = "-" if answer.producer_id == -1 else "id"
            run.say(f"init v{version} {name}", answer.error_code, given, answer.producer_epoch)
    for fields in ({"producer_id": 5}, {"producer_epoch": 5}):
        request = m.InitProducerIdRequest(transactional_id="p", transaction_timeout_ms=60_000, **fields)
        run.say(f"init with {fields}", (await client.call(request, 4)).error_code)
    producer = TransactionalProducer(client, "p")
    run.say("init", (await producer.init()).error_code, producer.epoch)
    run.say("init again", (await producer.init(again=True)).error_code, producer.epoch)
    before = producer.producer_id, producer.epoch
    await producer.init(again=True)
    producer.producer_id, producer.epoch = before
    run.say("init again, as asked before", (await producer.init(again=True)).error_code, producer.epoch)
    stale = TransactionalProducer(client, "p")
    stale.producer_id, stale.epoch = producer.producer_id, 0
    for version in (3, 4, 5):
        run.say(f"init v{version} of a fenced one", (await stale.init(version, again=True)).error_code)
    stale.producer_id += 1_000_000
    run.say("init of another id", (await stale.init(again=True)).error_code)


async def _transactions(run: Play, client: WireClient) -> None:
    for version in range(4):
        producer = TransactionalProducer(client, f"t{version}", version=version)
        await producer.init()
        old = TransactionalProducer(client, f"t{version}", version=version)
        old.producer_id, old.epoch = producer.producer_id, producer.epoch
        await producer.init()
        for name, who in (("a fenced one", old), ("a stranger", _stranger(client, version))):
            run.say(f"add v{version} of {name}", await who.add(("t", 0)))
            run.say(f"add offsets v{version} of {name}", await who.add_offsets("g"))
            run.say(f"end v{version} of {name}", await who.end())
        wanted = (("t", 0), ("t", 9), ("none", 0), ("__consumer_offsets", 0))
        run.say(f"add v{version} bad partitions", await producer.add(*wanted))
        run.say(f"add v{version}", await producer.add(("t", 0), ("t", 1)))
        run.say(f"add offsets v{version}", await producer.add_offsets("g"))
        run.say(f"commit offsets v{version}", await producer.commit_offsets("g", {("t", 0): 1, ("t", 9): 1}))
        run.say(
            f"commit offsets v{version} of a generation",
            await producer.commit_offsets("g", {("t", 0): 1}, generation=4, member_id="x"),
        )
        run.say(f"end v{version}", await producer.end())


def _stranger(client: WireClient, version: int) -> TransactionalProducer:
    producer = TransactionalProducer(client, "stranger", version=version)
    producer.producer_id, producer.epoch = 1 << 40, 0
    return producer


async def _ends(run: Play, client: WireClient) -> None:
    for committed in (True, False):
        for version in (1, 3, 4):
            producer = TransactionalProducer(client, f"e{version}{committed}", version=version)
            await producer.init()
            run.say(f"end v{version} {committed} without a transaction", await producer.end(committed))
            await producer.add(("t", 0))
            run.say(f"end v{version} {committed}", await producer.end(committed))

            async def again(producer: TransactionalProducer = producer, committed: bool = committed) -> int:
                return await producer.end(committed)

            run.say(f"end v{version} {committed} again", await run.eventually(again))
            run.say(f"end v{version} the other way", await producer.end(not committed))

            async def late(producer: TransactionalProducer = producer) -> int:
                return (await producer.commit_offsets("g", {("t", 0): 5}))["t", 0]

            run.say(f"offsets v{version} after the end", await run.eventually(late))


async def _transactions_v2(run: Play, client: WireClient) -> None:
    """Transactions V2 (KIP-890): the epoch moves at each end, and batches and offsets add themselves."""
    for version in (3, 4):
        request = m.ApiVersionsRequest(client_software_name="x", client_software_version="1")
        answer = await client.call(request, version)
        name = "transaction.version"
        told = [(one.min_version_level, one.max_version_level) for one in answer.finalized_features if one.name == name]
        supported = [(one.min_version, one.max_version) for one in answer.supported_features if one.name == name]
        run.say(f"features v{version}", answer.finalized_features_epoch >= 0, told, supported)

    producer = TransactionalProducer(client, "v2", version=5)

    async def send(who: TransactionalProducer = producer) -> int:
        who.sequences.clear()
        return await who.send("t", 0, "x")

    async def end(committed: bool, epoch: int | None = None) -> tuple[int, int]:
        """The code, and the epoch after it; of an earlier epoch, if given."""
        producer.epoch = producer.epoch if epoch is None else epoch
        return await run.eventually(lambda: producer.end(committed)), producer.epoch

    run.say("init v2", (await producer.init()).error_code, producer.epoch)
    run.say("end v2 of nothing", await end(True), await end(False))
    for committed in (True, False):
        run.say("send v2", await run.eventually(send))
        before = producer.epoch
        run.say(f"end v2 {committed}", await end(committed))
        run.say(f"end v2 {committed} again", await end(committed, before))
        after = producer.epoch
        run.say(f"end v2 {committed} the other way", (await end(not committed, before))[0])
        run.say("send v2 late", await run.eventually(send))
        run.say("offsets v2 late", await producer.commit_offsets("g", {("t", 0): 1}))
        producer.epoch = after

    async def offsets() -> int:
        return (await producer.commit_offsets("g", {("t", 0): 1}))["t", 0]

    run.say("offsets v2", await run.eventually(offsets), await end(True))
    run.say("send v2 before a takeover", await run.eventually(send))
    heir = TransactionalProducer(client, "v2", version=5)

    async def take_over() -> int:
        return (await heir.init()).error_code

    run.say("take over v2", await run.eventually(take_over), heir.epoch - producer.epoch)
    run.say("end v2 of a fenced one", await end(True), await end(False))
    run.say("send v2 of a fenced one", await send())
    run.say("init of a fenced one", (await producer.init(again=True)).error_code)

    thief = TransactionalProducer(client, "thief", version=5)
    await thief.init()
    thief.producer_id, thief.epoch = heir.producer_id, heir.epoch
    run.say("send as another id's producer", await send(thief))
    thief.transactional_id = None  # type: ignore[assignment]
    run.say("send without an id", await send(thief))
    heir.epoch += 1
    run.say("send at a later epoch", await send(heir))
    heir.epoch -= 1
    for version in (10, 11):
        response = await client.call(heir.send_request("t", 1, "x"), version)
        heir.sequences.clear()
        run.say(f"send v{version}, not added", response.responses[0].partition_responses[0].error_code)


async def _descriptions(run: Play, client: WireClient) -> None:
    request = m.DescribeTransactionsRequest(transactional_ids=["unknown", "t3"])

    async def settled() -> int:
        states = (await client.call(request, 0)).transaction_states
        return 51 if any(one.transaction_state.startswith("Prepare") for one in states) else 0

    await run.eventually(settled)
    for found in (await client.call(request, 0)).transaction_states:
        run.say(
            f"describe transaction {found.transactional_id}", found.error_code, found.transaction_state,
            found.transaction_timeout_ms, [(one.topic, one.partitions) for one in found.topics],
        )  # fmt: skip
    answer = await client.call(m.ListTransactionsRequest(state_filters=["Ongoing", "Odd"]), 1)
    run.say("list transactions", answer.error_code, answer.unknown_state_filters, len(answer.transaction_states))
    topic = m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 9])
    (found,) = (await client.call(m.DescribeProducersRequest(topics=[topic]), 0)).topics
    run.say("describe producers", sorted((one.partition_index, one.error_code) for one in found.partitions))


async def play_on(node: Node) -> list[str]:
    """`play`, on a server that listens."""
    async with AsyncExitStack() as stack:
        return await play(lambda: stack.enter_async_context(WireClient(node)))
