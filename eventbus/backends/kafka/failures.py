"""Convert librdkafka's errors to ours, with a class that matches the consequences for the caller."""

from __future__ import annotations

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.error_codes import KAFKA_ERRORS
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    CoordinatorNotAvailable,
    CorruptRecord,
    EventBusError,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRecord,
    InvalidTxnState,
    NoCommittedOffset,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    RebalanceInProgress,
    RequestTimedOut,
    SerializationError,
    StorageError,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedCompression,
    error_for_code,
)

_UNKNOWN_SERVER_ERROR, _LEADER_NOT_AVAILABLE, _NETWORK_EXCEPTION, _NOT_ENOUGH_REPLICAS = -1, 5, 13, 19
_LOCAL: dict[int, type[EventBusError] | int] = {
    # The request was not answered in time, or no broker could answer it: its outcome is unknown.
    ClientError._MSG_TIMED_OUT: RequestTimedOut,
    ClientError._TIMED_OUT: RequestTimedOut,
    ClientError._TIMED_OUT_QUEUE: RequestTimedOut,
    ClientError._PURGE_INFLIGHT: RequestTimedOut,
    ClientError._PURGE_QUEUE: RequestTimedOut,
    ClientError._DESTROY: RequestTimedOut,
    ClientError._INTR: RequestTimedOut,
    ClientError._OUTDATED: RequestTimedOut,
    ClientError._PARTIAL: _NETWORK_EXCEPTION,
    ClientError._TRANSPORT: CoordinatorNotAvailable,
    ClientError._DESTROY_BROKER: CoordinatorNotAvailable,
    ClientError._UNKNOWN_BROKER: CoordinatorNotAvailable,
    ClientError._ALL_BROKERS_DOWN: CoordinatorNotAvailable,
    ClientError._RESOLVE: CoordinatorNotAvailable,
    ClientError._WAIT_COORD: CoordinatorNotAvailable,
    ClientError._WAIT_CACHE: CoordinatorNotAvailable,
    ClientError._NODE_UPDATE: CoordinatorNotAvailable,
    ClientError._IN_PROGRESS: CoordinatorNotAvailable,
    ClientError._PREV_IN_PROGRESS: CoordinatorNotAvailable,
    ClientError._RETRY: CoordinatorNotAvailable,
    ClientError._ISR_INSUFF: _NOT_ENOUGH_REPLICAS,
    ClientError._NOENT: _LEADER_NOT_AVAILABLE,  # from ListOffsets and DeleteRecords: no leader is known
    ClientError._QUEUE_FULL: BufferExhausted,
    # A name, a group, a transaction or a position does not fit the cluster.
    ClientError._UNKNOWN_TOPIC: UnknownTopicOrPartition,
    ClientError._UNKNOWN_PARTITION: UnknownTopicOrPartition,
    ClientError._UNKNOWN_GROUP: InvalidGroupId,
    ClientError._UNKNOWN_PROTOCOL: InconsistentGroupProtocol,
    ClientError._FENCED: ProducerFenced,
    ClientError._STATE: InvalidTxnState,
    ClientError._GAPLESS_GUARANTEE: OutOfOrderSequence,
    ClientError._AUTO_OFFSET_RESET: OffsetOutOfRange,
    ClientError._LOG_TRUNCATION: OffsetOutOfRange,
    ClientError._PARTITION_EOF: OffsetOutOfRange,
    ClientError._NO_OFFSET: NoCommittedOffset,
    ClientError._MAX_POLL_EXCEEDED: UnknownMemberId,
    ClientError._ASSIGNMENT_LOST: UnknownMemberId,
    ClientError._ASSIGN_PARTITIONS: RebalanceInProgress,
    ClientError._REVOKE_PARTITIONS: RebalanceInProgress,
    # The bytes are wrong.
    ClientError._BAD_MSG: CorruptRecord,
    ClientError._UNDERFLOW: CorruptRecord,
    ClientError._BAD_COMPRESSION: UnsupportedCompression,
    ClientError._INVALID_DIFFERENT_RECORD: InvalidRecord,
    ClientError._KEY_SERIALIZATION: SerializationError,
    ClientError._VALUE_SERIALIZATION: SerializationError,
    ClientError._KEY_DESERIALIZATION: SerializationError,
    ClientError._VALUE_DESERIALIZATION: SerializationError,
    # The user has to change a setting, or the call.
    ClientError._INVALID_ARG: ConfigError,
    ClientError._INVALID_TYPE: ConfigError,
    ClientError._CONFLICT: ConfigError,
    ClientError._EXISTING_SUBSCRIPTION: ConfigError,
    ClientError._READ_ONLY: ConfigError,
    ClientError._AUTHENTICATION: ConfigError,
    ClientError._SSL: ConfigError,
    ClientError._UNSUPPORTED_FEATURE: ConfigError,
    ClientError._NOT_IMPLEMENTED: ConfigError,
    ClientError._NOT_CONFIGURED: ConfigError,
    # librdkafka or this machine failed, and only the message can give the reason.
    ClientError._FS: StorageError,
    ClientError._CRIT_SYS_RESOURCE: _UNKNOWN_SERVER_ERROR,
    ClientError._FAIL: _UNKNOWN_SERVER_ERROR,
    ClientError._FATAL: _UNKNOWN_SERVER_ERROR,
    ClientError._INCONSISTENT: _UNKNOWN_SERVER_ERROR,
    ClientError._APPLICATION: _UNKNOWN_SERVER_ERROR,
    ClientError._NOOP: _UNKNOWN_SERVER_ERROR,
}
"""The error classes of librdkafka's own codes, or Kafka's codes that mean the same and have no class.

Other codes are the brokers', and `eventbus.error_codes` has their rows. A class's docstring states what its user does.
"""
_MISSING = {
    ClientError.TOPIC_AUTHORIZATION_FAILED: "Write on the topic to send to it, Read to consume it, Describe for both",
    ClientError.GROUP_AUTHORIZATION_FAILED: "Read on the group to join it and to commit, Describe to look at it",
    ClientError.CLUSTER_AUTHORIZATION_FAILED: "Write on the topic to send to it, Alter on the cluster to manage it",
    ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional id",
}
"""The ACL that the user may lack, by the code of the refusal; the brokers do not report it."""

