"""Rewrite batches: compaction removes records from them.

A batch keeps its offsets, its producer's fields and its codec, whatever is removed: base offset and last offset delta
stay, so that offsets do not change, and the header still shows the last sequence.

The *delete horizon* (KIP-534) is the time until which a batch's tombstones, or a spent transaction marker, must be
kept. It has no separate field: attribute bit 6 means that the base timestamp is the horizon, from which the records'
deltas count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eventbus.records.batch import (
    BATCH_HEADER,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    RecordBatch,
    write_crc,
)
from eventbus.records.compression import compress, decompress
from eventbus.records.record import Columns, decode_records
from eventbus.records.varint import encode_varint, read_varint, read_varlong

_LEADER_EPOCH = 0


def open_batch(batch: RecordBatch) -> tuple[bytes, Columns]:
    """Return the records of a batch as decompressed bytes, and decoded. Raises `CorruptRecord`."""
    header, start = batch.header, batch.position + HEADER_BYTES
    block = memoryview(batch.buffer)[start : batch.position + header.size_bytes]
    codec = header.attributes & COMPRESSION_MASK
    records = decompress(codec, block) if codec and header.records_count else bytes(block)
    columns = Columns()
    decode_records(
        records,
        0,
        len(records),
        header.records_count,
        header.last_offset_delta,
        header.base_offset,
        header.base_timestamp_ms,
        columns,
    )
    return records, columns


def keep_records(
    header: BatchHeader, records: bytes, kept: Sequence[int], columns: Columns, delete_horizon_ms: int | None = None
) -> bytearray:
    """Build the batch with only the records numbered ``kept`` (at least one), compressed as before.

    With ``delete_horizon_ms`` the batch gets that horizon, unless it already has one.
    """
    bounds = _bounds(records, header.records_count)
    pieces: Iterable[bytes] = (records[bounds[index] : bounds[index + 1]] for index in kept)
    attributes, base_timestamp_ms = header.attributes, header.base_timestamp_ms
    if delete_horizon_ms is not None:
        shift_ms = base_timestamp_ms - delete_horizon_ms
        pieces = (_shifted(piece, shift_ms) for piece in pieces)
        attributes |= DELETE_HORIZON_BIT
        base_timestamp_ms = delete_horizon_ms
    max_timestamp_ms = header.max_timestamp_ms
    if not attributes & TIMESTAMP_TYPE_BIT:
        max_timestamp_ms = max(columns.timestamps_ms[index] for index in kept)
    body = b"".join(pieces)
    if attributes & COMPRESSION_MASK:
        body = compress(header.compression, body)
    return _pack(
        header._replace(
            attributes=attributes,
            base_timestamp_ms=base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            records_count=len(kept),
        ),
        body,
    )


def keep_header(header: BatchHeader) -> bytearray:
    """Build the batch without its records, which preserves the sequence of a live producer's last batch."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    base_timestamp_ms = header.max_timestamp_ms
    return _pack(header._replace(attributes=attributes, base_timestamp_ms=base_timestamp_ms, records_count=0), b"")


def empty_batch(first_offset: int, last_offset: int, timestamp_ms: int) -> bytearray:
    """Build a batch without records for all offsets that were dropped between two offsets."""
    delta = last_offset - first_offset
    return _pack(
        BatchHeader(first_offset, 0, _LEADER_EPOCH, MAGIC, 0, 0, delta, timestamp_ms, timestamp_ms, -1, -1, -1, 0), b""
    )


def _pack(header: BatchHeader, body: bytes) -> bytearray:
    length = len(body) + HEADER_BYTES - LENGTH_OVERHEAD_BYTES
    batch = bytearray().join((BATCH_HEADER.pack(*header._replace(batch_length=length)), body))
    write_crc(batch)
    return batch


def _bounds(records: bytes, count: int) -> list[int]:
    """Return the start of each record, and the end of the last."""
    bounds = [0]
    position, limit = 0, len(records)
    for _ in range(count):
        first = records[position]
        if first < 128:
            position += (first >> 1) + 1
        else:
            length, position = read_varint(records, position, limit)
            position += length
        bounds.append(position)
    return bounds


def _shifted(record: bytes, shift_ms: int) -> bytes:
    """Return the record with ``shift_ms`` added to its timestamp delta."""
    end = len(record)
    _, body = read_varint(record, 0, end)
    delta, rest = read_varlong(record, body + 1, end)
    moved = encode_varint(delta + shift_ms)
    length = 1 + len(moved) + end - rest
    return b"".join((encode_varint(length), record[body : body + 1], moved, record[rest:]))
