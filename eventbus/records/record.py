"""One record of a v2 batch: the careful reader, and the fast loop over many.

::

    length          varint      bytes after this field
    attributes      int8        unused
    timestampDelta  varlong     to the batch's base timestamp
    offsetDelta     varint      to the batch's base offset
    keyLength       varint      -1: null
    key             bytes
    valueLength     varint      -1: null
    value           bytes
    headersCount    varint
      nameLength    varint
      name          UTF-8
      valueLength   varint      -1: null
      value         bytes

https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import NamedTuple

from eventbus.errors import CorruptRecord
from eventbus.records.varint import NULL_LENGTH, encode_varint, read_varint, read_varlong
from eventbus.types import Headers

MIN_RECORD_BYTES = 7
"""The sizes of length, attributes, both deltas, two null lengths and a header count: one byte each."""

_MIN_HEADER_BYTES = 2
_MAX_TWO_BYTES = 0x3FFF
_PLAUSIBLE_MS = 1 << 62


class RecordSpan(NamedTuple):
    """The positions of the parts of a record; lengths are -1 for null."""

    end: int
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_length: int
    value_start: int
    value_length: int
    headers_start: int
    """The position of the header count."""


class Columns:
    """Decoded records of one or more batches, in columns. ``headers`` holds only records that have some."""

    __slots__ = ("headers", "keys", "offsets", "timestamps_ms", "values")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps_ms: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}


def read_span(data: bytes, position: int, limit: int) -> RecordSpan:
    """Return the positions of the record's parts, after checking every length against ``limit``. Raises
    `CorruptRecord`."""
    length, body = read_varint(data, position, limit)
    end = body + length
    if length < MIN_RECORD_BYTES - 1 or end > limit:
        raise CorruptRecord(f"record at byte {position}: length {length}, but {limit - body} bytes are left")
    timestamp_delta, at = read_varlong(data, body + 1, end)
    offset_delta, at = read_varint(data, at, end)
    key_length, key_start = _read_length(data, at, end, "key")
    value_length, value_start = _read_length(data, key_start + max(key_length, 0), end, "value")
    headers_start = value_start + max(value_length, 0)
    _, at = read_headers(data, headers_start, end)
    if at != end:
        raise CorruptRecord(f"record at byte {position}: ends at byte {at}, but its length says {end}")
    return RecordSpan(
        end, timestamp_delta, offset_delta, key_start, key_length, value_start, value_length, headers_start
    )


def read_headers(data: bytes, position: int, limit: int) -> tuple[Headers, int]:
    """Decode the headers whose count is at ``position``; return them and the position after them.

    A name that is not UTF-8 is decoded with replacement characters, as Kafka's Java client does.
    """
    headers: list[tuple[str, bytes | None]] = []
    at = position + 1
    try:
        for _ in range(_HALVES[data[position]]):
            size = _HALVES[data[at]]
            at += 1
            raw_name = data[at : (at := at + size)]
            name = _names.get(raw_name) or _read_name(raw_name)
            size = data[at]
            at += 1
            if size == 1:
                headers.append((name, None))
                continue
            if size > 127:
                size += (data[at] << 7) - 128
                at += 1
                if size > _MAX_TWO_BYTES:
                    break
            if size & 1:
                break
            headers.append((name, data[at : (at := at + (size >> 1))]))
        else:
            if at <= limit:
                return tuple(headers), at
    except (IndexError, KeyError):  # beyond the buffer, or not a one-byte length
        pass
    return _read_headers_carefully(data, position, limit)


_HALVES = {size: size >> 1 for size in range(0, 128, 2)}
"""The lengths of one-byte varints, unless negative."""

_names: dict[bytes, str] = {}
"""Cache of decoded header names: a few names recur in every record."""
_MAX_NAMES = 1000


def _read_name(raw_name: bytes) -> str:
    name = raw_name.decode("utf-8", "replace")
    if len(_names) < _MAX_NAMES and len(raw_name) < 64:
        _names[raw_name] = name
    return name


def _read_headers_carefully(data: bytes, position: int, limit: int) -> tuple[Headers, int]:
    count, at = read_varint(data, position, limit)
    if not 0 <= count <= (limit - at) // _MIN_HEADER_BYTES:
        raise CorruptRecord(f"header count {count} at byte {position}, but {limit - at} bytes are left")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        start = at
        length, at = _read_length(data, at, limit, "header name")
        if length < 0:
            raise CorruptRecord(f"header at byte {start} has a null name")
        name = data[at : at + length].decode("utf-8", "replace")
        length, at = _read_length(data, at + length, limit, "header value")
        value = None if length < 0 else data[at : at + length]
        at += max(length, 0)
        headers.append((name, value))
    return tuple(headers), at


def _read_length(data: bytes, position: int, limit: int, what: str) -> tuple[int, int]:
    length, at = read_varint(data, position, limit)
    if length < -1 or length > limit - at:
        raise CorruptRecord(f"{what} length {length} at byte {position}, but {limit - at} bytes are left")
    return length, at


def check_count(count: int, position: int, limit: int) -> None:
    """Raise `CorruptRecord` if ``count`` records cannot fit, before anything is allocated for them."""
    if count * MIN_RECORD_BYTES > limit - position:
        raise CorruptRecord(f"{count} records cannot fit in the {limit - position} bytes at byte {position}")


def check_offset_delta(delta: int, lowest: int, highest: int, position: int) -> None:
    """Raise `CorruptRecord` unless offsets rise within the batch's range."""
    if not lowest <= delta <= highest:
        raise CorruptRecord(f"record at byte {position} has offset delta {delta}, which is not in {lowest}..{highest}")


