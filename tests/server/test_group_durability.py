"""Nothing is said of groups and transactions before it is on the disk, and what was said survives a kill."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.broker.transactions import Transactions
from eventbus.coordinator.requests import TransactionEnd
from eventbus.protocol import messages as m
from eventbus.testing.server import KafkaServer
from eventbus.types import TopicPartition
from tests.server.groups import (
    CommitPartition,
    CommitTopic,
    Identity,
    Member,
    TransactionalProducer,
    TxnCommitPartition,
    TxnCommitTopic,
    commit,
    committed,
    create,
    read,
)
from tests.server.test_flush_waits import DEADLINE_S, Disk
from tests.server.test_transactions import describe
from tests.server.wire import WireClient

UNKNOWN_MEMBER, REBALANCE_IN_PROGRESS, UNSTABLE = 25, 27, 88


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def durable_server(directory: Path) -> KafkaServer:
    return KafkaServer(f"file://{directory}", offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)


async def answered_after_the_flush(
    server: KafkaServer, disk: Disk, client: WireClient, request: Any, version: int
) -> Any:
    """The answer, which must not come before the disk has what it says."""
    with disk.busy():
        disk.begun.clear()
        sent = client.send(request, version)
        receiving = asyncio.create_task(client.receive(sent))
        begun = asyncio.create_task(asyncio.to_thread(disk.begun.wait, DEADLINE_S))
        await asyncio.wait({receiving, begun}, return_when=asyncio.FIRST_COMPLETED)
        async with WireClient(server) as other:  # the server has had its turns
            await other.call(m.ApiVersionsRequest(), 0)
        assert not receiving.done(), f"answered before the flush: {receiving.result()}"
        assert await begun, "nobody asked for a flush"
    return await receiving


Prepare = Callable[[WireClient], Awaitable[tuple[Any, int]]]


async def a_leaders_sync(client: WireClient) -> tuple[Any, int]:
    member = Member(client, "new")
    await member.join()
    return member.sync_request({member.member_id: b"all"}), 4


async def the_last_members_leave(client: WireClient) -> tuple[Any, int]:
    member = Member(client, "left")
    await member.enter()
    return m.LeaveGroupRequest(group_id="left", members=[Identity(member_id=member.member_id)]), 4


async def a_static_members_return(client: WireClient) -> tuple[Any, int]:
    member = Member(client, "static", instance="i")
    await member.enter()
    return Member(client, "static", instance="i").join_request(), 9


async def a_commit(client: WireClient) -> tuple[Any, int]:
    part = CommitPartition(partition_index=0, committed_offset=1)
    return m.OffsetCommitRequest(group_id="c", topics=[CommitTopic(name="t", partitions=[part])]), 8


async def a_deletion_of_offsets(client: WireClient) -> tuple[Any, int]:
    await commit(client, "d", {("t", 0): 1})
    part = m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[part])
    return m.OffsetDeleteRequest(group_id="d", topics=[topic]), 0


async def a_deletion_of_a_group(client: WireClient) -> tuple[Any, int]:
    await commit(client, "e", {("t", 0): 1})
    return m.DeleteGroupsRequest(groups_names=["e"]), 2


async def an_epoch(client: WireClient) -> tuple[Any, int]:
    return m.InitProducerIdRequest(transactional_id="epoch", transaction_timeout_ms=60_000), 4


async def an_end(client: WireClient) -> tuple[Any, int]:
    producer = TransactionalProducer(client, "end")
    await producer.init()
    await producer.add(("t", 0))
    await producer.send("t", 0, "x")
    return producer.end_request(committed=True), 3


async def offsets_in_a_transaction(client: WireClient) -> tuple[Any, int]:
    producer = TransactionalProducer(client, "offsets")
    await producer.init()
    await producer.add_offsets("o")
    part = TxnCommitPartition(partition_index=0, committed_offset=1)
    request = m.TxnOffsetCommitRequest(
        transactional_id="offsets",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="o",
        topics=[TxnCommitTopic(name="t", partitions=[part])],
    )
    return request, 3


CASES: list[Prepare] = [
    a_leaders_sync, the_last_members_leave, a_static_members_return, a_commit, a_deletion_of_offsets,
    a_deletion_of_a_group, an_epoch, an_end, offsets_in_a_transaction,
]  # fmt: skip


@pytest.mark.parametrize("prepare", CASES)
async def test_an_answer_waits_for_the_flush_of_what_it_says(prepare: Prepare, tmp_path: Path, disk: Disk) -> None:
    async with durable_server(tmp_path) as server, WireClient(server) as client:
        await create(client)
        request, version = await prepare(client)
        answer = await answered_after_the_flush(server, disk, client, request, version)
        assert getattr(answer, "error_code", 0) == 0


async def test_offsets_are_not_told_before_they_are_durable(tmp_path: Path, disk: Disk) -> None:
    async with durable_server(tmp_path) as server, WireClient(server) as client, WireClient(server) as other:
        await create(client)
        await commit(client, "g", {("t", 0): 1})
        with disk.busy():
            disk.begun.clear()
            committing = asyncio.create_task(commit(client, "g", {("t", 0): 2}))
            await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
            fetching = asyncio.create_task(committed(other, "g", [("t", 0)]))
            async with WireClient(server) as third:
                await third.call(m.ApiVersionsRequest(), 0)
            assert not fetching.done()
        assert await fetching == {("t", 0): (2, "", 0)}
        assert await committing == {("t", 0): 0}


async def test_the_next_transaction_waits_for_the_flushes_of_the_last_and_is_not_sent_back(tmp_path: Path) -> None:
    """Kafka answers CONCURRENT_TRANSACTIONS, and KafkaJS fails on it."""
    async with durable_server(tmp_path) as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client, version=1)
        await producer.init(1)
        for number in range(5):
            assert await producer.add(("t", 0)) == {("t", 0): 0}
            assert await producer.send("t", 0, str(number)) == 0
            assert await producer.end() == 0
        assert await producer.add_offsets("g") == 0
        heir = TransactionalProducer(client, version=1)
        assert (await heir.init(1)).error_code == 0
        await markers_are_written(heir)
        assert await read(client, "t") == list("01234")


async def test_a_commit_is_not_decided_before_its_records_are_durable(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a producer that does not wait for its acks."""
    missing: list[list[tuple[TopicPartition, int]]] = []
    end = Transactions.end

    def watched(transactions: Transactions, transactional_id: str, *args: Any, **options: Any) -> TransactionEnd:
        missing.append(transactions.not_durable(transactional_id))
        return end(transactions, transactional_id, *args, **options)

    monkeypatch.setattr(Transactions, "end", watched)
    async with durable_server(tmp_path) as server, WireClient(server) as client, WireClient(server) as other:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        await producer.add(("t", 0))
        with disk.busy():
            disk.begun.clear()
            sent = client.send(producer.send_request("t", 0, "x"), 9)
            await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
            assert server.node.broker.transactions.not_durable("tx") == [(TopicPartition("t", 0), 0)]
            ending = other.send(producer.end_request(committed=True), 3)
            async with WireClient(server) as third:
                await third.call(m.ApiVersionsRequest(), 0)
        assert (await client.receive(sent)).responses[0].partition_responses[0].error_code == 0
        assert (await other.receive(ending)).error_code == 0
        assert missing == [[]]
        await markers_are_written(producer)
        assert await read(client, "t") == ["x"]


