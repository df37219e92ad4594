"""Turn events into rows."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import mmh3
import msgspec

from eventbus.client.sending import HeadersLike
from eventbus.durations import FORMS, Duration, exact_ms
from eventbus.errors import ConfigError, SerializationError
from outbox import headers as stored
from outbox.inserting import IN, Row
from outbox.serializing import Packer, packed_headers

if TYPE_CHECKING:
    from outbox.tables import OutboxTables

_LAST_MS = (1 << 63) - 1
_LONGEST_TEXT = 255
"""Maximum length of text columns: the Debezium preset's key, and the type."""


class EventOptions(TypedDict, total=False):
    """Options of events besides topic, value and key; see `Outbox.publish`."""

    headers: HeadersLike | None
    partition: int | None
    timestamp_ms: int | None
    deliver_at: datetime | timedelta | None
    expires_after: Duration | None
    type: str | None


class FilledOptions(msgspec.Struct, frozen=True):
    """`EventOptions` with a value for each option."""

    headers: HeadersLike | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    deliver_at: datetime | timedelta | None = None
    expires_after: Duration | None = None
    type: str | None = None


NOTHING = FilledOptions()


class Rows(msgspec.Struct, frozen=True):
    """Rows to write with one statement."""

    rows: list[Row]
    is_later: bool
    """True if the rows are scheduled and go into the table for later events."""
    relative: tuple[str, ...]
    """Columns whose values are added to the database's clock."""
    deliver_at: FilledOptions | None = None
    """The options of events scheduled at a time of day, until `placed` is called."""

    def placed(self, now_ms: int) -> Rows:
        """Return the rows for the table to which they belong at this time of the database."""
        if self.deliver_at is None:
            return self
        times = times_of(self.deliver_at, now_ms)
        for row in self.rows:
            _put(times, row)
        return Rows(self.rows, times.is_later, times.relative)

    @property
    def event_ids(self) -> list[str]:
        return [row["event_id"] for row in self.rows]


class Times(msgspec.Struct, frozen=True):
    """Due and expiry times of events as column values: absolute, or (``relative``) added to the database's clock."""

    columns: Row
    relative: tuple[str, ...] = ()
    is_later: bool = False


NOW = Times({})


class Writer:
    """Turns events into rows. Thread-safe."""

    def __init__(
        self, tables: OutboxTables, packer: Packer, *, strict_order: bool, clock_ms: Callable[[], int]
    ) -> None:
        self._columns = tables.columns
        self._shard_count = tables.shard_count
        self._packer = packer
        self._strict_order = strict_order
        self._clock_ms = clock_ms
        self._turn = itertools.count()
        """Distributes events without a key over the shards. Calling `next` on it is atomic."""

    def rows(
        self, topic: str, values: Iterable[Any], key_of: Callable[[Any], Any] | None, options: EventOptions
    ) -> Rows:
        """Return the rows of events. Raises ConfigError, InvalidTopic, SerializationError or RecordTooLarge."""
        filled = _checked(options) if options else NOTHING
        if filled.type is not None and self._columns.type is None:
            raise ConfigError(f'type={filled.type!r}: only Outbox(columns="debezium") has a column for it')
        known = self._packer.topic(topic)
        now_ms = self._clock_ms()
        times = NOW if filled.deliver_at is None and filled.expires_after is None else times_of(filled, now_ms)
        # The database's clock decides whether the time has come, not this machine's; see `Rows.placed`.
        is_at = isinstance(filled.deliver_at, datetime)
        timestamp_ms = now_ms if filled.timestamp_ms is None else filled.timestamp_ms
        headers = packed_headers(filled.headers)
        rows: list[Row] = []
        for value in values:
            key: Any = None if key_of is None else key_of(value)
            packed = known.pack(key, value, headers)
            row: Row = {
                "event_id": new_event_id(now_ms),
                "shard": self._shard(packed.key, filled.partition),
                "topic": topic,
                "key": packed.key,
                "value": packed.value,
                "headers": stored.pack(packed.headers),
                "partition": filled.partition,
                "timestamp_ms": timestamp_ms,
                "expires_at_ms": None,
            }
            if times is not NOW and not is_at:
                _put(times, row)
            if self._columns.text_keys:
                row["key"] = _text_key(topic, key)
            if self._columns.type is not None:
                row["type"] = filled.type or (None if value is None else type(value).__name__)
            rows.append(row)
        return Rows(rows, False, (), filled) if is_at else Rows(rows, times.is_later, times.relative)

    def _shard(self, key: bytes | None, partition: int | None) -> int:
        """Return the shard: by key, so that one relay publishes all events of a key, else by the given partition."""
        if key is not None:
            return mmh3.hash(key, signed=False) % self._shard_count
        if partition is None and self._strict_order:
            raise ConfigError(
                "strict_order=True, and the event has no key, and nothing to keep in order: give it a key, or write "
                "it with another Outbox of the same name without strict_order"
            )
        return (next(self._turn) if partition is None else partition) % self._shard_count


