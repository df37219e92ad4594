"""Permission checks and errors shared by the handlers of administrators' requests."""

from __future__ import annotations

from eventbus.error_codes import KAFKA_ERRORS
from eventbus.errors import KafkaError, error_for_code
from eventbus.server.call import Call
from eventbus.server.security.acls import CLUSTER_NAME, Operation, ResourceType

UNKNOWN_TOPIC_ID = 100
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REPLICA_ASSIGNMENT = 39
NO_OPERATIONS = -(1 << 31)
"""Kafka's value for authorized operations that were not requested."""

_REFUSALS = {ResourceType.TOPIC: 29, ResourceType.GROUP: 30, ResourceType.CLUSTER: 31}


def allows_cluster(call: Call, operation: Operation) -> bool:
    return call.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def check_cluster(call: Call, operation: Operation) -> None:
    """Raise CLUSTER_AUTHORIZATION_FAILED unless the operation on the cluster is allowed."""
    if not allows_cluster(call, operation):
        raise refusal(call, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def check_topic(call: Call, operation: Operation, topic: str) -> None:
    """Raise TOPIC_AUTHORIZATION_FAILED unless the operation on the topic is allowed."""
    if not call.allows(operation, ResourceType.TOPIC, topic):
        raise refusal(call, operation, ResourceType.TOPIC, topic)


def refusal(call: Call, operation: Operation, resource_type: ResourceType, name: str) -> KafkaError:
    """Return the error for an operation that is not allowed."""
    code = _REFUSALS[resource_type]
    return error_for_code(
        code, f"{call.principal} may not {operation.name} on {resource_type.name.lower()} {name!r}; add an ACL for it"
    )


def error_of(code: int, why: str = "") -> KafkaError:
    """Return a Kafka error by its code. The default text is the code's meaning."""
    return error_for_code(code, why or KAFKA_ERRORS[code].meaning)
