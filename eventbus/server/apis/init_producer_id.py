"""InitProducerId (key 22): give out a producer id. With a transactional id, previous producers of that id are fenced.

Their open transaction is aborted first. The answer waits for a flush: a crash must not give the same epoch to a second
producer. PRODUCER_FENCED is known to clients from v4 on. v6 (two-phase commit, KIP-939) is not served.
"""

from __future__ import annotations

from eventbus.errors import InvalidRequest, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.admin import allows_cluster, error_of
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import check_transaction_access, transaction_code, when_settled
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import ProducerIdAndEpoch

_CLUSTER_AUTHORIZATION_FAILED = 31


def init_producer_id(call: Call, request: m.InitProducerIdRequest) -> None:
    node = call.node

    def refuse(error: KafkaError) -> None:
        code = transaction_code(error, call, fenced_since=4)
        call.reply(m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1))

    def attempt() -> None:
        given = node.broker.transactions.init_producer_id(
            request.transactional_id, request.transaction_timeout_ms, node.now_ms(), producer=before
        )

        def then(error: KafkaError | None) -> None:
            if error is not None:
                refuse(error)
            else:
                call.reply(m.InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.producer_epoch))

        if request.transactional_id is None:  # its id comes from a block that is already on disk
            then(None)
        else:
            node.when_flushed(then)

    try:
        _check_access(call, request.transactional_id)
        before = _producer_before(request)
    except KafkaError as error:
        refuse(error)
    else:
        when_settled(call, attempt, refuse)
        node.deadline_changed()


def _check_access(call: Call, transactional_id: str | None) -> None:
    if transactional_id is not None:
        check_transaction_access(call, Operation.WRITE, transactional_id)
        return
    # A client that may write to some topic may also do so idempotently (KIP-679).
    may_write = call.node.security.allows_some(call, Operation.WRITE, ResourceType.TOPIC)
    if not may_write and not allows_cluster(call, Operation.IDEMPOTENT_WRITE):
        raise error_of(_CLUSTER_AUTHORIZATION_FAILED)


def _producer_before(request: m.InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """Return the producer's present id and epoch (KIP-360). Raises InvalidRequest if only one is given."""
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        raise InvalidRequest("a producer id goes with its epoch: give both, or neither")
    return None if request.producer_id < 0 else ProducerIdAndEpoch(request.producer_id, request.producer_epoch)


API = Api(22, "InitProducerId", 0, 5, init_producer_id)
