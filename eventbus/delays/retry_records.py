"""The records of a retry topic: entries, which are records that wait, and marks, which list finished entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from eventbus.delays.header_values import MAX_INT32, MAX_INT64, number_of, text_bytes
from eventbus.recovery import REDRIVE_BITS, REDRIVE_HOPS, redrive_number
from eventbus.types import ConsumerRecord, Header, Record

PREFIX: Final = "eb-retry-"
ROOT: Final = "eb-retry-root"
"""The record's original position: JSON ``[topic, partition, offset, timestamp_ms, timestamp type, topic id]``."""
ATTEMPT: Final = "eb-retry-attempt"
"""The number of calls so far; 0 for a record that was not tried because it waits for an earlier record."""
DUE: Final = "eb-retry-due"
FIRST_FAILED: Final = "eb-retry-first-failed"
OUTAGES: Final = "eb-retry-outages"
"""The number of calls that ended in an outage, which is not the record's fault; absent if there were none."""
ERROR: Final = "eb-retry-error"
DONE: Final = "eb-retry-done"
"""Marks a record that lists which of the entries before it are finished."""
OWNER: Final = "eb-retry-group"
"""The group that wrote the record. Set in a topic that `Retry.topic` names, because several services may share that."""
REDRIVE: Final = "eb-redrive-"
REDRIVE_OF: Final = "eb-redrive-of"
"""The dead letter that the record was: JSON ``[topic, partition, offset]``."""
HOPS: Final = REDRIVE_HOPS
"""How often the record came back from the dead letters."""

MOST_ERROR_BYTES: Final = 1024
_MOST_TOPIC_CHARS = 249
_MOST_TOPIC_ID_CHARS = 36
_MARK_VERSION = b"\x01"


class Root(NamedTuple):
    """The position where a record was read first."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    topic_id: str = ""
    """The topic's id, which differs after the topic is deleted and created again; empty if it was not known."""


class Tried(NamedTuple):
    """The earlier tries of a record."""

    attempt: int
    """The number of calls so far."""
    first_failed_ms: int | None
    hops: int
    """How often it came back from the dead letters."""
    outages: int = 0
    """The number of calls that ended in an outage."""


NEVER_TRIED: Final = Tried(0, None, 0)


_read_root = msgspec.json.Decoder(Root).decode
_read_numbers = msgspec.msgpack.Decoder(list[int]).decode
_write_json = msgspec.json.encode
_write_numbers = msgspec.msgpack.encode


# entries -------------------------------------------------------------------------------------------------------------


def retry_entry(
    record: ConsumerRecord,
    *,
    attempt: int,
    due_ms: int,
    first_failed_ms: int,
    error: str,
    outages: int = 0,
    owner: str | None = None,
    topic_id: str = "",
) -> Record:
    """Return the entry of a record that was tried ``attempt`` times. ``error``: of the last try; cut to 1 KiB.
    ``owner``: see `OWNER`. ``topic_id``: of the record's topic.

    ``record`` has its original position; headers about earlier tries are replaced.
    """
    headers: list[Header] = [(FIRST_FAILED, b"%d" % first_failed_ms), (ERROR, text_bytes(error, MOST_ERROR_BYTES))]
    if outages:
        headers.append((OUTAGES, b"%d" % outages))
    return _entry(record, attempt, due_ms, topic_id, (*headers, *_owned_by(owner)))


def entry_behind(record: ConsumerRecord, owner: str | None = None, topic_id: str = "") -> Record:
    """Return the entry of a record that was not tried: it is due as soon as no earlier record of its key waits."""
    return _entry(record, 0, 0, topic_id, _owned_by(owner))


def _owned_by(owner: str | None) -> tuple[Header, ...]:
    return () if owner is None else ((OWNER, owner.encode()),)