async def test_a_commit_is_not_decided_before_its_offsets_are_durable(tmp_path: Path, disk: Disk) -> None:
    """Also for a producer that does not wait to hear that they are stored."""
    async with durable_server(tmp_path) as server, WireClient(server) as client, WireClient(server) as other:
        await create(client)
        request, version = await offsets_in_a_transaction(client)
        ending = m.EndTxnRequest(
            transactional_id="offsets",
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            committed=True,
        )
        with disk.busy():
            disk.begun.clear()
            sent = client.send(request, version)
            await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
            asked = other.send(ending, 3)
            async with WireClient(server) as third:
                await third.call(m.ApiVersionsRequest(), 0)
            assert server.node.broker.transactions.describe("offsets").state == "Ongoing", "not decided yet"
        assert (await client.receive(sent)).topics[0].partitions[0].error_code == 0
        assert (await other.receive(asked)).error_code == 0


async def markers_are_written(producer: TransactionalProducer) -> None:
    """The next transaction begins when they are; the end is answered before."""
    assert await producer.add(("t", 0)) == {("t", 0): 0}


# restart --------------------------------------------------------------------------------------------------------------


async def test_members_and_transactions_go_on_after_a_kill(tmp_path: Path) -> None:
    """The directory as a kill -9 leaves it, opened by the next server: clients go on as if nothing had been."""
    first, second = tmp_path / "first", tmp_path / "second"
    async with durable_server(first) as server, WireClient(server) as client:
        await create(client)
        member, static = Member(client), Member(client, "static", instance="i")
        await member.enter()
        await static.enter()
        assert await member.commit({("t", 0): 3}) == {("t", 0): 0}
        producer = TransactionalProducer(client)
        await producer.init()
        await producer.add(("t", 0))
        assert await producer.send("t", 0, "before") == 0
        assert await producer.add_offsets("g") == 0
        assert await producer.commit_offsets("g", {("t", 1): 5}) == {("t", 1): 0}
        shutil.copytree(first, second)

    async with durable_server(second) as server, WireClient(server) as client:
        member.client = static.client = producer.client = client
        assert [await member.heartbeat(), await static.heartbeat()] == [0, 0]
        assert (await member.sync()).assignment == b"mine"
        assert await member.commit({("t", 0): 4}) == {("t", 0): 0}
        both = [("t", 0), ("t", 1)]
        assert await committed(client, "g", both, require_stable=True) == {
            ("t", 0): (4, "", 0),
            ("t", 1): (-1, "", UNSTABLE),
        }
        assert (await describe(client, "tx"))[1] == "Ongoing"
        assert await read(client, "t") == []
        assert await producer.send("t", 0, "after") == 0
        assert await producer.end() == 0
        await markers_are_written(producer)
        assert await read(client, "t") == ["before", "after"]
        assert await committed(client, "g", both, require_stable=True) == {("t", 0): (4, "", 0), ("t", 1): (5, "", 0)}
        server.node.broker.check()


