"""ACLs and filters in the messages of Kafka's three ACL APIs."""

from __future__ import annotations

from eventbus.coordinator.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, known
from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster, error_of
from eventbus.server.call import Call

_SECURITY_DISABLED = 54


def check_may(call: Call, operation: Operation) -> None:
    """Raise SECURITY_DISABLED while ACLs are off, CLUSTER_AUTHORIZATION_FAILED if they do not allow the operation."""
    if call.node.security.authorizer is None:
        raise error_of(_SECURITY_DISABLED, "No Authorizer is configured: start the server with --acls")
    check_cluster(call, operation)


def read_acl(creation: m.CreateAclsRequest.AclCreation) -> Acl:
    """Return the requested ACL; unknown numbers become UNKNOWN, which `Acl.check` refuses."""
    return Acl.read(creation.resource_type, creation.resource_name, creation.resource_pattern_type, creation)


def read_filter(asked: m.DescribeAclsRequest | m.DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    """Return the requested filter."""
    return AclFilter(
        known(ResourceType, asked.resource_type_filter),
        asked.resource_name_filter,
        known(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        known(Operation, asked.operation),
        known(Permission, asked.permission_type),
    )
