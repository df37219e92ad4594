"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id, which is always this broker."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType

_INVALID_REQUEST = 42
_GROUP, _TRANSACTION = 0, 1
_BATCHED_FROM = 4
_RESOURCES = {_GROUP: ResourceType.GROUP, _TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_REFUSED = {_GROUP: 30, _TRANSACTION: 53}
"""GROUP_AUTHORIZATION_FAILED, TRANSACTIONAL_ID_AUTHORIZATION_FAILED, by the type of key."""

Coordinator = m.FindCoordinatorResponse.Coordinator


def find_coordinator(call: Call, request: m.FindCoordinatorRequest) -> None:
    if call.version >= _BATCHED_FROM:
        found = [_find(call, request.key_type, key) for key in request.coordinator_keys]
        call.reply(m.FindCoordinatorResponse(coordinators=found))
        return
    one = _find(call, request.key_type, request.key)
    call.reply(
        m.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _find(call: Call, key_type: int, key: str) -> Coordinator:
    resource = _RESOURCES.get(key_type)
    if resource is None:
        message = f"coordinators of type {key_type} are not served here: 0 is for groups, 1 for transactions"
        return _no_coordinator(key, _INVALID_REQUEST, message)
    if not call.allows(Operation.DESCRIBE, resource, key):
        return _no_coordinator(key, _REFUSED[key_type], f"{call.principal} may not describe {resource.name} {key!r}")
    listener = call.listener
    return Coordinator(key=key, node_id=call.node.node_id, host=listener.advertised_host, port=listener.advertised_port)


def _no_coordinator(key: str, code: int, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


API = Api(10, "FindCoordinator", 0, 6, find_coordinator)
