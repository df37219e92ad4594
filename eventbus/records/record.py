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

from collections.abc import Iterable
from typing import NamedTuple

from eventbus.errors import CorruptRecord
from eventbus.records.varint import NULL_LENGTH, encode_varint, read_varint, read_varlong, zigzag
from eventbus.types import Headers

MIN_RECORD_BYTES = 7
"""Length, attributes, both deltas, two null lengths and a header count: one byte each."""

_MIN_HEADER_BYTES = 2
_MAX_TWO_BYTES = 0x3FFF
_PLAUSIBLE_MS = 1 << 62
_INT64_MAX = (1 << 63) - 1


class RecordSpan(NamedTuple):
    """Where the parts of one record lie; lengths are -1 for null."""

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
    """Decoded records of one or more batches, side by side. ``headers`` holds only records that have some."""

    __slots__ = ("headers", "keys", "offsets", "timestamps_ms", "values")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.timestamps_ms: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}


def read_span(data: bytes, position: int, limit: int) -> RecordSpan:
    """The record at ``position``, every length checked against ``limit``; `CorruptRecord` says what is wrong where."""
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
    """The headers whose count stands at ``position``, and the position after them.

    A name that is not UTF-8 is read with replacement characters, as Kafka's Java client does.
    """
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
    """Append the ``count`` records that fill ``data[position:limit]`` to ``columns``; `CorruptRecord` otherwise."""
    if count * MIN_RECORD_BYTES > limit - position:
        raise CorruptRecord(f"{count} records cannot fit in the {limit - position} bytes at byte {position}")
    offset_deltas: list[int] = []
    timestamp_deltas: list[int] = []
    while True:
        position = _decode_fast(data, position, count - len(offset_deltas), offset_deltas, timestamp_deltas, columns)
        if len(offset_deltas) == count:
            break
        span = read_span(data, position, limit)
        _append_span(data, span, offset_deltas, timestamp_deltas, columns)
        position = span.end
    if position != limit:
        raise CorruptRecord(f"{count} records end at byte {position}, but the batch ends at byte {limit}")
    columns.offsets += _absolute_offsets(offset_deltas, base_offset, last_offset_delta)
    columns.timestamps_ms += _absolute_timestamps(timestamp_deltas, base_timestamp_ms)


def _decode_fast(  # noqa: C901  every varint is inlined: a call for each would take longer than all the rest
    data: bytes, position: int, count: int, offset_deltas: list[int], timestamp_deltas: list[int], columns: Columns
) -> int:
    """Decode records while they look ordinary, and return the position of the first that does not.

    Ordinary: shorter than 8 KiB and undamaged. It may read past the batch's end, never past the buffer's: the caller
    checks where the last record ended. Deltas are appended as they stand, in zigzag. A two-byte varint is read as
    ``first + (second << 7) - 128``; a second byte that announces a third makes that exceed 16,383, which is either
    tested here or lets the record end elsewhere than its own length says.
    """
    add_key, add_value = columns.keys.append, columns.values.append
    add_offset, add_timestamp = offset_deltas.append, timestamp_deltas.append
    start = position
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
                    timestamp, position = read_varlong(data, position - 2, len(data))
                    timestamp = zigzag(timestamp)
            offset = data[position]
            if offset < 128:
                position += 1
            else:
                offset += (data[position + 1] << 7) - 128
                position += 2
                if offset > _MAX_TWO_BYTES:
                    offset, position = read_varint(data, position - 2, len(data))
                    offset = zigzag(offset)
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
                columns.headers[len(columns.keys)] = headers
            else:
                position += 1
            if (position - body) << 1 != length:  # also true of every negative length, which zigzag makes odd
                break
            add_key(key)
            add_value(value)
            add_offset(offset)
            add_timestamp(timestamp)
            start = position
    except (IndexError, CorruptRecord):
        pass  # the careful reader names the reason
    return start


def _append_span(
    data: bytes, span: RecordSpan, offset_deltas: list[int], timestamp_deltas: list[int], columns: Columns
) -> None:
    headers, _ = read_headers(data, span.headers_start, span.end)
    if headers:
        columns.headers[len(columns.keys)] = headers
    key_end, value_end = span.key_start + span.key_length, span.value_start + span.value_length
    columns.keys.append(None if span.key_length < 0 else data[span.key_start : key_end])
    columns.values.append(None if span.value_length < 0 else data[span.value_start : value_end])
    offset_deltas.append(zigzag(span.offset_delta))
    timestamp_deltas.append(zigzag(span.timestamp_delta))


def _absolute_offsets(zigzags: list[int], base_offset: int, last_offset_delta: int) -> Iterable[int]:
    count = len(zigzags)
    if count <= last_offset_delta + 1 and zigzags == list(range(0, 2 * count, 2)):
        return range(base_offset, base_offset + count)
    deltas = [(delta >> 1) ^ -(delta & 1) for delta in zigzags]  # compaction leaves gaps
    check_offset_deltas(deltas, last_offset_delta)
    return [base_offset + delta for delta in deltas]


def check_offset_deltas(deltas: list[int], last_offset_delta: int) -> None:
    """`CorruptRecord` unless offsets rise within the batch's range."""
    previous = -1
    for index, delta in enumerate(deltas):
        if not previous < delta <= last_offset_delta:
            raise CorruptRecord(
                f"record {index} has offset delta {delta}: it must be above {previous} and at most {last_offset_delta}"
            )
        previous = delta


def _absolute_timestamps(zigzags: list[int], base_timestamp_ms: int) -> list[int]:
    if not any(zigzags):
        return [base_timestamp_ms] * len(zigzags)
    timestamps_ms = [base_timestamp_ms + ((delta >> 1) ^ -(delta & 1)) for delta in zigzags]
    if max(zigzags) > _PLAUSIBLE_MS or not -_PLAUSIBLE_MS < base_timestamp_ms < _PLAUSIBLE_MS:
        check_timestamps(timestamps_ms)
    return timestamps_ms


def check_timestamps(timestamps_ms: list[int]) -> None:
    """`CorruptRecord` unless all fit 64 bits."""
    for index, timestamp_ms in enumerate(timestamps_ms):
        if not -_INT64_MAX <= timestamp_ms <= _INT64_MAX:
            raise CorruptRecord(f"record {index} has timestamp {timestamp_ms}, which does not fit 64 bits")


def encode_record(key: bytes | None, value: bytes | None) -> bytes:
    """One record without headers, both deltas 0; `eventbus.records.builder` writes many faster."""
    parts = [b"\0\0\0"]
    for field in (key, value):
        parts += (NULL_LENGTH,) if field is None else (encode_varint(len(field)), field)
    parts.append(b"\0")
    body = b"".join(parts)
    return encode_varint(len(body)) + body