def attempts_of(record: ConsumerRecord) -> Tried:
    """Return the earlier tries according to a record's headers.

    Headers count only if they belong to this very record: a program that copies a record's headers copies them too.
    """
    found = dict(record.headers)
    hops = number_of(found.get(HOPS), MAX_INT32) or 0
    if root_of(record) is None:
        return NEVER_TRIED._replace(hops=hops)
    attempt = number_of(found.get(ATTEMPT), MAX_INT32) or 0
    outages = min(number_of(found.get(OUTAGES)) or 0, attempt)
    return Tried(attempt, number_of(found.get(FIRST_FAILED)), hops, outages)


def root_of(record: ConsumerRecord) -> Root | None:
    """Return the root in the record's headers, or None if there is none, or if it belongs to another record."""
    root = read_root(dict(record.headers).get(ROOT))
    return root if root is not None and root[:3] == (record.topic, record.partition, record.offset) else None


def read_root(data: bytes | None) -> Root | None:
    """Decode a root; return None if it cannot be a position in a log."""
    if data is None:
        return None
    try:
        root = _read_root(data)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    topic, partition, offset, timestamp_ms, kind, topic_id = root
    is_place = (
        0 < len(topic) <= _MOST_TOPIC_CHARS
        and 0 <= partition <= MAX_INT32
        and 0 <= offset <= MAX_INT64
        and -1 <= timestamp_ms <= MAX_INT64
        and 0 <= kind <= 1
        and len(topic_id) <= _MOST_TOPIC_ID_CHARS
    )
    return root if is_place else None


def place_of(offset: int, headers: Mapping[str, bytes | None]) -> int:
    """Return the place of a record in its line, as one number that sorts by the record's offset.

    A redriven record has a separate place, just after the record that failed. Its content may differ from that of an
    earlier redrive. If both had one place, the newer entry would count as a copy of the older entry, and be dropped.
    """
    return offset << REDRIVE_BITS | redrive_number(headers)


def _entry(record: ConsumerRecord, attempt: int, due_ms: int, topic_id: str, headers: Iterable[Header] = ()) -> Record:
    topic, partition, offset, timestamp_ms = record.topic, record.partition, record.offset, record.timestamp_ms
    root = _write_json([topic, partition, offset, timestamp_ms, int(record.timestamp_type), *filter(None, (topic_id,))])
    kept = [header for header in record.headers if not header[0].startswith(PREFIX)]
    ours = (ROOT, root), (ATTEMPT, b"%d" % attempt), (DUE, b"%d" % due_ms)
    return Record(record.key, record.value, (*kept, *ours, *headers))


# marks ---------------------------------------------------------------------------------------------------------------


def done_mark(offsets: Iterable[int], owner: str | None = None) -> Record:
    """Return a mark that the entries at ``offsets``, which rise, are finished.

    The value: a version, then numbers in MessagePack: alternately how many offsets are skipped, and how many are
    finished.
    """
    numbers: list[int] = []
    passed = 0
    for start, stop in _runs(offsets):
        numbers += (start - passed, stop - start)
        passed = stop
    return Record(None, _MARK_VERSION + _write_numbers(numbers), ((DONE, b"1"), *_owned_by(owner)))


def read_mark(value: bytes | None) -> list[range] | None:
    """Return the ranges of a mark, ascending and without overlaps; None for other records, or a later version."""
    if value is None or value[:1] != _MARK_VERSION:
        return None
    try:
        numbers = _read_numbers(value[1:])
    except msgspec.MsgspecError:
        return None
    if len(numbers) % 2 or min(numbers, default=0) < 0:
        return None
    finished: list[range] = []
    passed = 0
    for index in range(0, len(numbers), 2):
        start = passed + numbers[index]
        passed = start + numbers[index + 1]
        finished.append(range(start, passed))
    return finished


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Group consecutive offsets: yield the first offset, and the offset after the last."""
    start = stop = -1
    for offset in offsets:
        if offset != stop:
            if stop >= 0:
                yield start, stop
            start = offset
        stop = offset + 1
    if stop >= 0:
        yield start, stop