async def test_a_group_killed_in_a_rebalance_rebalances(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with durable_server(first) as server, WireClient(server) as client, WireClient(server) as parked:
        member, newcomer = Member(client), Member(parked)
        await member.enter()
        newcomer.member_id = (await parked.call(newcomer.join_request(), 9)).member_id
        parked.send(newcomer.join_request(), 9)
        while await member.heartbeat() != REBALANCE_IN_PROGRESS:
            pass
        shutil.copytree(first, second)
        await member.join()

    async with durable_server(second) as server, WireClient(server) as client, WireClient(server) as other:
        member.client, newcomer.client = client, other
        # It was told generation 2, of which nothing is stored.
        assert (await member.sync()).error_code == 22
        assert (await newcomer.client.call(newcomer.join_request(), 9)).error_code == UNKNOWN_MEMBER
        newcomer.member_id = ""
        joining = asyncio.create_task(newcomer.join())
        while await member.heartbeat() not in (REBALANCE_IN_PROGRESS, 22):
            pass
        answer = await member.join()
        while len(answer.members) < 2 and answer.leader == member.member_id:
            await member.sync({member.member_id: b""})
            answer = await member.join()
        assert (await joining).generation_id == answer.generation_id


async def test_a_decision_killed_before_its_markers_is_carried_out(tmp_path: Path, disk: Disk) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with durable_server(first) as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        await producer.add(("t", 0), ("t", 1))
        await producer.send("t", 0, "x")
        await producer.send("t", 1, "y")
        with disk.busy():
            disk.begun.clear()
            ending = asyncio.create_task(producer.end())
            await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
            shutil.copytree(first, second)  # Prepare* is written, and no marker is
        assert await ending == 0

    async with durable_server(second) as server, WireClient(server) as client:
        assert (await describe(client, "tx"))[1] == "CompleteCommit"
        assert [await read(client, "t", 0), await read(client, "t", 1)] == [["x"], ["y"]]
        producer.client = client
        assert await producer.end() == 0
        assert await producer.add(("t", 0)) == {("t", 0): 0}
