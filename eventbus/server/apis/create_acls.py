"""CreateAcls (key 30): store ACLs, each independently. Needs ALTER on the cluster."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.acl_messages import check_may, read_acl
from eventbus.server.security.acls import Operation


def create_acls(call: Call, request: m.CreateAclsRequest) -> None:
    try:
        check_may(call, Operation.ALTER)
        acls = [read_acl(creation) for creation in request.creations]
        results = call.node.broker.security.create_acls(acls, call.node.clock())
    except KafkaError as error:
        results = [error for _ in request.creations]
    call.reply(m.CreateAclsResponse(results=[_result(error) for error in results]))


def _result(error: KafkaError | None) -> m.CreateAclsResponse.AclCreationResult:
    if error is None:
        return m.CreateAclsResponse.AclCreationResult(error_message=None)
    return m.CreateAclsResponse.AclCreationResult(error_code=error.code, error_message=str(error))


API = Api(30, "CreateAcls", 1, 3, create_acls)
