"""DescribeTransactions (key 65): the state of transactional ids (KIP-664)."""

from __future__ import annotations

from itertools import groupby

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_transaction_access
from eventbus.server.security.acls import Operation, ResourceType

_State = m.DescribeTransactionsResponse.TransactionState
_Topic = m.DescribeTransactionsResponse.TopicData


def describe_transactions(call: Call, request: m.DescribeTransactionsRequest) -> None:
    states = [_describe(call, transactional_id) for transactional_id in request.transactional_ids]
    call.reply(m.DescribeTransactionsResponse(transaction_states=states))


def _describe(call: Call, transactional_id: str) -> _State:
    try:
        check_transaction_access(call, Operation.DESCRIBE, transactional_id)
        found = call.node.broker.transactions.describe(transactional_id)
    except KafkaError as error:
        return _State(transactional_id=transactional_id, error_code=error.code)
    return _State(
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            _Topic(topic=topic, partitions=[topic_partition.partition for topic_partition in partitions])
            for topic, partitions in groupby(found.partitions, key=lambda topic_partition: topic_partition.topic)
            if call.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )


API = Api(65, "DescribeTransactions", 0, 0, describe_transactions)