def check_timestamp(timestamp_ms: int) -> int:
    """Return the timestamp. Raises `CorruptRecord` unless it fits 64 bits."""
    if not -(1 << 63) <= timestamp_ms < 1 << 63:
        raise CorruptRecord(f"timestamp {timestamp_ms} of a record does not fit 64 bits")
    return timestamp_ms


def check_end(position: int, limit: int, count: int) -> None:
    """Raise `CorruptRecord` unless the last record ends where the batch does."""
    if position != limit:
        raise CorruptRecord(f"{count} records end at byte {position}, but the batch ends at byte {limit}")


def decode_records(
    data: bytes,
    position: int,
    limit: int,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp_ms: int,
    columns: Columns,
) -> None:
    """Append the ``count`` records that fill ``data[position:limit]`` to ``columns``. Raises `CorruptRecord`."""
    if count * MIN_RECORD_BYTES > limit - position:
        check_count(count, position, limit)
    keys = columns.keys
    end = len(keys) + count
    next_delta = 0
    while True:
        position, next_delta = _decode_ordinary(
            data, position, end - len(keys), next_delta, base_offset, base_timestamp_ms, columns
        )
        if len(keys) == end:
            break
        span = read_span(data, position, limit)
        check_offset_delta(span.offset_delta, next_delta, last_offset_delta, position)
        _append_span(data, span, base_offset, base_timestamp_ms, columns)
        position, next_delta = span.end, span.offset_delta + 1
    if not -_PLAUSIBLE_MS < base_timestamp_ms < _PLAUSIBLE_MS:
        for timestamp_ms in columns.timestamps_ms[end - count :]:
            check_timestamp(timestamp_ms)
    if position != limit or next_delta > last_offset_delta + 1:
        check_end(position, limit, count)
        check_offset_delta(next_delta - 1, 0, last_offset_delta, position)


