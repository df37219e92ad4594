"""Produce (key 0): batches are checked by their headers, given their offsets in place, and written unchanged.

Served from version 3, announced from 0: librdkafka before 2.11.1 takes Produce v0 as the sign that a broker supports
gzip, snappy and lz4, and sends uncompressed records without a warning if it is missing (KAFKA-18659). From version 12
on, a batch adds its partition to its transaction. Clients use that version only if every transaction has a separate
epoch (``transaction.version`` 2, KIP-890): a late batch would otherwise begin the next transaction.

The answer comes when the records are as durable as the log promises, and can be read: with acks 1 as well as -1,
because there is only one copy, and clients with either setting read what they have written. With acks 0 there is no
answer, so a failure closes the connection, which is how the client detects it.
"""

from __future__ import annotations

from eventbus.broker.transactions import Sender
from eventbus.broker.validation import RecordsWithoutKey
from eventbus.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    UnsupportedCompression,
)
from eventbus.log.partition_log import AppendInfo
from eventbus.protocol import Buffer
from eventbus.protocol import messages as m
from eventbus.server.apis._partitions import TOPIC_AUTHORIZATION_FAILED
from eventbus.server.call import Api, Call
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import Compression, TopicPartition

_ALL, _LEADER, _NONE = -1, 1, 0
_NOT_ENOUGH_REPLICAS = 19
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
_TRANSACTION_ABORTABLE = 120
_ZSTD_FROM = 7
_ABORTABLE_FROM = 11
_ADDS_PARTITIONS_FROM = 12
_ATTRIBUTES_POSITION = 22
"""The position of the low byte of a batch's attributes."""
_CODEC_BITS = 0x07
_TRANSACTIONAL_BIT = 0x10

Topic = m.ProduceResponse.TopicProduceResponse
Partition = m.ProduceResponse.PartitionProduceResponse
RecordError = m.ProduceResponse.BatchIndexAndErrorMessage


class _Produce:
    """A request whose records were written and wait for a flush."""

    __slots__ = ("call", "response", "unsettled")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.response = m.ProduceResponse()
        self.unsettled = 1
        """Partitions that wait, plus one for the handler itself."""

    def wait(self, topic_partition: TopicPartition, info: AppendInfo, answer: Partition) -> None:
        """Delay the answer until the batch is durable."""

        def then(error: KafkaError | None) -> None:
            if error is not None:
                _fail(answer, error.code, str(error))
            self.settle()

        self.unsettled += 1
        self.call.node.when_durable(topic_partition, info.last_offset, then)

    def settle(self) -> None:
        self.unsettled -= 1
        if not self.unsettled and self.call.is_open:
            self.call.reply(self.response, self.throttle_ms())

    def throttle_ms(self) -> int:
        call = self.call
        quotas = call.node.security.quotas
        return quotas.produced(call.principal, call.client_id, call.size_bytes, call.node.now_ms())


def produce(call: Call, request: m.ProduceRequest) -> None:
    acks = request.acks
    refusal = _refusal(call, request)
    sender = Sender(request.transactional_id or "", call.version >= _ADDS_PARTITIONS_FROM, call.node.now_ms())
    pending = _Produce(call)
    responses = pending.response.responses
    failed = ""
    for topic in request.topic_data:
        name = topic.name
        code, message = refusal
        if not code and not call.allows(Operation.WRITE, ResourceType.TOPIC, name):
            code, message = TOPIC_AUTHORIZATION_FAILED, f"{call.principal} may not write to {name!r}"
        answers: list[Partition] = []
        for data in topic.partition_data:
            answer = Partition(index=data.index)
            answers.append(answer)
            if code:
                _fail(answer, code, message)
            else:
                topic_partition = TopicPartition(name, data.index)
                info = _append(call, sender, topic_partition, data.records, answer)
                if info is not None and acks != _NONE:
                    pending.wait(topic_partition, info, answer)
            if answer.error_code and not failed:
                failed = f"{name}-{data.index}: error {answer.error_code}: {answer.error_message}"
        responses.append(Topic(name=name, partition_responses=answers))
    if sender.transactional_id and sender.adds_partitions:
        call.node.deadline_changed()
    if acks == _NONE:
        call.node.when_flushed(_ignore_result)  # readers may not see the records before that
        throttle_ms = pending.throttle_ms()
        call.no_reply()
        if failed:
            call.close(f"acks=0, and {failed}")
        elif throttle_ms:
            call.connection.mute(throttle_ms)
        return
    pending.settle()


