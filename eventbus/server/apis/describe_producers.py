"""DescribeProducers (key 61): the producers of partitions, and their open transactions there (KIP-664)."""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import check_topic
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation
from eventbus.types import TopicPartition

_Topic = m.DescribeProducersResponse.TopicResponse
_Partition = m.DescribeProducersResponse.PartitionResponse
_Producer = m.DescribeProducersResponse.ProducerState


def describe_producers(call: Call, request: m.DescribeProducersRequest) -> None:
    topics = [
        _Topic(
            name=topic.name,
            partitions=[_describe(call, TopicPartition(topic.name, number)) for number in topic.partition_indexes],
        )
        for topic in request.topics
    ]
    call.reply(m.DescribeProducersResponse(topics=topics))


def _describe(call: Call, topic_partition: TopicPartition) -> _Partition:
    partition = _Partition(partition_index=topic_partition.partition)
    try:
        check_topic(call, Operation.READ, topic_partition.topic)
        producers = call.node.broker.describe_producers(topic_partition)
    except KafkaError as error:
        partition.error_code, partition.error_message = error.code, str(error)
        return partition
    partition.active_producers = [
        _Producer(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.transaction_start_offset,
        )
        for producer in producers
    ]
    return partition


API = Api(61, "DescribeProducers", 0, 0, describe_producers)