def _decode_ordinary(  # noqa: C901  every varint is inlined: a call for each would take longer than all the rest
    data: bytes,
    position: int,
    count: int,
    next_delta: int,
    base_offset: int,
    base_timestamp_ms: int,
    columns: Columns,
) -> tuple[int, int]:
    """Decode records while they are ordinary; return the position of the first that is not, and its offset delta.

    Ordinary records are shorter than 8 KiB and undamaged. This may read past the batch's end, never past the buffer's:
    the caller checks where the last record ended. Numbers stay in zigzag. A two-byte varint is read as ``first +
    (second << 7) - 128``; a second byte that announces a third makes that exceed 16,383, which either is tested here or
    makes the record end elsewhere than its own length requires.
    """
    keys, values, timestamps_ms = columns.keys, columns.values, columns.timestamps_ms
    start = position
    timestamp_ms, known = base_timestamp_ms, 0
    run_start = expected = next_delta << 1
    try:
        for _ in range(count):
            length = data[position]
            if length < 128:
                position += 1
            else:
                length += (data[position + 1] << 7) - 128
                position += 2
                if length > _MAX_TWO_BYTES:
                    break
            body = position
            timestamp = data[position + 1]
            if timestamp < 128:
                position += 2
            else:
                timestamp += (data[position + 2] << 7) - 128
                position += 3
                if timestamp > _MAX_TWO_BYTES:
                    timestamp, position = _read_long(data, position - 2)
            offset = data[position]
            if offset < 128:
                position += 1
            else:
                offset += (data[position + 1] << 7) - 128
                position += 2
                if offset > _MAX_TWO_BYTES:
                    offset, position = _read_long(data, position - 2)
            size = data[position]
            position += 1
            if size > 127:
                size += (data[position] << 7) - 128
                position += 1
            if size & 1:
                if size != 1:
                    break
                key = None
            else:
                key = data[position : (position := position + (size >> 1))]
            size = data[position]
            position += 1
            if size > 127:
                size += (data[position] << 7) - 128
                position += 1
            if size & 1:
                if size != 1:
                    break
                value = None
            else:
                value = data[position : (position := position + (size >> 1))]
            if data[position]:
                headers, position = read_headers(data, position, body + (length >> 1))
                columns.headers[len(keys)] = headers
            else:
                position += 1
            if (position - body) << 1 != length:  # also true of every negative length, which is odd in zigzag
                break
            if offset != expected:
                if offset < expected or offset & 1:
                    break
                columns.offsets += range(base_offset + (run_start >> 1), base_offset + (expected >> 1))
                run_start = expected = offset  # compaction left a gap
            if timestamp != known:
                known = timestamp
                timestamp_ms = base_timestamp_ms + ((timestamp >> 1) ^ -(timestamp & 1))
            keys.append(key)
            values.append(value)
            timestamps_ms.append(timestamp_ms)
            expected += 2
            start = position
    except (IndexError, CorruptRecord):
        pass  # the careful reader reports the reason
    if expected - run_start == 2:  # faster for a single record
        columns.offsets.append(base_offset + (run_start >> 1))
    else:
        columns.offsets += range(base_offset + (run_start >> 1), base_offset + (expected >> 1))
    return start, expected >> 1


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint of three to five bytes at ``position``, in zigzag, and the position after it."""
    raw = (data[position] & 0x7F) + ((data[position + 1] & 0x7F) << 7) + (data[position + 2] << 14)
    if raw < 1 << 21:
        return raw, position + 3
    raw += (data[position + 3] << 21) - (1 << 21)
    if raw < 1 << 28:
        return raw, position + 4
    raw += (data[position + 4] << 28) - (1 << 28)
    if raw < 1 << 35:
        return raw, position + 5
    raise CorruptRecord(f"varint at byte {position} is longer than 5 bytes")


def _append_span(data: bytes, span: RecordSpan, base_offset: int, base_timestamp_ms: int, columns: Columns) -> None:
    headers, _ = read_headers(data, span.headers_start, span.end)
    if headers:
        columns.headers[len(columns.keys)] = headers
    key_end, value_end = span.key_start + span.key_length, span.value_start + span.value_length
    columns.keys.append(None if span.key_length < 0 else data[span.key_start : key_end])
    columns.values.append(None if span.value_length < 0 else data[span.value_start : value_end])
    columns.offsets.append(base_offset + span.offset_delta)
    columns.timestamps_ms.append(check_timestamp(base_timestamp_ms + span.timestamp_delta))


def encode_record(key: bytes | None, value: bytes | None) -> bytes:
    """Encode a record without headers, both deltas 0; `eventbus.records.builder` encodes many records faster."""
    parts = [b"\0\0\0"]
    for field in (key, value):
        parts += (NULL_LENGTH,) if field is None else (encode_varint(len(field)), field)
    parts.append(b"\0")
    body = b"".join(parts)
    return encode_varint(len(body)) + body
