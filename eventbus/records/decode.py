"""Fetched bytes to columns: what hands a partition's records to the runner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import CorruptRecord
from eventbus.records.batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_BIT,
    Buffer,
    check_crc,
    decode_batch,
    read_header,
)
from eventbus.records.record import Columns
from eventbus.types import FetchedRecords, Headers, TimestampType

if TYPE_CHECKING:
    from eventbus.records.batch import BatchHeader

_TIMESTAMP_TYPES = (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)


def fetched_records(
    buffer: Buffer, topic: str, partition: int, fetch_offset: int, *, check_crcs: bool = True
) -> FetchedRecords:
    """The records in whole batches back to back, from ``fetch_offset`` on.

    Records below ``fetch_offset`` (the first batch may begin earlier) and control batches are left out. An incomplete
    batch at the end is ignored, as Kafka's fetch protocol allows. ``next_offset`` is after the last whole batch.
    ``timestamp_type`` is that of the last one. Raises `CorruptRecord`, which names the partition and the batch.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    columns = Columns()
    size = len(data)
    position = attributes = 0
    next_offset = fetch_offset
    header: BatchHeader | None = None
    try:
        while size - position >= HEADER_BYTES:
            header = read_header(data, position)
            end = position + header[1] + LENGTH_OVERHEAD_BYTES
            if end > size:
                break
            if check_crcs:
                check_crc(data, header, position)
            attributes = header[5]
            next_offset = header[0] + header[6] + 1
            if next_offset > fetch_offset and not attributes & CONTROL_BIT:
                decode_batch(data, position, header, columns)
                if header[0] < fetch_offset:
                    columns = _from_offset(columns, fetch_offset)
            position = end
    except CorruptRecord as error:
        where = f"offset {next_offset}" if header is None else f"batch at offset {header[0]}"
        raise CorruptRecord(f"{topic}-{partition}, {where}, byte {position} of the fetch: {error}") from None
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
        _TIMESTAMP_TYPES[(attributes & TIMESTAMP_TYPE_BIT) >> 3],
        max(next_offset, fetch_offset),
    )


def _from_offset(columns: Columns, offset: int) -> Columns:
    """``columns`` without the records below ``offset``."""
    kept = Columns()
    keep = [index for index, each in enumerate(columns.offsets) if each >= offset]
    kept.offsets = [columns.offsets[index] for index in keep]
    kept.timestamps_ms = [columns.timestamps_ms[index] for index in keep]
    kept.keys = [columns.keys[index] for index in keep]
    kept.values = [columns.values[index] for index in keep]
    kept.headers = {new: columns.headers[old] for new, old in enumerate(keep) if old in columns.headers}
    return kept
