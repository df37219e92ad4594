"""Random requests about groups and transactions, from peers that make no sense together: nothing breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventbus.protocol import messages as m
from eventbus.testing import FakeClock
from eventbus.testing.server import KafkaServer
from tests.server.groups import (
    CommitPartition,
    CommitTopic,
    FetchGroup,
    FetchTopics,
    Identity,
    JoinProtocol,
    TxnCommitPartition,
    TxnCommitTopic,
    TxnTopic,
    clocked_server,
    create,
)
from tests.server.wire import PATIENCE_SECONDS, WireClient
from tests.tiers import quick

pytestmark = pytest.mark.system

REQUESTS = 1_000
MEMBER_ID_REQUIRED = 79
CONNECTIONS = 12


class Storm:
    """What is asked next, and what has been heard of ids and generations."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.members = [("g", "", -1), ("h", "", -1)]
        """Group, member id, generation."""
        self.producers = [("x", -1, -1), ("y", -1, -1)]

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def member(self) -> tuple[str, str, int]:
        """Mostly one that was heard of, as it was."""
        group, member_id, generation = self.random.choice(self.members[-4:])
        if self.random.random() < 0.1:
            group = self.pick("g", "h", "")
        if self.random.random() < 0.1:
            member_id = self.pick("", "nobody")
        return group, member_id, generation + self.pick(-1, 0, 0, 0, 0, 0, 1)

    def group(self) -> str:
        return self.pick("g", "g", "h", "i", "")

    def instance(self) -> str | None:
        return self.pick(None, None, None, None, "a", "b")

    def partitions(self) -> list[tuple[str, int]]:
        return [(self.pick("t", "t", "none"), self.pick(0, 1, 1, 9)) for _ in range(self.random.randrange(4))]

    def producer(self) -> tuple[str, int, int]:
        """Mostly one that was heard of, as it was."""
        transactional_id, producer_id, epoch = self.random.choice(self.producers[-2:])
        if self.random.random() < 0.1:
            transactional_id = self.pick("x", "y", "")
        return transactional_id, producer_id, max(epoch + self.pick(-1, 0, 0, 0, 0, 0, 0, 1), -1)

    def request(self) -> tuple[Any, int]:
        make: Callable[[], tuple[Any, int]] = self.pick(
            *[self.join] * 4, *[self.sync] * 4, *[self.heartbeat] * 4, self.leave, *[self.commit] * 2, self.fetch,
            self.look, self.delete, self.init, *[self.add] * 2, self.add_offsets, *[self.commit_in_transaction] * 2,
            *[self.end] * 2, self.look_at_transactions,
        )  # fmt: skip
        return make()

    def join(self) -> tuple[Any, int]:
        protocols = [
            JoinProtocol(name=name, metadata=self.random.randbytes(self.random.randrange(2)))
            for name in ("range", *self.random.sample(("sticky", "other"), self.random.randrange(2)))
        ]
        group, member_id, _ = self.member()
        request = m.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=self.pick(500, 5_000, 10_000, 10_000, 10_000, -1),
            rebalance_timeout_ms=self.pick(-1, 0, 20, 500, 2_000),
            member_id=member_id,
            group_instance_id=self.instance(),
            protocol_type=self.pick(*["consumer"] * 9, "connect", ""),
            protocols=protocols[self.pick(*[0] * 9, 9) :],
        )
        return request, self.random.randrange(5 if request.group_instance_id else 0, 10)

    def sync(self) -> tuple[Any, int]:
        group, member_id, generation = self.member()
        one = m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
        request = m.SyncGroupRequest(group_id=group, generation_id=generation, member_id=member_id, assignments=[one])
        return request, self.random.randrange(5)

    def heartbeat(self) -> tuple[Any, int]:
        group, member_id, generation = self.member()
        request = m.HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=self.instance()
        )
        return request, self.pick(3, 4)

    def leave(self) -> tuple[Any, int]:
        group, member_id, _ = self.member()
        members = [
            Identity(member_id=self.pick(member_id, ""), group_instance_id=self.instance())
            for _ in range(self.random.randrange(3))
        ]
        request = m.LeaveGroupRequest(group_id=group, member_id=member_id, members=members)
        return request, self.random.randrange(6)

    def commit(self) -> tuple[Any, int]:
        topics = [
            CommitTopic(
                name=topic, partitions=[CommitPartition(partition_index=number, committed_offset=self.pick(-2, 7))]
            )
            for topic, number in self.partitions()
        ]
        group, member_id, generation = self.member()
        request = m.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=self.instance(),
            topics=topics,
        )
        return request, self.random.randrange(7, 11)

    def fetch(self) -> tuple[Any, int]:
        topics = [FetchTopics(name=topic, partition_indexes=[number]) for topic, number in self.partitions()]
        group = FetchGroup(group_id=self.group(), topics=self.pick(None, topics))
        return m.OffsetFetchRequest(groups=[group], require_stable=self.pick(True, False)), self.random.randrange(8, 11)

    def look(self) -> tuple[Any, int]:
        if self.pick(True, False):
            return m.ListGroupsRequest(), self.random.randrange(6)
        return m.DescribeGroupsRequest(groups=[self.group()]), self.random.randrange(7)

    def delete(self) -> tuple[Any, int]:
        if self.pick(True, False):
            return m.DeleteGroupsRequest(groups_names=[self.group()]), self.random.randrange(3)
        topic, part = m.OffsetDeleteRequest.OffsetDeleteRequestTopic, m.OffsetDeleteRequest.OffsetDeleteRequestPartition
        topics = [topic(name=name, partitions=[part(partition_index=number)]) for name, number in self.partitions()]
        return m.OffsetDeleteRequest(group_id=self.group(), topics=topics), 0

    def init(self) -> tuple[Any, int]:
        transactional_id, producer_id, epoch = self.producer()
        request = m.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=self.pick(20, 60_000, 60_000, 0)
        )
        if self.pick(True, False):
            request.producer_id, request.producer_epoch = producer_id, epoch
        return request, self.random.randrange(3, 6)

    def add(self) -> tuple[Any, int]:
        transactional_id, producer_id, epoch = self.producer()
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[TxnTopic(name=topic, partitions=[number]) for topic, number in self.partitions()],
        )
        return request, self.random.randrange(4)

    def add_offsets(self) -> tuple[Any, int]:
        transactional_id, producer_id, epoch = self.producer()
        request = m.AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=self.group()
        )
        return request, self.random.randrange(5)

    def commit_in_transaction(self) -> tuple[Any, int]:
        transactional_id, producer_id, epoch = self.producer()
        topics = [
            TxnCommitTopic(name=topic, partitions=[TxnCommitPartition(partition_index=number, committed_offset=3)])
            for topic, number in self.partitions()
        ]
        group, member_id, generation = self.member()
        request = m.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            topics=topics,
        )
        return request, self.pick(3, 4)

    def end(self) -> tuple[Any, int]:
        transactional_id, producer_id, epoch = self.producer()
        request = m.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=self.pick(True, False),
        )
        return request, self.random.randrange(5)

    def look_at_transactions(self) -> tuple[Any, int]:
        if self.pick(True, False):
            return m.ListTransactionsRequest(duration_filter=self.pick(-1, 0, 50)), 1
        return m.DescribeTransactionsRequest(transactional_ids=["x", "y"]), 0

    def heard(self, request: Any, answer: Any) -> None:
        if isinstance(answer, m.JoinGroupResponse) and answer.error_code in (0, MEMBER_ID_REQUIRED):
            self.members.append((request.group_id, answer.member_id, answer.generation_id))
        if isinstance(answer, m.InitProducerIdResponse) and not answer.error_code:
            self.producers.append((request.transactional_id, answer.producer_id, answer.producer_epoch))


