"""Recognize errors that are caused by a record itself: they recur whenever it is sent, and for no other record."""

from __future__ import annotations

from collections.abc import Iterator

from eventbus.errors import ConfigError, EventBusError, KafkaError, SerializationError

_POISON = frozenset((2, 10, 17, 29, 32, 43, 44, 76, 87))
"""Codes of: corrupt record, record too large, invalid topic, topic authorization failed, invalid timestamp, unsupported
format, policy violation, unsupported compression, invalid record.
"""
_TIMES = frozenset((32, 87))
"""Codes of: invalid timestamp, and invalid record, which Kafka's brokers also return for a timestamp."""
_UNKNOWN_TOPIC = 3
_LONGEST_REASON = 2_000


class Refused(EventBusError):
    """The log refuses these rows."""

    def __init__(self, ids: list[int], cause: EventBusError) -> None:
        super().__init__(str(cause))
        self.ids = ids
        self.cause = cause


def is_unknown_topic(error: BaseException) -> bool:
    """True if the error means that a row's topic or partition does not exist."""
    return isinstance(error, KafkaError) and error.code == _UNKNOWN_TOPIC


def is_about_times(error: BaseException) -> bool:
    """True if the record's timestamp may be the reason for the refusal."""
    return isinstance(error, KafkaError) and error.code in _TIMES


def is_poison(error: BaseException) -> bool:
    """True if the error concerns one record only. An unknown topic is not included: the caller knows which topic it
    was.
    """
    if isinstance(error, KafkaError):
        return error.code in _POISON
    return isinstance(error, (ConfigError, SerializationError))


def poison_in(error: BaseException) -> EventBusError | None:
    """Return the error or cause that a record itself brought about in a failed transaction, or None."""
    for one in _chain(error):
        if isinstance(one, KafkaError) and one.code in _POISON:
            return one
    return None


def reason_of(error: BaseException) -> str:
    """Return the reason to store with the row. NUL is removed, because PostgreSQL does not accept it."""
    return f"{type(error).__name__}: {error}".replace("\0", "")[:_LONGEST_REASON]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
