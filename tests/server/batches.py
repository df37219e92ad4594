"""Record batches for requests, and reading them back out of answers."""

from __future__ import annotations

from typing import Any

from eventbus.protocol import ZERO_UUID
from eventbus.protocol import messages as m
from eventbus.records import BatchBuilder, iter_batches
from eventbus.types import Compression
from tests.server.wire import WireClient

START_MS = 1_700_000_000_000


async def make(client: WireClient, topic: str) -> None:
    """Create a topic, by asking for it."""
    await client.call(m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)]), 4)


def batch(
    *values: bytes | None,
    key: bytes | None = b"key",
    timestamp_ms: int = START_MS,
    codec: Compression = Compression.NONE,
    **producer: Any,
) -> bytearray:
    """One batch, its records 1 ms apart; ``producer``: what `BatchBuilder.build` takes."""
    builder = BatchBuilder(codec)
    for number, value in enumerate(values):
        builder.append(key, value, (), timestamp_ms + number)
    return builder.build(**producer)


def produce_request(
    records: dict[tuple[str, int], Any], *, acks: int = -1, transactional_id: str | None = None
) -> m.ProduceRequest:
    """``records`` by topic and partition, in that order."""
    topics: dict[str, list[Any]] = {}
    for (topic, number), data in records.items():
        partition = m.ProduceRequest.PartitionProduceData(index=number, records=data)
        topics.setdefault(topic, []).append(partition)
    return m.ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        transactional_id=transactional_id,
        topic_data=[
            m.ProduceRequest.TopicProduceData(name=topic, partition_data=partitions)
            for topic, partitions in topics.items()
        ],
    )


async def produce(client: WireClient, topic: str, number: int, data: Any, *, version: int = 9, **how: Any) -> Any:
    """The answer for the one partition."""
    response = await client.call(produce_request({(topic, number): data}, **how), version)
    (answer,) = response.responses[0].partition_responses
    return answer


def fetch_request(
    offsets: dict[tuple[str, int], int],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    ids: Any = None,
    **more: Any,
) -> m.FetchRequest:
    """``offsets`` by topic and partition; with ``ids`` topics are named by theirs (version 13)."""
    topics: dict[str, list[Any]] = {}
    for (topic, number), offset in offsets.items():
        partition = m.FetchRequest.FetchPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        topics.setdefault(topic, []).append(partition)
    return m.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[
            m.FetchRequest.FetchTopic(topic=topic, topic_id=ids[topic] if ids else ZERO_UUID, partitions=partitions)
            for topic, partitions in topics.items()
        ],
        **more,
    )


def partitions_of(response: m.FetchResponse) -> dict[tuple[str, int], Any]:
    """The partitions of an answer, in its order."""
    return {
        (topic.topic, partition.partition_index): partition
        for topic in response.responses
        for partition in topic.partitions
    }


async def fetch(client: WireClient, topic: str, number: int, offset: int, *, version: int = 11, **how: Any) -> Any:
    """The answer for the one partition."""
    response = await client.call(fetch_request({(topic, number): offset}, **how), version)
    assert not response.error_code
    (answer,) = response.responses[0].partitions
    return answer


def values_in(answer: Any) -> list[tuple[int, bytes | None]]:
    """(offset, value) of the records in a partition's answer."""
    found: list[tuple[int, bytes | None]] = []
    for one in iter_batches(bytes(answer.records)):
        columns = one.columns()
        found += zip(columns.offsets, columns.values, strict=True)
    return found


async def create(client: WireClient, name: str, partitions: int = 1, **configs: str) -> bytes:
    """Create a topic; its id."""
    config = m.CreateTopicsRequest.CreatableTopicConfig
    response = await client.call(
        m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=1,
                    configs=[config(name=key.replace("_", "."), value=value) for key, value in configs.items()],
                )
            ],
            timeout_ms=30_000,
        ),
        7,
    )
    (topic,) = response.topics
    assert not topic.error_code, topic
    return topic.topic_id