def new_event_id(now_ms: int) -> str:
    """Return a UUIDv7, whose rising values make an index grow at one end."""
    time, chance = f"{now_ms:012x}", os.urandom(10).hex()
    variant = "89ab"[int(chance[3], 16) & 3]
    return f"{time[:8]}-{time[8:]}-7{chance[:3]}-{variant}{chance[4:7]}-{chance[7:19]}"


def _put(times: Times, row: Row) -> None:
    row.update(times.columns)
    for name in times.relative:
        row.pop(name, None)  # the statement computes it


def _checked(options: EventOptions) -> FilledOptions:
    filled = FilledOptions(**options)
    partition, timestamp_ms = filled.partition, filled.timestamp_ms
    if partition is not None and (type(partition) is not int or not 0 <= partition < 1 << 31):
        raise ConfigError(f"partition={partition!r}: the number of a partition, from 0; leave it out to go by the key")
    if timestamp_ms is not None and (type(timestamp_ms) is not int or not 0 <= timestamp_ms <= _LAST_MS):
        raise ConfigError(
            f"timestamp_ms={timestamp_ms!r}: whole milliseconds since the epoch, as int(time.time() * 1000); leave it "
            "out for now"
        )
    if filled.type is not None and (not 0 < len(filled.type) <= _LONGEST_TEXT or "\0" in filled.type):
        raise ConfigError(f"type={filled.type!r:.80}: 1 to {_LONGEST_TEXT} characters, none of them NUL")
    return filled


def times_of(filled: FilledOptions, now_ms: int) -> Times:
    """Compute due and expiry times. Raises ConfigError for a time without a zone, and for an invalid duration."""
    columns: Row = {}
    relative: list[str] = []
    due, over_ms = filled.deliver_at, None if filled.expires_after is None else _ms_of(filled.expires_after)
    is_later = False
    base_ms = 0
    """Start of ``expires_after``: milliseconds since the epoch, or from the database's clock if relative."""
    is_relative = True
    if isinstance(due, timedelta):
        base_ms = round(due / timedelta(milliseconds=1))
        is_later = base_ms > 0
    elif due is not None:
        base_ms = _since_epoch_ms(due)
        is_later = base_ms > now_ms
        is_relative = not is_later  # if it is already due, the time counts from now
    if not is_later:
        base_ms = 0
    wanted = [("due_ms", base_ms), ("timestamp_ms", base_ms)] if is_later else []
    if filled.timestamp_ms is not None:
        wanted = wanted[:1]
    if over_ms is not None:
        wanted.append(("expires_at_ms", base_ms + over_ms))
    for name, value in wanted:
        columns[name + IN if is_relative else name] = value
        if is_relative:
            relative.append(name)
    return Times(columns, tuple(relative), is_later)


def _since_epoch_ms(due: Any) -> int:
    if not isinstance(due, datetime) or due.tzinfo is None:
        raise ConfigError(
            f"deliver_at={due!r}: a datetime with a time zone, as datetime.now(UTC) + timedelta(minutes=5), "
            "or a timedelta from now"
        )
    return (due - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _ms_of(expires_after: Any) -> int:
    exact = exact_ms(expires_after)
    if exact is None or not 1 <= exact < math.inf:
        raise ConfigError(f"expires_after={expires_after!r}: {FORMS}; a millisecond at least")
    return int(exact)


def _text_key(topic: str, key: Any) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str):
        raise SerializationError(
            f'the key of an event for topic {topic!r} is {type(key).__name__}, and columns="debezium" keeps keys as '
            "text: key=str(...)"
        )
    if len(key) > _LONGEST_TEXT or "\0" in key:
        raise SerializationError(
            f"the key of an event for topic {topic!r} does not fit into aggregateid: {_LONGEST_TEXT} characters, "
            f"none of them NUL ({key!r:.80})"
        )
    return str(key)
