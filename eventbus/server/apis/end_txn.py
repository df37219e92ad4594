"""EndTxn (key 26): commit or abort. Answered once the decision is durable; the markers follow, whatever happens.

PRODUCER_FENCED is known from v2 on. v5, which gives out the next epoch, is of transactions V2 (KIP-890).
"""

from __future__ import annotations

from eventbus.errors import KafkaError, UnknownTopicOrPartition
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_transaction_access, transaction_code, when_settled
from eventbus.server.security.acls import Operation
from eventbus.types import ProducerIdAndEpoch


def end_txn(call: Call, request: m.EndTxnRequest) -> None:
    node = call.node
    transactions = node.broker.transactions
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def answer(error: KafkaError | None) -> None:
        code = 0 if error is None else transaction_code(error, call, fenced_since=2)
        call.reply(m.EndTxnResponse(error_code=code))

    def attempt() -> None:
        end = transactions.end(
            request.transactional_id, producer, committed=request.committed, now_ms=node.now_ms(), bump_epoch=False
        )
        if end.offset < 0:
            answer(None)
        else:
            node.when_durable(end.topic_partition, end.offset, answer)

    def decide() -> None:
        """Once what was sent before is durable: its acks may not have been waited for."""
        missing = transactions.not_durable(request.transactional_id) if request.committed else []
        unsettled = len(missing)
        failed: KafkaError | None = None

        def then(error: KafkaError | None) -> None:
            nonlocal unsettled, failed
            if not isinstance(error, UnknownTopicOrPartition):  # a topic that was deleted has taken its records along
                failed = failed or error
            unsettled -= 1
            if unsettled <= 0 and call.is_open:
                when_settled(call, attempt, answer) if failed is None else answer(failed)

        for place in missing:
            node.when_durable(*place, then)
        if not missing:
            then(None)

    try:
        check_transaction_access(call, Operation.WRITE, request.transactional_id)
    except KafkaError as error:
        answer(error)
    else:
        decide()


API = Api(26, "EndTxn", 0, 4, end_txn)
