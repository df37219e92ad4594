"""ListGroups (key 16): every group, or those in some states (v4 on, KIP-518) and of some types (v5 on, KIP-848)."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import allows_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType

_Group = m.ListGroupsResponse.ListedGroup


def list_groups(call: Call, request: m.ListGroupsRequest) -> None:
    states = {state.lower() for state in request.states_filter}
    types = {group_type.lower() for group_type in request.types_filter}
    sees_all = allows_cluster(call, Operation.DESCRIBE)
    groups = [
        _Group(
            group_id=listing.group,
            protocol_type=listing.protocol_type,
            group_state=listing.state,
            group_type=listing.group_type,
        )
        for listing in call.node.broker.groups.list()
        if (not states or listing.state.lower() in states)
        and (not types or listing.group_type.lower() in types)
        and (sees_all or call.allows(Operation.DESCRIBE, ResourceType.GROUP, listing.group))
    ]
    call.reply(m.ListGroupsResponse(groups=groups))


API = Api(16, "ListGroups", 0, 5, list_groups)
