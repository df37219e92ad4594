"""Convert log bytes to Arrow, column by column: the decoding half of the source.

`eventbus.records.columnar` returns the position of every key and value. An Arrow array is laid over the unchanged bytes
(key, gap, value, gap, key, ...), and taking every fourth element copies all keys, or all values, in a single call.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from eventbus.errors import CorruptRecord, OffsetOutOfRange
from eventbus.records.columnar import RecordArrays, record_arrays
from spark_sinks.source.offsets import OffsetRange

if TYPE_CHECKING:
    from eventbus.log.reader import LogReader
    from eventbus.records import Buffer
    from eventbus.types import TopicPartition
    from spark_sinks.source.claims import Claims

CHUNK_BYTES = 4 << 20
"""Batches are decoded together up to this size: some ten thousand records, where the columns pay off best."""
GROWN_BYTES = 16 << 20
"""Compressed ones only up to so many bytes, and the batch that reaches them: some grow a thousandfold."""
_MAX_ARRAY_BYTES = 2**31 - 1
_MAX_MS = (2**63 - 1) // 1000

_HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]), nullable=True)
)
# Spark compares these types for equality: no large or view types, microseconds, and lists whose field is "element".
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


def source_schema(*, include_headers: bool) -> pa.Schema:
    """Return the columns of the source, those of Spark's Kafka source."""
    return _SCHEMA.append(pa.field("headers", _HEADERS)) if include_headers else _SCHEMA


def read_range(
    reader: LogReader,
    offsets: OffsetRange,
    *,
    include_headers: bool = False,
    skip_lost: bool = False,
    claims: Claims | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, a few thousand at a time; the reader has checked the CRCs.

    ``claims`` restores, or refuses, values that are in the store of a claim check; None: they stay as they are.
    ``skip_lost`` passes over what retention takes meanwhile, which raises `OffsetOutOfRange` otherwise.
    """
    (topic, partition), start, end = offsets
    while True:
        try:
            for buffer in reader.read(topic, partition, start, end, CHUNK_BYTES):
                for arrays in _read_arrays(buffer, offsets._replace(start=start)):
                    start = arrays.next_offset
                    if len(arrays):
                        yield _columns(arrays, offsets.topic_partition, include_headers, claims)
            return
        except OffsetOutOfRange:
            first = reader.offsets(topic).get(partition, (end, end))[0]
            if not skip_lost or first <= start:
                raise
            if first >= end:
                return
            start = first


def _read_arrays(buffer: Buffer, offsets: OffsetRange) -> Iterator[RecordArrays]:
    """Yield the records of checked batches, in parts that are bounded however well the batches were compressed."""
    _, at, end = offsets
    while True:
        arrays = _arrays(buffer, offsets._replace(start=at), verify=False, max_grown_bytes=GROWN_BYTES)
        if arrays.next_offset == at:  # the whole buffer has been read
            return
        yield arrays
        at = arrays.next_offset
        if at >= end or len(arrays.data) <= GROWN_BYTES:
            return


def record_batch(
    buffer: Buffer, offsets: OffsetRange, *, include_headers: bool = False, verify: bool = False
) -> pa.RecordBatch:
    """Return the records of whole log batches that lie in the range, as columns of the source.

    Raises `CorruptRecord` naming the partition. A timestamp that Spark cannot hold (beyond the year 294,246) is null.
    """
    return _columns(_arrays(buffer, offsets, verify=verify), offsets.topic_partition, include_headers)


def _arrays(buffer: Buffer, offsets: OffsetRange, *, verify: bool, max_grown_bytes: int | None = None) -> RecordArrays:
    where, start, end = offsets
    try:
        return record_arrays(buffer, start, end, verify=verify, max_grown_bytes=max_grown_bytes)
    except CorruptRecord as error:
        raise CorruptRecord(f"{where}, between offset {start} and {end}: {error}") from error


def _columns(
    arrays: RecordArrays, where: TopicPartition, include_headers: bool, claims: Claims | None = None
) -> pa.RecordBatch:
    keys, values = keys_and_values(arrays)
    if claims is not None:
        values = claims.restored(values, arrays, where)
    count = len(arrays)
    columns: list[Any] = [
        keys,
        values,
        pa.repeat(pa.scalar(where.topic, pa.string()), count),
        pa.repeat(pa.scalar(where.partition, pa.int32()), count),
        pa.array(arrays.offsets, pa.int64()),
        _timestamps(arrays.timestamps_ms),
        pa.array(arrays.timestamp_types.astype(np.int32)),
    ]
    if include_headers:
        columns.append(_headers(arrays))
    return pa.RecordBatch.from_arrays(columns, schema=source_schema(include_headers=include_headers))


def keys_and_values(arrays: RecordArrays) -> tuple[pa.Array, pa.Array]:
    """Return all keys and all values; nulls stay apart from empty ones."""
    if len(arrays.data) > _MAX_ARRAY_BYTES:
        raise CorruptRecord(f"batches read together decompress to {len(arrays.data):,} bytes; Spark takes up to 2 GiB")
    bounds = arrays.bounds().astype(np.int32)
    pieces = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(arrays.data)]
    )
    indexes = np.arange(0, len(bounds) - 1, 4)
    return _taken(pieces, indexes, arrays.key_length), _taken(pieces, indexes + 2, arrays.value_length)


def _taken(pieces: Any, indexes: Any, lengths: Any) -> pa.Array:
    nulls = lengths < 0
    return pieces.take(pa.array(indexes, mask=nulls if nulls.any() else None))


def _timestamps(timestamps_ms: Any) -> pa.Array:
    beyond = (timestamps_ms > _MAX_MS) | (timestamps_ms < -_MAX_MS)
    mask = beyond if beyond.any() else None
    with np.errstate(over="ignore"):
        return pa.array(timestamps_ms * 1000, pa.int64(), mask=mask).cast(pa.timestamp("us", "UTC"))


def _headers(arrays: RecordArrays) -> pa.Array:
    """Return one list per record; null for a record without headers, as in Spark's Kafka source."""
    rows: list[Any] = [None] * len(arrays)
    for index in np.flatnonzero(arrays.headers_start >= 0).tolist():
        rows[index] = [{"key": name, "value": value} for name, value in arrays.headers(index)]
    return pa.array(rows, _HEADERS)
