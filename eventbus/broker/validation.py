"""Kafka's checks of a batch from outside before it is stored, header field by header field.

The records stay unread, except those of compacted topics, which need keys: the 61 bytes of the header are sufficient.
``base_offset`` and ``partition_leader_epoch`` are not checked; the log writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eventbus.errors import CorruptRecord, InvalidRecord, InvalidTimestamp, RecordTooLarge, UnsupportedCompression
from eventbus.records import BatchHeader, check_crc, iter_batches, patch_offsets, read_header
from eventbus.records.batch import HEADER_BYTES, WritableBuffer
from eventbus.types import Compression, TimestampType, TopicPartition

_CODEC_BITS = 0x07
_MAGIC_POSITION = 16
_OLD_MAGIC = (0, 1)


class RecordsWithoutKey(InvalidRecord):
    """Raised for records of a compacted topic without a key. ``indexes`` are their positions in the batch."""

    def __init__(self, message: str, indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.indexes = indexes


def check_batch(batch: WritableBuffer, topic_partition: TopicPartition) -> BatchHeader:
    """Return the header of the batch in ``batch``, which must be exactly one valid batch.

    Raises CorruptRecord (bytes damaged in transit), InvalidRecord (rules of the format), UnsupportedCompression. The
    log checks sequence, epoch and transaction.
    """
    where = f"produce to {topic_partition}"
    try:
        header = read_header(batch)
    except CorruptRecord as error:
        if len(batch) >= HEADER_BYTES and batch[_MAGIC_POSITION] in _OLD_MAGIC:
            raise InvalidRecord(f"{where}: {error}; send record batches of version 2 (Kafka 0.11)") from None
        raise CorruptRecord(f"{where}: {error}") from None
    if header.size_bytes != len(batch):
        if header.size_bytes > len(batch):
            raise CorruptRecord(f"{where}: the batch says {header.size_bytes:,} bytes, {len(batch):,} came")
        raise InvalidRecord(
            f"{where}: {len(batch) - header.size_bytes:,} bytes after the batch; send one batch at a time"
        )
    for reason in _broken_rules(header):
        raise InvalidRecord(f"{where}: {reason}")
    if header.attributes & _CODEC_BITS > max(Compression):
        raise UnsupportedCompression(
            f"{where}: codec {header.attributes & _CODEC_BITS} is none of "
            f"{', '.join(f'{codec.name.lower()} ({codec})' for codec in Compression)}"
        )
    try:
        check_crc(batch, header)
    except CorruptRecord as error:
        raise CorruptRecord(f"{where}: {error}; it was damaged on the way: send it again") from None
    return header


def _broken_rules(header: BatchHeader) -> Iterator[str]:
    if header.records_count <= 0:
        yield f"a batch of {header.records_count} records"
    if header.last_offset_delta != header.records_count - 1:
        yield f"last offset delta {header.last_offset_delta} in a batch of {header.records_count} records"
    if header.is_control:
        yield "a control batch; only the log itself writes those"
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        yield "timestamp type LogAppendTime; only the log itself sets it"
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        yield (
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}; "
            "both start at 0"
        )
    if header.producer_id < 0 and header.is_transactional:
        yield "a transactional batch without a producer id"


def refuse_large(size_bytes: int, limit_bytes: int, topic_partition: TopicPartition) -> RecordTooLarge:
    """Return the error for a batch above the topic's limit."""
    topic = topic_partition.topic
    return RecordTooLarge(
        f"{size_bytes:,} bytes for {topic_partition}, which takes at most max.message.bytes={limit_bytes:,}: "
        f"send less at once, or `eventbus topics alter {topic} --config max.message.bytes={size_bytes}`"
    )


def refuse_late(
    timestamp_ms: int, wall_now_ms: int, limit_ms: int, topic_partition: TopicPartition
) -> InvalidTimestamp:
    """Return the error for a record that is further ahead of the wall clock than ``message.timestamp.after.max.ms``."""
    return InvalidTimestamp(
        f"produce to {topic_partition}: a record has the timestamp {timestamp_ms}, which is "
        f"{timestamp_ms - wall_now_ms:,} ms ahead of the log's clock. The topic takes at most "
        f"message.timestamp.after.max.ms={limit_ms:,}, because retention would keep the record, and all that follow, "
        f"until that time. {_other_unit(timestamp_ms, wall_now_ms)}"
    )


def check_oldest(batch: WritableBuffer, wall_now_ms: int, limit_ms: int, topic_partition: TopicPartition) -> None:
    """Raise InvalidTimestamp for a record older than ``message.timestamp.before.max.ms``. Decodes the batch."""
    patch_offsets(batch, 0, -1)
    for opened in iter_batches(batch, verify=False):
        oldest_ms = min((time_ms for time_ms in opened.columns().timestamps_ms if time_ms >= 0), default=wall_now_ms)
        if wall_now_ms - oldest_ms > limit_ms:
            raise InvalidTimestamp(
                f"produce to {topic_partition}: a record has the timestamp {oldest_ms}, which is "
                f"{wall_now_ms - oldest_ms:,} ms before the log's clock. The topic takes at most "
                f"message.timestamp.before.max.ms={limit_ms:,}. {_other_unit(oldest_ms, wall_now_ms)}"
            )


def _other_unit(timestamp_ms: int, wall_now_ms: int) -> str:
    """Return advice on a timestamp that is out of range: a wrong unit is the usual cause."""
    units = {
        "nanoseconds": timestamp_ms // 1_000_000,
        "microseconds": timestamp_ms // 1_000,
        "seconds": timestamp_ms * 1_000,
    }
    for unit, in_ms in units.items():
        if abs(in_ms - wall_now_ms) < wall_now_ms // 10:
            return f"Is it in {unit}? Give milliseconds since the epoch, as int(time.time() * 1000)."
    return "Correct the timestamp or the clocks, or alter that config of the topic."


def check_keys(batch: WritableBuffer, topic_partition: TopicPartition) -> None:
    """Raise RecordsWithoutKey if a key is missing: compaction could not know what is replaced. Decodes the batch."""
    patch_offsets(batch, 0, -1)  # the field may contain anything, and the log overwrites it
    for opened in iter_batches(batch, verify=False):
        indexes = [index for index, key in enumerate(opened.columns().keys) if key is None]
        if indexes:
            named = f"record {indexes[0]} has" if len(indexes) == 1 else f"{len(indexes)} records have"
            raise RecordsWithoutKey(
                f"produce to {topic_partition}: {named} no key, and topic {topic_partition.topic!r} is "
                "compacted (cleanup.policy): give it a key, or send it to a topic with cleanup.policy=delete",
                indexes,
            )
