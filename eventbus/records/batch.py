"""RecordBatch v2: the 61-byte header as a view, records decoded on demand, offsets patched in place.

::

    byte  0  baseOffset            int64    set by the log; not covered by the CRC
          8  batchLength           int32    bytes after this field
         12  partitionLeaderEpoch  int32    set by the log; not covered by the CRC
         16  magic                 int8     2
         17  crc                   uint32   CRC-32C of everything from byte 21 on
         21  attributes            int16    bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control,
                                            6 delete horizon
         23  lastOffsetDelta       int32
         27  baseTimestamp         int64    ms; of the first record
         35  maxTimestamp          int64    ms; of all records, or the append time when bit 3 is set
         43  producerId            int64    -1: not idempotent
         51  producerEpoch         int16
         53  baseSequence          int32
         57  recordsCount          int32
         61  records               compressed as one block

https://kafka.apache.org/documentation/#recordbatch, KIP-98, KIP-32. Fields keep Kafka's names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from eventbus.errors import CorruptRecord, UnsupportedCompression
from eventbus.records.compression import decompress
from eventbus.records.crc import crc32c
from eventbus.records.record import Columns, decode_records
from eventbus.records.sequence import increment_sequence
from eventbus.types import Compression, Record, TimestampType

Buffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview
"""A batch to which the log may still assign offsets: built here, or part of a request."""

HEADER_BYTES = 61
MAGIC = 2
LENGTH_OVERHEAD_BYTES = 12
"""The size of the base offset and the batch length, which ``batch_length`` does not count."""
CRC_POSITION = 17
CRC_START = 21

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")

_unpack_header = BATCH_HEADER.unpack_from
MAX_OFFSET = (1 << 63) - 1


class BatchHeader(NamedTuple):
    """The 61 bytes in front of every batch, in wire order."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """The last offset of this batch, whether or not compaction left a record there."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec. Raises `UnsupportedCompression` for an unknown number."""
        codec = self.attributes & COMPRESSION_MASK
        try:
            return Compression(codec)
        except ValueError:
            raise UnsupportedCompression(
                f"batch at offset {self.base_offset}: compression codec {codec} is unknown; use none, gzip, snappy, "
                "lz4 or zstd"
            ) from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if it contains markers (commit, abort) instead of records."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time until which compaction keeps its tombstones or marker (KIP-534); None before it was first cleaned.

        Decoding is not affected: timestamps are deltas to ``base_timestamp_ms``, whatever its meaning.
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1 if the producer is not idempotent."""
        if self.base_sequence < 0:
            return -1
        return increment_sequence(self.base_sequence, self.last_offset_delta)


_NewHeader = Callable[[type[BatchHeader], tuple[int, ...]], BatchHeader]
_new_header = cast("_NewHeader", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]  half of _make


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at ``position``. The batch itself may still be incomplete.

    Raises `CorruptRecord` if fewer than 61 bytes are left, or if magic, length or counts are invalid.
    """
    try:
        header = _new_header(BatchHeader, _unpack_header(buffer, position))
    except struct.error:
        left = max(len(buffer) - position, 0)
        raise CorruptRecord(f"batch header at byte {position} needs {HEADER_BYTES} bytes, {left} are left") from None
    if header[3] != MAGIC or header[1] < HEADER_BYTES - LENGTH_OVERHEAD_BYTES or header[6] < 0 or header[12] < 0:
        raise CorruptRecord(f"batch header at byte {position}: {_header_fault(header)}")
    return header


def _header_fault(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"magic is {header.magic}, only {MAGIC} is known (damaged, or written before Kafka 0.11)"
    if header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
        return f"batch length {header.batch_length} is shorter than a header"
    return f"last offset delta {header.last_offset_delta} and record count {header.records_count} must not be negative"


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> None:
    """Raise `CorruptRecord` unless the whole batch is there and its CRC-32C is right."""
    end = position + header[1] + LENGTH_OVERHEAD_BYTES
    if end > len(buffer):
        raise CorruptRecord(
            f"batch at byte {position} (offset {header[0]}) is cut off: {end - position} bytes long, "
            f"{len(buffer) - position} are left"
        )
    actual = crc32c(memoryview(buffer)[position + CRC_START : end])
    if actual != header[4]:
        raise CorruptRecord(
            f"batch at byte {position} (offset {header[0]}): CRC-32C is {actual:#010x}, header says {header[4]:#010x}"
        )


def write_crc(batch: WritableBuffer) -> None:
    """Compute the CRC of the batch in this buffer and store it."""
    CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))


