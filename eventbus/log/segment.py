"""One segment of a partition's log: a file of record batches back to back, and its two indexes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from eventbus.log.batch_iterator import batch_bounds, skip_to, walk
from eventbus.log.index import LARGEST_RELATIVE_OFFSET, IndexFile, OffsetIndex, TimeIndex
from eventbus.log.storage import Buffer, Storage
from eventbus.records.batch import HEADER_BYTES, BatchHeader, iter_batches
from eventbus.records.crc import crc32c
from eventbus.types import NO_TIMESTAMP, OffsetAndTimestamp

_WINDOW_BYTES = 1 << 20
_SEARCH_BYTES = 4096
_COPIED_BYTES = 16_384
_NEVER = 1 << 62
_SAVE_ENTRIES = 64
_SAVE_BYTES = 4 << 20
"""Index entries are written to their file after this many entries or bytes of log, which a restart has to scan
again."""
_CUT_OFF = "the file ends inside a batch"
_SCAN = struct.Struct(">qi4xBI2xi8xq14xi").unpack_from
"""Reads base_offset, batch_length, magic, crc, last_offset_delta, max_timestamp, records_count."""


class Damage(Exception):
    """Raised for bytes that are not valid batches. `corrupt_record` turns it into an error with the partition's
    name."""

    def __init__(self, path: str, position: int, offset: int, what: str) -> None:
        super().__init__(what)
        self.path = path
        self.position = position
        self.offset = offset
        self.what = what


class Scan(NamedTuple):
    """The result of a scan: good batches up to ``position``; ``damage`` is why it ended before the end of the file."""

    position: int
    next_offset: int
    damage: str
    batches_count: int
    records_count: int


class Segment:
    """The batches from ``base_offset`` on. Appending is done by `PartitionLog`, which also keeps the fields here."""

    __slots__ = (
        "_index_interval_bytes",
        "_indexes_loaded",
        "_newest_known",
        "_offset_file",
        "_saved_bytes",
        "_time_file",
        "base_offset",
        "created_ms",
        "file",
        "first_timestamp_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index",
        "path",
        "since_index_bytes",
        "stem",
        "time_index",
    )

    def __init__(
        self, storage: Storage, stem: str, base_offset: int, now_ms: int, interval_bytes: int, *, create: bool
    ) -> None:
        self.stem = stem
        self.path = stem + ".log"
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.file = storage.open(self.path, create=create)
        self.first_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.since_index_bytes = 0
        self.offset_index = OffsetIndex()
        self.time_index = TimeIndex()
        self._offset_file = IndexFile(storage, stem + ".index", self.offset_index)
        self._time_file = IndexFile(storage, stem + ".timeindex", self.time_index)
        self._indexes_loaded = create
        self._newest_known = create
        self._saved_bytes = 0
        self._index_interval_bytes = interval_bytes

    @property
    def size_bytes(self) -> int:
        return self.file.size

    def close(self) -> None:
        self.file.close()

    # -- indexes ------------------------------------------------------------------------------------------------------

    def index_batch(self, last_offset: int, position: int) -> int:
        """Add an entry for the batch at ``position``; return the size of the fuller index, in bytes."""
        self.offset_index.add(last_offset - self.base_offset, position)
        self.time_index.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.since_index_bytes = 0
        count = len(self.offset_index)
        # Saved now and then, so that a restart, or another process that reads the log, need not scan all of the active
        # segment.
        if not count % _SAVE_ENTRIES or position - self._saved_bytes > _SAVE_BYTES:
            self._saved_bytes = position
            self.save_indexes()
        return count * 12

    def save_indexes(self) -> None:
        """Write the entries that the index files lack. They are caches, so errors are not raised."""
        self._offset_file.save()
        self._time_file.save()

    def finish_indexes(self) -> None:
        """Complete the indexes of a sealed segment: as in Kafka, its largest timestamp becomes the last time entry."""
        if self.max_timestamp_ms != NO_TIMESTAMP:
            self.time_index.add(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.save_indexes()
        if self.time_index and not self.offset_index:
            self._offset_file.create()  # Kafka's tools expect it next to the time index, even without entries

    def load_indexes(self) -> None:
        """Read the index files, or the log itself if they are missing or cannot be right."""
        if self._indexes_loaded:
            return
        self._indexes_loaded = True
        good = self._offset_file.load() and self._time_file.load()
        last = self.offset_index.last()
        # Recovery may have cut the log after the index was written.
        if good and last is not None and last[1] >= self.file.size:
            self.offset_index.cut(self.file.size)
            self._offset_file.trim()
            last = self.offset_index.last()
        # Only the last entry is compared. A wrong one before it is found when it is used, see `floor`.
        if not good or (last is not None and not self._agrees(last)):
            self.rebuild_indexes()

    def unload_indexes(self) -> None:
        """Free the memory of the indexes; they are read again on the next use."""
        self._indexes_loaded = False
        self._offset_file.unload()
        self._time_file.unload()

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the headers in the log."""
        self._indexes_loaded = True
        self.forget_indexes()
        # Without CRCs, because damage in a record must not keep the others from being found.
        self.scan(0, self.base_offset, check_crcs=False, gaps=True)

    def resume(self, below: int) -> tuple[int, int]:
        """Prepare for a scan from the last indexed batch that ends below an offset; return (position, base offset).

        Later index entries are dropped, because a crash may have left anything there; all of them are, if the indexes
        cannot be trusted.
        """
        good = self._offset_file.load() and self._time_file.load()
        self._indexes_loaded = True
        self._newest_known = True
        limit = max(min(below - self.base_offset, LARGEST_RELATIVE_OFFSET), 0)
        # Index files are never flushed, so after a crash any entry above the recovery point may be stale or garbage,
        # while the log below it is known to be good.
        self.offset_index.cut_offset(limit)
        self.offset_index.cut(self.file.size)
        entry = self.offset_index.last()
        if not good or entry is None or not self._agrees(entry):
            self.forget_indexes()
            return 0, self.base_offset
        self._offset_file.trim()
        self.time_index.cut(entry[0] + 1)
        self._time_file.trim()
        newest = self.time_index.last()
        position, base_offset = self.floor(below - 1)
        if newest is not None:
            if not self._points_at_batch(newest):
                self.forget_indexes()
                return 0, self.base_offset
            self.max_timestamp_ms, self.max_timestamp_offset = newest[0], self.base_offset + newest[1]
        return position, base_offset

    def index_faults(self) -> list[str]:
        """Return the index files that do not agree with the log, entry by entry."""
        faults: list[str] = []
        if self._offset_file.exists() and not (
            self._offset_file.load() and all(map(self._agrees, self.offset_index.entries()))
        ):
            faults.append(f"{self.stem}.index")
        good = not self._time_file.exists() or self._time_file.load()
        for entry in self.time_index.entries() if good else ():
            good = good and self._points_at_batch(entry)
        return faults if good else [*faults, f"{self.stem}.timeindex"]

    def forget_indexes(self) -> None:
        self._offset_file.unload()
        self._time_file.unload()
        self.since_index_bytes = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset

    def _agrees(self, entry: tuple[int, int]) -> bool:
        """True if the batch that an entry points at ends with the entry's offset."""
        _, next_offset, _ = batch_bounds(self.file.pread(entry[1], HEADER_BYTES))
        return next_offset == self.base_offset + entry[0] + 1

    def floor(self, offset: int) -> tuple[int, int]:
        """Return (position, base offset) of an indexed batch at or before an offset, or of the segment's start.

        The entry is checked against the log; wrong indexes are rebuilt.
        """
        self.load_indexes()
        for _ in range(2):  # the second pass is after a rebuild, which is always right
            entry = self.offset_index.floor(offset - self.base_offset)
            if entry is None:
                break
            base_offset, next_offset, _ = batch_bounds(self.file.pread(entry[1], HEADER_BYTES))
            # Index files are caches without checksums. One read of a header per search is the price for never trusting
            # them.
            if next_offset == self.base_offset + entry[0] + 1 and base_offset >= self.base_offset:
                return entry[1], base_offset
            self.rebuild_indexes()
        return 0, self.base_offset

    # -- reading ------------------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, gaps: bool = False) -> tuple[int, int]:
        """Return (position, base offset) of the batch that contains an offset, or of the first batch after it."""
        position, base_offset = self.floor(offset)
        while position < self.file.size:
            window = self.file.pread(position, self._index_interval_bytes + _SEARCH_BYTES)
            found = skip_to(window, offset, base_offset, gaps=gaps)
            if found.damage:
                raise Damage(self.path, position + found.position, found.next_offset, found.damage)
            # The file is longer than its last batch: a torn end, which recovery has not cut off in this process.
            if len(window) < HEADER_BYTES:
                raise Damage(self.path, position, base_offset, _CUT_OFF)
            position += found.position
            base_offset = found.next_offset
            if len(window) - found.position >= HEADER_BYTES:
                break
        return position, base_offset

    def read(
        self, position: int, offset: int, max_bytes: int, max_offset: int, *, one: bool, check_crcs: bool, gaps: bool
    ) -> tuple[Buffer, int]:
        """Return whole batches from ``position``, where the batch at ``offset`` starts, and the offset after them.

        ``one`` returns the first batch even if it is larger than ``max_bytes``.
        """
        left = self.file.size - position
        data = self.file.pread(position, min(max(max_bytes, HEADER_BYTES), left))
        size = max(batch_bounds(data)[2], HEADER_BYTES)
        if size > left:
            raise Damage(self.path, position, offset, _CUT_OFF)
        # KIP-74: a consumer whose limit is smaller than the next batch must still make progress.
        if size > len(data) and one:
            data = self.file.pread(position, size)
            if len(data) < size:
                raise Damage(self.path, position, offset, _CUT_OFF)
        walked = walk(data, 0, offset, max_offset, check_crcs=check_crcs, gaps=gaps)
        if walked.damage and not walked.position:
            raise Damage(self.path, position, offset, walked.damage)
        end = walked.position
        if end == len(data):
            return data, walked.next_offset
        # Copying a MiB to cut off its end costs more than reading it.
        return data[:end] if end < _COPIED_BYTES else memoryview(data)[:end], walked.next_offset

    def windows(self, position: int, offset: int) -> Iterator[Buffer]:
        """Yield all batches from ``position``, where the batch at ``offset`` starts, a MiB at a time; CRCs are
        checked."""
        while position < self.file.size:
            data, offset = self.read(position, offset, _WINDOW_BYTES, _NEVER, one=True, check_crcs=True, gaps=True)
            position += len(data)
            yield data

    # -- time ---------------------------------------------------------------------------------------------------------

    def largest_timestamp_ms(self, *, gaps: bool = False) -> int:
        """Return the largest timestamp in the segment, -1 if no record has one.

        The last time entry may be missing or wrong, so it is checked against the log, and the batches after it are
        scanned. That is done once.
        """
        if not self._newest_known:
            self.load_indexes()
            entry = self.time_index.last()
            position, base_offset = 0, self.base_offset
            if entry is not None:
                position, base_offset = self.locate(self.base_offset + entry[1], gaps=gaps)
                # A crash may have left an entry of records that recovery has cut off.
                if not self._has_timestamp(position, entry):
                    self.rebuild_indexes()
                    position, base_offset = 0, self.base_offset
            scan = self.scan(position, base_offset, check_crcs=False, gaps=gaps, index=False)
            if scan.damage:
                raise Damage(self.path, scan.position, scan.next_offset, scan.damage)
            self._newest_known = True
        return self.max_timestamp_ms

    def first_at(self, timestamp_ms: int, start_offset: int, *, gaps: bool = False) -> OffsetAndTimestamp | None:
        """Return the first record at or after a time, from ``start_offset`` on."""
        self.load_indexes()
        entry = self.time_index.floor(timestamp_ms)
        offset = self.base_offset
        if entry is not None:
            position, _ = self.locate(self.base_offset + entry[1], gaps=gaps)
            if self._has_timestamp(position, entry):
                offset += entry[1]
            else:
                self.rebuild_indexes()
        offset = max(offset, start_offset)
        position, base_offset = self.locate(offset, gaps=gaps)
        while position < self.file.size:
            data, base_offset = self.read(
                position, base_offset, _WINDOW_BYTES >> 4, _NEVER, one=True, check_crcs=True, gaps=gaps
            )
            for batch in iter_batches(data, verify=False):
                # The largest timestamp in the header is the first filter: batches that are older as a whole are not
                # decoded.
                if batch.header.max_timestamp_ms >= timestamp_ms and not batch.header.is_control:
                    columns = batch.columns()
                    for found, when in zip(columns.offsets, columns.timestamps_ms, strict=True):
                        if when >= timestamp_ms and found >= start_offset:
                            return OffsetAndTimestamp(found, when)
            position += len(data)
        return None

    def newest_record(self, start_offset: int, *, gaps: bool = False) -> OffsetAndTimestamp | None:
        """Return the first record with the largest timestamp, from ``start_offset`` on.

        The largest timestamp of the segment may be that of a marker, or of records that compaction removed.
        """
        found = self.first_at(self.largest_timestamp_ms(gaps=gaps), start_offset, gaps=gaps)
        if found is not None:
            return found
        newest_ms = NO_TIMESTAMP
        for header in self._headers(gaps):
            if header.records_count and not header.is_control and header.next_offset > start_offset:
                newest_ms = max(newest_ms, header.max_timestamp_ms)
        return None if newest_ms == NO_TIMESTAMP else self.first_at(newest_ms, start_offset, gaps=gaps)

    def _headers(self, gaps: bool) -> Iterator[BatchHeader]:
        position, offset = 0, self.base_offset
        while position < self.file.size:
            data, offset = self.read(position, offset, _WINDOW_BYTES, _NEVER, one=True, check_crcs=False, gaps=gaps)
            for batch in iter_batches(data, verify=False):
                yield batch.header
            position += len(data)

    def _points_at_batch(self, entry: tuple[int, int]) -> bool:
        """True if a time entry matches an existing batch."""
        try:
            position, _ = self.locate(self.base_offset + entry[1], gaps=True)
        except Damage:
            return False
        return self._has_timestamp(position, entry)

    def _has_timestamp(self, position: int, entry: tuple[int, int]) -> bool:
        """True if the batch at ``position`` matches a time entry."""
        header = self.file.pread(position, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        base_offset, _, _, _, delta, timestamp_ms, _ = _SCAN(header)
        return base_offset + delta == self.base_offset + entry[1] and timestamp_ms == entry[0]

    # -- scanning -----------------------------------------------------------------------------------------------------

    def scan(
        self, position: int, next_offset: int, *, check_crcs: bool, gaps: bool = False, index: bool = True
    ) -> Scan:
        """Scan every batch from ``position`` on for the largest timestamp and, with ``index``, for index entries."""
        size = self.file.size
        batches_count = records_count = 0
        damage = ""
        while position < size:
            # A batch that is cut by the window's end is read again with the next window; one larger than a window is
            # read whole, unless its length field points past the file, which is damage or a torn end.
            window = self.file.pread(position, _WINDOW_BYTES)
            length = batch_bounds(window)[2]
            if len(window) < length <= size - position:
                window = self.file.pread(position, length)
            part = self._scan_window(window, position, next_offset, check_crcs, gaps, index)
            batches_count += part.batches_count
            records_count += part.records_count
            next_offset = part.next_offset
            damage = part.damage
            if damage or part.position == position:
                position = part.position
                damage = damage or _CUT_OFF
                break
            position = part.position
        return Scan(position, next_offset, damage, batches_count, records_count)

    def _scan_window(
        self, window: bytes, start: int, next_offset: int, check_crcs: bool, gaps: bool, index: bool
    ) -> Scan:
        """The inner loop of `scan`: it takes a microsecond per batch, so it calls nothing but the CRC function."""
        view = memoryview(window)
        end = len(view)
        position = batches_count = records_count = 0
        since = self.since_index_bytes
        interval = self._index_interval_bytes if index else _NEVER
        max_timestamp_ms = self.max_timestamp_ms
        damage = ""
        while end - position >= HEADER_BYTES:
            base_offset, length, magic, crc, delta, timestamp_ms, count = _SCAN(view, position)
            # A gap is damage unless compaction may have made it. Offsets that go back are always damage.
            if base_offset != next_offset and not (gaps and base_offset > next_offset):
                damage = f"offset {base_offset} stands where {next_offset} belongs"
                break
            stop = position + 12 + length
            if magic != 2 or length < 49 or delta < 0:
                damage = f"no batch header (magic {magic}, length {length}, last offset delta {delta})"
                break
            # Cut by the window or by the end of the file. `scan` decides which.
            if stop > end:
                break
            if check_crcs and crc32c(view[position + 21 : stop]) != crc:
                damage = "the CRC does not match"
                break
            next_offset = base_offset + delta + 1
            if timestamp_ms > max_timestamp_ms:
                self.max_timestamp_ms = max_timestamp_ms = timestamp_ms
                self.max_timestamp_offset = next_offset - 1
            if since > interval:
                self.offset_index.add(next_offset - 1 - self.base_offset, start + position)
                self.time_index.add(max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
                since = 0
            since += stop - position
            position = stop
            batches_count += 1
            records_count += count
        if index:
            self.since_index_bytes = since
        return Scan(start + position, next_offset, damage, batches_count, records_count)
