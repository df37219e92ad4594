"""Decode whole batches to numpy arrays with the position of every key and value, without a loop over records.

The starts of records follow from their lengths (`starts`); numpy then reads each other field of *all* records at once.
The result suits Arrow: positions in one contiguous buffer. Keys and values become Arrow arrays with a ``take`` each,
which copies in C++::

    arrays = record_arrays(buffer)
    bounds = arrays.bounds()                             # key start, key end, value start, value end, next key start...
    pieces = pyarrow.LargeBinaryArray.from_buffers(
        pyarrow.large_binary(), len(bounds) - 1, [None, pyarrow.py_buffer(bounds), pyarrow.py_buffer(arrays.data)]
    )
    indexes = 4 * numpy.arange(len(arrays))
    keys = pieces.take(pyarrow.array(indexes, mask=arrays.key_length < 0))
    values = pieces.take(pyarrow.array(indexes + 2, mask=arrays.value_length < 0))

Decode several batches at once: below some 400 records numpy's calls cost more than they save. This module imports
numpy; import it only where numpy is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eventbus.errors import CorruptRecord
from eventbus.records.aborted import AbortedRanges
from eventbus.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    RecordBatch,
    check_base_offset,
    iter_batches,
)
from eventbus.records.compression import decompress
from eventbus.records.record import (
    RecordSpan,
    check_count,
    check_end,
    check_offset_delta,
    check_timestamp,
    read_headers,
    read_span,
)
from eventbus.records.starts import Unusual, byte_pairs, read_varints, record_starts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eventbus.types import AbortedTransaction, Headers

    Int64s = NDArray[np.int64]

_PLAUSIBLE_MS = 1 << 62


class RecordArrays:
    """Records in columns; one element per record, positions are into ``data``.

    A null key or value has length -1, and its start is where its bytes would be. Records of control batches are absent.
    """

    __slots__ = (
        "data",
        "headers_start",
        "key_length",
        "key_start",
        "next_offset",
        "offsets",
        "record_end",
        "timestamp_types",
        "timestamps_ms",
        "value_length",
        "value_start",
    )

    data: bytes
    """The buffer itself, or, if any batch is compressed, the concatenated records of all batches, decompressed."""
    offsets: Int64s
    timestamps_ms: Int64s
    timestamp_types: NDArray[np.int8]
    """0 for CreateTime, 1 for LogAppendTime."""
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    headers_start: Int64s
    """The position of the record's header count; -1 if it has no headers. They are decoded by `headers`."""
    record_end: Int64s
    next_offset: int
    """The offset from which to continue: after the last whole batch, even if that contained only markers."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def has_headers(self) -> bool:
        """True if any record has headers."""
        return bool((self.headers_start >= 0).any())

    def keys(self) -> list[bytes | None]:
        """Return all keys as bytes objects."""
        return _slices(self.data, self.key_start, self.key_length)

    def values(self) -> list[bytes | None]:
        """Return all values as bytes objects."""
        return _slices(self.data, self.value_start, self.value_length)

    def headers(self, index: int) -> Headers:
        """Decode the headers of one record. Raises `CorruptRecord`."""
        start = int(self.headers_start[index])
        if start < 0:
            return ()
        end = int(self.record_end[index])
        headers, at = read_headers(self.data, start, end)
        if at != end:
            raise CorruptRecord(f"record at offset {self.offsets[index]}: headers end {end - at} bytes before it does")
        return headers

    def bounds(self) -> Int64s:
        """Return 4 n + 1 ascending positions: key start and end, value start and end of every record; the buffer's
        end."""
        bounds = np.empty(4 * len(self) + 1, np.int64)
        bounds[0:-1:4] = self.key_start
        bounds[1::4] = self.key_start + np.maximum(self.key_length, 0)
        bounds[2::4] = self.value_start
        bounds[3::4] = self.value_start + np.maximum(self.value_length, 0)
        bounds[-1] = len(self.data)
        return bounds

    def slice(self, start: int, stop: int) -> RecordArrays:
        """Return the records from index ``start`` to ``stop`` (exclusive) as views, without copying."""
        part = RecordArrays()
        for name in _PER_RECORD:
            setattr(part, name, getattr(self, name)[start:stop])
        part.data, part.next_offset = self.data, self.next_offset
        return part


_PER_RECORD = [name for name in RecordArrays.__slots__ if name not in ("data", "next_offset")]


def _slices(data: bytes, starts: Int64s, lengths: Int64s) -> list[bytes | None]:
    pairs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    pieces: list[bytes | None] = [data[start:end] for start, end in pairs]
    for index in np.flatnonzero(lengths < 0).tolist():
        pieces[index] = None
    return pieces


class _Section(NamedTuple):
    """The positions of one batch's records in the contiguous data."""

    start: int
    end: int
    header: BatchHeader


