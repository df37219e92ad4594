"""Kafka's record format of ``__transaction_state``: the state of a transactional id.

Keys are version 0. Values are written as version 0, or as version 1 if they have fields that only version 1 can hold
(previous or next producer ids, a bumped epoch); both are read, with fields of later versions skipped. The schemas are
in the tables of `eventbus.protocol`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import msgspec

from eventbus.protocol import messages
from eventbus.protocol.log_records import decode_key, decode_value, encode_key, encode_value
from eventbus.types import ProducerIdAndEpoch, TopicPartition

NO_PRODUCER_ID = -1

_BUMPING_VERSION = 2
"""Kafka's ``ClientTransactionVersion`` of transactions V2."""
_REMEMBERED = 4_096
"""The number of transactional ids whose encoded key is cached."""


class TransactionState(IntEnum):
    """State of a transactional id; the value is Kafka's status byte."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's name, as admin tools show it."""
        return "".join(part.capitalize() for part in self.name.split("_"))


class TransactionMetadata(msgspec.Struct, frozen=True):
    """The stored state of one transactional id. Times in milliseconds."""

    producer_id: int
    producer_epoch: int
    """While a transaction is prepared: the epoch of its markers."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions of the open or prepared transaction."""
    last_update_ms: int = -1
    start_ms: int = -1
    """The start of the last transaction; -1 before the first."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id whose epochs are exhausted: a retry may still carry it."""
    next_producer_id: int = NO_PRODUCER_ID
    """While a transaction is prepared: the next producer id, if the epochs of the present id are exhausted."""
    is_bumped: bool = False
    """The last end raised the epoch (KIP-890), so its markers' epoch is above that of the records: stored as Kafka's
    ``ClientTransactionVersion`` 2."""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)


@lru_cache(_REMEMBERED)
def encode_transaction_key(transactional_id: str) -> bytes:
    """Encode as version 0. Raises ValueError for an id that does not fit Kafka's int16 length."""
    return encode_key(messages.TransactionLogKey(transactional_id=transactional_id))


def encode_transaction_value(value: TransactionMetadata) -> bytes:
    """Encode as version 0, or as version 1 where version 0 would lose something."""
    made = messages.TransactionLogValue
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(value.partitions):
        topics.setdefault(topic, []).append(number)
    partitions = [made.PartitionsSchema(topic=topic, partition_ids=numbers) for topic, numbers in topics.items()]
    message = made(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.timeout_ms,
        transaction_status=value.state,
        # Null in state Empty only: in other states Kafka's tools, and its own loader, require a list.
        transaction_partitions=partitions or (None if value.state is TransactionState.EMPTY else []),
        transaction_last_update_timestamp_ms=value.last_update_ms,
        transaction_start_timestamp_ms=value.start_ms,
        client_transaction_version=_BUMPING_VERSION if value.is_bumped else 0,
    )
    needs_tags = (
        value.is_bumped or value.previous_producer_id != NO_PRODUCER_ID or value.next_producer_id != NO_PRODUCER_ID
    )
    return encode_value(message, int(needs_tags))


@lru_cache(_REMEMBERED)
def decode_transaction_key(data: bytes) -> str:
    """Return the transactional id. Raises ValueError for another version, and for truncated or surplus bytes."""
    return decode_key(messages.TransactionLogKey, data).transactional_id


def decode_transaction_value(data: bytes) -> TransactionMetadata:
    """Decode version 0 or 1. Raises ValueError."""
    message, _ = decode_value(messages.TransactionLogValue, data)
    status = message.transaction_status
    if status not in range(TransactionState.DEAD):  # the last two are never stored
        raise ValueError(f"a transaction's value of status {status}")
    partitions = [
        TopicPartition(topic.topic, number)
        for topic in message.transaction_partitions or ()
        for number in topic.partition_ids
    ]
    return TransactionMetadata(
        message.producer_id,
        message.producer_epoch,
        message.transaction_timeout_ms,
        TransactionState(status),
        frozenset(partitions),
        message.transaction_last_update_timestamp_ms,
        message.transaction_start_timestamp_ms,
        message.previous_producer_id,
        message.next_producer_id,
        message.client_transaction_version >= _BUMPING_VERSION,
    )
