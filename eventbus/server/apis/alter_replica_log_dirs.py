"""AlterReplicaLogDirs (key 34): there is one directory, which already has every partition."""

from __future__ import annotations

from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION, allows_cluster
from eventbus.server.broker_configs import log_directory
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_NONE = 0
_CLUSTER_AUTHORIZATION_FAILED = 31
_LOG_DIR_NOT_FOUND = 57

_Result = m.AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult


def alter_replica_log_dirs(call: Call, request: m.AlterReplicaLogDirsRequest) -> None:
    allowed = allows_cluster(call, Operation.ALTER)
    here = log_directory(call.node)
    results: dict[str, _Result] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = results.setdefault(topic.name, _Result(topic_name=topic.name))
            count = call.node.broker.partitions_of(topic.name)
            for number in topic.partitions:
                if not allowed:
                    code = _CLUSTER_AUTHORIZATION_FAILED
                elif directory.path != here:
                    code = _LOG_DIR_NOT_FOUND
                else:
                    code = _NONE if 0 <= number < count else UNKNOWN_TOPIC_OR_PARTITION
                result.partitions.append(
                    m.AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=number, error_code=code
                    )
                )
    call.reply(m.AlterReplicaLogDirsResponse(results=list(results.values())))


API = Api(34, "AlterReplicaLogDirs", 1, 2, alter_replica_log_dirs)
