"""Every error the product raises, and what the caller does next.

One table holds Kafka's codes (https://kafka.apache.org/protocol#protocol_error_codes). A class of its own exists only
where a caller acts differently. Messages say what happened, where, and how to fix it.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class ErrorCode(NamedTuple):
    """One row of Kafka's error table."""

    code: int
    name: str
    retriable: bool
    meaning: str


_ROWS = (
    ErrorCode(-1, "UNKNOWN_SERVER_ERROR", False, "The server met an error it has no name for."),
    ErrorCode(0, "NONE", False, "No error."),
    ErrorCode(1, "OFFSET_OUT_OF_RANGE", False, "The offset is not within the partition."),
    ErrorCode(2, "CORRUPT_MESSAGE", True, "The bytes fail their CRC, size or format check."),
    ErrorCode(3, "UNKNOWN_TOPIC_OR_PARTITION", True, "There is no such topic or partition."),
    ErrorCode(6, "NOT_LEADER_OR_FOLLOWER", True, "This broker does not lead the partition."),
    ErrorCode(7, "REQUEST_TIMED_OUT", True, "The request timed out."),
    ErrorCode(10, "MESSAGE_TOO_LARGE", False, "The batch is larger than max.message.bytes."),
    ErrorCode(12, "OFFSET_METADATA_TOO_LARGE", False, "The metadata of a commit is too long."),
    ErrorCode(15, "COORDINATOR_NOT_AVAILABLE", True, "The coordinator is starting, moving, or cannot be reached."),
    ErrorCode(17, "INVALID_TOPIC_EXCEPTION", False, "The topic name is not legal, or the topic is internal."),
    ErrorCode(21, "INVALID_REQUIRED_ACKS", False, "acks is 0, 1 or all (-1)."),
    ErrorCode(22, "ILLEGAL_GENERATION", False, "The generation of the group is another one."),
    ErrorCode(23, "INCONSISTENT_GROUP_PROTOCOL", False, "The group has no protocol in common with this member."),
    ErrorCode(24, "INVALID_GROUP_ID", False, "The group's name is not legal."),
    ErrorCode(25, "UNKNOWN_MEMBER_ID", False, "The group does not know this member."),
    ErrorCode(26, "INVALID_SESSION_TIMEOUT", False, "The session timeout is outside the log's bounds."),
    ErrorCode(27, "REBALANCE_IN_PROGRESS", False, "The group is rebalancing: rejoin."),
    ErrorCode(36, "TOPIC_ALREADY_EXISTS", False, "There is a topic of this name."),
    ErrorCode(37, "INVALID_PARTITIONS", False, "The number of partitions is not legal here."),
    ErrorCode(38, "INVALID_REPLICATION_FACTOR", False, "The replication factor is larger than the number of brokers."),
    ErrorCode(40, "INVALID_CONFIG", False, "A configuration key or value is not legal."),
    ErrorCode(42, "INVALID_REQUEST", False, "The request contradicts the protocol."),
    ErrorCode(44, "POLICY_VIOLATION", False, "The request breaks a policy of the topic."),
    ErrorCode(45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False, "A sequence number was skipped."),
    ErrorCode(47, "INVALID_PRODUCER_EPOCH", False, "The producer's epoch is old."),
    ErrorCode(48, "INVALID_TXN_STATE", False, "The transaction is not in a state that allows this."),
    ErrorCode(49, "INVALID_PRODUCER_ID_MAPPING", False, "The producer id is not that of the transactional id."),
    ErrorCode(50, "INVALID_TRANSACTION_TIMEOUT", False, "The transaction timeout is above the log's maximum."),
    ErrorCode(51, "CONCURRENT_TRANSACTIONS", True, "The transaction before this one is still being ended."),
    ErrorCode(52, "TRANSACTION_COORDINATOR_FENCED", False, "A newer transaction coordinator has written here."),
    ErrorCode(56, "KAFKA_STORAGE_ERROR", True, "The disk failed."),
    ErrorCode(59, "UNKNOWN_PRODUCER_ID", False, "Nothing is known of this producer any more."),
    ErrorCode(68, "NON_EMPTY_GROUP", False, "The group has members."),
    ErrorCode(69, "GROUP_ID_NOT_FOUND", False, "There is no such group."),
    ErrorCode(76, "UNSUPPORTED_COMPRESSION_TYPE", False, "The codec is not known here."),
    ErrorCode(79, "MEMBER_ID_REQUIRED", False, "Join again with the member id given."),
    ErrorCode(81, "GROUP_MAX_SIZE_REACHED", False, "The group has as many members as it may."),
    ErrorCode(82, "FENCED_INSTANCE_ID", False, "Another member took over the static member's place."),
    ErrorCode(86, "GROUP_SUBSCRIBED_TO_TOPIC", False, "The group reads the topic."),
    ErrorCode(87, "INVALID_RECORD", False, "A record breaks a rule of its topic."),
    ErrorCode(88, "UNSTABLE_OFFSET_COMMIT", True, "A transaction that commits these offsets is still open."),
    ErrorCode(90, "PRODUCER_FENCED", False, "A newer producer with the same transactional id took over."),
    ErrorCode(105, "TRANSACTIONAL_ID_NOT_FOUND", False, "There is no such transactional id."),
)

