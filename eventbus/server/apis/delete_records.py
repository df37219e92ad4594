"""DeleteRecords (key 21): hide records below an offset from readers; -1 is the high watermark.

The deletion is on disk before the answer.
"""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import TopicPartition

Partition = m.DeleteRecordsResponse.DeleteRecordsPartitionResult
Topic = m.DeleteRecordsResponse.DeleteRecordsTopicResult


def delete_records(call: Call, request: m.DeleteRecordsRequest) -> None:
    topics: list[Topic] = []
    for topic in request.topics:
        may_delete = call.allows(Operation.DELETE, ResourceType.TOPIC, topic.name)
        topics.append(
            Topic(
                name=topic.name,
                partitions=[_delete(call, topic.name, partition, may_delete) for partition in topic.partitions],
            )
        )
    call.reply(m.DeleteRecordsResponse(topics=topics))


def _delete(
    call: Call, topic: str, asked: m.DeleteRecordsRequest.DeleteRecordsPartition, may_delete: bool
) -> Partition:
    number = asked.partition_index
    if not may_delete:
        return Partition(partition_index=number, low_watermark=-1, error_code=TOPIC_AUTHORIZATION_FAILED)
    node = call.node
    try:
        low_watermark = node.broker.delete_records(TopicPartition(topic, number), asked.offset, node.clock())
    except KafkaError as error:
        return Partition(partition_index=number, low_watermark=-1, error_code=error.code)
    return Partition(partition_index=number, low_watermark=low_watermark)


API = Api(21, "DeleteRecords", 0, 2, delete_records)