def record_arrays(
    buffer: Buffer,
    fetch_offset: int = 0,
    end_offset: int | None = None,
    *,
    verify: bool = True,
    max_grown_bytes: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
) -> RecordArrays:
    """Decode the records from ``fetch_offset`` to ``end_offset`` (exclusive) in the whole batches of ``buffer``.

    Records of the transactions in ``aborted`` are left out. An incomplete batch at the end is ignored. ``verify``
    checks each batch's CRC. Raises `CorruptRecord`. Each compressed batch may grow to ``max(16 MiB, 64 * its size)``;
    all together are limited only by ``max_grown_bytes``, after which the rest is left for the next call: continue from
    ``next_offset``.
    """
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    data, sections, next_offset = _sections(data, fetch_offset, end_offset, verify, max_grown_bytes, aborted)
    try:
        arrays = _read_all(data, sections)
    except (Unusual, IndexError):
        arrays = _read_each(data, sections)
    arrays.next_offset = next_offset if end_offset is None else min(next_offset, end_offset)
    first, last = 0, len(arrays)
    if sections and sections[0].header.base_offset < fetch_offset:
        first = int(np.searchsorted(arrays.offsets, fetch_offset))
    if sections and end_offset is not None and sections[-1].header.next_offset > end_offset:
        last = int(np.searchsorted(arrays.offsets, end_offset))
    return arrays if last - first == len(arrays) else arrays.slice(first, last)


def _sections(
    data: bytes,
    fetch_offset: int,
    end_offset: int | None,
    verify: bool,
    max_grown_bytes: int | None,
    aborted: Sequence[AbortedTransaction],
) -> tuple[bytes, list[_Section], int]:
    """Check the batches; return contiguous data, the positions of the wanted batches' records, and the next offset."""
    wanted: list[RecordBatch] = []
    is_aborted = AbortedRanges(aborted).covers if aborted else None
    previous_end = 0
    next_offset = fetch_offset
    for batch in iter_batches(data, verify=verify):
        header = batch.header
        check_base_offset(header, previous_end)
        previous_end = header.next_offset
        if end_offset is not None and header.base_offset >= end_offset:
            break
        if header.next_offset > fetch_offset:
            next_offset = header.next_offset
            if header.attributes & CONTROL_BIT:
                continue
            if is_aborted and header.is_transactional and is_aborted(header.producer_id, header.base_offset):
                continue
            wanted.append(batch)
    if any(batch.header.attributes & COMPRESSION_MASK for batch in wanted):
        data, sections, next_offset = _decompressed(data, wanted, next_offset, max_grown_bytes)
    else:
        sections = [_Section(b.position + HEADER_BYTES, b.position + b.header.size_bytes, b.header) for b in wanted]
    for start, end, header in sections:
        try:
            check_count(header.records_count, start, end)
            if not header.records_count:
                check_end(start, end, 0)
        except CorruptRecord as error:
            raise CorruptRecord(f"batch at offset {header.base_offset}: {error}") from None
    return data, [section for section in sections if section.header.records_count], next_offset


def _decompressed(
    data: bytes, batches: list[RecordBatch], next_offset: int, max_grown_bytes: int | None
) -> tuple[bytes, list[_Section], int]:
    parts: list[bytes] = []
    sections: list[_Section] = []
    end = grown = 0
    for batch in batches:
        header, start = batch.header, batch.position + HEADER_BYTES
        block = memoryview(data)[start : batch.position + header.size_bytes]
        try:
            part = decompress(header.attributes & COMPRESSION_MASK, block)
        except CorruptRecord as error:
            raise CorruptRecord(f"batch at offset {header.base_offset}: {error}") from None
        parts.append(part)
        sections.append(_Section(end, end + len(part), header))
        end += len(part)
        grown += len(part) if header.attributes & COMPRESSION_MASK else 0
        if max_grown_bytes is not None and grown > max_grown_bytes:
            next_offset = header.next_offset
            break
    return b"".join(parts), sections, next_offset


# -- all records at once -----------------------------------------------------------------------------------------------


