"""Compaction: only the last record of each key stays, in its place and at its offset.

::

    | cleaned before        | dirty                 | not yet: too young, undecided or unflushed | active |
    0          first_dirty_offset              end of the last cleanable segment

A cleaning reads the dirty part and notes the last offset of each key. Then it rewrites all segments from the start,
without the records that a later record replaces, and puts the result where the old segments were (`eventbus.log.swap`).
Neighbours that became small are merged.

The rules are those of Kafka's log cleaner (KIP-58, KIP-98, KIP-354, KIP-534):

- Only sealed segments are touched, below the last stable offset, and here also below what is on disk in its own file.
- A record without a value (a tombstone) outlives the values it deletes by ``delete.retention.ms``: the first cleaning
  that meets it writes the *delete horizon* into its batch, a cleaning after that time drops it.
- Records of aborted transactions are dropped. A marker stays while any batch of its transaction exists, then until its
  own delete horizon.
- The last batch of a producer that is still known stays, if need be without records, for its sequence number.
- Batches keep their offsets and their codec.

One thing is added: where Kafka leaves a hole between the offsets of two batches, there is a batch without records (61
bytes for the whole run). So every log is an unbroken chain of offsets, compacted or not, and recovery and readers still
detect a missing batch.

All of it runs on the owner's thread, in slices of a few milliseconds; only the flushes may run elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eventbus.log.index import LARGEST_RELATIVE_OFFSET
from eventbus.log.offset_map import MAX_KEYS, NewestOffsets, type_of
from eventbus.log.retention import newest_timestamp_ms
from eventbus.log.segment import Segment
from eventbus.log.storage import Buffer, Storage
from eventbus.log.swap import CLEANED, remove_files, stem_of
from eventbus.log.wall_time import WallTime
from eventbus.records.batch import HEADER_BYTES, BatchHeader, RecordBatch, iter_batches, read_header
from eventbus.records.record import Columns
from eventbus.records.rewrite import empty_batch, keep_header, keep_records, open_batch
from eventbus.records.sequence import decrement_sequence
from eventbus.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from eventbus.log.partition_log import PartitionLog

_SLICE_WORK = 1_000
_BATCH_WORK = 6
_WORK_BYTES = 4 << 10
"""The work of a slice, in records, which takes about 3 ms. A batch counts as this many records plus one for each 4
KiB, which must be read, checked and copied."""
_GROUP_SEGMENTS = 64
"""The most segments merged into one, because their files are removed in one slice."""
_WINDOW_BYTES = 64 << 10
_WRITE_BYTES = 128 << 10
_NEVER = 1 << 62

Pause = Callable[[], None] | None
"""Yielded between slices: None lets other work run; a function is a flush to be called first, in any thread."""


class LastBatch(NamedTuple):
    """The last batch that a live producer wrote to a log."""

    last_offset: int
    """The end of the producer's last batch of records; -1 if only its markers are left."""
    producer_epoch: int


def last_batches(log: PartitionLog) -> dict[int, LastBatch]:
    """Return, for each producer that is still known, the last batch, which must stay."""
    last: dict[int, LastBatch] = {}
    for producer_id, producer in log.producers.states.producers.items():
        last_offset = -1
        if producer.batches:
            base_sequence, last_sequence, base_offset, _ = producer.batches[-1]
            last_offset = base_offset + decrement_sequence(last_sequence, base_sequence)
        last[producer_id] = LastBatch(last_offset, producer.producer_epoch)
    return last


