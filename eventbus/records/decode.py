"""Decode fetched bytes to columns, which the runner receives per partition."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence

from eventbus.errors import CorruptRecord
from eventbus.records.aborted import AbortedRanges
from eventbus.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    MAX_OFFSET,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Buffer,
    check_base_offset,
    check_crc,
    decode_body,
    read_header,
)
from eventbus.records.compression import limit_bytes
from eventbus.records.crc import crc32c
from eventbus.records.record import Columns, decode_records
from eventbus.types import AbortedTransaction, FetchedRecords, Headers, TimestampType

_unpack = struct.Struct(">qi4xbIhiqq14xi").unpack_from
"""Reads the header's fields that decoding needs."""
_MIN_LENGTH = HEADER_BYTES - LENGTH_OVERHEAD_BYTES
_NOT_PLAIN = COMPRESSION_MASK | TIMESTAMP_TYPE_BIT
_CREATE_TIME, _LOG_APPEND_TIME = TimestampType

_NUMPY_RECORDS = 400
"""From this many records on, numpy is faster, if the process has loaded it anyway."""
_NUMPY_IMPORT_RECORDS = 100_000
"""After this many records, importing numpy (90 ms, 20 MiB, once) is worth it: more are likely to follow."""

_NUMPY_BYTES = 8_192
"""Smaller buffers are never decoded with numpy."""


