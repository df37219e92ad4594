"""DescribeQuorum (key 55): a quorum of one."""

from __future__ import annotations

from eventbus.broker.names import CLUSTER_METADATA
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION, check_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation

_Topic = m.DescribeQuorumResponse.TopicData


def describe_quorum(call: Call, request: m.DescribeQuorumRequest) -> None:
    check_cluster(call, Operation.DESCRIBE)
    topics = [
        _Topic(
            topic_name=topic.topic_name,
            partitions=[_partition(call, topic.topic_name, one.partition_index) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    listener = call.listener
    node = m.DescribeQuorumResponse.Node(
        node_id=call.node.node_id,
        listeners=[
            m.DescribeQuorumResponse.Listener(
                name=listener.name, host=listener.advertised_host, port=listener.advertised_port
            )
        ],
    )
    call.reply(m.DescribeQuorumResponse(topics=topics, nodes=[node]))


def _partition(call: Call, topic: str, number: int) -> m.DescribeQuorumResponse.PartitionData:
    result = m.DescribeQuorumResponse.PartitionData(partition_index=number)
    if (topic, number) != (CLUSTER_METADATA, 0):
        error: KafkaError = error_of(UNKNOWN_TOPIC_OR_PARTITION, f"no quorum keeps {topic}-{number}")
        result.error_code, result.error_message = error.code, str(error)
        return result
    end_offset, now_ms = call.node.broker.topic_admin.metadata_end_offset, call.node.clock()
    result.leader_id, result.leader_epoch, result.high_watermark = call.node.node_id, 0, end_offset
    result.current_voters = [
        m.DescribeQuorumResponse.ReplicaState(
            replica_id=call.node.node_id,
            log_end_offset=end_offset,
            last_fetch_timestamp=now_ms,
            last_caught_up_timestamp=now_ms,
        )
    ]
    return result


API = Api(55, "DescribeQuorum", 0, 2, describe_quorum)
