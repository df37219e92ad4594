"""LeaveGroup (key 13): remove members, each by its id, or by its group instance id alone (v3 on, KIP-345)."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, group_code, when_group_is_stored
from eventbus.server.security.acls import Operation

_Identity = m.LeaveGroupRequest.MemberIdentity
_Left = m.LeaveGroupResponse.MemberResponse


def leave_group(call: Call, request: m.LeaveGroupRequest) -> None:
    node = call.node
    members = request.members if call.version >= 3 else [_Identity(member_id=request.member_id)]
    response = m.LeaveGroupResponse()
    try:
        check_group_access(call, Operation.READ, request.group_id)
        errors = node.broker.groups.leave(
            request.group_id,
            [(member.member_id, member.group_instance_id) for member in members],
            node.now_ms(),
            ", ".join({member.reason for member in members if member.reason}),
        )
    except KafkaError as error:
        response.error_code = group_code(error)
        call.reply(response)
        return
    for member, error in zip(members, errors, strict=True):
        code = 0 if error is None else group_code(error)
        response.members.append(
            _Left(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)
        )
    if call.version < 3:
        response.error_code = response.members[0].error_code

    def then(error: KafkaError | None) -> None:
        if error is not None:
            response.error_code = group_code(error)
        call.reply(response)

    when_group_is_stored(call, request.group_id, then)
    node.deadline_changed()


API = Api(13, "LeaveGroup", 0, 5, leave_group)
