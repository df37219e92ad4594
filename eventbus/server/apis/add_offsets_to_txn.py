"""AddOffsetsToTxn (key 25): announce that the transaction will commit offsets of a group, which need not exist yet.

PRODUCER_FENCED is known to clients from v2 on.
"""

from __future__ import annotations

from eventbus.errors import KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_group_access, check_transaction_access, transaction_code, when_settled
from eventbus.server.security.acls import Operation
from eventbus.types import ProducerIdAndEpoch


def add_offsets_to_txn(call: Call, request: m.AddOffsetsToTxnRequest) -> None:
    node = call.node
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

    def refuse(error: KafkaError) -> None:
        call.reply(m.AddOffsetsToTxnResponse(error_code=transaction_code(error, call, fenced_since=2)))

    def attempt() -> None:
        node.broker.transactions.add_offsets(request.transactional_id, producer, request.group_id, node.now_ms())
        call.reply(m.AddOffsetsToTxnResponse())

    try:
        check_transaction_access(call, Operation.WRITE, request.transactional_id)
        check_group_access(call, Operation.READ, request.group_id)
    except KafkaError as error:
        refuse(error)
    else:
        when_settled(call, attempt, refuse)
        node.deadline_changed()


API = Api(25, "AddOffsetsToTxn", 0, 4, add_offsets_to_txn)
