"""Every error that a caller may catch, also from the other packages of the wheel, and what the caller should do.

Kafka's codes are in `eventbus.error_codes`. A separate class exists only if callers act on it, or if its message adds
something. Messages state what happened, where, and how to fix it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from eventbus.error_codes import KAFKA_ERRORS
from serdes.errors import SchemaFinding, SchemaRegistryError

if TYPE_CHECKING:
    from eventbus.types import TopicPartition


class EventBusError(Exception):
    """The base of all errors raised here. The message states what to do."""

    retriable: ClassVar[bool] = False
    """The same call may succeed later, unchanged."""
    abortable: ClassVar[bool] = False
    """The open transaction must be aborted; the producer stays usable."""
    fatal: ClassVar[bool] = False
    """The object that raised it cannot be used any more; open a new one."""
    topic_partition: TopicPartition | None = None
    """The partition that a fetch could not read; the others can be read. None if it is not about one partition."""


class KafkaError(EventBusError):
    """An error with a code in Kafka's protocol. ``code``, ``name`` and ``retriable`` come from its table."""

    code: ClassVar[int] = -1

    @property
    def name(self) -> str:
        return KAFKA_ERRORS[self.code].name


class OffsetOutOfRange(KafkaError):
    """Seek to an existing offset, or set ``start=`` to choose where to continue."""

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
    """Rejoin: the group has a newer generation. What this member had not committed goes to others."""

    code = 22


class UnknownMemberId(KafkaError):
    """Rejoin: the group has removed this member."""

    code = 25


class RebalanceInProgress(KafkaError):
    """Rejoin the group, then go on from the committed offsets."""

    code = 27


class InconsistentGroupProtocol(KafkaError):
    """Give all members of the group a common assignor (or protocol type)."""

    code = 23


class InvalidGroupId(KafkaError):
    """Choose a legal group name: 1 to 32,767 bytes of UTF-8."""

    code = 24


class InvalidSessionTimeout(KafkaError):
    """Choose a session timeout within the log's bounds; the message names them."""

    code = 26


class TopicAlreadyExists(KafkaError):
    """Use the topic unchanged, or delete it first."""

    code = 36


class InvalidPartitions(KafkaError):
    """Request more partitions than there are; a topic never shrinks."""

    code = 37


class InvalidReplicationFactor(KafkaError):
    """Use 1 on the embedded log; a Kafka cluster replicates (``kafka://``)."""

    code = 38


class InvalidConfig(KafkaError):
    """Correct the key or the value of the topic's configuration."""

    code = 40


class InvalidRequest(KafkaError):
    """Correct the call, which violates the protocol."""

    code = 42


class PolicyViolation(KafkaError):
    """Change the request, which the topic's policy forbids; the message has the reason."""

    code = 44


class OutOfOrderSequence(KafkaError):
    """Open a new producer: records before these were lost in transit."""

    code = 45
    fatal = True


class InvalidProducerEpoch(KafkaError):
    """Abort and open a new producer: a newer instance of this producer wrote."""

    code = 47
    abortable = True


class InvalidTxnState(KafkaError):
    """Begin, commit and abort in their order."""

    code = 48
    fatal = True


class InvalidProducerIdMapping(KafkaError):
    """Open a new producer: the transactional id has another producer id in the log, or is unknown there."""

    code = 49
    fatal = True


class InvalidTransactionTimeout(KafkaError):
    """Choose a transaction timeout up to the log's ``transaction_max_timeout_ms``."""

    code = 50


class ConcurrentTransactions(KafkaError):
    """Try again in a moment: the previous transaction is still being ended."""

    code = 51
    retriable = True


class TransactionCoordinatorFenced(KafkaError):
    """Stop this transaction coordinator: a newer one has written here."""

    code = 52
    fatal = True


class UnknownProducerId(KafkaError):
    """Open a new producer: the log has forgotten this one."""

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
    """Stop this member, or give it a separate id: another member runs under this ``group_instance_id``."""

    code = 82
    fatal = True


class GroupSubscribedToTopic(KafkaError):
    """Stop the members that read the topic first."""

    code = 86


class InvalidTimestamp(KafkaError):
    """Give the record a time that the topic accepts, in milliseconds (``message.timestamp.after.max.ms``)."""

    code = 32


class UnstableOffsetCommit(KafkaError):
    """Try again in a moment: a transaction that commits these offsets is still open."""

    code = 88
    retriable = True


class InvalidRecord(KafkaError):
    """Correct the record, which breaks a rule of its topic (a compacted topic needs keys)."""

    code = 87


class ProducerFenced(KafkaError):
    """Stop this producer: another one with its transactional id took over."""

    code = 90
    fatal = True


class TransactionalIdNotFound(KafkaError):
    """Correct the transactional id; ``admin.list_transactions()`` shows them."""

    code = 105


