"""JoinGroup (key 11): join a group's next generation. Parked until the other members have joined.

The code MEMBER_ID_REQUIRED is for members that can join again with the id (v4 on, KIP-394); a returning static leader
need not assign again from v9 on (KIP-814).
"""

from __future__ import annotations

from eventbus.coordinator.requests import JoinGroup, JoinGroupResult
from eventbus.errors import KafkaError, MemberIdRequired
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, group_code, when_group_is_stored
from eventbus.server.security.acls import Operation

_Member = m.JoinGroupResponse.JoinGroupResponseMember


def join_group(call: Call, request: m.JoinGroupRequest) -> None:
    node = call.node
    group = request.group_id

    def refuse(error: KafkaError) -> None:
        member_id = error.member_id if isinstance(error, MemberIdRequired) else request.member_id
        call.reply(m.JoinGroupResponse(error_code=group_code(error), protocol_name=None, member_id=member_id))

    def answer(result: JoinGroupResult | KafkaError) -> None:
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
        node.broker.groups.join(_asked(call, request), node.now_ms(), answer)
    except KafkaError as error:
        refuse(error)
    node.deadline_changed()


def _asked(call: Call, request: m.JoinGroupRequest) -> JoinGroup:
    return JoinGroup(
        group=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        protocol_type=request.protocol_type,
        protocols=tuple([(protocol.name, protocol.metadata) for protocol in request.protocols]),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        require_known_member_id=call.version >= 4,
        supports_skipping_assignment=call.version >= 9,
        reason=request.reason or "",
    )


def _response(result: JoinGroupResult) -> m.JoinGroupResponse:
    return m.JoinGroupResponse(
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            _Member(member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata)
            for member in result.members
        ],
    )


API = Api(11, "JoinGroup", 0, 9, join_group)
