"""What the log keeps of passwords is in its metadata log. That is no topic: nobody reads or writes it over the wire."""

from __future__ import annotations

import pytest

from eventbus.protocol import messages as m
from eventbus.records import BatchBuilder
from eventbus.testing import KafkaServer
from tests.server.test_quotas_wire import alter_users, upsertion
from tests.server.wire import WireClient

NAME = "__cluster_metadata"
REFUSALS = (3, 17, 29)
"""UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED."""


@pytest.fixture
async def client():
    async with KafkaServer() as running, WireClient(running) as client:
        assert await alter_users(client, [upsertion("alice")]) == {"alice": 0}
        yield client


async def test_it_is_not_listed(client: WireClient) -> None:
    topics = (await client.call(m.MetadataRequest(topics=None), 12)).topics
    assert NAME not in [topic.name for topic in topics]
    asked = [m.MetadataRequest.MetadataRequestTopic(name=NAME)]
    (topic,) = (await client.call(m.MetadataRequest(topics=asked), 9)).topics
    assert topic.error_code in REFUSALS


async def test_it_cannot_be_fetched(client: WireClient) -> None:
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = m.FetchRequest(max_bytes=1 << 20, topics=[m.FetchRequest.FetchTopic(topic=NAME, partitions=[partition])])
    (answer,) = (await client.call(request, 11)).responses[0].partitions
    assert answer.error_code in REFUSALS
    assert not answer.records


async def test_its_id_leads_nowhere(client: WireClient) -> None:
    """Kafka's, too, is always the same: 1."""
    partition = m.FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = m.FetchRequest.FetchTopic(topic_id=bytes(15) + b"\x01", partitions=[partition])
    (answer,) = (await client.call(m.FetchRequest(max_bytes=1 << 20, topics=[topic]), 13)).responses[0].partitions
    assert answer.error_code == 100
    assert not answer.records


async def test_it_cannot_be_written_to_nor_asked_for_offsets_nor_cut(client: WireClient) -> None:
    builder = BatchBuilder()
    builder.append(b"key", b"value", (), 0)
    data = m.ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(builder.build())))
    topic = m.ProduceRequest.TopicProduceData(name=NAME, partition_data=[data])
    (answer,) = (await client.call(m.ProduceRequest(acks=-1, topic_data=[topic]), 9)).responses[0].partition_responses
    assert answer.error_code in REFUSALS
    asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    listed = m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=NAME, partitions=[asked])])
    (answer,) = (await client.call(listed, 5)).topics[0].partitions
    assert answer.error_code in REFUSALS
    doomed = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)
    request = m.DeleteRecordsRequest(topics=[m.DeleteRecordsRequest.DeleteRecordsTopic(name=NAME, partitions=[doomed])])
    (answer,) = (await client.call(request, 1)).topics[0].partitions
    assert answer.error_code in REFUSALS
