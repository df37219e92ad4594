"""EndTxn (key 26): commit or abort. Answered once the decision is durable; the markers follow, whatever happens.

PRODUCER_FENCED is known to clients from v2 on. Version 5 returns the epoch of the next transaction (transactions V2,
KIP-890); its answer waits for the markers too. A client of v5 begins its next transaction with a batch, which would
otherwise fail with a retriable error and cost a ``retry.backoff.ms``. An older client begins with AddPartitionsToTxn,
which waits instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.coordinator.requests import TransactionEnd
from eventbus.errors import InvalidTxnState, KafkaError, UnknownTopicOrPartition
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_transaction_access, transaction_code, when_settled
from eventbus.server.node import Then
from eventbus.server.security.acls import Operation
from eventbus.types import ProducerIdAndEpoch, TopicPartition

_BUMPS_EPOCH_FROM = 5


def end_txn(call: Call, request: m.EndTxnRequest) -> None:
    node = call.node
    transactions = node.broker.transactions
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    bumps_epoch = call.version >= _BUMPS_EPOCH_FROM

    def refuse(error: KafkaError) -> None:
        call.reply(m.EndTxnResponse(error_code=transaction_code(error, call, fenced_since=2)))

    def answer(end: TransactionEnd) -> None:
        call.reply(m.EndTxnResponse(producer_id=end.next.producer_id, producer_epoch=end.next.producer_epoch))

    def attempt() -> None:
        end = transactions.end(
            request.transactional_id,
            producer,
            committed=request.committed,
            now_ms=node.now_ms(),
            bump_epoch=bumps_epoch,
        )
        if bumps_epoch and request.committed and end.offset < 0 and end.next == producer:
            # Kafka refuses this too. After a power cut with fsync=os the records may be gone, with the transaction.
            raise InvalidTxnState(f"Transactional id {request.transactional_id!r} has no open transaction to commit.")

        def decided(error: KafkaError | None) -> None:
            if error is not None:
                refuse(error)
            elif bumps_epoch and end.markers:
                _when_all_durable(call, end.markers, lambda _: answer(end))
            else:  # without markers: nothing was written, or the disk is too full for them now
                answer(end)

        if end.offset < 0:
            answer(end)
        else:
            node.when_durable(end.topic_partition, end.offset, decided)

    def decide() -> None:
        """Decide once earlier batches are durable, because the client may not have waited for their acks."""

        def then(failed: KafkaError | None) -> None:
            when_settled(call, attempt, refuse) if failed is None else refuse(failed)

        missing = transactions.not_durable(request.transactional_id) if request.committed else []
        _when_all_durable(call, missing, then)

    try:
        check_transaction_access(call, Operation.WRITE, request.transactional_id)
    except KafkaError as error:
        refuse(error)
    else:
        decide()


def _when_all_durable(call: Call, places: Sequence[tuple[TopicPartition, int]], then: Then) -> None:
    """Call ``then`` once every record is durable, with the first error; never after the peer has disconnected."""
    unsettled = len(places)
    failed: KafkaError | None = None

    def settle(error: KafkaError | None) -> None:
        nonlocal unsettled, failed
        if not isinstance(error, UnknownTopicOrPartition):  # a deleted topic's records are gone too
            failed = failed or error
        unsettled -= 1
        if unsettled <= 0 and call.is_open:
            then(failed)

    for place in places:
        call.node.when_durable(*place, settle)
    if not places:
        settle(None)


API = Api(26, "EndTxn", 0, 5, end_txn)
