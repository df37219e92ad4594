"""The log of one partition: append, read, roll, retain.

::

    log_start_offset <= recovery_point, high_watermark <= log_end_offset
                        (on disk)       (readable)        (the next offset)

Every ``now_ms`` here is wall time. Everything is synchronous and runs on one thread. `eventbus.log.commit` flushes what
was appended, and then moves ``recovery_point`` and ``high_watermark``.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

from eventbus.errors import CorruptRecord, LogPoisoned, OffsetOutOfRange, StorageError
from eventbus.log import recovery, retention, swap
from eventbus.log.batch_iterator import batch_bounds
from eventbus.log.config import LogConfig
from eventbus.log.journal import part_place, part_target
from eventbus.log.leftovers import remove_directory
from eventbus.log.metadata import open_partition_metadata, write_partition_metadata
from eventbus.log.producer_state import CachedBatch
from eventbus.log.producers import LogProducers
from eventbus.log.segment import Damage, Segment
from eventbus.log.storage import Buffer, File, OutOfDescriptors, Storage, storage_error, write_atomic
from eventbus.log.wall_time import WallTime
from eventbus.records.batch import HEADER_BYTES, BatchHeader, WritableBuffer, patch_offsets, stamp_log_append_time
from eventbus.records.control import EndTransactionMarker
from eventbus.records.single import BatchSpan
from eventbus.types import NO_TIMESTAMP, AbortedTransaction, OffsetAndTimestamp, TimestampType, TopicPartition

LEADER_EPOCH = 0
"""The leader epoch is constant, because the embedded log never changes its leader."""

_logger = logging.getLogger("eventbus.log")

_ROLL_OFFSETS = 1 << 30
_EVERY_SEGMENT = 1 << 62
_MAX_HINTS = 64
_MAX_INDEXED = 8


class AppendInfo(NamedTuple):
    """The offsets of an appended batch. ``timestamp_ms`` is the log append time, or -1 if the producer's timestamps
    stand."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    duplicate: bool = False
    """The producer's batch was stored before: these are its first offsets, and nothing was stored again."""


_NewInfo = Callable[[type[AppendInfo], tuple[int, int, int, bool]], AppendInfo]
_new_info = cast("_NewInfo", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]  a third of the cost


class Unsynced(NamedTuple):
    """The parts of a log that are not on disk yet."""

    log: PartitionLog
    files: list[File]
    sealed: list[Segment]
    metadata: File | None
    directories: tuple[str, ...]
    end_offset: int
    caches: list[File]
    """Files of producers and aborted transactions."""


class Journaled(NamedTuple):
    """The data that a flush writes into the redo journal instead of flushing its file."""

    log: PartitionLog
    file: File
    end_offset: int
    size_bytes: int


