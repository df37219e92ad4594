"""ElectLeaders (key 43): the only broker leads every partition, so an election is never needed."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION, check_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_ELECTION_NOT_NEEDED = 84

_Result = m.ElectLeadersResponse.ReplicaElectionResult


def elect_leaders(call: Call, request: m.ElectLeadersRequest) -> None:
    """Answer that no election was needed. A request for all partitions gets an empty list, as no partition needed
    one."""
    check_cluster(call, Operation.ALTER)
    results: list[_Result] = []
    for topic in request.topic_partitions or []:
        count = call.node.broker.partitions_of(topic.topic)
        partitions: list[m.ElectLeadersResponse.PartitionResult] = []
        for number in topic.partitions:
            error = error_of(_ELECTION_NOT_NEEDED if 0 <= number < count else UNKNOWN_TOPIC_OR_PARTITION)
            partitions.append(
                m.ElectLeadersResponse.PartitionResult(
                    partition_id=number, error_code=error.code, error_message=str(error)
                )
            )
        results.append(_Result(topic=topic.topic, partition_result=partitions))
    call.reply(m.ElectLeadersResponse(replica_election_results=results))


API = Api(43, "ElectLeaders", 0, 2, elect_leaders)
