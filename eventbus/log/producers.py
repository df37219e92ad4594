"""The producers of a partition and its aborted transactions, stored next to the log.

All of it can be rebuilt from the log, and is rebuilt if a file is missing or wrong. The files only save reading:
``.snapshot`` (`eventbus.log.snapshot`) is written when a segment is sealed, at close, and every few MiB in between, so
that a start has little to read. ``.txnindex`` (`eventbus.log.transaction_index`) is written at every aborted
transaction, because readers in other processes use it. They may not read on before it is on disk.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

from eventbus.log import snapshot
from eventbus.log.producer_state import CachedBatch, CompletedTransaction, ProducerBatch, ProducerStates
from eventbus.log.segment import Segment
from eventbus.log.snapshot import IndexedSegment, Snapshot
from eventbus.log.storage import Buffer, File, Storage, is_full, read_whole, write_atomic
from eventbus.log.transaction_index import (
    ENTRY_BYTES,
    SUFFIX,
    AbortedEntry,
    TransactionIndex,
    decode_entries,
    encode_entries,
)
from eventbus.records.batch import BatchHeader, RecordBatch, WritableBuffer, read_header
from eventbus.records.control import EndTransactionMarker, marker_of
from eventbus.records.crc import crc32c

SNAPSHOT_BYTES = 4 << 20
"""A snapshot is taken after this much log, which a start reads in about 50 ms."""
_TURN_BYTES = 4 << 10
"""A marker, and a batch that begins a transaction, each count as this much log: a start needs ten times as long for
them as for another batch, and there may be a hundred partitions of them."""
_REPLAY_RATIO = 32
"""If there are producers, bytes that a start has read count this many times, because all of them may be markers."""
_SNAPSHOT_RATIO = 16
"""A snapshot is also taken only after this many times its own size."""
_KEPT_SNAPSHOTS = 2
_NEVER = 1 << 62
_PRODUCER = struct.Struct(">8xi31xq").unpack_from
"""Reads batch_length and producer_id from a header."""

_logger = logging.getLogger("eventbus.log")


class LogProducers:
    """The producers of a `PartitionLog`. ``states`` and ``aborted`` are authoritative, the rest maintains files."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.states = ProducerStates(directory)
        self.aborted = TransactionIndex()
        self._storage = storage
        self._directory = directory
        self._snapshots: list[int] = []
        self._snapshot_size_bytes = 0
        self._unsnapped_bytes = 0
        self._files: dict[str, File] = {}
        """Open files by path: the ``.txnindex`` written last, and files that are not on disk yet."""
        self._unsynced: list[File] = []
        self._unsaved_offset = _NEVER
        """The start of the first transaction whose entry could not be written."""

    # -- append -------------------------------------------------------------------------------------------------------

    def check(self, batch: WritableBuffer, header: ProducerBatch) -> CachedBatch | EndTransactionMarker | None:
        """Return the stored batch that ``batch`` duplicates, the marker in it, or None. Raises if it may not be
        appended."""
        if isinstance(header, BatchHeader) and header.is_control:
            marker = marker_of(RecordBatch(batch, 0, header._replace(base_offset=0)))
            if marker is not None:
                self.states.check_marker(header.producer_id, header.producer_epoch, marker)
            return marker
        return self.states.check(header)

    def append(
        self,
        header: ProducerBatch,
        marker: EndTransactionMarker | None,
        base_offset: int,
        timestamp_ms: int,
        segment: Segment,
    ) -> bool:
        """Apply a batch that was appended to ``segment``; return True if a new file was created for it."""
        self._unsnapped_bytes += _TURN_BYTES
        if marker is None:
            self.states.append(header, base_offset, timestamp_ms)
            return False
        completed = self.states.append_marker(
            header.producer_id, header.producer_epoch, marker, base_offset, timestamp_ms
        )
        if completed is None or not completed.is_aborted:
            return False
        entry = _entry(completed)
        self.aborted.add(entry)
        return self._save(entry, segment)

    def _save(self, entry: AbortedEntry, segment: Segment) -> bool:
        """Write an entry to its file. After a disk error the next flush tries again."""
        path = segment.stem + SUFFIX
        file = self._files.get(path)
        is_new = file is None
        try:
            if file is None:
                file = self._files[path] = self._storage.open(path, create=True)
                size = len(self.aborted.between(segment.base_offset, entry.last_offset)) * ENTRY_BYTES
                # An earlier entry is missing in the file, after a disk error. Appending after the gap would make the
                # file look complete.
                if file.size != size:
                    self._unsaved_offset = min(self._unsaved_offset, entry.first_offset)
                    return True
            if self._unsaved_offset == _NEVER:
                file.append(encode_entries((entry,)))
        except OSError as error:
            _logger.warning("%s: not written: %s", path, error)
            # Readers in this process use the entry in memory. Others must not pass the transaction, or they would take
            # its records for committed.
            self._unsaved_offset = min(self._unsaved_offset, entry.first_offset)
        if file is not None and file not in self._unsynced:
            self._unsynced.append(file)
        return is_new

    # -- what readers may see -----------------------------------------------------------------------------------------

    def published_offset(self, last_stable_offset: int) -> int:
        """Return the end of what other processes may read: before any transaction they could not know to be aborted."""
        return min(last_stable_offset, self._unsaved_offset)

    # -- flushes ------------------------------------------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        """True if a file has to be flushed before its entries count."""
        return bool(self._unsynced) or self._unsaved_offset != _NEVER

    def begin_sync(self, segments: Sequence[Segment]) -> list[File]:
        """Return the files to flush with the log; pass them to `take_back` or `synced`.

        They are flushed with the marker, before the last stable offset is published, because readers in other processes
        find aborted records with them.
        """
        if self._unsaved_offset != _NEVER:
            with contextlib.suppress(OSError):
                self.settle_files(segments)
        # Taken, because an append may add a file while the flush runs in another thread.
        files, self._unsynced = self._unsynced, []
        return files

    def take_back(self, files: list[File]) -> None:
        """Return files that a flush did not reach."""
        known = self._files.values()
        self._unsynced = [file for file in (*files, *self._unsynced) if file in known]

    def synced(self, files: list[File]) -> None:
        """Record that these files are on disk."""
        for path in [path for path, file in self._files.items() if file in files and file not in self._unsynced]:
            self._close_file(path)

    def drop_segment(self, segment: Segment, end_offset: int) -> None:
        """Drop a deleted segment's aborted transactions: those whose marker is before its end.

        The entries of the next segment stay, also where records were deleted by request: file and memory must agree.
        """
        self._close_file(segment.stem + SUFFIX)
        self.aborted.drop_before(end_offset)

    def before_compaction(self, old: Sequence[Segment], end_offset: int, lost_markers: Collection[int]) -> None:
        """Prepare for merging the ``old`` segments, up to ``end_offset``, into one without the markers at these
        offsets.

        Snapshots from below are removed: recovery from such a snapshot might have a transaction open whose end is not
        in the log any more. The aborted transactions of the merged segment are written before it appears, so that no
        reader finds it without them. Raises `OSError`.
        """
        first_offset = old[0].base_offset
        has_aborted = bool(self.aborted.overlapping(first_offset, end_offset))
        removed = [offset for offset in self._snapshots if has_aborted or offset < end_offset]
        self._remove_snapshots(removed)
        if has_aborted:
            self.aborted.remove(lost_markers)
            data = encode_entries(self.aborted.between(first_offset, end_offset))
            path = old[0].stem + SUFFIX
            self._close_file(path)
            if data:
                write_atomic(self._storage, path, data, sync=self._storage.durable)
            elif self._storage.exists(path):
                self._storage.remove(path)
        if removed or has_aborted:
            self._storage.sync_dir(self._directory)

    def compacted(
        self, old: Sequence[Segment], segments: Sequence[Segment], log_end_offset: int, recovery_point: int
    ) -> None:
        """Record that the ``old`` segments were merged: their aborted transactions are in the merged segment's file."""
        for segment in old[1:]:
            self._close_file(segment.stem + SUFFIX)
            with contextlib.suppress(OSError):  # otherwise the next start removes it
                self._storage.remove(segment.stem + SUFFIX)
        if not self._snapshots:
            self.take_snapshot(segments, log_end_offset, recovery_point)

    def _close_file(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()
            if file in self._unsynced:
                self._unsynced.remove(file)

    def close(self) -> None:
        """Close the files that are open."""
        for path in [*self._files]:
            self._close_file(path)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def grown(self, size_bytes: int) -> bool:
        """Count what was appended; return True if a snapshot is due."""
        self._unsnapped_bytes += size_bytes
        return self._unsnapped_bytes > max(SNAPSHOT_BYTES, _SNAPSHOT_RATIO * self._snapshot_size_bytes)

    def take_snapshot(self, segments: Sequence[Segment], log_end_offset: int, recovery_point: int) -> None:
        """Write the state at the end of the log; the next flush, if there is one, makes it durable.

        Errors are not raised, because a snapshot only saves work.
        """
        self._unsnapped_bytes = 0
        if self._unsaved_offset != _NEVER:
            with contextlib.suppress(OSError):
                self.settle_files(segments)
        # The state at this offset is saved already.
        if self._snapshots and self._snapshots[-1] >= log_end_offset:
            return
        data = snapshot.encode_snapshot(self.states, self._indexed_segments(segments))
        path = self._snapshot_path(log_end_offset)
        try:
            # Not flushed here, on the path of an append. Its CRC shows after a crash whether it is complete.
            write_atomic(self._storage, path, data, sync=False)
            self._files[path] = file = self._storage.open(path)
            self._unsynced.append(file)
            for file in self._files.values():  # with fsync=os no flush would ever close them
                file.idle()
        except OSError as error:
            _logger.debug("%s: no snapshot at %d: %s", self._directory, log_end_offset, error)
            return
        self._snapshot_size_bytes = len(data)
        self._snapshots.append(log_end_offset)
        self._prune(recovery_point)

    def _prune(self, recovery_point: int) -> None:
        """Keep the newest two that no crash can remove, and the newest four of the others."""
        # A snapshot beyond the recovery point may describe records that a power cut removes. Of those that no crash can
        # remove two are kept, in case the newest is damaged.
        durable = [
            offset
            for offset in self._snapshots
            if offset <= recovery_point and self._snapshot_path(offset) not in self._files
        ]
        others = [offset for offset in self._snapshots if offset not in durable]
        for offset in durable[:-_KEPT_SNAPSHOTS] + others[: -2 * _KEPT_SNAPSHOTS]:
            path = self._snapshot_path(offset)
            self._close_file(path)
            with contextlib.suppress(OSError):
                self._storage.remove(path)
                self._snapshots.remove(offset)

    def _remove_snapshots(self, offsets: Sequence[int]) -> None:
        """Remove the snapshots at these offsets. Raises `OSError`."""
        for offset in list(offsets):
            path = self._snapshot_path(offset)
            self._close_file(path)
            with contextlib.suppress(FileNotFoundError):
                self._storage.remove(path)
            self._snapshots.remove(offset)

    def _indexed_segments(self, segments: Sequence[Segment]) -> list[IndexedSegment]:
        if not len(self.aborted):
            return []
        found: list[IndexedSegment] = []
        for segment, end_offset in _with_ends(segments):
            entries = self.aborted.between(segment.base_offset, end_offset)
            if entries:
                found.append(IndexedSegment(segment.base_offset, len(entries), crc32c(encode_entries(entries))))
        return found

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{snapshot.SUFFIX}"

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, segments: Sequence[Segment], log_end_offset: int, wall_now_ms: int) -> None:
        """Rebuild the state from the log, which ends at ``log_end_offset`` and was recovered before.

        Raises `Damage` for bytes that are not batches, and `OSError`.
        """
        if not self._storage.exists(self._directory):
            return
        self._remove_beyond(segments, log_end_offset)
        found = self._newest_snapshot(segments)
        start_offset = segments[0].base_offset if segments else log_end_offset
        known = True
        if found is not None:
            start_offset, decoded = found
            for producer_id, producer in decoded.producers.items():
                self.states.restore(producer_id, producer)
            known = self._load_aborted(decoded, segments)
        scanned_bytes = 0
        if not known:  # the snapshot and a .txnindex differ: the log decides
            # All of the log is read, only for the aborted transactions. The producers come from the snapshot, whose CRC
            # is right.
            witness = ProducerStates(self._directory)
            scanned_bytes = _scan(segments, segments[0].base_offset, witness, self.aborted)
        scanned_bytes += _scan(segments, start_offset, self.states, self.aborted if known else TransactionIndex())
        # The log was recovered to a verified end, so all markers in it are readable.
        self.states.settle(wall_now_ms)
        try:
            self.settle_files(segments)
        except OSError as error:
            if not is_full(error):
                raise
            # A full disk must not keep the log closed. The next flush tries again, and until it succeeds readers in
            # other processes read no further than the first aborted transaction.
            _logger.warning("%s: aborted transactions not written: %s", self._directory, error)
            self._unsaved_offset = segments[0].base_offset if segments else _NEVER
        if not known:  # they refer to files with other content now
            self._remove_snapshots(self._snapshots)
        if self.grown(scanned_bytes * (_REPLAY_RATIO if self.states.producers else 1)) or not known:
            self.take_snapshot(segments, log_end_offset, log_end_offset)

    def _remove_beyond(self, segments: Sequence[Segment], log_end_offset: int) -> None:
        """Remove snapshots beyond the log's end, durably, before the first append.

        Another batch at their offset would be compared with the sequences of batches that are lost.
        """
        storage = self._storage
        first_offset = segments[0].base_offset if segments else _NEVER
        removed = False
        for name in storage.listdir(self._directory):
            stem = name.removesuffix(snapshot.SUFFIX)
            if stem == name or not stem.isdecimal():
                continue
            # A snapshot below the first segment would have open transactions whose records retention has deleted.
            if first_offset <= int(stem) <= log_end_offset:
                self._snapshots.append(int(stem))
            else:
                storage.remove(f"{self._directory}/{name}")
                removed = True
        if removed and storage.durable:
            storage.sync_dir(self._directory)

    def _newest_snapshot(self, segments: Sequence[Segment]) -> tuple[int, Snapshot] | None:
        """Return the newest usable snapshot; remove the unusable ones."""
        while self._snapshots:
            offset = self._snapshots[-1]
            data = read_whole(self._storage, self._snapshot_path(offset)) or b""
            decoded = snapshot.decode_snapshot(data)
            if decoded is not None and _starts_batch(segments, offset):
                self._snapshot_size_bytes = len(data)
                return offset, decoded
            _logger.info(
                "%s is damaged, or not of this log: the producers are read from the log", self._snapshot_path(offset)
            )
            self._snapshots.pop()
            self._storage.remove(self._snapshot_path(offset))
        return None

    def _load_aborted(self, decoded: Snapshot, segments: Sequence[Segment]) -> bool:
        """Load the ``.txnindex`` files as they were at the snapshot; return False if one differs."""
        stems = {segment.base_offset: segment.stem for segment in segments}
        for base_offset, count, crc in decoded.segments:
            # Retention deleted the segment after the snapshot was taken.
            if base_offset < segments[0].base_offset:
                continue
            stem = stems.get(base_offset)
            data = (read_whole(self._storage, stem + SUFFIX) if stem is not None else None) or b""
            # Entries after the snapshot are found again by the scan of the log from there on.
            data = data[: count * ENTRY_BYTES]
            entries = decode_entries(data) if crc32c(data) == crc else None
            if entries is None or len(entries) != count:
                self.aborted = TransactionIndex()
                return False
            for entry in entries:
                self.aborted.add(entry)
        return True

    def settle_files(self, segments: Sequence[Segment]) -> None:
        """Make every ``.txnindex`` agree with the state in memory. Raises `OSError`."""
        storage = self._storage
        wanted = {
            f"{segment.base_offset:020d}{SUFFIX}": encode_entries(self.aborted.between(segment.base_offset, end_offset))
            for segment, end_offset in (_with_ends(segments) if len(self.aborted) else ())
        }
        names = [name for name in storage.listdir(self._directory) if name.endswith(SUFFIX)]
        removed = False
        for name in {*names, *(name for name, data in wanted.items() if data)}:
            path = f"{self._directory}/{name}"
            data = wanted.get(name, b"")
            if data and read_whole(storage, path) == data:
                continue
            self._close_file(path)
            if data:
                write_atomic(storage, path, data, sync=storage.durable)
            else:
                storage.remove(path)
                removed = True
        if removed and storage.durable:
            storage.sync_dir(self._directory)
        self._unsaved_offset = _NEVER