class Cleanable(NamedTuple):
    """The part of a log that may be cleaned now."""

    segments: tuple[Segment, ...]
    """The segments, starting with the first; empty if cleaning would gain nothing."""
    end_offset: int
    first_dirty_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """A dirty record is older than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        """The fraction that was never cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: PartitionLog, cleaned_offset: int, wall_now_ms: int, wall: WallTime | None = None) -> Cleanable:
    """Return the part of ``log`` that may be cleaned; it was cleaned up to ``cleaned_offset`` (0: never, or unknown).

    Raises `Damage` and `OSError`.
    """
    first_dirty = cleaned_offset if log.log_start_offset <= cleaned_offset <= log.log_end_offset else 0
    # Below the last stable offset, because the outcome of later transactions is unknown. Below the durable offset,
    # because replaying the journal after a crash would write the old bytes over the compacted segment.
    limit = min(log.last_stable_offset, log.high_watermark, log.durable_offset)
    lag_ms = log.config.min_compaction_lag_ms
    wall = wall or WallTime(wall_now_ms)
    gaps = log.allows_gaps
    found: list[Segment] = []
    end_offset = clean_bytes = dirty_bytes = 0
    oldest_ms = _NEVER
    for number, (segment, following) in enumerate(zip(log.segments, log.segments[1:], strict=False)):
        is_dirty = following.base_offset > first_dirty
        if following.base_offset > limit or not segment.size_bytes:
            break
        if is_dirty and lag_ms:
            segment.largest_timestamp_ms(gaps=gaps)  # raises Damage, which makes the next line wait
            newest_ms = newest_timestamp_ms(log.segments, number, log.config, wall_now_ms, wall, gaps=gaps)
            if newest_ms is None or newest_ms > wall_now_ms - lag_ms:
                break
        found.append(segment)
        end_offset = following.base_offset
        if not is_dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
        if segment.first_timestamp_ms == NO_TIMESTAMP:  # once: otherwise each check would open thousands of files
            segment.first_timestamp_ms = read_header(segment.file.pread(0, HEADER_BYTES)).max_timestamp_ms
        if segment.first_timestamp_ms >= 0:
            oldest_ms = min(oldest_ms, wall.believed(segment.first_timestamp_ms, wall_now_ms))
    is_overdue = oldest_ms < wall_now_ms - log.config.max_compaction_lag_ms
    return Cleanable(tuple(found), end_offset, first_dirty, clean_bytes, dirty_bytes, is_overdue)


class Stale(Exception):
    """Raised if the log changes during a cleaning (retention, deletion, another policy): it ends, and nothing is
    lost."""


