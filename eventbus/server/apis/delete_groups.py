"""DeleteGroups (key 42): delete groups without members, with their offsets."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, group_code
from eventbus.server.security.acls import Operation

_Result = m.DeleteGroupsResponse.DeletableGroupResult


def delete_groups(call: Call, request: m.DeleteGroupsRequest) -> None:
    results = [_Result(group_id=group, error_code=_delete(call, group)) for group in request.groups_names]

    def then(error: KafkaError | None) -> None:
        if error is not None:
            for result in results:
                result.error_code = result.error_code or group_code(error)
        call.reply(m.DeleteGroupsResponse(results=results))

    call.node.when_flushed(then)


def _delete(call: Call, group: str) -> int:
    try:
        check_group_access(call, Operation.DELETE, group)
        call.node.broker.groups.delete(group, call.node.now_ms())
    except KafkaError as error:
        return group_code(error)
    return 0


API = Api(42, "DeleteGroups", 0, 2, delete_groups)
