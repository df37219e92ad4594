"""AddPartitionsToTxn (key 24): announce that the transaction will write to partitions; the first ones begin it.

All or none: if any partition is refused, the rest get OPERATION_NOT_ATTEMPTED. PRODUCER_FENCED is known to clients from
v2 on. Versions 4 and 5 are used between brokers.
"""

from __future__ import annotations

from eventbus.broker.names import INTERNAL_TOPICS
from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import (
    TOPIC_AUTHORIZATION_FAILED,
    check_transaction_access,
    transaction_code,
    when_settled,
)
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import ProducerIdAndEpoch, TopicPartition

_OPERATION_NOT_ATTEMPTED = 55

_Topic = m.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Partition = m.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


def add_partitions_to_txn(call: Call, request: m.AddPartitionsToTxnRequest) -> None:
    node = call.node
    transactional_id = request.v3_and_below_transactional_id
    producer = ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    topics = request.v3_and_below_topics
    wanted = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]

    def answer(codes: dict[TopicPartition, int], otherwise: int = 0) -> None:
        results = [
            _Topic(
                name=topic.name,
                results_by_partition=[
                    _Partition(
                        partition_index=number,
                        partition_error_code=codes.get(TopicPartition(topic.name, number), otherwise),
                    )
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]
        call.reply(m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    def refuse(error: KafkaError) -> None:
        answer({}, transaction_code(error, call, fenced_since=2))

    def attempt() -> None:
        node.broker.transactions.add_partitions(transactional_id, producer, wanted, node.now_ms())
        answer({})

    try:
        check_transaction_access(call, Operation.WRITE, transactional_id)
    except KafkaError as error:
        refuse(error)
        return
    refused = {topic_partition: code for topic_partition in wanted if (code := _code(call, topic_partition))}
    if refused:
        answer(refused, _OPERATION_NOT_ATTEMPTED)
    else:
        when_settled(call, attempt, refuse)
        node.deadline_changed()


def _code(call: Call, topic_partition: TopicPartition) -> int:
    """Return the code why the caller's transaction may not write to the partition, or 0."""
    topic, number = topic_partition
    if topic in INTERNAL_TOPICS or not call.allows(Operation.WRITE, ResourceType.TOPIC, topic):
        return TOPIC_AUTHORIZATION_FAILED
    return 0 if 0 <= number < call.node.broker.partitions_of(topic) else UNKNOWN_TOPIC_OR_PARTITION


API = Api(24, "AddPartitionsToTxn", 0, 3, add_partitions_to_txn)
