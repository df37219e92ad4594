"""Members of groups and transactional producers that say over the wire exactly what a test wants said."""

from __future__ import annotations

from typing import Any

from eventbus.protocol import messages as m
from eventbus.records import BatchBuilder, iter_batches
from eventbus.server import Listener, Server, ServerConfig
from eventbus.testing import FakeClock
from tests.server.wire import WireClient

JoinProtocol = m.JoinGroupRequest.JoinGroupRequestProtocol
Assignment = m.SyncGroupRequest.SyncGroupRequestAssignment
CommitTopic = m.OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = m.OffsetCommitRequest.OffsetCommitRequestPartition
FetchGroup = m.OffsetFetchRequest.OffsetFetchRequestGroup
FetchTopics = m.OffsetFetchRequest.OffsetFetchRequestTopics
FetchTopic = m.OffsetFetchRequest.OffsetFetchRequestTopic
TxnTopic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TxnCommitTopic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
TxnCommitPartition = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
Identity = m.LeaveGroupRequest.MemberIdentity


def clocked_server(clock: FakeClock, url: str | None = None, **settings: Any) -> Server:
    """A server whose sessions and transactions end when the test says so; in memory, if nothing else is said."""
    defaults = {"auto_create_topics": True, "group_min_session_timeout_ms": 10}
    config = ServerConfig(listeners=(Listener(port=0),))
    return Server(url or f"memory://clocked-{id(clock)}", config, {**defaults, **settings}, clock=clock)


async def create(client: WireClient, topic: str = "t", partitions: int = 2) -> None:
    keep = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="-1")  # timestamps are old
    creatable = m.CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, configs=[keep]
    )
    response = await client.call(m.CreateTopicsRequest(topics=[creatable]), 5)
    assert response.topics[0].error_code == 0


class Member:
    """One member of a group, on a connection of its own."""

    def __init__(
        self,
        client: WireClient,
        group: str = "g",
        *,
        version: int = 9,
        instance: str | None = None,
        metadata: bytes = b"m",
    ) -> None:
        self.client = client
        self.group = group
        self.version = version
        self.instance = instance
        self.metadata = metadata
        self.member_id = ""
        self.generation = -1
        self.protocols = ("range",)
        self.protocol_name: str | None = "range"
        self.protocol_type = "test"
        self.session_ms = 10_000

    def join_request(self) -> m.JoinGroupRequest:
        return m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocols=[JoinProtocol(name=name, metadata=self.metadata) for name in self.protocols],
        )

    async def join(self) -> m.JoinGroupResponse:
        """Join, and come back with the id if asked to."""
        response = await self.client.call(self.join_request(), self.version)
        if response.error_code == 79:
            self.member_id = response.member_id
            response = await self.client.call(self.join_request(), self.version)
        if response.error_code == 0:
            self.member_id, self.generation = response.member_id, response.generation_id
            self.protocol_name = response.protocol_name
        return response

    def sync_request(self, assignments: dict[str, bytes] | None = None) -> m.SyncGroupRequest:
        return m.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignments=[Assignment(member_id=name, assignment=data) for name, data in (assignments or {}).items()],
        )

    async def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> m.SyncGroupResponse:
        return await self.client.call(self.sync_request(assignments), version)

    async def enter(self) -> None:
        """Join alone, and assign to itself."""
        response = await self.join()
        assert response.error_code == 0, response
        assert (await self.sync({self.member_id: b"mine"})).assignment == b"mine"

    async def heartbeat(self, version: int = 4) -> int:
        request = m.HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        return (await self.client.call(request, version)).error_code

    async def leave(self, version: int = 5) -> m.LeaveGroupResponse:
        request = m.LeaveGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            members=[Identity(member_id=self.member_id, group_instance_id=self.instance)],
        )
        return await self.client.call(request, version)

    async def commit(self, offsets: dict[tuple[str, int], int], version: int = 8) -> dict[tuple[str, int], int]:
        return await commit(self.client, self.group, offsets, version, self.generation, self.member_id, self.instance)


async def commit(
    client: WireClient,
    group: str,
    offsets: dict[tuple[str, int], int],
    version: int = 8,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
) -> dict[tuple[str, int], int]:
    """Commit offsets; the codes that came back."""
    request = m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[
            CommitTopic(
                name=topic,
                partitions=[
                    CommitPartition(
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                ],
            )
            for (topic, number), offset in offsets.items()
        ],
    )
    response = await client.call(request, version)
    return {(topic.name, one.partition_index): one.error_code for topic in response.topics for one in topic.partitions}


