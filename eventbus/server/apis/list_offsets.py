"""ListOffsets (key 2): the first and last offset of a partition, or the offset at a time.

-1 is the end that a reader of the isolation may see, -2 the start, -3 the first record with the largest timestamp
(version 7), -4 the start of what is on local disk (8), which is everything; -5 and -6 are about tiered storage (9, 11),
which does not exist here. A time after all records is answered with offset -1 and no error.
"""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED, check_leader_epoch
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import IsolationLevel, TopicPartition

_UNSUPPORTED_VERSION = 35
_EARLIEST = -2
_EARLIEST_LOCAL = -4
_SINCE = {-1: 0, _EARLIEST: 0, -3: 7, _EARLIEST_LOCAL: 8, -5: 9, -6: 11}
"""The version from which each special time may be requested."""
_TIERED = (-5, -6)

Partition = m.ListOffsetsResponse.ListOffsetsPartitionResponse
Topic = m.ListOffsetsResponse.ListOffsetsTopicResponse


def list_offsets(call: Call, request: m.ListOffsetsRequest) -> None:
    isolation = IsolationLevel.READ_COMMITTED if request.isolation_level else IsolationLevel.READ_UNCOMMITTED
    topics: list[Topic] = []
    for topic in request.topics:
        if call.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            found = [_find(call, topic.name, partition, isolation) for partition in topic.partitions]
        else:
            found = [
                Partition(partition_index=partition.partition_index, error_code=TOPIC_AUTHORIZATION_FAILED)
                for partition in topic.partitions
            ]
        topics.append(Topic(name=topic.name, partitions=found))
    call.reply(m.ListOffsetsResponse(topics=topics))


def _find(
    call: Call, topic: str, asked: m.ListOffsetsRequest.ListOffsetsPartition, isolation: IsolationLevel
) -> Partition:
    number, at = asked.partition_index, asked.timestamp
    if at < 0 and not _SINCE.get(at, call.version + 1) <= call.version:
        return Partition(partition_index=number, error_code=_UNSUPPORTED_VERSION)
    try:
        check_leader_epoch(asked.current_leader_epoch)
        place = TopicPartition(topic, number)
        broker = call.node.broker
        found = broker.list_offsets(place, _EARLIEST if at in (_EARLIEST_LOCAL, *_TIERED) else at, isolation)
    except KafkaError as error:
        return Partition(partition_index=number, error_code=error.code)
    if at in _TIERED or found.offset < 0:
        return Partition(partition_index=number)
    return Partition(partition_index=number, timestamp=found.timestamp_ms, offset=found.offset, leader_epoch=0)


API = Api(2, "ListOffsets", 1, 11, list_offsets)