def _read_all(data: bytes, sections: Sequence[_Section]) -> RecordArrays:
    if not sections:
        return _read_each(data, sections)
    counts = [section.header.records_count for section in sections]
    ends = [section.end for section in sections]
    bytes_, pairs = np.frombuffer(data, np.uint8), byte_pairs(data)
    positions = record_starts(data, pairs, [section.start for section in sections], ends, counts)
    last_indexes = np.cumsum(counts) - 1
    arrays = RecordArrays()
    arrays.data = data
    arrays.record_end = np.append(positions[1:], 0)
    arrays.record_end[last_indexes] = ends
    lengths, positions = read_varints(pairs, bytes_, positions)
    timestamp_deltas, positions = read_varints(pairs, bytes_, positions + 1)
    offset_deltas, positions = read_varints(pairs, bytes_, positions)
    arrays.key_length, arrays.key_start = read_varints(pairs, bytes_, positions)
    key_end = _field_end(arrays.key_start, arrays.key_length)
    arrays.value_length, arrays.value_start = read_varints(pairs, bytes_, key_end)
    value_end = _field_end(arrays.value_start, arrays.value_length)
    header_counts = bytes_[value_end]
    if header_counts.any():
        has_headers = header_counts != 0
        arrays.headers_start = np.where(has_headers, value_end, -1)
        fits = np.where(has_headers, value_end + 1 < arrays.record_end, value_end + 1 == arrays.record_end)
    else:
        arrays.headers_start = np.full(len(lengths), -1)
        fits = value_end + 1 == arrays.record_end
    if not fits.all() or lengths.min() < 0:
        raise Unusual
    headers = [section.header for section in sections]
    _place(arrays, headers, offset_deltas, timestamp_deltas, last_indexes)
    return arrays


def _field_end(start: Int64s, length: Int64s) -> Int64s:
    shortest = length.min()
    if shortest < -1:
        raise Unusual
    return start + (length if shortest >= 0 else np.maximum(length, 0))


def _place(
    arrays: RecordArrays,
    headers: Sequence[BatchHeader],
    offset_deltas: Int64s,
    timestamp_deltas: Int64s,
    last_indexes: Int64s,
) -> None:
    """Convert deltas to offsets and timestamps; ``last_indexes`` are the indexes of each batch's last record."""
    counts = [header.records_count for header in headers]
    arrays.offsets = offset_deltas + _repeated((header.base_offset for header in headers), counts)
    if offset_deltas.min() < 0 or not (arrays.offsets[1:] > arrays.offsets[:-1]).all():
        raise Unusual
    if (offset_deltas[last_indexes] > [header.last_offset_delta for header in headers]).any():
        raise Unusual
    appended = [bool(header.attributes & TIMESTAMP_TYPE_BIT) for header in headers]
    bases = [header.max_timestamp_ms if is_appended else header.base_timestamp_ms
             for header, is_appended in zip(headers, appended, strict=True)]  # fmt: skip
    if max(bases) > _PLAUSIBLE_MS or min(bases) < -_PLAUSIBLE_MS:
        raise Unusual
    if any(appended):
        timestamp_deltas = timestamp_deltas * _repeated((not is_appended for is_appended in appended), counts)
    arrays.timestamps_ms = timestamp_deltas + _repeated(bases, counts)
    arrays.timestamp_types = _repeated(appended, counts).astype(np.int8)


def _repeated(values: Iterable[int], counts: Sequence[int]) -> Int64s:
    each = np.fromiter(values, np.int64, len(counts))
    return np.repeat(each, counts)


# -- record by record --------------------------------------------------------------------------------------------------


def _read_each(data: bytes, sections: Sequence[_Section]) -> RecordArrays:
    """Decode like `_read_all`, with every check and its error message."""
    spans: list[RecordSpan] = []
    offsets: list[int] = []
    timestamps_ms: list[int] = []
    types: list[int] = []
    for section in sections:
        try:
            _read_section(data, section, spans, offsets, timestamps_ms)
        except CorruptRecord as error:
            raise CorruptRecord(f"batch at offset {section.header.base_offset}: {error}") from None
        types += [int(section.header.timestamp_type)] * section.header.records_count
    arrays = RecordArrays()
    arrays.data = data
    arrays.offsets = np.array(offsets, np.int64)
    arrays.timestamps_ms = np.array(timestamps_ms, np.int64)
    arrays.timestamp_types = np.array(types, np.int8)
    for name in ("key_start", "key_length", "value_start", "value_length"):
        setattr(arrays, name, np.array([getattr(span, name) for span in spans], np.int64))
    arrays.headers_start = np.array(
        [span.headers_start if data[span.headers_start] else -1 for span in spans], np.int64
    )
    arrays.record_end = np.array([span.end for span in spans], np.int64)
    return arrays


def _read_section(
    data: bytes, section: _Section, spans: list[RecordSpan], offsets: list[int], timestamps_ms: list[int]
) -> None:
    position, end, header = section
    next_delta = 0
    for _ in range(header.records_count):
        span = read_span(data, position, end)
        check_offset_delta(span.offset_delta, next_delta, header.last_offset_delta, position)
        next_delta = span.offset_delta + 1
        timestamp_ms = check_timestamp(header.base_timestamp_ms + span.timestamp_delta)
        spans.append(span)
        offsets.append(header.base_offset + span.offset_delta)
        timestamps_ms.append(header.max_timestamp_ms if header.attributes & TIMESTAMP_TYPE_BIT else timestamp_ms)
        position = span.end
    check_end(position, end, header.records_count)
