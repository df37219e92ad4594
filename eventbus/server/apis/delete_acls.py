"""DeleteAcls (key 31): delete the ACLs that filters match, and return them. Needs ALTER on the cluster."""

from __future__ import annotations

from eventbus.coordinator.acls import Acl
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.security.acl_messages import check_may, read_filter
from eventbus.server.security.acls import Operation


def delete_acls(call: Call, request: m.DeleteAclsRequest) -> None:
    results: list[list[Acl] | KafkaError]
    try:
        check_may(call, Operation.ALTER)
        filters = [read_filter(asked) for asked in request.filters]
        results = call.node.broker.security.delete_acls(filters, call.node.clock())
    except KafkaError as error:
        results = [error for _ in request.filters]
    call.reply(m.DeleteAclsResponse(filter_results=[_result(result) for result in results]))


def _result(result: list[Acl] | KafkaError) -> m.DeleteAclsResponse.DeleteAclsFilterResult:
    if isinstance(result, KafkaError):
        return m.DeleteAclsResponse.DeleteAclsFilterResult(
            error_code=result.code, error_message=str(result), matching_acls=[]
        )
    matching = [m.DeleteAclsResponse.DeleteAclsMatchingAcl(error_message=None, **acl.fields()) for acl in result]
    return m.DeleteAclsResponse.DeleteAclsFilterResult(error_message=None, matching_acls=matching)


API = Api(31, "DeleteAcls", 1, 3, delete_acls)