async def committed(
    client: WireClient, group: str, partitions: list[tuple[str, int]] | None, *, require_stable: bool = False
) -> dict[tuple[str, int], tuple[int, str | None, int]]:
    """What a group committed: offset, metadata, code."""
    topics = None
    if partitions is not None:
        topics = [FetchTopics(name=topic, partition_indexes=[number]) for topic, number in partitions]
    request = m.OffsetFetchRequest(groups=[FetchGroup(group_id=group, topics=topics)], require_stable=require_stable)
    (found,) = (await client.call(request, 8)).groups
    assert (found.group_id, found.error_code) == (group, 0)
    return {
        (topic.name, one.partition_index): (one.committed_offset, one.metadata, one.error_code)
        for topic in found.topics
        for one in topic.partitions
    }


class TransactionalProducer:
    """A producer with a transactional id, in the words of a version of the protocol."""

    def __init__(self, client: WireClient, transactional_id: str = "tx", *, version: int = 3) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.version = version
        """Version of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn and TxnOffsetCommit, which belong together. From 5 on
        (KIP-890) batches and offsets add themselves to the transaction, and each end returns the next epoch."""
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(
        self, version: int = 4, *, timeout_ms: int = 60_000, again: bool = False
    ) -> m.InitProducerIdResponse:
        request = m.InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms)
        if again:
            request.producer_id, request.producer_epoch = self.producer_id, self.epoch
        response = await self.client.call(request, version)
        if response.error_code == 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return response

    async def add(self, *partitions: tuple[str, int]) -> dict[tuple[str, int], int]:
        request = m.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[TxnTopic(name=topic, partitions=[number]) for topic, number in partitions],
        )
        response = await self.client.call(request, min(self.version, 3))
        return {
            (topic.name, one.partition_index): one.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for one in topic.results_by_partition
        }

    def send_request(self, topic: str, number: int, *values: str, acks: int = -1) -> m.ProduceRequest:
        """A batch that is part of the transaction."""
        builder = BatchBuilder()
        for value in values:
            builder.append(None, value.encode(), (), 1_700_000_000_000)
        sequence = self.sequences.get((topic, number), 0)
        batch = builder.build(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, is_transactional=True
        )
        data = m.ProduceRequest.PartitionProduceData(index=number, records=bytes(batch))
        self.sequences[topic, number] = sequence + len(values)
        return m.ProduceRequest(
            transactional_id=self.transactional_id,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )

    async def send(self, topic: str, number: int, *values: str, acks: int = -1) -> int:
        """The code that a batch of the transaction is answered with."""
        version = 9 if self.version < 5 else 12
        response = await self.client.call(self.send_request(topic, number, *values, acks=acks), version)
        return response.responses[0].partition_responses[0].error_code

    async def add_offsets(self, group: str) -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return (await self.client.call(request, min(self.version, 4))).error_code

    async def commit_offsets(
        self, group: str, offsets: dict[tuple[str, int], int], *, generation: int = -1, member_id: str = ""
    ) -> dict[tuple[str, int], int]:
        request = m.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            topics=[
                TxnCommitTopic(
                    name=topic,
                    partitions=[
                        TxnCommitPartition(partition_index=number, committed_offset=offset, committed_metadata=None)
                    ],
                )
                for (topic, number), offset in offsets.items()
            ],
        )
        response = await self.client.call(request, self.version)
        return {
            (topic.name, one.partition_index): one.error_code for topic in response.topics for one in topic.partitions
        }

    def end_request(self, committed: bool) -> m.EndTxnRequest:
        return m.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    async def end(self, committed: bool = True) -> int:
        response = await self.client.call(self.end_request(committed), self.version)
        if self.version >= 5 and response.error_code == 0:
            if (response.producer_id, response.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return response.error_code


async def read(client: WireClient, topic: str, number: int = 0, *, committed: bool = True) -> list[str]:
    """The values that a reader of the isolation level sees now."""
    values: list[str] = []
    offset = 0
    dropped: set[int] = set()
    """Producers whose aborted transaction is being read."""
    while True:
        partition = await _fetch(client, topic, number, offset, committed=committed)
        aborted = sorted((one.first_offset, one.producer_id) for one in partition.aborted_transactions or ())
        before = offset
        for batch in iter_batches(bytes(partition.records or b"")):
            header = batch.header
            while aborted and aborted[0][0] <= header.last_offset:
                dropped.add(aborted.pop(0)[1])
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                values += [(value or b"").decode() for value in batch.columns().values]
            offset = header.next_offset
        if offset == before:
            return values


async def _fetch(client: WireClient, topic: str, number: int, offset: int, *, committed: bool) -> Any:
    wanted = m.FetchRequest.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = m.FetchRequest(
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    (found,) = (await client.call(request, 11)).responses
    (partition,) = found.partitions
    assert partition.error_code == 0
    return partition
