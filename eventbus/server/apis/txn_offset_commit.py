"""TxnOffsetCommit (key 28): commit offsets that count once the transaction is committed.

The group's partition was added before (AddOffsetsToTxn); from v5 on this request adds it (transactions V2, KIP-890). It
has the member's generation from v3 on (KIP-447). TRANSACTION_ABORTABLE is known to clients from v4 on.
"""

from __future__ import annotations

from eventbus.errors import InvalidTxnState, KafkaError
from eventbus.protocol import messages as m
from eventbus.server.call import Api, Call
from eventbus.server.coordinators import (
    Commit,
    check_group_access,
    check_transaction_access,
    transaction_code,
    when_settled,
)
from eventbus.server.security.acls import Operation
from eventbus.types import GroupMetadata, ProducerIdAndEpoch

_NEVER = 1 << 15
_ADDS_OFFSETS_FROM = 5
_TRANSACTION_ABORTABLE = 120

_Topic = m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


def txn_offset_commit(call: Call, request: m.TxnOffsetCommitRequest) -> None:
    node = call.node
    commit = Commit(call)

    def answer() -> None:
        topics = [
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=given.partition_index,
                        error_code=commit.code(topic.name, given.partition_index),
                    )
                    for given in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        call.reply(m.TxnOffsetCommitResponse(topics=topics))

    for topic in request.topics:
        for given in topic.partitions:
            commit.add(
                topic.name, given.partition_index, given.committed_offset, given.committed_leader_epoch,
                given.committed_metadata,
            )  # fmt: skip

    def refuse(error: KafkaError) -> None:
        commit.failed(_code(call, error))
        answer()

    def attempt() -> None:
        result = node.broker.transactions.commit_offsets(
            request.transactional_id,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            GroupMetadata(request.group_id, request.generation_id, request.member_id, request.group_instance_id),
            commit.offsets,
            node.now_ms(),
            added=not adds,
        )
        commit.stored(result, answer)

    adds = call.version >= _ADDS_OFFSETS_FROM
    try:
        check_transaction_access(call, Operation.WRITE, request.transactional_id)
        check_group_access(call, Operation.READ, request.group_id)
        commit.check_partitions()
    except KafkaError as error:
        refuse(error)
        return
    if not commit.offsets:
        answer()
        return
    when_settled(call, attempt, refuse)
    if adds:
        node.deadline_changed()


def _code(call: Call, error: KafkaError) -> int:
    if isinstance(error, InvalidTxnState) and call.version >= 4:
        return _TRANSACTION_ABORTABLE
    return transaction_code(error, call, fenced_since=_NEVER)


API = Api(28, "TxnOffsetCommit", 0, 5, txn_offset_commit)
