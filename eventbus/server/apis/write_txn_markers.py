"""WriteTxnMarkers (key 27): end a producer's open transaction in partitions, for `kafka-transactions abort`.

Between Kafka brokers it executes the coordinator's decisions; here it is for administrators, who may end a transaction
that is unknown to the coordinator. v0 was removed in Kafka 4.0.
"""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import allows_cluster, check_cluster
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation
from eventbus.types import ProducerIdAndEpoch, TopicPartition

_Marker = m.WriteTxnMarkersRequest.WritableTxnMarker
_Result = m.WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = m.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_Partition = m.WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def write_txn_markers(call: Call, request: m.WriteTxnMarkersRequest) -> None:
    if not allows_cluster(call, Operation.ALTER):
        check_cluster(call, Operation.CLUSTER_ACTION)
    results = [
        _Result(
            producer_id=marker.producer_id,
            topics=[
                _Topic(
                    name=topic.name,
                    partitions=[
                        _Partition(
                            partition_index=number,
                            error_code=_write(call, marker, TopicPartition(topic.name, number)),
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ],
        )
        for marker in request.markers
    ]

    def then(error: KafkaError | None) -> None:
        if error is not None:
            for partition in [one for result in results for topic in result.topics for one in topic.partitions]:
                partition.error_code = partition.error_code or error.code
        call.reply(m.WriteTxnMarkersResponse(markers=results))

    call.node.when_flushed(then)


def _write(call: Call, marker: _Marker, topic_partition: TopicPartition) -> int:
    producer = ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch)
    try:
        call.node.broker.transactions.write_marker(
            topic_partition, producer, marker.transaction_result, marker.coordinator_epoch, call.node.now_ms()
        )
    except KafkaError as error:
        return error.code
    return 0


API = Api(27, "WriteTxnMarkers", 1, 1, write_txn_markers)
