"""Which errors are a record's own fault: those that come again however often it is sent, and for no other record."""

from __future__ import annotations

from collections.abc import Iterator

from eventbus.errors import ConfigError, EventBusError, KafkaError, SerializationError

_POISON = frozenset((2, 10, 17, 29, 32, 43, 44, 76, 87))
"""Corrupt record, record too large, invalid topic, not authorised for the topic, invalid timestamp, format or policy or
compression that the topic does not take, invalid record."""
_TIMES = frozenset((32, 87))
"""Invalid timestamp; invalid record, which is what brokers of Kafka's answer for a timestamp too."""
_UNKNOWN_TOPIC = 3
_LONGEST_REASON = 2_000


class Refused(EventBusError):
    """The log refuses these rows, and they are known."""

    def __init__(self, ids: list[int], cause: EventBusError) -> None:
        super().__init__(str(cause))
        self.ids = ids
        self.cause = cause


def is_unknown_topic(error: BaseException) -> bool:
    """Said of the topic of a row: there is none of the name, or not that partition."""
    return isinstance(error, KafkaError) and error.code == _UNKNOWN_TOPIC


def is_about_times(error: BaseException) -> bool:
    """True if the record's timestamp may be what the log refuses."""
    return isinstance(error, KafkaError) and error.code in _TIMES


def is_poison(error: BaseException) -> bool:
    """Said of a record alone. An unknown topic is none: of which topic it was said is for the caller to know."""
    if isinstance(error, KafkaError):
        return error.code in _POISON
    return isinstance(error, (ConfigError, SerializationError))


def poison_in(error: BaseException) -> EventBusError | None:
    """What a record did to a transaction that failed: the error itself, or what it came of."""
    for one in _chain(error):
        if isinstance(one, KafkaError) and one.code in _POISON:
            return one
    return None


def reason_of(error: BaseException) -> str:
    """As it is kept beside the row. PostgreSQL takes no text with a NUL."""
    return f"{type(error).__name__}: {error}".replace("\0", "")[:_LONGEST_REASON]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