def _refusal(call: Call, request: m.ProduceRequest) -> tuple[int, str]:
    """Return code and message if nothing of the request may be stored; code 0 if it may."""
    if request.acks not in (_ALL, _LEADER, _NONE):
        return (
            InvalidRequiredAcks.code,
            f"acks={request.acks}: -1 and 1 wait until records are durable, 0 does not",
        )
    transactional_id = request.transactional_id
    if transactional_id is not None and not call.allows(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        return (
            _TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{call.principal} may not write with transactional id {transactional_id!r}",
        )
    return 0, ""


def _append(
    call: Call,
    sender: Sender,
    topic_partition: TopicPartition,
    records: Buffer | list[Buffer] | None,
    answer: Partition,
) -> AppendInfo | None:
    """Store one batch; return its offsets, or None with the error in ``answer``."""
    node = call.node
    try:
        if not isinstance(records, memoryview) or not len(records):
            raise InvalidRecord(f"produce to {topic_partition}: no record batch, where exactly one belongs")
        if call.version < _ZSTD_FROM and _is_zstd(records):
            raise UnsupportedCompression(f"produce to {topic_partition}: zstd needs version {_ZSTD_FROM} of Produce")
        if not sender.transactional_id and _is_transactional(records):
            message = (
                f"The batch for {topic_partition} was refused. It is part of a transaction, but the request has no "
                "transactional id. Send the id with the request."
            )
            _fail(answer, _TRANSACTIONAL_ID_AUTHORIZATION_FAILED, message)
            return None
        info = node.broker.produce(topic_partition, records, node.clock(), sender=sender)
    except KafkaError as error:
        _fail(answer, _code(call, records, error), str(error))
        if isinstance(error, RecordsWithoutKey):
            answer.record_errors = [
                RecordError(batch_index=index, batch_index_error_message="a record of a compacted topic needs a key")
                for index in error.indexes
            ]
        return None
    answer.base_offset = info.base_offset
    answer.log_append_time_ms = info.timestamp_ms
    answer.log_start_offset = node.broker.log_start_offset(topic_partition)
    return info


def _code(call: Call, records: Buffer | list[Buffer] | None, error: KafkaError) -> int:
    """Return the error's code, or the nearest code that clients of the version handle as intended."""
    if isinstance(error, ConcurrentTransactions) and call.version < _ADDS_PARTITIONS_FROM:
        return _NOT_ENOUGH_REPLICAS  # retriable in every version
    if isinstance(error, ProducerFenced):
        return InvalidProducerEpoch.code  # the client aborts, and learns then whether it may continue
    is_late = isinstance(error, InvalidTxnState) and isinstance(records, memoryview) and _is_transactional(records)
    return _TRANSACTION_ABORTABLE if is_late and call.version >= _ABORTABLE_FROM else error.code


def _is_zstd(records: memoryview) -> bool:
    return _attributes(records) & _CODEC_BITS == Compression.ZSTD


def _is_transactional(records: memoryview) -> bool:
    return bool(_attributes(records) & _TRANSACTIONAL_BIT)


def _attributes(records: memoryview) -> int:
    return records[_ATTRIBUTES_POSITION] if len(records) > _ATTRIBUTES_POSITION else 0


def _fail(answer: Partition, code: int, message: str) -> None:
    answer.error_code = code
    answer.error_message = message
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1


def _ignore_result(error: KafkaError | None) -> None:
    """Do nothing: the producer waits for no answer."""


API = Api(0, "Produce", 3, 12, produce, advertised_min=0)