KAFKA_ERRORS: dict[int, ErrorCode] = {row.code: row for row in _ROWS}
"""Kafka's error codes by number, as far as this version answers with them."""


class EventBusError(Exception):
    """The root of everything raised here. The message says what to do."""

    retriable: ClassVar[bool] = False
    """The same call may succeed later, unchanged."""
    abortable: ClassVar[bool] = False
    """The open transaction must be aborted; the producer stays usable."""
    fatal: ClassVar[bool] = False
    """The object that raised it is finished; open a new one."""


class KafkaError(EventBusError):
    """An error Kafka has a code for. ``code``, ``name`` and ``retriable`` come from its table."""

    code: ClassVar[int] = -1

    @property
    def name(self) -> str:
        return KAFKA_ERRORS[self.code].name


class OffsetOutOfRange(KafkaError):
    """Seek to an offset that exists, or set ``start=`` to say where to go on."""

    code = 1


class CorruptRecord(KafkaError):
    """Bytes on disk or from a peer are damaged; see ``eventbus log verify`` for the extent."""

    code = 2


class UnknownTopicOrPartition(KafkaError):
    """Create the topic, or mend its name."""

    code = 3
    retriable = True


class RequestTimedOut(KafkaError):
    """Unknown outcome: the work may or may not have happened; try again if it is idempotent."""

    code = 7
    retriable = True


class RecordTooLarge(KafkaError):
    """Send smaller records, or raise ``max.message.bytes`` of the topic."""

    code = 10


class OffsetMetadataTooLarge(KafkaError):
    """Shorten the metadata of the commit (4,096 characters at most)."""

    code = 12


class CoordinatorNotAvailable(KafkaError):
    """Wait and try again: the coordinator is starting or moving."""

    code = 15
    retriable = True


class InvalidTopic(KafkaError):
    """Choose a legal topic name: 1 to 249 of ``a-z A-Z 0-9 . _ -``, not ``.`` or ``..``."""

    code = 17


class InvalidRequiredAcks(KafkaError):
    """Set ``acks`` to 0, 1 or ``"all"``."""

    code = 21


class IllegalGeneration(KafkaError):
    """The group moved on: rejoin; what this member had not committed goes to others."""

    code = 22


class UnknownMemberId(KafkaError):
    """The group forgot this member: rejoin."""

    code = 25


class RebalanceInProgress(KafkaError):
    """Rejoin the group, then go on from the committed offsets."""

    code = 27


class InconsistentGroupProtocol(KafkaError):
    """Give all members of the group one assignor (or protocol type) in common."""

    code = 23


class InvalidGroupId(KafkaError):
    """Choose a legal group name: 1 to 32,767 bytes of UTF-8."""

    code = 24


class InvalidSessionTimeout(KafkaError):
    """Choose a session timeout within the log's bounds; the message names them."""

    code = 26


class TopicAlreadyExists(KafkaError):
    """Use the topic as it is, or delete it first."""

    code = 36


class InvalidPartitions(KafkaError):
    """Ask for more partitions than there are; a topic never shrinks."""

    code = 37


class InvalidReplicationFactor(KafkaError):
    """Use 1 on the embedded log; a Kafka cluster replicates (``kafka://``)."""

    code = 38


class InvalidConfig(KafkaError):
    """Mend the key or the value of the topic's configuration."""

    code = 40


class InvalidRequest(KafkaError):
    """The caller broke the protocol: mend the call."""

    code = 42


class PolicyViolation(KafkaError):
    """The topic's policy forbids it; the message says which."""

    code = 44


class OutOfOrderSequence(KafkaError):
    """Records before these were lost on the way: open a new producer."""

    code = 45
    fatal = True


class InvalidProducerEpoch(KafkaError):
    """A newer instance of this producer wrote: abort and open a new one."""

    code = 47
    abortable = True


