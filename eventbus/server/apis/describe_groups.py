"""DescribeGroups (key 15): groups of the classic protocol, with their members.

An unknown group is "Dead" without an error, and GROUP_ID_NOT_FOUND from v6 on.
"""

from __future__ import annotations

from eventbus.coordinator.requests import GroupDescription
from eventbus.errors import GroupIdNotFound, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import NO_OPERATIONS
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access
from eventbus.server.security.acls import Operation, ResourceType, authorized_operations

_Group = m.DescribeGroupsResponse.DescribedGroup
_Member = m.DescribeGroupsResponse.DescribedGroupMember

_DEAD = "Dead"


def describe_groups(call: Call, request: m.DescribeGroupsRequest) -> None:
    groups = [_describe(call, group, request.include_authorized_operations) for group in request.groups]
    call.reply(m.DescribeGroupsResponse(groups=groups))


def _describe(call: Call, name: str, with_operations: bool) -> _Group:
    try:
        check_group_access(call, Operation.DESCRIBE, name)
    except KafkaError as error:
        return _Group(group_id=name, error_code=error.code, error_message=str(error))
    (found,) = call.node.broker.groups.describe([name])
    group = _make_group(found)
    if with_operations:
        group.authorized_operations = authorized_operations(call, ResourceType.GROUP, name)
    if found.state == _DEAD and call.version >= 6:
        group.error_code = GroupIdNotFound.code
        group.error_message = f"there is no group {name!r} of the classic protocol"
    return group


def _make_group(found: GroupDescription) -> _Group:
    return _Group(
        group_id=found.group,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_name,
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ],
        authorized_operations=NO_OPERATIONS,
    )


API = Api(15, "DescribeGroups", 0, 6, describe_groups)