def _entry(completed: CompletedTransaction) -> AbortedEntry:
    return AbortedEntry(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )


def _with_ends(segments: Sequence[Segment]) -> Iterator[tuple[Segment, int]]:
    """Yield each segment with the base offset of the next."""
    return zip(segments, [*(segment.base_offset for segment in segments[1:]), _NEVER], strict=False)


def _starts_batch(segments: Sequence[Segment], offset: int) -> bool:
    """True if a batch starts at the offset, or the log or a segment ends there."""
    number = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
    if number < 0 or segments[number].base_offset == offset:
        return number >= 0
    return segments[number].locate(offset, gaps=True)[1] >= offset


def _scan(segments: Sequence[Segment], start_offset: int, states: ProducerStates, aborted: TransactionIndex) -> int:
    """Apply every batch from ``start_offset`` on; return the number of bytes read. Raises `Damage`, `OSError`."""
    scanned_bytes = 0
    for segment, end_offset in _with_ends(segments):
        if end_offset <= start_offset:
            continue
        position, offset = 0, segment.base_offset
        # The index leads to the batch at the snapshot, so the bytes before it are not read.
        if offset < start_offset:
            position, offset = segment.locate(start_offset, gaps=True)
        for data in segment.windows(position, offset):
            scanned_bytes += len(data)
            replay(data, states, aborted)
    return scanned_bytes


def replay(data: Buffer, states: ProducerStates, aborted: TransactionIndex) -> None:
    """Apply whole batches as they were applied when they were appended. Raises `CorruptRecord`."""
    position, size = 0, len(data)
    while position < size:
        length, producer_id = _PRODUCER(data, position)
        if producer_id >= 0:
            header = read_header(data, position)
            marker = marker_of(RecordBatch(data, position, header)) if header.is_control else None
            if marker is not None:
                completed = states.append_marker(
                    producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp_ms
                )
                if completed is not None and completed.is_aborted:
                    aborted.add(_entry(completed))
            elif not header.is_control:
                states.append(header, header.base_offset, header.max_timestamp_ms)
        position += length + 12