class InvalidTxnState(KafkaError):
    """Begin, commit and abort in their order."""

    code = 48
    fatal = True


class InvalidProducerIdMapping(KafkaError):
    """The log knows the transactional id under another producer id, or not at all: open a new producer."""

    code = 49
    fatal = True


class InvalidTransactionTimeout(KafkaError):
    """Choose a transaction timeout up to the log's ``transaction_max_timeout_ms``."""

    code = 50


class ConcurrentTransactions(KafkaError):
    """The transaction before is still being ended: try again in a moment."""

    code = 51
    retriable = True


class TransactionCoordinatorFenced(KafkaError):
    """A newer transaction coordinator has written here: this one is finished."""

    code = 52
    fatal = True


class UnknownProducerId(KafkaError):
    """Nothing is known of this producer any more: open a new one."""

    code = 59
    abortable = True


class NonEmptyGroup(KafkaError):
    """Stop the group's members first."""

    code = 68


class GroupIdNotFound(KafkaError):
    """Mend the group's name; a group exists from its first commit on."""

    code = 69


class UnsupportedCompression(KafkaError):
    """Use none, gzip, snappy, lz4 or zstd."""

    code = 76


class MemberIdRequired(KafkaError):
    """Join again with ``member_id`` (KIP-394)."""

    code = 79

    def __init__(self, message: str, member_id: str = "") -> None:
        super().__init__(message)
        self.member_id = member_id


class GroupMaxSizeReached(KafkaError):
    """Stop a member first, or raise ``group_max_size``."""

    code = 81


class FencedInstanceId(KafkaError):
    """Another member runs under this ``group_instance_id``: stop this one, or give it an id of its own."""

    code = 82
    fatal = True


class GroupSubscribedToTopic(KafkaError):
    """Stop the members that read the topic first."""

    code = 86


class UnstableOffsetCommit(KafkaError):
    """A transaction that commits these offsets is still open: try again in a moment."""

    code = 88
    retriable = True


class InvalidRecord(KafkaError):
    """The record breaks a rule of its topic (a compacted topic needs keys): mend the record."""

    code = 87


class ProducerFenced(KafkaError):
    """Another producer with this transactional id took over: stop this one."""

    code = 90
    fatal = True


class TransactionalIdNotFound(KafkaError):
    """Mend the transactional id; ``admin.list_transactions()`` shows them."""

    code = 105


class StorageError(KafkaError):
    """The disk refused: see the operating system's error in the message."""

    code = 56
    retriable = True


class StorageFull(StorageError):
    """Free space on the disk; writing goes on by itself, nothing acknowledged is lost."""


class LogPoisoned(StorageError):
    """A flush failed, so what the disk holds is unknown: close the log and open it again, it re-verifies itself."""

    retriable = False
    fatal = True


class LogLocked(EventBusError):
    """Another process writes the directory: stop it first. ``eventbus serve`` will share a log between processes."""


class ConfigError(EventBusError):
    """An argument, option or URL is wrong; the message names the right one."""


class SerializationError(EventBusError):
    """A value cannot be turned into bytes, or bytes into the declared type; the message says where."""


class BufferExhausted(EventBusError):
    """The producer's buffer stayed full for ``max_block_ms``: wait, raise ``buffer_memory``, or send slower."""

    retriable = True


class ProducerClosed(EventBusError):
    """The producer is closed: send before ``close()``, or open a new one."""


class NoCommittedOffset(EventBusError):
    """The group has no committed offset here and ``start="none"``: commit one, or choose "earliest" or "latest"."""


class TransactionAborted(EventBusError):
    """Nothing of the transaction is visible: run it again from its beginning."""


class TransactionOutcomeUnknown(EventBusError):
    """The commit was asked for and not answered: read what it wrote before running it again; open a new producer."""

    fatal = True


class HandlerError(EventBusError):
    """A handler raised; the message carries the record's coordinates, the cause is chained."""


class StoppedBySignal(EventBusError):
    """Exit with ``128 + number``: a second signal ended the bus before its records were finished."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = int(number)


def error_for_code(code: int, message: str) -> KafkaError:
    """The exception for one of Kafka's error codes."""
    for cls in _kafka_classes(KafkaError):
        if cls.code == code:
            return cls(message)
    return KafkaError(f"{KAFKA_ERRORS.get(code, KAFKA_ERRORS[-1]).name} ({code}): {message}")


def _kafka_classes(root: type[KafkaError]) -> list[type[KafkaError]]:
    return [cls for sub in root.__subclasses__() for cls in (sub, *_kafka_classes(sub))]