_TOO_LARGE = "its batch exceeds the topic's max.message.bytes"
_BAD_TIMESTAMP = (
    "its timestamp is outside the topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms"
)
_LIMITS = {
    ClientError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    ClientError.INVALID_TIMESTAMP: _BAD_TIMESTAMP,
    ClientError.INVALID_RECORD: f"it has no key and the topic is compacted, or {_BAD_TIMESTAMP}",
}
"""The topic config that a record may violate, by the code of the refusal; librdkafka drops the broker's text."""


def error_of(error: ClientError, what: str) -> EventBusError:
    """Return our error for librdkafka's; ``what`` could not be done, and begins the message."""
    text = f"{what}: {error.str()}"
    if error.code() == ClientError._FATAL:
        error = _cause(error)
    limit = _LIMITS.get(error.code())
    if limit is not None:
        text = f"{text} ({limit}; see `eventbus topics describe`)"
    if error.code() == ClientError._UNKNOWN_PARTITION:
        text = f"{text} (was the topic created again with fewer partitions? Send the record again)"
    missing = _MISSING.get(error.code())
    if missing is not None:
        text = f"{text} (the user that this process logs in as needs an ACL: {missing}; see `eventbus acls --help`)"
    kind = _LOCAL.get(error.code(), error.code())
    if not isinstance(kind, int):
        return kind(text)
    if kind != error.code() or kind not in KAFKA_ERRORS:
        text = f"{text} ({error.name()})"
    return error_for_code(kind, text)


def _cause(fatal: ClientError) -> ClientError:
    """Return the error that made a client useless: it appears only in the text of the fatal error."""
    for code in (ClientError.FENCED_INSTANCE_ID, ClientError.PRODUCER_FENCED, ClientError._FENCED, *_MISSING):
        known = ClientError(code)
        if known.str() in fatal.str():
            return known
    return fatal


def raised(failure: KafkaException, what: str) -> EventBusError:
    """Return our error for a `KafkaException`."""
    return error_of(client_error(failure), what)


def client_error(failure: KafkaException) -> ClientError:
    """Return the error inside a `KafkaException`."""
    error = failure.args[0] if failure.args else None
    return error if isinstance(error, ClientError) else ClientError(ClientError._FAIL, str(failure))
