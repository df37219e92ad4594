"""ListPartitionReassignments (key 46): always empty, because there is only one broker."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import check_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation


def list_partition_reassignments(call: Call, request: m.ListPartitionReassignmentsRequest) -> None:
    check_cluster(call, Operation.DESCRIBE)
    call.reply(m.ListPartitionReassignmentsResponse(error_message=None))


API = Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments)