class Cleaning:
    """A single cleaning of a log. Drive it with `run`; afterwards ``end_offset`` is the offset up to which it is
    clean."""

    def __init__(
        self,
        storage: Storage,
        log: PartitionLog,
        plan: Cleanable,
        now_ms: int,
        live_producers: Mapping[int, LastBatch],
        *,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self.log = log
        self.end_offset = plan.end_offset
        self.bytes_before = 0
        self.bytes_after = 0
        """The size of the segments that took the place of those with ``bytes_before``."""
        self._storage = storage
        self._segments = list(plan.segments)
        self._ends = [*(segment.base_offset for segment in plan.segments[1:]), plan.end_offset]
        self._first_dirty_offset = plan.first_dirty_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + log.config.delete_retention_ms
        self._live_producers = live_producers
        self._keys = NewestOffsets(max_keys)
        self._work = 0
        self._with_records: set[int] = set()
        """Producers whose current transaction still has a batch in what was written so far."""

    def __repr__(self) -> str:
        return f"Cleaning({self.log.topic_partition}, {self._first_dirty_offset}..{self.end_offset})"

    def run(self, before_swap: Callable[[], None]) -> Generator[Pause, None, None]:
        """Clean, a slice at a time. ``before_swap`` is called once, before the first segment is replaced.

        Close the generator if it is not run to its end, after a failed flush or a cancellation. Raises `Damage`,
        `CorruptRecord`, `Stale`, `OSError`, and whatever ``before_swap`` raises: the log is then unchanged, or its
        older part is cleaned.
        """
        yield from self._read_dirty()
        segments = [
            (segment, end)
            for segment, end in zip(self._segments, self._ends, strict=True)
            if segment.base_offset < self.end_offset
        ]
        announced = False
        while segments:
            writer = _Writer(self._storage, self.log, segments[0][0].base_offset, self._now_ms)
            try:
                group = yield from self._write_group(segments, writer)
                if len(group) == 1 and not writer.differs_from(group[0]):
                    continue
                yield from self._flush(writer)
                # Retention or a deletion may have run during the flush, which is a pause.
                self._raise_if_stale()
                if not announced:
                    before_swap()
                    announced = True
                self.bytes_before += sum(segment.size_bytes for segment in group)
                self.bytes_after += writer.segment.size_bytes
                self.log.replace_segments(group, writer.segment, writer.lost_markers)
                yield from _close(group)
            finally:
                writer.discard()

    def _write_group(
        self, segments: list[tuple[Segment, int]], writer: _Writer
    ) -> Generator[Pause, None, list[Segment]]:
        """Write the first of ``segments``, and as many of the next as fit; remove them from the list and return
        them."""
        group: list[Segment] = []
        end_offset = 0
        while segments and len(group) < _GROUP_SEGMENTS and (not group or writer.has_room_for(*segments[0])):
            segment, end_offset = segments.pop(0)
            yield from self._filter(segment, end_offset, writer)
            group.append(segment)
        writer.finish(end_offset)
        return group

    def _flush(self, writer: _Writer) -> Iterator[Pause]:
        if not self._storage.durable:
            return
        file = writer.segment.file
        file.hold()
        try:
            yield file.sync
        finally:
            file.release()

    # -- what is newest -----------------------------------------------------------------------------------------------

    def _read_dirty(self) -> Iterator[Pause]:
        keys = self._keys
        for segment, end in zip(self._segments, self._ends, strict=True):
            if end <= self._first_dirty_offset:
                continue
            for batch in self._batches(segment, end):
                if keys.is_full:
                    # Clean up to here only; the next cleaning continues at this batch with an empty map.
                    self.end_offset = batch.header.base_offset
                    break
                keys.add(batch, self._first_dirty_offset)
                if self._is_slice_over(batch):
                    yield None
            if self.end_offset < end:
                break
        yield from self._decide_open()

    def _decide_open(self) -> Iterator[Pause]:
        """Decide transactions that continue beyond the part to be cleaned, by their markers there."""
        offset, log = self.end_offset, self.log
        while self._keys.undecided and offset < log.high_watermark:
            self._raise_if_stale()
            if offset < log.log_start_offset:
                return  # nor is anything left to clean: it was deleted by request
            data = log.read(offset, _WINDOW_BYTES, max_offset=log.high_watermark)
            for batch in iter_batches(data, verify=False):
                if batch.header.is_control:
                    self._keys.decide(batch)
                offset = batch.header.next_offset
            yield None

    def _batches(self, segment: Segment, end_offset: int) -> Iterator[RecordBatch]:
        """Yield the batches of a segment, after checking every CRC."""
        position, offset = 0, segment.base_offset
        while offset < end_offset:
            self._raise_if_stale()
            data, offset = segment.read(
                position, offset, _WINDOW_BYTES, _NEVER, one=True, check_crcs=True, gaps=self.log.allows_gaps
            )
            position += len(data)
            for batch in iter_batches(data, verify=False):
                self._raise_if_stale()
                yield batch

    def _is_slice_over(self, batch: RecordBatch) -> bool:
        """Count the work that a batch made; return True if other work should run now."""
        header = batch.header
        self._work += header.records_count + _BATCH_WORK + header.size_bytes // _WORK_BYTES
        if self._work < _SLICE_WORK:
            return False
        self._work = 0
        return True

    def _raise_if_stale(self) -> None:
        log = self.log
        if log.closed or log.poisoned or "compact" not in log.config.cleanup_policy:
            raise Stale(f"{log.topic_partition} is no longer to be cleaned")
        first = self._segments[0]
        if not log.segments or log.segments[0].base_offset != first.base_offset:
            raise Stale(f"{log.topic_partition}: retention took the segment at {first.base_offset}")

    # -- what stays ---------------------------------------------------------------------------------------------------

    def _filter(self, segment: Segment, end_offset: int, writer: _Writer) -> Iterator[Pause]:
        for batch in self._batches(segment, end_offset):
            header = batch.header
            if header.base_offset >= self.end_offset:
                writer.keep(batch)
            elif header.is_control:
                self._filter_marker(batch, writer)
            else:
                self._filter_batch(batch, writer)
            if self._is_slice_over(batch):
                yield None

    def _filter_batch(self, batch: RecordBatch, writer: _Writer) -> None:
        header = batch.header
        if header.is_transactional:
            # Also for an aborted batch, which is dropped below: the delete horizon of its marker begins only with a
            # cleaning that finds no batch of the transaction.
            self._with_records.add(header.producer_id)
            if self._keys.is_aborted(header):
                self._drop(batch, writer)
                return
        if not header.records_count:
            self._drop(batch, writer)
            return
        records, columns = open_batch(batch)
        kept = self._kept(header, columns)
        values = columns.values
        is_new_horizon = header.delete_horizon_ms is None and any(values[index] is None for index in kept)
        if not kept:
            self._drop(batch, writer)
        elif len(kept) < header.records_count or is_new_horizon:
            horizon_ms = self._horizon_ms if is_new_horizon else None
            writer.rewrite(header, keep_records(header, records, kept, columns, horizon_ms))
        else:
            writer.keep(batch)

    def _kept(self, header: BatchHeader, columns: Columns) -> list[int]:
        """Return the indexes of the records that stay."""
        newest = self._keys.newest_offsets(columns.keys)
        horizon_ms = header.delete_horizon_ms
        keeps_tombstones = horizon_ms is None or self._now_ms < horizon_ms
        return [
            index
            for index, (key, value, offset, newest_offset) in enumerate(
                zip(columns.keys, columns.values, columns.offsets, newest, strict=True)
            )
            if offset >= newest_offset and key is not None and (keeps_tombstones or value is not None)
        ]

    def _filter_marker(self, batch: RecordBatch, writer: _Writer) -> None:
        header = batch.header
        if header.records_count and type_of(batch) is None:
            writer.keep(batch)  # written by a later version: this one cannot know how long it is needed
            return
        had_records = header.producer_id in self._with_records
        self._with_records.discard(header.producer_id)
        if had_records:
            writer.keep(batch)
        elif not header.records_count:
            self._drop(batch, writer)
        elif header.delete_horizon_ms is None:
            # KIP-534: the time counts from the first cleaning that finds no batch. A slow consumer that has read the
            # records before their removal still has delete.retention.ms to read how the transaction ended.
            records, columns = open_batch(batch)
            everything = range(header.records_count)
            writer.rewrite(header, keep_records(header, records, everything, columns, self._horizon_ms))
        elif self._now_ms >= header.delete_horizon_ms:
            self._drop(batch, writer)
        else:
            writer.keep(batch)

    def _drop(self, batch: RecordBatch, writer: _Writer) -> None:
        """Drop the batch's records; keep its header if its producer continues from there."""
        header = batch.header
        last = self._live_producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None or not _is_last(header, last):
            writer.drop(header)
        elif header.records_count:
            writer.rewrite(header, keep_header(header))
        else:
            writer.keep(batch)


def _close(segments: Sequence[Segment]) -> Iterator[Pause]:
    """Close replaced segments, one per slice."""
    left = list(segments)
    try:
        while left:
            left.pop().close()
            yield None
    finally:
        for segment in left:
            segment.close()


def carry_out(run: Generator[Pause, None, None]) -> None:
    """Run all slices at once, flushes included."""
    with contextlib.closing(run):
        for pause in run:
            if pause is not None:
                pause()


def _is_last(header: BatchHeader, last: LastBatch) -> bool:
    if last.last_offset >= 0:
        return header.last_offset == last.last_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


class _Writer:
    """Writes the cleaned segment."""

    def __init__(self, storage: Storage, log: PartitionLog, base_offset: int, now_ms: int) -> None:
        self._storage = storage
        self._config = log.config
        self._parts: list[Buffer] = []
        self._buffered_bytes = 0
        self._next_offset = base_offset
        self._dropped_ms = NO_TIMESTAMP
        self._is_rewritten = False
        self.lost_markers: set[int] = set()
        stem = stem_of(log.directory, base_offset) + CLEANED
        remove_files(storage, stem)
        interval = log.config.index_interval_bytes
        self.segment = Segment(storage, stem, base_offset, now_ms, interval, create=True)

    def has_room_for(self, segment: Segment, end_offset: int) -> bool:
        """True if another segment may be merged into this one, by its present size, because it only shrinks."""
        config, mine = self._config, self.segment
        entries = len(mine.offset_index) + segment.size_bytes // max(config.index_interval_bytes, 61)
        return (
            mine.size_bytes + self._buffered_bytes + segment.size_bytes <= config.segment_bytes
            and end_offset - mine.base_offset <= LARGEST_RELATIVE_OFFSET
            and entries * 12 <= config.segment_index_bytes
        )

    def keep(self, batch: RecordBatch) -> None:
        """Keep the batch unchanged."""
        header = batch.header
        end = batch.position + header.size_bytes
        self._add(header, memoryview(batch.buffer)[batch.position : end])

    def rewrite(self, header: BatchHeader, batch: bytearray) -> None:
        """Write ``batch`` instead of the batch with this header."""
        self._is_rewritten = True
        if header.is_control and not read_header(batch).records_count:
            self.lost_markers.add(header.base_offset)
        self._add(header, batch)

    def drop(self, header: BatchHeader) -> None:
        """Drop the batch; its offsets are filled up later."""
        if header.is_control:
            self.lost_markers.add(header.base_offset)
        self._dropped_ms = max(self._dropped_ms, header.max_timestamp_ms)

    def finish(self, end_offset: int) -> None:
        """Complete the cleaned segment, which ends at ``end_offset``, after all of its records were kept or dropped."""
        self._fill_up(end_offset)
        self._write()
        self.segment.finish_indexes()

    def differs_from(self, original: Segment) -> bool:
        """True if the result is worth a swap. Batches that an earlier cleaning dropped make no difference."""
        return self._is_rewritten or self.segment.size_bytes != original.size_bytes

    def discard(self) -> None:
        """Close the files, and remove them unless they have been swapped in."""
        self.segment.close()
        with contextlib.suppress(OSError):  # left over; the next cleaning, or the next start, removes it
            remove_files(self._storage, self.segment.stem)

    def _add(self, header: BatchHeader, batch: Buffer) -> None:
        if header.base_offset > self._next_offset:
            self._fill_up(header.base_offset)
        self._put(batch, header.last_offset, header.max_timestamp_ms)

    def _fill_up(self, offset: int) -> None:
        if offset > self._next_offset:
            timestamp_ms, self._dropped_ms = self._dropped_ms, NO_TIMESTAMP
            self._put(empty_batch(self._next_offset, offset - 1, timestamp_ms), offset - 1, timestamp_ms)

    def _put(self, batch: Buffer, last_offset: int, timestamp_ms: int) -> None:
        segment = self.segment
        position = segment.size_bytes + self._buffered_bytes
        if timestamp_ms > segment.max_timestamp_ms:
            segment.max_timestamp_ms = timestamp_ms
            segment.max_timestamp_offset = last_offset
        if segment.since_index_bytes > self._config.index_interval_bytes:
            segment.index_batch(last_offset, position)
        segment.since_index_bytes += len(batch)
        self._parts.append(batch)
        self._buffered_bytes += len(batch)
        self._next_offset = last_offset + 1
        if self._buffered_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self.segment.file.append(b"".join(self._parts))
        self._parts.clear()
        self._buffered_bytes = 0