class Peer:
    """A connection that asks without waiting, and hears the answers as they come."""

    def __init__(self, client: WireClient, storm: Storm) -> None:
        self.client = client
        self.storm = storm
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(self._hear())

    def ask(self) -> None:
        request, version = self.storm.request()
        self.sent.put_nowait((request, self.client.send(request, version)))

    async def _hear(self) -> None:
        while (asked := await self.sent.get()) is not None:
            request, sent = asked
            self.storm.heard(request, await self.client.receive(sent))


STORMS = quick([("file", 1), ("memory", 0), ("memory", 1), ("file", 0)], 1)


@pytest.mark.parametrize(("where", "seed"), STORMS)
async def test_a_storm_of_requests(where: str, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storm, clock = Storm(seed), FakeClock()
    url = None if where == "memory" else f"file://{tmp_path}"
    caplog.set_level(logging.ERROR)
    async with clocked_server(clock, url, offsets_topic_num_partitions=2) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(WireClient(server)) for _ in range(CONNECTIONS)]
        await create(clients[0])
        peers = [Peer(client, storm) for client in clients]
        for number in range(REQUESTS):
            storm.random.choice(peers).ask()
            for _ in range(storm.random.randrange(12)):
                await asyncio.sleep(0)  # the server's turn, and the peers'
            if number % 20 == 0:
                await clock.advance(seconds=storm.random.random())
            if number % 100 == 0:
                server.node.broker.check()
        for peer in peers:
            peer.sent.put_nowait(None)
        hearing = asyncio.gather(*(peer.task for peer in peers))
        for _ in range(100):  # who is parked is answered by the timeouts of its group
            await clock.advance(seconds=60)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await hearing
        server.node.broker.check()
    assert not caplog.records
    if url is not None:
        async with KafkaServer(url) as reopened:
            reopened.node.broker.check()