def fetched_records(
    buffer: Buffer,
    topic: str,
    partition: int,
    fetch_offset: int,
    *,
    check_crcs: bool = True,
    aborted: Sequence[AbortedTransaction] = (),
) -> FetchedRecords:
    """Decode the records in whole batches back to back, from ``fetch_offset`` on.

    Records below ``fetch_offset`` (the first batch may begin earlier), those of the transactions in ``aborted``, and
    control batches are left out: with the ``aborted`` of a read-committed fetch, only committed records remain. An
    incomplete batch at the end is ignored, as Kafka's fetch protocol allows, and so is what follows when compressed
    batches grow beyond ``max(16 MiB, 64 * len(buffer))`` together: continue from ``next_offset``. ``timestamp_type`` is
    that of the last record. Raises `CorruptRecord` with the partition and the batch.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    if len(data) >= _NUMPY_BYTES and _numpy_gains(data):
        fetched = _decode_with_numpy(data, topic, partition, fetch_offset, check_crcs, aborted)
        if fetched is not None:
            return fetched
    return _decode(data, topic, partition, fetch_offset, check_crcs, aborted)


def _decode(
    data: bytes,
    topic: str,
    partition: int,
    fetch_offset: int,
    check_crcs: bool,
    aborted: Sequence[AbortedTransaction] = (),
) -> FetchedRecords:
    columns = Columns()
    ranges = AbortedRanges(aborted) if aborted else None
    unwanted = CONTROL_BIT | TRANSACTIONAL_BIT if ranges else CONTROL_BIT
    size = len(data)
    position = attributes = previous_end = grown = 0
    next_offset = fetch_offset
    try:
        while size - position >= HEADER_BYTES:
            # Inlined from `read_header` and `check_crc`, which name the error: a batch of one record must take no more
            # than 2 us.
            base_offset, length, magic, crc, bits, last_delta, base_ms, max_ms, count = _unpack(data, position)
            end = position + length + LENGTH_OVERHEAD_BYTES
            if magic != MAGIC or length < _MIN_LENGTH or last_delta < 0 or count < 0:
                read_header(data, position)
            if end > size:
                break
            if check_crcs and crc32c(data[position + CRC_START : end]) != crc:
                check_crc(data, read_header(data, position), position)
            if base_offset < previous_end or base_offset > MAX_OFFSET - last_delta:
                check_base_offset(read_header(data, position), previous_end)
            previous_end = base_offset + last_delta + 1
            if previous_end > fetch_offset:
                next_offset = previous_end
                if not bits & unwanted or not _is_left_out(data, position, bits, ranges):
                    if bits & _NOT_PLAIN:
                        grown += decode_body(
                            data,
                            position + HEADER_BYTES,
                            end,
                            bits,
                            count,
                            last_delta,
                            base_offset,
                            base_ms,
                            max_ms,
                            columns,
                        )
                    else:
                        decode_records(
                            data, position + HEADER_BYTES, end, count, last_delta, base_offset, base_ms, columns
                        )
                    if count:
                        attributes = bits
                    if base_offset < fetch_offset:
                        columns = _from_offset(columns, fetch_offset)
            position = end
            if grown and grown > limit_bytes(size):
                break
    except CorruptRecord as error:
        offset = int.from_bytes(data[position : position + 8], "big", signed=True)
        raise CorruptRecord(
            f"{topic}-{partition}, batch at offset {offset} (byte {position} of the fetch): {error}"
        ) from None
    headers: list[Headers] | None = None
    if columns.headers:
        get = columns.headers.get
        headers = [get(index, ()) for index in range(len(columns.offsets))]
    return FetchedRecords(
        topic,
        partition,
        columns.offsets,
        columns.timestamps_ms,
        columns.keys,
        columns.values,
        headers,
        _LOG_APPEND_TIME if attributes & TIMESTAMP_TYPE_BIT and columns.offsets else _CREATE_TIME,
        next_offset,
    )


def _is_left_out(data: bytes, position: int, bits: int, ranges: AbortedRanges | None) -> bool:
    """True if the batch has markers, or records of an aborted transaction."""
    if ranges is None or bits & CONTROL_BIT:
        return bool(bits & CONTROL_BIT)
    header = read_header(data, position)
    return ranges.covers(header.producer_id, header.base_offset)


def _from_offset(columns: Columns, offset: int) -> Columns:
    """Return ``columns`` without the records below ``offset``."""
    kept = Columns()
    keep = [index for index, each in enumerate(columns.offsets) if each >= offset]
    kept.offsets = [columns.offsets[index] for index in keep]
    kept.timestamps_ms = [columns.timestamps_ms[index] for index in keep]
    kept.keys = [columns.keys[index] for index in keep]
    kept.values = [columns.values[index] for index in keep]
    kept.headers = {new: columns.headers[old] for new, old in enumerate(keep) if old in columns.headers}
    return kept


# -- the same with numpy -----------------------------------------------------------------------------------------------


def _numpy_gains(data: bytes) -> bool:
    """Decide by the first batch, as if all batches were like it."""
    try:
        header = read_header(data)
    except CorruptRecord:
        return False
    count = header.records_count * len(data) // header.size_bytes
    if count < _NUMPY_RECORDS:
        return False
    if "numpy" not in sys.modules:
        _decoded.without_numpy += count
        return _decoded.without_numpy >= _NUMPY_IMPORT_RECORDS
    return True


class _Decoded:
    without_numpy = 0


_decoded = _Decoded()


def _decode_with_numpy(
    data: bytes,
    topic: str,
    partition: int,
    fetch_offset: int,
    check_crcs: bool,
    aborted: Sequence[AbortedTransaction] = (),
) -> FetchedRecords | None:
    """Decode like `_decode`; return None without numpy, and for errors that `_decode` can describe better."""
    try:
        from eventbus.records.columnar import record_arrays
    except ImportError:
        _decoded.without_numpy = -(1 << 62)  # not installed: never try again
        return None
    try:
        limit = limit_bytes(len(data))
        arrays = record_arrays(data, fetch_offset, verify=check_crcs, max_grown_bytes=limit, aborted=aborted)
        headers = [arrays.headers(index) for index in range(len(arrays))] if arrays.has_headers else None
    except CorruptRecord:
        return None
    return FetchedRecords(
        topic,
        partition,
        arrays.offsets.tolist(),
        arrays.timestamps_ms.tolist(),
        arrays.keys(),
        arrays.values(),
        headers,
        TimestampType(arrays.timestamp_types[-1]) if len(arrays) else _CREATE_TIME,
        arrays.next_offset,
    )