class PartitionLog:
    """The log of a partition; open it with `PartitionLog.open`. Nothing is on disk before the first append."""

    def __init__(
        self,
        storage: Storage,
        topic_partition: TopicPartition,
        config: LogConfig,
        recovered: recovery.Recovered,
        producers: LogProducers,
    ) -> None:
        self.topic_partition = topic_partition
        self.directory = str(topic_partition)
        self.config = config
        self.topic_id = recovered.topic_id
        self.segments: list[Segment] = recovered.segments
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.log_end_offset
        self.high_watermark = recovered.log_end_offset
        self.recovery_point = recovered.log_end_offset
        """Every byte below is on disk in its file: recovery starts here."""
        self.poisoned = ""
        """The reason why nothing may be written any more; empty normally."""
        self.closed = False
        self.producers = producers
        """The state of the producers that wrote, and the aborted transactions."""
        self._storage = storage
        self._producers = producers.states.producers
        self._append_log_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._sealed_unsynced: list[Segment] = []
        # A process that was killed may have left names that exist but are not durable.
        self._unsynced_names = (self.directory, "") if self.segments else ()
        self._metadata: File | None = None
        """The open ``partition.metadata``, until the first flush has covered it."""
        self._hints: dict[int, int] = {}
        """Positions at which reads ended, by the first offset of the batch there."""
        self._indexed: list[Segment] = []
        """Sealed segments whose indexes are in memory."""
        self._deleted: list[str] = []
        """Stems of deleted segments whose files are still to be removed, oldest first."""
        self._active = self.segments[-1] if self.segments else None
        self._roll_bytes = 0
        self._roll_timestamp_ms = 0
        self._journal_target = b""
        if self._active is not None:
            self._set_roll_limits(self._active)
            self._journal_target = part_target(self._active.path, self.topic_id)

    @classmethod
    def open(
        cls,
        storage: Storage,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean_shutdown: bool = False,
        topic_id: str = "",
    ) -> PartitionLog:
        """Open the log in the directory ``topic-partition``, recovering everything beyond ``recovery_point``.

        ``recovery_point`` is the published durable watermark (-1: unknown, its checkpoint is damaged): bytes below it
        are never cut. After a ``clean_shutdown`` it is the end of the log, and almost nothing is read. A directory with
        another ``topic_id`` belongs to a deleted topic with this name and is set aside.
        """
        try:
            recovered = recovery.recover(
                storage, topic_partition, config, now_ms, recovery_point, log_start_offset, clean_shutdown, topic_id
            )
            producers = LogProducers(storage, str(topic_partition))
            producers.recover(recovered.segments, recovered.log_end_offset, now_ms)
        except Damage as damage:
            raise recovery.corrupt_record(storage, topic_partition, damage) from None
        except OSError as error:
            raise storage_error(error, f"opening {topic_partition} in {storage.describe()}") from error
        return cls(storage, topic_partition, config, recovered, producers)

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The end of what read-committed readers may read.

        It is the first offset of the oldest transaction that is open, or whose marker is not below the high watermark
        yet. The records with which a transaction began may have been deleted: it is never below ``log_start_offset``.
        """
        return max(self.producers.states.last_stable_offset(self.high_watermark), self.log_start_offset)

    @property
    def published_offset(self) -> int:
        """The end of what other processes may read: `last_stable_offset`, or less after a disk error."""
        return self.producers.published_offset(self.last_stable_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions with any offset from ``start_offset`` to before ``end_offset``."""
        return self.producers.aborted.overlapping(start_offset, end_offset)

    def aborted_in(self, batches: Buffer, offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that a reader of ``batches`` from ``offset`` on needs."""
        if self.producers.aborted.last_offset < offset:
            return ()
        position = end_offset = 0
        while position < len(batches):
            _, end_offset, size = batch_bounds(batches[position : position + HEADER_BYTES])
            position += size
        return self.aborted_transactions(offset, end_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.file.size for segment in self.segments)

    @property
    def allows_gaps(self) -> bool:
        """True if offsets may be missing between batches, because compaction removed them."""
        return "compact" in self.config.cleanup_policy

    @property
    def durable_offset(self) -> int:
        """Below this offset every byte is in its file, as durable as the storage is."""
        return self.recovery_point if self._storage.durable else self.log_end_offset

    def update_config(self, config: LogConfig) -> None:
        """Use other configs from the next append on."""
        self.config = config
        self._append_log_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        if self._active is not None and self._roll_bytes >= 0:
            self._set_roll_limits(self._active)

    def poison(self, why: str) -> None:
        """Refuse all writes from now on: the content of the disk is unknown until the log is opened again."""
        if not self.poisoned:
            self.poisoned = why
        self._roll_bytes = -1  # sends the next append to the slow path, which refuses

    def raise_if_poisoned(self) -> None:
        if self.poisoned:
            raise LogPoisoned(
                f"{self.topic_partition} takes no more writes: {self.poisoned}. Close the log and open it again: it "
                "re-verifies itself and keeps everything acknowledged"
            )

    # -- append -------------------------------------------------------------------------------------------------------

    def append(self, batch: WritableBuffer, header: BatchHeader | BatchSpan, now_ms: int) -> AppendInfo:
        """Give the batch the next offsets and write it: all of it, or nothing.

        The caller has validated the batch; ``header`` is its header. A batch with a producer id must be the next batch
        of its producer (see `eventbus.log.producer_state` for rules and errors). A duplicate is answered with the first
        offsets, and a marker ends a transaction. `StorageFull` and `StorageError` leave the log unchanged, and the same
        call may succeed later.
        """
        producer_id = header.producer_id
        producer = marker = None
        if producer_id >= 0:
            producer = self._producers.get(producer_id)
            if (
                # The usual batch continues its producer's sequence. Comparing four fields here is much cheaper than
                # `check`, which also has to find duplicates and markers.
                producer is None
                or header.base_sequence != producer.next_sequence
                or header.producer_epoch != producer.producer_epoch
                or header.is_transactional is not producer.in_transaction
            ):
                producer = None
                found = self.producers.check(batch, header)
                if isinstance(found, EndTransactionMarker):
                    marker = found
                elif found is not None:
                    return self._duplicate(found, header.last_offset_delta)
        timestamp_ms = header.max_timestamp_ms
        if self._append_log_time:
            timestamp_ms = now_ms
            stamp_log_append_time(batch, now_ms)
        segment = self._active
        if segment is None:
            segment = self._writable(len(batch), timestamp_ms, now_ms)
        file = segment.file
        position = file.size
        # All rare cases share this comparison: a full segment, an old one, a poisoned or closed log (`_roll_bytes` is
        # -1 then).
        if position + len(batch) > self._roll_bytes or timestamp_ms > self._roll_timestamp_ms or timestamp_ms < 0:
            segment = self._writable(len(batch), timestamp_ms, now_ms)
            file = segment.file
            position = file.size
        base_offset = self.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        patch_offsets(batch, base_offset, LEADER_EPOCH)
        # Nothing in memory has changed yet, so a failed write needs no undo besides that of the file.
        try:
            file.append(batch)
        except OSError as error:
            raise self._undo(segment, error) from error
        # From here on the batch counts: every change of the state below follows from bytes that are in the file.
        self.log_end_offset = last_offset + 1
        if producer is not None:
            producer.appended(header.base_sequence, header.last_offset_delta, base_offset, timestamp_ms)
        elif producer_id >= 0 and self.producers.append(header, marker, base_offset, timestamp_ms, segment):
            self._unsynced_names = self._unsynced_names or (self.directory,)
        if timestamp_ms > segment.max_timestamp_ms:
            segment.max_timestamp_ms = timestamp_ms
            segment.max_timestamp_offset = last_offset
        if segment.since_index_bytes > self.config.index_interval_bytes:
            self._index(segment, last_offset, position)
        segment.since_index_bytes += len(batch)
        return _new_info(
            AppendInfo, (base_offset, last_offset, timestamp_ms if self._append_log_time else NO_TIMESTAMP, False)
        )

    def _duplicate(self, stored: CachedBatch, last_offset_delta: int) -> AppendInfo:
        _, _, base_offset, timestamp_ms = stored
        time_ms = timestamp_ms if self._append_log_time else NO_TIMESTAMP
        return AppendInfo(base_offset, base_offset + last_offset_delta, time_ms, duplicate=True)

    def _index(self, segment: Segment, last_offset: int, position: int) -> None:
        """Add an index entry. A segment is full if its index is, or soon cannot hold its offsets."""
        # Checked once per index interval and not per batch, because it is as rare.
        if self.producers.grown(segment.since_index_bytes):
            self.producers.take_snapshot(self.segments, self.log_end_offset, self.recovery_point)
            self._unsynced_names = self._unsynced_names or (self.directory,)
        bytes_used = segment.index_batch(last_offset, position)
        if bytes_used + 12 > self.config.segment_index_bytes or last_offset - segment.base_offset > _ROLL_OFFSETS:
            self._roll_bytes = 0

    def _undo(self, segment: Segment, error: OSError) -> StorageError:
        """Cut off the bytes of a failed write. If that fails too, the end of the file is unknown: poison the log."""
        try:
            if not isinstance(error, OutOfDescriptors):  # the file could not even be opened: nothing was written
                segment.file.truncate(segment.file.size)
        except OSError as second:
            # The file may end in half a batch. A further append would follow it, and the next start would cut both off
            # as a torn tail.
            self.poison(f"a write to {segment.path} failed and could not be undone ({second.strerror or second})")
        return storage_error(error, f"appending to {self.topic_partition} ({segment.path})")

    # -- segments -----------------------------------------------------------------------------------------------------

    def _writable(self, size: int, timestamp_ms: int, now_ms: int) -> Segment:
        """Return the segment for the next batch: the active segment, or a new one if a limit is reached."""
        self.raise_if_poisoned()
        if self.closed:
            raise StorageError(f"{self.topic_partition} is closed")
        segment = self._active
        if segment is None:
            segment = self._create(now_ms)
        else:
            # A batch without a timestamp counts by the clock, as in Kafka.
            time_ms, since_ms = timestamp_ms, segment.first_timestamp_ms
            if timestamp_ms < 0 or since_ms < 0:
                time_ms, since_ms = now_ms, segment.created_ms
            # An empty segment is never rolled: a batch that is larger than the limit would create segments forever.
            if segment.file.size and (
                segment.file.size + size > self._roll_bytes or time_ms - since_ms > self.config.segment_ms
            ):
                segment = self._roll(now_ms)
        if not segment.file.size:
            segment.first_timestamp_ms = timestamp_ms
        self._set_roll_limits(segment)
        return segment

    def _set_roll_limits(self, segment: Segment) -> None:
        self._roll_bytes = self.config.segment_bytes
        first_ms = segment.first_timestamp_ms
        self._roll_timestamp_ms = first_ms + self.config.segment_ms if first_ms >= 0 else -1
        if (len(segment.offset_index) + 1) * 12 > self.config.segment_index_bytes:
            self._roll_bytes = 0

    def _roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin a new one. The next commit syncs the sealed segment before
        acknowledging."""
        sealed = self._active
        segment = self._create(now_ms)
        if sealed is not None:
            sealed.finish_indexes()
            # Readers of old segments load them again. A log of many segments would otherwise keep all of its indexes in
            # memory.
            sealed.unload_indexes()
            self._sealed_unsynced.append(sealed)
            self.producers.take_snapshot(self.segments, self.log_end_offset, self.recovery_point)
        return segment

    def _create(self, now_ms: int) -> Segment:
        """Add an empty segment at the end of the log; for the first segment, create its directory too."""
        doing = f"creating a segment of {self.topic_partition}"
        try:
            if not self.segments:
                self._create_directory()
            elif len(self.segments) == 1 and self.recovery_point <= self.segments[0].base_offset:
                # No flush has covered the first segment. After a power cut only the name of the second might exist, and
                # the log would seem to start there.
                self._storage.sync_dir(self.directory)
            stem = f"{self.directory}/{self.log_end_offset:020d}"
            segment = Segment(
                self._storage, stem, self.log_end_offset, now_ms, self.config.index_interval_bytes, create=True
            )
            if segment.file.size:
                segment.file.truncate(0)  # left over from a segment that was deleted, or never finished
        except OSError as error:
            raise storage_error(error, doing) from error
        self._unsynced_names = self._unsynced_names or (self.directory,)
        self.segments.append(segment)
        self._active = segment
        self._journal_target = part_target(segment.path, self.topic_id)
        self._hints.pop(self.log_end_offset, None)  # a reader at the end of the old segment continues in the new one
        return segment

    def _create_directory(self) -> None:
        storage = self._storage
        if not storage.exists(self.directory):
            storage.makedirs(self.directory)
        self._unsynced_names = (self.directory, "")
        self.topic_id = self.topic_id or storage.unique_id()
        write_partition_metadata(storage, self.directory, self.topic_id, sync=False)
        self._metadata = open_partition_metadata(storage, self.directory)
        self._metadata.idle()
        write_atomic(
            storage,
            f"{self.directory}/leader-epoch-checkpoint",
            f"0\n1\n{LEADER_EPOCH} {self.log_end_offset}\n".encode(),
            sync=False,
        )

    # -- sync ---------------------------------------------------------------------------------------------------------

    def begin_sync(self) -> Unsynced:
        """Return everything appended so far that is not on disk in its file; pass it to `complete_sync` or
        `take_back`."""
        files = [segment.file for segment in self._sealed_unsynced] if self._sealed_unsynced else []
        if self._active is not None and self.log_end_offset > self.recovery_point:
            files.append(self._active.file)
        if self._metadata is not None:
            files.append(self._metadata)
        caches = self.producers.begin_sync(self.segments)
        files += caches
        work = Unsynced(
            self, files, self._sealed_unsynced, self._metadata, self._unsynced_names, self.log_end_offset, caches
        )
        self._unsynced_names = ()
        self._sealed_unsynced = []
        self._metadata = None
        return work

    def complete_sync(self, work: Unsynced, *, synced: bool = True) -> None:
        """Record that ``work`` is on disk, each byte in its file: all below the snapshot's end is durable."""
        if not synced:
            return
        if work.caches:
            self.producers.synced(work.caches)
        self.recovery_point = max(self.recovery_point, work.end_offset)
        self.high_watermark = max(self.high_watermark, work.end_offset)

    def take_back(self, work: Unsynced) -> None:
        """Take back files that a flush did not reach. The next flush covers them."""
        self._sealed_unsynced = [
            segment for segment in (*work.sealed, *self._sealed_unsynced) if segment in self.segments
        ]
        self._metadata = work.metadata
        self.producers.take_back(work.caches)
        self._unsynced_names = work.directories or self._unsynced_names

    def journal(self, batches: list[WritableBuffer], parts: list[Buffer]) -> Journaled | None:
        """Add the newest ``batches`` to a frame of the redo journal; return None if they must be flushed to their own
        files.

        That is so for new files: the journal restores bytes, not names.
        """
        segment = self._active
        if segment is None or self._unsynced_names or self._sealed_unsynced or self.producers.has_unsynced:
            return None
        file = segment.file
        size = len(batches[0]) if len(batches) == 1 else sum(map(len, batches))
        parts.append(self._journal_target)
        parts.append(part_place(size, file.size - size))
        parts += batches
        return Journaled(self, file, self.log_end_offset, size)

    @property
    def has_sealed_unsynced(self) -> bool:
        return bool(self._sealed_unsynced)

    # -- read ---------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int, min_one_batch: bool = True, check_crcs: bool = True
    ) -> Buffer:
        """Return whole batches that start below ``max_offset``; the first contains ``offset``.

        With ``min_one_batch`` the first may be larger than ``max_bytes``. The chain of offsets is checked, and with
        ``check_crcs`` the content too; `CorruptRecord` gives file and position. Empty if there is nothing to read yet.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise self._out_of_range(offset)
        if offset >= max_offset or offset == self.log_end_offset or (max_bytes < HEADER_BYTES and not min_one_batch):
            return b""
        number = len(self.segments) - 1
        if offset < self.segments[number].base_offset:
            number = bisect_right(self.segments, offset, key=_base_offset) - 1
        gaps = self.allows_gaps
        try:
            while True:
                segment = self.segments[number]
                hint = self._hints.get(offset)
                position, base_offset = (hint, offset) if hint is not None else self._locate(segment, offset, gaps)
                if position < segment.file.size:
                    break
                number += 1
                if number == len(self.segments) or (self.segments[number].base_offset != base_offset and not gaps):
                    raise Damage(segment.path, position, base_offset, "the file ends too early")
                offset = self.segments[number].base_offset
            data, next_offset = segment.read(
                position, base_offset, max_bytes, max_offset, one=min_one_batch, check_crcs=check_crcs, gaps=gaps
            )
        except Damage as damage:
            raise self._corrupt(damage) from None
        except OSError as error:
            raise storage_error(error, f"reading {self.topic_partition} at offset {offset}") from error
        self._remember(next_offset, position + len(data), segment)
        return data

    def _locate(self, segment: Segment, offset: int, gaps: bool) -> tuple[int, int]:
        """Find a batch by the index; only a few sealed segments keep their index in memory."""
        if segment is not self._active and segment not in self._indexed:
            self._indexed.append(segment)
            if len(self._indexed) > _MAX_INDEXED:
                self._indexed.pop(0).unload_indexes()
        return segment.locate(offset, gaps=gaps)

    def _remember(self, next_offset: int, position: int, segment: Segment) -> None:
        """Save the position for a reader that continues where it stopped, so that it needs no index."""
        hints = self._hints
        # The next batch is in the next segment, where this position means something else.
        if position >= segment.file.size and segment is not self._active:
            return
        if len(hints) >= _MAX_HINTS:
            del hints[next(iter(hints))]
        hints[next_offset] = position

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record at or after a time, or None if all are older."""
        try:
            for segment in self.segments:
                found = None
                if segment.largest_timestamp_ms(gaps=self.allows_gaps) >= timestamp_ms:
                    found = segment.first_at(timestamp_ms, self.log_start_offset, gaps=self.allows_gaps)
                if segment is not self._active:
                    segment.unload_indexes()
                if found is not None:
                    return found
        except Damage as damage:
            raise self._corrupt(damage) from None
        except OSError as error:
            raise storage_error(error, f"searching {self.topic_partition} by time") from error
        return None

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        """Return the first record with the largest timestamp in the log, or None if the log is empty."""
        gaps = self.allows_gaps
        best: OffsetAndTimestamp | None = None
        try:
            largest = [(segment.largest_timestamp_ms(gaps=gaps), segment) for segment in self.segments]
            for timestamp_ms, segment in sorted(largest, key=lambda entry: -entry[0]):
                if timestamp_ms == NO_TIMESTAMP or (best is not None and timestamp_ms < best.timestamp_ms):
                    break
                found = segment.newest_record(self.log_start_offset, gaps=gaps)
                if segment is not self._active:
                    segment.unload_indexes()
                if found is not None and (best is None or (-found.timestamp_ms, found.offset) < (-best[1], best[0])):
                    best = found
        except Damage as damage:
            raise self._corrupt(damage) from None
        except OSError as error:
            raise storage_error(error, f"searching {self.topic_partition} by time") from error
        return best

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{self.topic_partition} holds offsets {self.log_start_offset} to {self.log_end_offset}, not {offset}. "
            "Older records may have been deleted by retention: seek, or start at the earliest offset"
        )

    def _corrupt(self, damage: Damage) -> CorruptRecord:
        return recovery.corrupt_record(self._storage, self.topic_partition, damage)

    # -- retention ----------------------------------------------------------------------------------------------------

    def apply_retention(self, wall_now_ms: int, wall: WallTime | None = None, limit: int = _EVERY_SEGMENT) -> list[int]:
        """Delete segments that are too old, too many, or wholly below ``log_start_offset``; return their base offsets.

        Only records that readers may see are deleted, oldest first, and at most ``limit`` segments at a time. The
        active segment is deleted only with all others, by age; an empty segment replaces it, so that no offset is used
        twice.
        """
        self._seal_if_ahead(wall_now_ms)
        doomed = len(self._doomed(wall_now_ms, wall, limit))
        if not doomed:
            return []
        # Roll before the deletion: a log without any segment would start again at offset 0 after a crash, and committed
        # offsets would point beyond its end.
        if doomed == len(self.segments):
            try:
                self._roll(wall_now_ms)
            except StorageError:
                # A full disk has no space for a new segment. Deleting the sealed segments makes some; the active
                # segment is deleted the next time.
                doomed -= 1
                if not doomed:
                    raise
        return self._delete_segments(doomed)

    def expire_segments(self, wall_now_ms: int, wall: WallTime | None = None, limit: int = _EVERY_SEGMENT) -> int:
        """Move the log start offset past what `apply_retention` deletes next, and log why. Return how many segments.

        The caller publishes the log start offset in between, so that a segment that was deleted cannot be mistaken for
        a segment that is missing.
        """
        self._seal_if_ahead(wall_now_ms)
        reasons = self._doomed(wall_now_ms, wall, limit)
        if not reasons:
            return 0
        segments, count = self.segments, len(reasons)
        # Moved before anything is deleted, and published by the caller: a reader gets OffsetOutOfRange and not an error
        # about missing files.
        end_offset = segments[count].base_offset if count < len(segments) else self.log_end_offset
        _logger.info(
            "%s: deleting %d segment(s), offsets %d to %d, %d bytes: %s",
            self.topic_partition, count, segments[0].base_offset, end_offset - 1,
            sum(segment.size_bytes for segment in segments[:count]), "; ".join(dict.fromkeys(reasons)),
        )  # fmt: skip
        self.log_start_offset = max(self.log_start_offset, end_offset)
        return count

    def _seal_if_ahead(self, wall_now_ms: int) -> None:
        """Roll the active segment if its timestamps lie in the future.

        They give the segment no age. Once it is sealed, it is older than the next segment. A full disk may refuse that
        segment; retention must go on nevertheless, because it frees space.
        """
        active = self._active
        if active is None or not active.size_bytes or self.poisoned:
            return
        if retention.is_ahead(active, self.config, wall_now_ms, gaps=self.allows_gaps):
            with contextlib.suppress(StorageError):
                self._roll(wall_now_ms)

    def _doomed(self, wall_now_ms: int, wall: WallTime | None, limit: int) -> list[str]:
        """Return the reason for each of the oldest segments that must be deleted."""
        if not self.segments:
            return []
        return retention.doomed_segments(
            self.segments,
            self.config,
            wall_now_ms,
            wall=wall or WallTime(wall_now_ms),
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self.high_watermark,
            gaps=self.allows_gaps,
            limit=limit,
        )

    def advance_log_start_offset(self, offset: int) -> None:
        """Hide records below ``offset`` from readers; their segments are deleted by the next `apply_retention`."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: cannot delete records before {offset}, the high watermark is "
                f"{self.high_watermark}"
            )
        self.log_start_offset = max(self.log_start_offset, offset)

    def next_deadline_ms(self) -> int | None:
        """Return when the oldest segment expires by time; None if it never does."""
        return retention.deadline_ms(self.segments[0], self.config, gaps=self.allows_gaps) if self.segments else None

    def _delete_segments(self, count: int) -> list[int]:
        """Remove the oldest segments in order, each name durably: a crash must not leave a hole in the log."""
        deleted: list[int] = []
        try:
            self._storage.sync_dir(self.directory)  # the remaining segments first
            self._remove_deleted()
            for segment in self.segments[:count]:
                self.segments = self.segments[1:]
                self.log_start_offset = max(self.log_start_offset, self.segments[0].base_offset)
                deleted.append(segment.base_offset)
                # Dropped from memory first, so that no reader finds a segment whose file is gone.
                segment.file.close()
                self.producers.drop_segment(segment, self.segments[0].base_offset)
                if segment in self._sealed_unsynced:
                    self._sealed_unsynced.remove(segment)
                self._deleted.append(segment.stem)
                self._remove_deleted()
        except OSError as error:
            raise storage_error(error, f"deleting old segments of {self.topic_partition}") from error
        self._hints.clear()
        self._indexed = [segment for segment in self._indexed if segment in self.segments]
        return deleted

    def _remove_deleted(self) -> None:
        """Remove the files of deleted segments in order; a failure delays the rest until the next time."""
        storage = self._storage
        while self._deleted:
            stem = self._deleted[0]
            with contextlib.suppress(FileNotFoundError):
                storage.remove(stem + ".log")
            storage.sync_dir(self.directory)
            # After the log's own name is durably gone: a log without index files is readable, and its indexes are
            # rebuilt.
            for suffix in (".index", ".timeindex", ".txnindex"):
                with contextlib.suppress(FileNotFoundError):
                    storage.remove(stem + suffix)
            del self._deleted[0]

    # -- compaction ---------------------------------------------------------------------------------------------------

    def replace_segments(self, old: Sequence[Segment], cleaned: Segment, lost_markers: Collection[int] = ()) -> None:
        """Replace neighbouring segments by ``cleaned``, which is flushed and has the same offsets; durable on return.

        ``lost_markers`` are the offsets of markers that the cleaned segment does not have any more. The caller must
        close the old segments: that returns their blocks to the file system, which takes a while.

        A crash at any point leaves the old segments or the new one (`eventbus.log.swap`). An `OSError` leaves the old
        segments, or poisons the log, unless only the last flush of a name failed: then the new segment is in place.
        """
        storage, stems = self._storage, [segment.stem for segment in old]
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == list(old), "a log's segments are replaced in order"
        assert old[-1] is not self._active, "the active segment is never replaced"
        end_offset = self.segments[first + len(old)].base_offset
        # Before the swap, because the swap is what makes the cleaned segment visible.
        self.producers.before_compaction(old, end_offset, lost_markers)
        swap.commit_swap(storage, cleaned.stem, stems)
        try:
            # One segment is replaced by a single rename, which is atomic. Several need the intermediate name, see
            # `eventbus.log.swap`.
            if len(old) > 1:
                swap.finish_swap(storage, self.directory, stems[0], stems[1:])
            interval_bytes = self.config.index_interval_bytes
            new = Segment(storage, stems[0], old[0].base_offset, old[-1].created_ms, interval_bytes, create=False)
        except OSError as error:
            # The files on disk and the segments in memory do not agree any more. The next start finishes the swap.
            self.poison(f"replacing {old[0].path} with its cleaned copy failed ({error.strerror or error})")
            raise
        self.segments = [*self.segments[:first], new, *self.segments[first + len(old) :]]
        self._hints.clear()
        self._indexed = [segment for segment in self._indexed if segment in self.segments]
        # Sealed by an append that waits for no flush: the flushed copy has what the flush would have covered.
        self._sealed_unsynced = [segment for segment in self._sealed_unsynced if segment in self.segments]
        self.producers.compacted(old, self.segments, self.log_end_offset, self.recovery_point)
        if len(old) == 1:
            storage.sync_dir(self.directory)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and close the files. After a failed flush nothing is written any more."""
        if self.closed:
            return
        work = self.begin_sync()
        try:
            if not self.poisoned and self._storage.durable:
                for file in work.files:
                    file.sync()
                for directory in work.directories:
                    self._storage.sync_dir(directory)
            if not self.poisoned:
                self.complete_sync(work)
        except OSError as error:
            self.poison(f"the flush at close failed ({error.strerror or error})")
            raise storage_error(error, f"closing {self.topic_partition}") from error
        finally:
            self.closed = True
            self._roll_bytes = -1
            # After a failed flush it is unknown what is on disk, and a snapshot would claim to know.
            if self.segments and not self.poisoned:
                self.producers.take_snapshot(self.segments, self.log_end_offset, self.recovery_point)
            self.producers.close()
            for segment in self.segments:
                if segment is self._active and not self.poisoned:
                    segment.finish_indexes()
                segment.file.close()

    def delete(self) -> None:
        """Remove the partition from disk, name first, so that a crash leaves it whole or clearly deleted."""
        self.closed = True
        self._roll_bytes = -1
        self.producers.close()
        for segment in self.segments:
            segment.file.close()
        self.segments = []
        self._active = None
        try:
            remove_directory(self._storage, self.directory)
        except OSError as error:
            raise storage_error(error, f"deleting {self.topic_partition}") from error

    def check(self) -> None:
        """Check every invariant; raise AssertionError."""
        assert 0 <= self.log_start_offset <= self.high_watermark <= self.log_end_offset, self._bounds()
        assert self.recovery_point <= self.log_end_offset, self._bounds()
        assert self.log_start_offset <= self.last_stable_offset <= self.high_watermark, self._bounds()
        self.producers.states.check_consistency()
        assert (self._active is None) == (not self.segments), "an active segment there is, if any"
        if not self.segments:
            return
        assert self.segments[-1] is self._active, "the last segment is the active one"
        assert self.segments[0].base_offset <= self.log_start_offset, self._bounds()
        offset = self.segments[0].base_offset
        for segment in self.segments:
            assert segment.base_offset == offset or (self.allows_gaps and segment.base_offset > offset), (
                f"{segment.path} should start at {offset}"
            )
            scan = segment.scan(0, segment.base_offset, check_crcs=True, gaps=self.allows_gaps, index=False)
            assert not scan.damage, f"{segment.path} at {scan.position}: {scan.damage}"
            offset = scan.next_offset
        assert offset == self.log_end_offset, f"the batches end at {offset}, {self._bounds()}"

    def _bounds(self) -> str:
        return (
            f"{self.topic_partition}: log_start_offset={self.log_start_offset} recovery_point={self.recovery_point} "
            f"high_watermark={self.high_watermark} log_end_offset={self.log_end_offset}"
        )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
