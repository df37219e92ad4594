"""DescribeCluster (key 60): the only broker, which is also the controller."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import NO_OPERATIONS, allows_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import CLUSTER_NAME, Operation, ResourceType, authorized_operations

BROKERS, CONTROLLERS = 1, 2
_MISMATCHED_ENDPOINT_TYPE = 114
_UNSUPPORTED_ENDPOINT_TYPE = 115


def describe_cluster(call: Call, request: m.DescribeClusterRequest) -> None:
    node = call.node
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        raise error_of(_UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}")
    if request.endpoint_type != BROKERS:
        raise error_of(
            _MISMATCHED_ENDPOINT_TYPE, "this is an endpoint for clients of brokers: use --bootstrap-server for it"
        )
    operations = NO_OPERATIONS
    if request.include_cluster_authorized_operations:
        allowed = allows_cluster(call, Operation.DESCRIBE)
        operations = authorized_operations(call, ResourceType.CLUSTER, CLUSTER_NAME) if allowed else 0
    listener = call.listener
    call.reply(
        m.DescribeClusterResponse(
            endpoint_type=BROKERS,
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            brokers=[
                m.DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=node.node_id, host=listener.advertised_host, port=listener.advertised_port
                )
            ],
            cluster_authorized_operations=operations,
        )
    )


API = Api(60, "DescribeCluster", 0, 2, describe_cluster)
