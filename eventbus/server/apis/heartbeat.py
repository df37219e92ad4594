"""Heartbeat (key 12): keep a member alive; after REBALANCE_IN_PROGRESS the member joins again."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, group_code
from eventbus.server.security.acls import Operation
from eventbus.types import GroupMetadata


def heartbeat(call: Call, request: m.HeartbeatRequest) -> None:
    member = GroupMetadata(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    code = 0
    try:
        check_group_access(call, Operation.READ, request.group_id)
        call.node.broker.groups.heartbeat(member, call.node.now_ms())
    except KafkaError as error:
        code = group_code(error)
    call.reply(m.HeartbeatResponse(error_code=code))


API = Api(12, "Heartbeat", 0, 4, heartbeat)
