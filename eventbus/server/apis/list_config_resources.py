"""ListConfigResources (key 74): the resources that have configs. Version 0 is about client metrics, which do not
exist."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.config_resources import BROKER, BROKER_LOGGER, RESOURCE_TYPES, TOPIC
from eventbus.server.security.acls import Operation

_UNSUPPORTED_VERSION = 35


def list_config_resources(call: Call, request: m.ListConfigResourcesRequest) -> None:
    check_cluster(call, Operation.DESCRIBE_CONFIGS)
    resources: list[m.ListConfigResourcesResponse.ConfigResource] = []
    if call.version > 0:
        for kind in request.resource_types or RESOURCE_TYPES:
            if kind not in RESOURCE_TYPES:
                raise error_of(_UNSUPPORTED_VERSION, f"config resources of type {kind} are unknown here")
            resources += [
                m.ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
                for name in _names(call, kind)
            ]
    call.reply(m.ListConfigResourcesResponse(config_resources=resources))


def _names(call: Call, kind: int) -> list[str]:
    if kind == TOPIC:
        return call.node.broker.list_topics()
    return [str(call.node.node_id)] if kind in (BROKER, BROKER_LOGGER) else []


API = Api(74, "ListConfigResources", 0, 1, list_config_resources)
