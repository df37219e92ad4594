"""OffsetForLeaderEpoch (key 23): the end of a leader epoch (KIP-320). The only epoch is 0, and it never ends."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.log.partition_log import LEADER_EPOCH
from eventbus.protocol import messages as m
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED, check_leader_epoch
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import TopicPartition

Partition = m.OffsetForLeaderEpochResponse.EpochEndOffset
Topic = m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


def offset_for_leader_epoch(call: Call, request: m.OffsetForLeaderEpochRequest) -> None:
    topics: list[Topic] = []
    for topic in request.topics:
        if call.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic):
            found = [_find(call, topic.topic, partition) for partition in topic.partitions]
        else:
            found = [
                Partition(partition=partition.partition, error_code=TOPIC_AUTHORIZATION_FAILED)
                for partition in topic.partitions
            ]
        topics.append(Topic(topic=topic.topic, partitions=found))
    call.reply(m.OffsetForLeaderEpochResponse(topics=topics))


def _find(call: Call, topic: str, asked: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition) -> Partition:
    try:
        check_leader_epoch(asked.current_leader_epoch)
        end_offset = call.node.broker.end_offset(TopicPartition(topic, asked.partition))
    except KafkaError as error:
        return Partition(partition=asked.partition, error_code=error.code)
    if asked.leader_epoch != LEADER_EPOCH:
        return Partition(partition=asked.partition)
    return Partition(partition=asked.partition, leader_epoch=LEADER_EPOCH, end_offset=end_offset)


API = Api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch)
