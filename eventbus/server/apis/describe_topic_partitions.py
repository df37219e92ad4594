"""DescribeTopicPartitions (key 75): topics page by page, for clients with very many partitions."""

from __future__ import annotations

from eventbus.broker.names import INTERNAL_TOPICS, check_topic_name
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType, authorized_operations

_TOPIC_AUTHORIZATION_FAILED = 29
_INVALID_REQUEST = 42
_LARGEST_PAGE = 2_000
"""Kafka's default for ``max.request.partition.size.limit``."""

_Topic = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


def describe_topic_partitions(call: Call, request: m.DescribeTopicPartitionsRequest) -> None:
    cursor = request.cursor
    asked = [topic.name for topic in request.topics]
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        topics = [_Topic(error_code=_INVALID_REQUEST, name=name) for name in asked]
        call.reply(m.DescribeTopicPartitionsResponse(topics=topics))
        return
    broker = call.node.broker
    every = not asked
    names = broker.list_topics() if every else sorted(set(asked))
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    room = max(min(request.response_partition_limit, _LARGEST_PAGE), 1)
    topics: list[_Topic] = []
    following: m.DescribeTopicPartitionsResponse.Cursor | None = None
    for name in names:
        if not call.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if not every:
                topics.append(_Topic(error_code=_TOPIC_AUTHORIZATION_FAILED, name=name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room == 0:
            following = m.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=first)
            break
        count = broker.partitions_of(name)
        if not count:
            topics.append(_Topic(error_code=_why_not(name), name=name))
            continue
        end = min(count, first + room)
        topics.append(_described(call, name, range(first, end)))
        room -= max(end - first, 0)
        if end < count:
            following = m.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
            break
    call.reply(m.DescribeTopicPartitionsResponse(topics=topics, next_cursor=following))


def _why_not(name: str) -> int:
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return UNKNOWN_TOPIC_OR_PARTITION


def _described(call: Call, name: str, numbers: range) -> _Topic:
    here = call.node.node_id
    return _Topic(
        name=name,
        topic_id=call.node.topic_id(name),
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _Partition(
                partition_index=number,
                leader_id=here,
                leader_epoch=0,
                replica_nodes=[here],
                isr_nodes=[here],
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for number in numbers
        ],
        topic_authorized_operations=authorized_operations(call, ResourceType.TOPIC, name),
    )


API = Api(75, "DescribeTopicPartitions", 0, 0, describe_topic_partitions)