def patch_offsets(batch: WritableBuffer, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write base offset and leader epoch. Both fields are before the CRC's range, so the CRC stays valid.

    A damaged leader epoch is therefore not noticed. It does no harm, because it is not read.
    """
    _BASE_OFFSET.pack_into(batch, position, base_offset)
    _LEADER_EPOCH.pack_into(batch, position + 12, leader_epoch)


def stamp_log_append_time(batch: WritableBuffer, now_ms: int) -> None:
    """Set the timestamp type to LogAppendTime and the timestamp of every record to ``now_ms`` (KIP-32).

    The only change on append that needs a new CRC.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, CRC_START)
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes | TIMESTAMP_TYPE_BIT)
    _MAX_TIMESTAMP.pack_into(batch, 35, now_ms)
    write_crc(batch)


class RecordBatch:
    """An immutable view of a whole batch inside a buffer. Records are decoded on request."""

    __slots__ = ("buffer", "header", "position")

    def __init__(self, buffer: Buffer, position: int = 0, header: BatchHeader | None = None) -> None:
        self.buffer = buffer
        self.position = position
        self.header = header if header is not None else read_header(buffer, position)

    def __repr__(self) -> str:
        header = self.header
        return (
            f"RecordBatch(offsets {header.base_offset}..{header.last_offset}, {header.records_count} records, "
            f"{header.size_bytes} bytes, attributes {header.attributes:#x})"
        )

    def columns(self) -> Columns:
        """Decode offsets, timestamps, keys, values and headers. Raises `CorruptRecord`."""
        header = self.header
        end = self.position + header.size_bytes
        if end > len(self.buffer):
            check_crc(self.buffer, header, self.position)
        columns = Columns()
        data = self.buffer if isinstance(self.buffer, bytes) else bytes(self.buffer[self.position : end])
        position = self.position if data is self.buffer else 0
        try:
            check_base_offset(header)
            decode_body(
                data,
                position + HEADER_BYTES,
                position + header.size_bytes,
                header.attributes,
                header.records_count,
                header.last_offset_delta,
                header.base_offset,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
                columns,
            )
        except CorruptRecord as error:
            raise CorruptRecord(f"batch at byte {self.position} (offset {header.base_offset}): {error}") from None
        return columns

    def records(self) -> list[Record]:
        """Decode all records, payload only; their offsets are in `columns`."""
        columns = self.columns()
        headers = columns.headers
        if not headers:
            return list(map(Record, columns.keys, columns.values, [()] * len(columns.keys), columns.timestamps_ms))
        return [
            Record(key, value, headers.get(index, ()), timestamp_ms)
            for index, (key, value, timestamp_ms) in enumerate(
                zip(columns.keys, columns.values, columns.timestamps_ms, strict=True)
            )
        ]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())


def iter_batches(buffer: Buffer, position: int = 0, *, verify: bool = True) -> Iterator[RecordBatch]:
    """Yield the whole batches from ``position`` on; an incomplete last batch is ignored.

    ``verify`` checks each CRC. Raises `CorruptRecord` for an invalid header or a wrong CRC.
    """
    size = len(buffer)
    while size - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        end = position + header[1] + LENGTH_OVERHEAD_BYTES
        if end > size:
            return
        if verify:
            check_crc(buffer, header, position)
        yield RecordBatch(buffer, position, header)
        position = end


def check_base_offset(header: BatchHeader, previous_end: int = 0) -> None:
    """Raise `CorruptRecord` unless the batch's offsets follow ``previous_end`` and fit 63 bits: no CRC covers the
    base."""
    if not previous_end <= header[0] <= MAX_OFFSET - header[6]:
        raise CorruptRecord(f"batch at offset {header[0]} cannot follow offset {previous_end - 1}")


def decode_body(
    data: bytes,
    position: int,
    limit: int,
    attributes: int,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    columns: Columns,
) -> int:
    """Append the records in ``data[position:limit]``, which follow a header, to ``columns``.

    Return the size of decompressed records, or 0 without compression.
    """
    grown = 0
    if attributes & COMPRESSION_MASK:
        data = decompress(attributes & COMPRESSION_MASK, memoryview(data)[position:limit])
        position, limit = 0, len(data)
        grown = limit
    decode_records(data, position, limit, count, last_offset_delta, base_offset, base_timestamp_ms, columns)
    if attributes & TIMESTAMP_TYPE_BIT and count:
        columns.timestamps_ms[-count:] = [max_timestamp_ms] * count
    return grown


def pack_batch(
    records: bytes,
    *,
    count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build a batch of encoded (and, according to ``attributes``, compressed) records."""
    batch = bytearray().join((
        BATCH_HEADER.pack(
            0, len(records) + HEADER_BYTES - LENGTH_OVERHEAD_BYTES, -1, MAGIC, 0, attributes, count - 1,
            base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, count,
        ),
        records,
    ))  # fmt: skip
    write_crc(batch)
    return batch