class UnsupportedVersion(KafkaError):
    """Use a version of the API that the peer serves; ApiVersions returns them."""

    code = 35


class FencedMemberEpoch(KafkaError):
    """Give up all partitions and join again with member epoch 0 (KIP-848)."""

    code = 110


class UnreleasedInstanceId(KafkaError):
    """Stop the static member that has the instance id first, or choose another id."""

    code = 111


class UnsupportedAssignor(KafkaError):
    """Choose a server-side assignor that the group coordinator supports: uniform or range."""

    code = 112


class StaleMemberEpoch(KafkaError):
    """Heartbeat, which returns the member's present epoch, then try again."""

    code = 113


class InvalidRegularExpression(KafkaError):
    """Correct the pattern of the subscription (RE2 syntax)."""

    code = 128


class StorageError(KafkaError):
    """See the operating system's error in the message: the disk refused."""

    code = 56
    retriable = True


class StorageFull(StorageError):
    """Free space on the disk; writing continues automatically, and nothing acknowledged is lost."""


class PartitionOffline(StorageError):
    """Restore the partition's files from a backup, or see ``eventbus log repair``: it is damaged on disk."""

    retriable = False


class LogPoisoned(StorageError):
    """Close the log and open it again, which verifies it: a flush failed, so the content of the disk is unknown."""

    retriable = False
    fatal = True


class LogLocked(EventBusError):
    """Stop the process that writes the directory first. ``eventbus serve`` shares a log between processes."""

    def __init__(self, held: str, advice: str = "") -> None:
        super().__init__(f"{held}. {advice}" if advice else held)
        self.held = held
        """The directory and the process that has it, without advice."""


class ConfigError(EventBusError):
    """Correct the argument, option or URL; the message names the right one."""

    option: str = ""
    """The argument at fault, if the error is about one: a command line spells it in another way."""
    value: Any = None
    reason: str = ""
    """The message without the option, its value and advice that names other options."""

    @classmethod
    def about(cls, option: str, value: Any, reason: str, advice: str = "") -> Self:
        """Return the error of one argument: ``option=value: reason. Advice``."""
        error = cls(f"{option}={value!r}: {reason}{advice and '. '}{advice}")
        error.option, error.value, error.reason = option, value, reason
        return error


class SerializationError(EventBusError):
    """Correct the value, which cannot be encoded, or decoded to the declared type; the message has the position."""


class TableError(EventBusError):
    """See the message: a record of the table could not be read or folded, or was deleted, so an entry is unknown."""


class SchemaNotReady(SerializationError):
    """Call ``fetch`` where waiting does no harm: `send_nowait` cannot wait for a schema to be registered."""

    def __init__(self, message: str, fetch: Callable[[], None]) -> None:
        super().__init__(message)
        self.fetch = fetch


class SchemaUnavailable(EventBusError):
    """Try again later: the schema registry did not answer, and the schema is not cached here."""

    retriable = True


class BufferExhausted(EventBusError):
    """The producer's buffer stayed full for ``max_block_ms``: wait, raise ``buffer_memory``, or send slower."""

    retriable = True


class ProducerClosed(EventBusError):
    """The producer is closed: send before ``close()``, or open a new one."""


class NoCommittedOffset(EventBusError):
    """Commit an offset, or choose "earliest" or "latest": the group has none here and ``start="none"``."""


class TransactionAborted(EventBusError):
    """Run the transaction again from its beginning: nothing of it is visible."""


class TransactionOutcomeUnknown(EventBusError):
    """Read what it wrote before running it again, and open a new producer: the commit was not answered."""

    fatal = True


class HandlerError(EventBusError):
    """See the chained cause: a handler raised. The message has the record's coordinates."""


class RequestFailed(EventBusError):
    """See the message for the error of the request's handler; the same request calls it again."""


class ProcessCrashed(EventBusError):
    """Fix the handler: the process died in it with this record in flight, as often as ``Retry(crashes=)`` allows."""


class StoppedBySignal(EventBusError):
    """Exit with ``128 + number``: a second signal ended the bus before its records were finished."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = int(number)


class ClaimError(EventBusError):
    """Put the value back into the store, or skip the record: its value is missing or differs."""


class ConnectorsFailed(EventBusError):
    """Fix what the message names, and start again: none of the connectors runs any more."""


class OffsetsMoved(EventBusError):
    """Poll again: the stored offsets are not where these records begin, so nothing was written.

    Another consumer has written these records meanwhile, or the partition belongs to another one now. The consumer that
    follows the offsets has been moved to the stored position.
    """

    retriable = True


class PayloadGone(EventBusError):
    """Resolve the letter, or send its content by other means: neither the letter nor its source has the payload."""


class SparkCrashed(EventBusError):
    """Land again: Spark's JVM or one of its Python workers ended before the landing. Nothing was lost."""

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
    """Return the exception for one of Kafka's error codes, also for codes without a class here."""
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
