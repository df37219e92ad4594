"""DescribeAcls (key 29): the ACLs that a filter matches, by resource. Needs DESCRIBE on the cluster."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.acl_messages import check_may, read_filter
from eventbus.server.security.acls import Operation


def describe_acls(call: Call, request: m.DescribeAclsRequest) -> None:
    check_may(call, Operation.DESCRIBE)
    resources: dict[tuple[int, str, int], m.DescribeAclsResponse.DescribeAclsResource] = {}
    for acl in call.node.broker.security.find_acls(read_filter(request)):
        key = (acl.resource_type, acl.name, acl.pattern_type)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = m.DescribeAclsResponse.DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type, acls=[]
            )
        description = m.DescribeAclsResponse.AclDescription(
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
        )
        resource.acls.append(description)
    call.reply(m.DescribeAclsResponse(error_message=None, resources=list(resources.values())))


API = Api(29, "DescribeAcls", 1, 3, describe_acls)
