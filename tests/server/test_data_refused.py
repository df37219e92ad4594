"""What records and offsets ask permission for, quotas, and a disk that refuses: over the wire."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from eventbus.log import storage as storage_module
from eventbus.protocol import messages as m
from eventbus.server.security.acls import CLUSTER_NAME, Operation, ResourceType
from eventbus.testing import KafkaServer
from tests.server.batches import (
    batch,
    create,
    fetch,
    fetch_request,
    partitions_of,
    produce,
    produce_request,
    values_in,
)
from tests.server.wire import WireClient

UNKNOWN_TOPIC, TOPIC_REFUSED, GROUP_REFUSED, ID_REFUSED, STORAGE, UNKNOWN_ID = 3, 29, 30, 53, 56, 100
LONG_MS = 60_000


class Rules:
    """Everything may be done, but for what is denied."""

    def __init__(self, server: KafkaServer, *denied: tuple[Operation, ResourceType, str]) -> None:
        self._denied = set(denied)
        server.node.security.allows = self.allows  # the rules of this test

    def allows(self, _: Any, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (operation, resource_type, name) not in self._denied


async def test_writing_needs_write_on_each_topic() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        for name in "tu":
            await create(client, name)
        Rules(server, (Operation.WRITE, ResourceType.TOPIC, "t"))
        for version in (3, 9, 11):
            request = produce_request({("t", 0): batch(b"no"), ("u", 0): batch(b"yes")})
            response = await client.call(request, version)
            assert [topic.partition_responses[0].error_code for topic in response.responses] == [TOPIC_REFUSED, 0]
        assert (await fetch(client, "t", 0, 0)).high_watermark == 0
        assert (await fetch(client, "u", 0, 0)).high_watermark == 3
        client.send(produce_request({("t", 0): batch(b"no")}, acks=0), 9)
        assert await client.is_closed()


async def test_a_transactional_id_needs_write_too() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        Rules(server, (Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"))
        answer = await produce(client, "t", 0, batch(b"no"), transactional_id="x")
        assert answer.error_code == ID_REFUSED and "'x'" in answer.error_message
        assert (await produce(client, "t", 0, batch(b"yes"))).error_code == 0


async def test_reading_needs_read_and_is_refused_at_once() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        ids = {"t": await create(client, "t"), "u": await create(client, "u")}
        await produce(client, "t", 0, batch(b"secret"))
        Rules(server, (Operation.READ, ResourceType.TOPIC, "t"))
        for version in (4, 11, 13):
            request = fetch_request({("t", 0): 0, ("u", 0): 0}, ids=ids if version == 13 else None, max_wait_ms=LONG_MS)
            response = await client.call(request, version)
            answers = [topic.partitions[0] for topic in response.responses]
            assert [answer.error_code for answer in answers] == [TOPIC_REFUSED, 0]
            assert [bytes(answer.records) for answer in answers] == [b"", b""]
            assert answers[0].high_watermark == -1


async def test_metadata_shows_what_may_be_described() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        hidden = await create(client, "hidden")
        await create(client, "shown")
        Rules(server, (Operation.DESCRIBE, ResourceType.TOPIC, "hidden"))
        response = await client.call(m.MetadataRequest(topics=None), 9)
        assert [topic.name for topic in response.topics] == ["shown"]
        topic = m.MetadataRequest.MetadataRequestTopic
        response = await client.call(m.MetadataRequest(topics=[topic(name="hidden"), topic(name="shown")]), 9)
        assert [(one.name, one.error_code, len(one.partitions)) for one in response.topics] == [
            ("hidden", TOPIC_REFUSED, 0), ("shown", 0, 1),
        ]  # fmt: skip
        response = await client.call(m.MetadataRequest(topics=[topic(name=None, topic_id=hidden)]), 12)
        assert [(one.name, one.error_code) for one in response.topics] == [(None, UNKNOWN_ID)], "not even its name"


async def test_a_topic_is_created_on_demand_for_those_who_may_create_it() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        on_cluster = (Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        for name, denied, code in (
            ("a", [on_cluster], 0),
            ("b", [(Operation.CREATE, ResourceType.TOPIC, "b")], 0),
            ("c", [on_cluster, (Operation.CREATE, ResourceType.TOPIC, "c")], TOPIC_REFUSED),
        ):
            Rules(server, *denied)
            request = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=name)])
            assert (await client.call(request, 9)).topics[0].error_code == code
            assert server.node.broker.has_topic(name) is (code == 0)


async def test_offsets_and_coordinators_need_describe_and_deleting_needs_delete() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        Rules(
            server,
            (Operation.DESCRIBE, ResourceType.TOPIC, "t"),
            (Operation.DELETE, ResourceType.TOPIC, "t"),
            (Operation.DESCRIBE, ResourceType.GROUP, "g"),
            (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "x"),
        )
        at = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[at])
        response = await client.call(m.ListOffsetsRequest(topics=[asked]), 7)
        assert response.topics[0].partitions[0].error_code == TOPIC_REFUSED
        epoch = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        asked = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[epoch])
        response = await client.call(m.OffsetForLeaderEpochRequest(topics=[asked]), 4)
        assert response.topics[0].partitions[0].error_code == TOPIC_REFUSED
        cut = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
        asked = m.DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[cut])
        response = await client.call(m.DeleteRecordsRequest(topics=[asked]), 2)
        (answer,) = response.topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (TOPIC_REFUSED, -1)
        for key_type, key, code in ((0, "g", GROUP_REFUSED), (0, "h", 0), (1, "x", ID_REFUSED), (1, "y", 0)):
            response = await client.call(m.FindCoordinatorRequest(key=key, key_type=key_type), 2)
            assert (response.error_code, response.node_id) == (code, -1 if code else 1)


# quotas --------------------------------------------------------------------------------------------------------------


async def limit(client: WireClient, **rates: float) -> None:
    entry = m.AlterClientQuotasRequest.EntryData(
        entity=[m.AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=None)],
        ops=[m.AlterClientQuotasRequest.OpData(key=key, value=value) for key, value in rates.items()],
    )
    response = await client.call(m.AlterClientQuotasRequest(entries=[entry]), 1)
    assert [one.error_code for one in response.entries] == [0]


async def test_who_writes_faster_than_the_quota_is_told_to_wait() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as admin:
        await create(admin, "t")
        await limit(admin, producer_byte_rate=10_000.0)
        response = await client.call(produce_request({("t", 0): batch(b"x" * 50)}), 9)
        assert response.throttle_time_ms == 0
        response = await client.call(produce_request({("t", 0): batch(b"x" * 200_000)}), 9)
        assert response.throttle_time_ms > 0
        (answer,) = response.responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, 1), "what came is stored"


async def test_who_reads_faster_than_the_quota_gets_nothing_and_is_told_to_wait() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as admin:
        await create(admin, "t")
        await produce(admin, "t", 0, batch(b"x" * 200_000))
        await limit(admin, consumer_byte_rate=10_000.0)
        request = fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS)
        response = await client.call(request, 11)
        assert response.throttle_time_ms == 0, "a batch that no quota lets through at once arrives all the same"
        response = await client.call(request, 11)
        assert response.throttle_time_ms > 0
        (answer,) = partitions_of(response).values()
        assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (0, 1, b"")


# the disk ------------------------------------------------------------------------------------------------------------


async def test_a_full_disk_is_said_and_writing_goes_on_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KafkaServer(f"file://{tmp_path}/log") as server, WireClient(server) as client:
        await create(client, "t")
        assert (await produce(client, "t", 0, batch(b"before"))).error_code == 0

        def full(fd: int, data: Any, position: int) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(storage_module, "_pwrite", full)
            answer = await produce(client, "t", 0, batch(b"lost"))
            assert answer.error_code == STORAGE and "disk is full" in answer.error_message
            assert values_in(await fetch(client, "t", 0, 0)) == [(0, b"before")], "reading goes on"
        assert (await produce(client, "t", 0, batch(b"after"))).base_offset == 1
        assert values_in(await fetch(client, "t", 0, 0)) == [(0, b"before"), (1, b"after")]


async def test_a_damaged_batch_is_never_given_out(tmp_path: Path) -> None:
    async with KafkaServer(f"file://{tmp_path}/log") as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"some value"))
        (path,) = tmp_path.glob("log/t-0/*.log")
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
        answer = await fetch(client, "t", 0, 0, max_wait_ms=LONG_MS)
        assert (answer.error_code, bytes(answer.records)) == (2, b"")
