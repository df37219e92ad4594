"""ConsumerGroupHeartbeat (key 68): join, stay in or leave a group of the consumer protocol, and get an assignment
(KIP-848).

Version 1 adds topic patterns, and requires members to generate their own ids (KIP-1082).
"""

from __future__ import annotations

from functools import partial

from eventbus.coordinator.consumer_group_records import by_topic
from eventbus.coordinator.consumer_group_requests import (
    LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    TopicIdPartition,
)
from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import error_of
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import (
    TOPIC_AUTHORIZATION_FAILED,
    check_group_access,
    group_code,
    when_group_is_stored,
)
from eventbus.server.security.acls import Operation, ResourceType

_Response = m.ConsumerGroupHeartbeatResponse


def consumer_group_heartbeat(call: Call, request: m.ConsumerGroupHeartbeatRequest) -> None:
    node = call.node

    def refuse(error: KafkaError) -> None:
        call.reply(_Response(error_code=group_code(error), error_message=str(error)))

    try:
        check_group_access(call, Operation.READ, request.group_id)
        _check(call, request)
        result = node.broker.groups.consumer_heartbeat(_read_request(call, request), node.now_ms())
    except KafkaError as error:
        refuse(error)
    else:

        def then(error: KafkaError | None) -> None:
            if error is not None:
                refuse(error)
            else:
                call.reply(_make_response(result))

        when_group_is_stored(call, request.group_id, then)
    node.deadline_changed()


def _check(call: Call, request: m.ConsumerGroupHeartbeatRequest) -> None:
    if call.version >= 1 and not request.member_id:
        raise InvalidRequest(f"heartbeat of group {request.group_id!r}: since version 1 a member makes its own id")
    if not request.group_id.strip():
        raise InvalidRequest("heartbeat of a group without a name")
    names = request.subscribed_topic_names
    if request.member_epoch > LEAVE_EPOCH and names and not all(_may_describe(call, name) for name in names):
        raise error_of(TOPIC_AUTHORIZATION_FAILED)


def _may_describe(call: Call, name: str) -> bool:
    return call.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)


def _read_request(call: Call, request: m.ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat:
    topics, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeat(
        group=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if topics is None else tuple(topics),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None
        if owned is None
        else frozenset(TopicIdPartition(topic.topic_id, number) for topic in owned for number in topic.partitions),
        client_id=call.client_id,
        client_host=call.client_host,
        may_describe=partial(_may_describe, call),
    )


def _make_response(result: ConsumerHeartbeatResult) -> _Response:
    assignment = result.assignment
    return _Response(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else _Response.Assignment(
            topic_partitions=[
                _Response.TopicPartitions(topic_id=topic_id, partitions=list(numbers))
                for topic_id, numbers in by_topic(assignment).items()
            ]
        ),
    )


API = Api(68, "ConsumerGroupHeartbeat", 0, 1, consumer_group_heartbeat)
