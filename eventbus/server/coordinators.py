"""Code shared by the handlers of groups and transactions: permissions, codes by version, and when to answer."""

from __future__ import annotations

from collections.abc import Callable

from eventbus.broker.descriptions import OffsetCommitResult
from eventbus.coordinator.requests import SentOffset
from eventbus.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    StorageError,
)
from eventbus.server.admin import UNKNOWN_TOPIC_OR_PARTITION, error_of, refusal
from eventbus.server.call import Call
from eventbus.server.node import Then
from eventbus.server.security.acls import Operation, ResourceType
from eventbus.types import TopicPartition

TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
TOPIC_AUTHORIZATION_FAILED = 29

_FLUSHES = 5
"""Prepare*, markers, Complete*: each needs a flush, and one of them may begin a turn later."""


def check_group_access(call: Call, operation: Operation, group: str) -> None:
    """Raise GROUP_AUTHORIZATION_FAILED unless the operation on the group is allowed."""
    if not call.allows(operation, ResourceType.GROUP, group):
        raise refusal(call, operation, ResourceType.GROUP, group)


def check_transaction_access(call: Call, operation: Operation, transactional_id: str) -> None:
    """Raise TRANSACTIONAL_ID_AUTHORIZATION_FAILED unless the operation on the transactional id is allowed."""
    if not call.allows(operation, ResourceType.TRANSACTIONAL_ID, transactional_id):
        raise error_of(TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def group_code(error: KafkaError) -> int:
    """Return the code for a group's client. As in Kafka, a storage error becomes COORDINATOR_NOT_AVAILABLE, after
    which clients retry; the error's own code would stop them."""
    return CoordinatorNotAvailable.code if isinstance(error, StorageError) else error.code


def transaction_code(error: KafkaError, call: Call, fenced_since: int) -> int:
    """Return a code like `group_code`. PRODUCER_FENCED is newer than some requests: used from version
    ``fenced_since`` on."""
    if isinstance(error, ProducerFenced) and call.version < fenced_since:
        return InvalidProducerEpoch.code
    return group_code(error)


def when_group_is_stored(call: Call, group: str, then: Then) -> None:
    """Call ``then`` when every earlier decision about the group is as durable as the log promises."""
    record = call.node.broker.groups.last_record_of(group)
    if record is None:
        then(None)
    else:
        call.node.when_durable(*record, then)


def when_settled(
    call: Call, attempt: Callable[[], None], refuse: Callable[[KafkaError], None], flushes: int = _FLUSHES
) -> None:
    """Call ``attempt``; while the id's last transaction is being ended, call it again after each flush that this takes.

    Kafka would answer CONCURRENT_TRANSACTIONS at once, and its client would wait for twenty milliseconds or more.
    """
    try:
        attempt()
    except ConcurrentTransactions as concurrent:
        if not flushes:
            refuse(concurrent)
            return

        def again(error: KafkaError | None) -> None:
            if error is not None:
                refuse(error)
            elif call.is_open:
                when_settled(call, attempt, refuse, flushes - 1)

        call.node.when_flushed(again)
    except KafkaError as error:
        refuse(error)


class Commit:
    """The offsets of a commit request: checks permissions and partitions, and collects the results."""

    __slots__ = ("_call", "_codes", "offsets")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._codes: dict[TopicPartition, int] = {}
        self.offsets: dict[TopicPartition, SentOffset] = {}
        """The offsets to store."""

    def add(self, topic: str, partition: int, offset: int, leader_epoch: int, metadata: str | None) -> None:
        self.offsets[TopicPartition(topic, partition)] = SentOffset(offset, metadata or "", leader_epoch)

    def check_partitions(self) -> None:
        """Remove partitions that do not exist or that the caller may not read. This is checked before anything of
        the group."""
        counts: dict[str, int] = {}
        for topic, number in list(self.offsets):
            if topic not in counts:
                allowed = self._call.allows(Operation.READ, ResourceType.TOPIC, topic)
                counts[topic] = self._call.node.broker.partitions_of(topic) if allowed else -1
            count = counts[topic]
            if not 0 <= number < count:
                topic_partition = TopicPartition(topic, number)
                del self.offsets[topic_partition]
                self._codes[topic_partition] = TOPIC_AUTHORIZATION_FAILED if count < 0 else UNKNOWN_TOPIC_OR_PARTITION

    def code(self, topic: str, partition: int) -> int:
        return self._codes.get(TopicPartition(topic, partition), 0)

    def failed(self, code: int) -> None:
        """Use one error for all remaining offsets."""
        for topic_partition in self.offsets:
            self._codes[topic_partition] = code

    def stored(self, result: OffsetCommitResult, answer: Callable[[], None]) -> None:
        """Call ``answer`` when the stored offsets are durable."""
        for topic_partition, refused in result.errors.items():
            self._codes[topic_partition] = refused.code

        def then(error: KafkaError | None) -> None:
            if error is not None:
                self.failed(group_code(error))
            answer()

        if result.last_offset < 0:
            answer()
        else:
            self._call.node.when_durable(result.topic_partition, result.last_offset, then)
