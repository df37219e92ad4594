"""The records in a topic of scheduled records.

A key consists of the id, a zero byte and a unique token, so that compaction never confuses two entries: the tombstone
of an entry has exactly its key. The value is an array in msgpack, whose first item is the type.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

import msgspec

from eventbus.client.scheduling.timetable import Timetable
from eventbus.errors import ConfigError
from eventbus.types import Header, Headers

logger = logging.getLogger("eventbus.scheduling")

OUTCOME = "eb-schedule-outcome"
"""Header of a tombstone with the outcome of the entry."""
Outcome = Literal["delivered", "cancelled", "gone", "replaced"]
"""``gone`` is the outcome of a request to cancel an entry that does not (or no longer) exist."""

EVERY = "every:"
"""Prefix of the ids of ``@bus.every``."""
_MOST_ID_CHARS = 200
_NEVER_MS = 253_402_300_800_000
"""The year 10000, which datetime cannot represent."""
_YEAR_1_MS = -62_135_596_800_000
"""The earliest time that datetime can represent. A time in the past is allowed, and means now."""
_MOST_TIMESTAMP_MS = (1 << 63) - 1
"""The highest timestamp that the log's format can represent."""
TOPIC_CONFIG = {  # what a producer sends by default, and room for what is put around it
    "cleanup.policy": "compact",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.2",
    "min.compaction.lag.ms": "60000",
    "max.message.bytes": "2097152",
}


class Entry(msgspec.Struct, frozen=True, tag="record", array_like=True, gc=False):
    """A scheduled record that waits."""

    due_ms: int
    topic: str
    partition: int | None
    """None if its key chooses the partition at delivery."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    """None for the time of delivery."""
    error: str = ""
    """Why it cannot be delivered. It is kept until it is cancelled or replaced."""
    delay_ms: int | None = None
    """The requested delay. None if the caller gave a time, which is right even if clocks are wrong."""
    topic_id: str = ""
    """The id of the topic at the time of the send. Empty if it was not known, and in entries of earlier releases."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", array_like=True, gc=False):
    """A request to cancel the entry with an id. It is answered by a tombstone of the request's own key."""

    asked_ms: int


class Every(msgspec.Struct, frozen=True, tag="every", array_like=True, gc=False):
    """The next firing of a timetable."""

    due_ms: int
    topic: str
    name: str
    timetable: Timetable
    armed: bool = False
    """True if written along with the previous firing's delivery, False if by a bus that declares it at start."""

    def is_same(self, other: Every) -> bool:
        """True if both fire at equal times into one topic."""
        return (self.topic, self.timetable) == (other.topic, other.timetable)


Item = Entry | Cancel | Every

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Item] = msgspec.msgpack.Decoder(Entry | Cancel | Every)


def encode(item: Item) -> bytes:
    return _encoder.encode(item)


def decode(value: bytes) -> Item | None:
    """Return None for a value that is not ours, or that could never be delivered.

    Any client with Write on the topic may produce one. The whole partition waits for what is due first, so a timetable
    that raises would stop all records of the service.
    """
    try:
        item = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    match item:
        case Entry():
            return item if _can_be_delivered(item) else None
        case Every():
            return item if _is_sound(item) else None
        case Cancel():
            return item


def _can_be_delivered(item: Entry) -> bool:
    """Return False, and log it, for times that no date or record holds: `due_at` and the producer refuse them."""
    is_sound = (
        _YEAR_1_MS <= item.due_ms < _NEVER_MS
        and 0 <= (item.delay_ms or 0) < _NEVER_MS
        and 0 <= (item.timestamp_ms or 0) <= _MOST_TIMESTAMP_MS
    )
    if not is_sound:
        logger.warning("A scheduled record for topic %.100r is ignored. One of its times is out of range", item.topic)
    return is_sound


def _is_sound(item: Every) -> bool:
    """Return False, and log it, for a timetable that has no next time: `timetable` lets none through."""
    try:
        item.timetable.after(item.due_ms)
        is_sound = item.timetable.interval_ms >= 0 and 0 <= item.due_ms < _NEVER_MS
    except Exception as error:  # zoneinfo and cronsim raise many kinds of errors; this machine may also lack the zone
        logger.warning("The timetable of function %r is ignored. %s: %s", item.name, type(error).__name__, error)
        return False
    if not is_sound:
        logger.warning("The timetable of function %r is ignored. Its interval or time is out of range", item.name)
    return is_sound


def key_of(id: str, token: str) -> bytes:
    return b"%b\0%b" % (id.encode(), token.encode())


def id_of(key: bytes | None) -> str | None:
    """Parse the id in a key. Returns None for a foreign key."""
    id, separator, _ = (key or b"").partition(b"\0")
    try:
        return id.decode() if separator else None
    except UnicodeDecodeError:
        return None


def outcome(what: Outcome) -> Headers:
    return ((OUTCOME, what.encode()),)


def topic_of(service_name: str) -> str:
    """Return the topic of a service's scheduled records."""
    return f"_scheduled.{_in_a_name(service_name)}"


def firings_topic(service_name: str, name: str) -> str:
    """Return the topic of a function's firings."""
    return f"_every.{_in_a_name(service_name)}.{_in_a_name(name)}"


def _in_a_name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]", "-", text)


def check_id(id: Any) -> str:
    """Check an id. Raises ConfigError if it is invalid."""
    if not isinstance(id, str) or not 0 < len(id) <= _MOST_ID_CHARS or not id.isprintable():
        raise ConfigError(f"schedule_id={id!r:.300}: 1 to {_MOST_ID_CHARS} printable characters, as f'reminder-{{id}}'")
    return id
