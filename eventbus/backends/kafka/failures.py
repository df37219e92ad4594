"""librdkafka's errors as ours: which class, and what it may mean for whoever gets it."""

from __future__ import annotations

from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    CoordinatorNotAvailable,
    CorruptRecord,
    EventBusError,
    InvalidGroupId,
    InvalidTopic,
    InvalidTxnState,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedCompression,
    error_for_code,
)

_LOCAL: dict[int, type[EventBusError]] = {
    # Not answered in time, or nobody there to answer: it may have happened, or not.
    ClientError._MSG_TIMED_OUT: RequestTimedOut,
    ClientError._TIMED_OUT: RequestTimedOut,
    ClientError._TIMED_OUT_QUEUE: RequestTimedOut,
    ClientError._PURGE_INFLIGHT: RequestTimedOut,
    ClientError._PURGE_QUEUE: RequestTimedOut,
    ClientError._DESTROY: RequestTimedOut,
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
    ClientError._QUEUE_FULL: BufferExhausted,
    ClientError._UNKNOWN_TOPIC: UnknownTopicOrPartition,
    ClientError._UNKNOWN_PARTITION: UnknownTopicOrPartition,
    ClientError._UNKNOWN_GROUP: InvalidGroupId,
    ClientError._FENCED: ProducerFenced,
    ClientError._STATE: InvalidTxnState,
    ClientError._AUTO_OFFSET_RESET: OffsetOutOfRange,
    ClientError._MAX_POLL_EXCEEDED: UnknownMemberId,
    ClientError._ASSIGNMENT_LOST: UnknownMemberId,
    ClientError._BAD_MSG: CorruptRecord,
    ClientError._BAD_COMPRESSION: UnsupportedCompression,
    # What the user wrote is wrong.
    ClientError._INVALID_ARG: ConfigError,
    ClientError._CONFLICT: ConfigError,
    ClientError._AUTHENTICATION: ConfigError,
    ClientError._SSL: ConfigError,
    ClientError._UNSUPPORTED_FEATURE: ConfigError,
    ClientError._NOT_CONFIGURED: ConfigError,
    ClientError.TOPIC_EXCEPTION: InvalidTopic,
    ClientError.MSG_SIZE_TOO_LARGE: RecordTooLarge,
}
_MISSING = {
    ClientError.TOPIC_AUTHORIZATION_FAILED: "Write on the topic to send to it, Read to consume it, Describe for both",
    ClientError.GROUP_AUTHORIZATION_FAILED: "Read on the group to join it and to commit, Describe to look at it",
    ClientError.CLUSTER_AUTHORIZATION_FAILED: "Write on the topic to send to it, Alter on the cluster to manage it",
    ClientError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional id",
}
"""By the code of the refusal, which ACL its user may lack; the brokers do not say it."""


def error_of(error: ClientError, what: str) -> EventBusError:
    """Our error for librdkafka's; ``what`` could not be done, and begins the message."""
    text = f"{what}: {error.str()}"
    if error.code() == ClientError._FATAL:
        error = _cause(error)
    missing = _MISSING.get(error.code())
    if missing is not None:
        text = f"{text} (the user that this process logs in as needs an ACL: {missing}; see `eventbus acls --help`)"
    kind = _LOCAL.get(error.code())
    if kind is not None:
        return kind(text)
    if error.code() > 0:
        return error_for_code(error.code(), text)
    return EventBusError(f"{text} ({error.name()})")


def _cause(fatal: ClientError) -> ClientError:
    """What made a client useless: its error says so in words alone."""
    for code in (ClientError.FENCED_INSTANCE_ID, ClientError.PRODUCER_FENCED, ClientError._FENCED, *_MISSING):
        known = ClientError(code)
        if known.str() in fatal.str():
            return known
    return fatal


def raised(failure: KafkaException, what: str) -> EventBusError:
    """The same for a `KafkaException`."""
    return error_of(client_error(failure), what)


def client_error(failure: KafkaException) -> ClientError:
    """What a `KafkaException` carries."""
    error = failure.args[0] if failure.args else None
    return error if isinstance(error, ClientError) else ClientError(ClientError._FAIL, str(failure))
