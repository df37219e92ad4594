"""SyncGroup (key 14): fetch the assignment. Parked until the leader's SyncGroup brings it."""

from __future__ import annotations

from eventbus.coordinator.consumer_protocol import encode_assignment
from eventbus.coordinator.requests import CONSUMER_PROTOCOL, SyncGroupResult
from eventbus.errors import InconsistentGroupProtocol, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, group_code, when_group_is_stored
from eventbus.server.security.acls import Operation
from eventbus.types import GroupMetadata

_NO_PARTITIONS = encode_assignment(())


def sync_group(call: Call, request: m.SyncGroupRequest) -> None:
    node = call.node
    group = request.group_id

    def refuse(error: KafkaError) -> None:
        call.reply(m.SyncGroupResponse(error_code=group_code(error)))

    def answer(result: SyncGroupResult | KafkaError) -> None:
        if isinstance(result, KafkaError):
            refuse(result)
            return

        def then(error: KafkaError | None) -> None:
            if error is not None:
                refuse(error)
            else:
                call.reply(_response(result))

        when_group_is_stored(call, group, then)

    try:
        check_group_access(call, Operation.READ, group)
        if call.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            raise InconsistentGroupProtocol("a sync of version 5 names the protocol type and the protocol")
        node.broker.groups.sync(
            GroupMetadata(group, request.generation_id, request.member_id, request.group_instance_id),
            {given.member_id: given.assignment for given in request.assignments},
            node.now_ms(),
            answer,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
        )
    except KafkaError as error:
        refuse(error)
    node.deadline_changed()


def _response(result: SyncGroupResult) -> m.SyncGroupResponse:
    assignment = result.assignment
    if not assignment and result.protocol_type == CONSUMER_PROTOCOL:
        assignment = _NO_PARTITIONS  # some consumers cannot read an empty assignment
    return m.SyncGroupResponse(
        protocol_type=result.protocol_type, protocol_name=result.protocol_name, assignment=assignment
    )


API = Api(14, "SyncGroup", 0, 5, sync_group)
