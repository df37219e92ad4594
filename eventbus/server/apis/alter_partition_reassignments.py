"""AlterPartitionReassignments (key 45): a partition can only be moved to where it already is."""

from __future__ import annotations

from eventbus.broker.topic_admin import check_assignments
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION, check_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_NO_REASSIGNMENT_IN_PROGRESS = 85

_Result = m.AlterPartitionReassignmentsResponse.ReassignableTopicResponse


def alter_partition_reassignments(call: Call, request: m.AlterPartitionReassignmentsRequest) -> None:
    check_cluster(call, Operation.ALTER)
    responses: list[_Result] = []
    for topic in request.topics:
        partitions = [_answer(call, topic.name, one.partition_index, one.replicas) for one in topic.partitions]
        responses.append(_Result(name=topic.name, partitions=partitions))
    call.reply(
        m.AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=responses,
        )
    )


def _answer(
    call: Call, topic: str, number: int, replicas: list[int] | None
) -> m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse:
    result = m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
        partition_index=number, error_message=None
    )
    try:
        if not 0 <= number < call.node.broker.partitions_of(topic):
            raise error_of(UNKNOWN_TOPIC_OR_PARTITION)
        if replicas is None:
            raise error_of(_NO_REASSIGNMENT_IN_PROGRESS)
        check_assignments(topic, [replicas])
    except KafkaError as error:
        result.error_code, result.error_message = error.code, str(error)
    return result


API = Api(45, "AlterPartitionReassignments", 0, 1, alter_partition_reassignments)
