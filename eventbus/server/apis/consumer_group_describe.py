"""ConsumerGroupDescribe (key 69): groups of the consumer protocol, with their members (KIP-848).

A group that is unknown or uses the classic protocol is GROUP_ID_NOT_FOUND: admin clients then send DescribeGroups. A
group with topics that the caller may not describe is not described at all. Version 1 has each member's protocol
(KIP-1099).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eventbus.coordinator.consumer_group_records import by_topic
from eventbus.coordinator.consumer_group_requests import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    TopicIdPartition,
)
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import error_of
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import TOPIC_AUTHORIZATION_FAILED, check_group_access
from eventbus.server.security.acls import Operation, ResourceType, authorized_operations

_Group = m.ConsumerGroupDescribeResponse.DescribedGroup
_Member = m.ConsumerGroupDescribeResponse.Member
_Assignment = m.ConsumerGroupDescribeResponse.Assignment
_Topic = m.ConsumerGroupDescribeResponse.TopicPartitions

_CLASSIC, _CONSUMER = 0, 1


def consumer_group_describe(call: Call, request: m.ConsumerGroupDescribeRequest) -> None:
    groups = [_describe(call, name, request.include_authorized_operations) for name in request.group_ids]
    call.reply(m.ConsumerGroupDescribeResponse(groups=groups))


def _describe(call: Call, name: str, with_operations: bool) -> _Group:
    try:
        check_group_access(call, Operation.DESCRIBE, name)
        found = call.node.broker.groups.describe_consumers(name)
        topics = {*found.topic_names.values(), *(topic for member in found.members for topic in member.topics)}
        if not all(call.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic) for topic in topics):
            raise error_of(TOPIC_AUTHORIZATION_FAILED)
    except KafkaError as error:
        return _Group(group_id=name, error_code=error.code, error_message=str(error))
    group = _make_group(found)
    if with_operations:
        group.authorized_operations = authorized_operations(call, ResourceType.GROUP, name)
    return group


def _make_group(found: ConsumerGroupDescription) -> _Group:
    return _Group(
        group_id=found.group,
        group_state=found.state,
        group_epoch=found.group_epoch,
        assignment_epoch=found.assignment_epoch,
        assignor_name=found.assignor,
        members=[_member(member, found.topic_names) for member in found.members],
    )


def _member(member: ConsumerMemberDescription, names: Mapping[bytes, str]) -> _Member:
    return _Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(member.assignment, names),
        target_assignment=_assignment(member.target, names),
        member_type=_CLASSIC if member.uses_classic_protocol else _CONSUMER,
    )


def _assignment(partitions: Iterable[TopicIdPartition], names: Mapping[bytes, str]) -> _Assignment:
    return _Assignment(
        topic_partitions=[
            _Topic(topic_id=topic_id, topic_name=names[topic_id], partitions=list(numbers))
            for topic_id, numbers in by_topic(partitions).items()
            if topic_id in names
        ]
    )


API = Api(69, "ConsumerGroupDescribe", 0, 1, consumer_group_describe)
