"""Every error that a caller may catch, also those of the other packages of the wheel, and what the caller does next.

Kafka's codes stand in `eventbus.error_codes`. A class of its own exists only where a caller acts differently, or where
this side has something to say. Messages say what happened, where, and how to fix it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from eventbus.error_codes import KAFKA_ERRORS
from serdes.errors import SchemaFinding, SchemaRegistryError

if TYPE_CHECKING:
    from eventbus.types import TopicPartition


class EventBusError(Exception):
    """The root of everything raised here. The message says what to do."""

    retriable: ClassVar[bool] = False
    """The same call may succeed later, unchanged."""
    abortable: ClassVar[bool] = False
    """The open transaction must be aborted; the producer stays usable."""
    fatal: ClassVar[bool] = False
    """The object that raised it is finished; open a new one."""
    topic_partition: TopicPartition | None = None
    """The partition that a fetch could not read; the others can be read on. None: it is not about one partition."""


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
    """Create the topic, or correct its name."""

    code = 3
    retriable = True


class TopicAuthorizationFailed(KafkaError):
    """The user has no ACL for this operation on the topic: grant it, see ``eventbus acls``."""

    code = 29


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
    """Correct the key or the value of the topic's configuration."""

    code = 40


class InvalidRequest(KafkaError):
    """The caller broke the protocol: correct the call."""

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
    """Correct the group's name; a group exists from its first commit on."""

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


class InvalidTimestamp(KafkaError):
    """Give the record a time that the topic takes, in milliseconds (``message.timestamp.after.max.ms``)."""

    code = 32


class UnstableOffsetCommit(KafkaError):
    """A transaction that commits these offsets is still open: try again in a moment."""

    code = 88
    retriable = True


class InvalidRecord(KafkaError):
    """The record breaks a rule of its topic (a compacted topic needs keys): correct the record."""

    code = 87


class ProducerFenced(KafkaError):
    """Another producer with this transactional id took over: stop this one."""

    code = 90
    fatal = True


class TransactionalIdNotFound(KafkaError):
    """Correct the transactional id; ``admin.list_transactions()`` shows them."""

    code = 105


class UnsupportedVersion(KafkaError):
    """Use a version of the API that the peer serves; ApiVersions tells which."""

    code = 35


class FencedMemberEpoch(KafkaError):
    """Give up all partitions and join again with member epoch 0 (KIP-848)."""

    code = 110


class UnreleasedInstanceId(KafkaError):
    """Stop the static member that has the instance id first, or choose another id."""

    code = 111


class UnsupportedAssignor(KafkaError):
    """Choose a server-side assignor that the group coordinator knows: uniform or range."""

    code = 112


class StaleMemberEpoch(KafkaError):
    """Heartbeat, which tells the member's epoch of now, then try again."""

    code = 113


class InvalidRegularExpression(KafkaError):
    """Correct the pattern of the subscription (RE2 syntax)."""

    code = 128


class StorageError(KafkaError):
    """The disk refused: see the operating system's error in the message."""

    code = 56
    retriable = True


class StorageFull(StorageError):
    """Free space on the disk; writing continues automatically, and nothing acknowledged is lost."""


class PartitionOffline(StorageError):
    """The partition is damaged on disk: restore its files from a backup, or see ``eventbus log repair``."""

    retriable = False


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


class TableError(EventBusError):
    """An entry of a table is not known: a record of it could not be read or folded, or some are not there any more."""


class SchemaNotReady(SerializationError):
    """`send_nowait` cannot wait for a schema to be registered. ``fetch`` does, where waiting does no harm."""

    def __init__(self, message: str, fetch: Callable[[], None]) -> None:
        super().__init__(message)
        self.fetch = fetch


class SchemaUnavailable(EventBusError):
    """The schema registry did not answer, and what is asked of it is not here yet: try again later."""

    retriable = True


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


class RequestFailed(EventBusError):
    """The handler of a request ended in failure. The message has its error; the same request calls it again."""


class ProcessCrashed(EventBusError):
    """The process died while a handler was at work on the record, as often as ``Retry(crashes=)`` allows."""


class StoppedBySignal(EventBusError):
    """Exit with ``128 + number``: a second signal ended the bus before its records were finished."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = int(number)


class ClaimError(EventBusError):
    """Put the value back into the store, or skip the record: the value that it refers to is missing or another."""


class ConnectorsFailed(EventBusError):
    """Fix what the message names, and start again: none of the connectors runs any more."""


class OffsetsMoved(EventBusError):
    """Poll again: the stored offsets are not where these records begin, so nothing was written.

    Another consumer has written these records meanwhile, or the partition is another's now. The consumer that follows
    the offsets has been moved to what is stored.
    """

    retriable = True


class PayloadGone(EventBusError):
    """Resolve the letter, or send its content by other means: neither the letter nor its source has the payload."""


class SparkCrashed(EventBusError):
    """Land again: Spark's JVM or one of its Python workers ended before the landing did. Nothing was lost."""

    retriable = True


class SparkFailed(EventBusError):
    """Fix what the message names, for instance in a ``transform``: Spark refused the work. Nothing was lost."""


class RegistryError(SchemaRegistryError, EventBusError):
    """Do what the message says: the registry refused a request. ``status`` is HTTP's, ``error_code`` Confluent's."""

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(message, status=status, error_code=error_code)


class IncompatibleSchema(RegistryError):
    """Change what ``findings`` name: the schema breaks the compatibility level of its subject."""

    def __init__(self, message: str, messages: tuple[str, ...] = (), findings: tuple[SchemaFinding, ...] = ()) -> None:
        super().__init__(409, 40901, message)
        self.messages = messages
        """Confluent's verbose lines of the findings."""
        self.findings = findings


class RegistryRefused(EventBusError):
    """Do what the message says: the topic of schemas cannot be served, because ids could be given twice."""

    fatal = True


def error_for_code(code: int, message: str) -> KafkaError:
    """The exception for one of Kafka's error codes; its ``code`` is that one, also where it has no class of its own."""
    return _class_for_code(code)(message)


TAKEN_OVER = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, OutOfOrderSequence, InvalidTxnState)
"""Raised if another producer has taken over the transactional id, or the log has forgotten it (Kafka: after a week)."""


@cache
def _class_for_code(code: int) -> type[KafkaError]:
    for cls in _kafka_classes(KafkaError):
        if cls.code == code:
            return cls
    row = KAFKA_ERRORS.get(code, KAFKA_ERRORS[-1])
    return type("KafkaError", (KafkaError,), {"code": row.code, "retriable": row.retriable, "__doc__": row.meaning})


def _kafka_classes(root: type[KafkaError]) -> list[type[KafkaError]]:
    return [cls for sub in root.__subclasses__() for cls in (sub, *_kafka_classes(sub))]
