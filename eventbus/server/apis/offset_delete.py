"""OffsetDelete (key 47): delete offsets of a group, but none of a topic that a member reads."""

from __future__ import annotations

from eventbus.errors import GroupSubscribedToTopic, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import (
    TOPIC_AUTHORIZATION_FAILED,
    check_group_access,
    group_code,
    when_group_is_stored,
)
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import TopicPartition

_Wanted = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
_Topic = m.OffsetDeleteResponse.OffsetDeleteResponseTopic
_Partition = m.OffsetDeleteResponse.OffsetDeleteResponsePartition


def offset_delete(call: Call, request: m.OffsetDeleteRequest) -> None:
    group = request.group_id
    response = m.OffsetDeleteResponse()
    try:
        check_group_access(call, Operation.DELETE, group)
        response.topics = [_delete(call, group, topic) for topic in request.topics]
    except KafkaError as error:
        response.topics, response.error_code = [], group_code(error)

    def then(error: KafkaError | None) -> None:
        if error is not None:
            response.topics, response.error_code = [], group_code(error)
        call.reply(response)

    when_group_is_stored(call, group, then)


def _delete(call: Call, group: str, topic: _Wanted) -> _Topic:
    """Delete the offsets of one topic. Raises errors of the group, not of the topic."""
    node = call.node
    count = node.broker.partitions_of(topic.name)
    numbers = [partition.partition_index for partition in topic.partitions]
    code = 0 if call.allows(Operation.READ, ResourceType.TOPIC, topic.name) else TOPIC_AUTHORIZATION_FAILED
    try:
        existing = [] if code else [TopicPartition(topic.name, number) for number in numbers if 0 <= number < count]
        node.broker.groups.delete_offsets(group, existing, node.now_ms())
    except GroupSubscribedToTopic as error:
        code = error.code
    return _Topic(
        name=topic.name,
        partitions=[
            _Partition(
                partition_index=number, error_code=code or (0 if 0 <= number < count else UNKNOWN_TOPIC_OR_PARTITION)
            )
            for number in numbers
        ],
    )


API = Api(47, "OffsetDelete", 0, 0, offset_delete)
