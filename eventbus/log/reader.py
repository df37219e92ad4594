"""Read a log from another process, while its owner writes: for Spark's executors and for tools.

A `LogReader` takes no lock and writes nothing. It reads as far as the owner has published
(``last-stable-offset-checkpoint``), never as far as the files happen to reach.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator

from eventbus.errors import ConfigError, CorruptRecord, OffsetOutOfRange, UnknownTopicOrPartition
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.metadata import parse_directory, read_partition_metadata
from eventbus.log.recovery import corrupt_record
from eventbus.log.segment import Damage, Segment
from eventbus.log.snapshot import SUFFIX as SNAPSHOT_SUFFIX
from eventbus.log.snapshot import IndexedSegment, decode_snapshot
from eventbus.log.storage import FileStorage, read_whole, storage_error
from eventbus.log.swap import SWAP, stem_of
from eventbus.log.transaction_index import ENTRY_BYTES, AbortedEntry, TransactionIndex, decode_entries
from eventbus.log.transaction_index import SUFFIX as INDEX_SUFFIX
from eventbus.records import ControlType, RecordBatch, marker_of
from eventbus.records.aborted import AbortedRanges, committed_batches
from eventbus.records.crc import crc32c
from eventbus.types import AbortedTransaction, IsolationLevel, OffsetAndTimestamp, TopicPartition

_ATTEMPTS = 5
_INDEX_INTERVAL_BYTES = LogConfig().index_interval_bytes


class LogReader:
    """The topics in a directory, read-only. Cheap to make; holds nothing open between calls."""

    def __init__(self, path: str) -> None:
        self._storage = FileStorage(path, read_only=True)
        if not self._storage.exists(""):
            raise ConfigError(f"there is no log in {self._storage.root}: name the directory of a file:// URL")

    def topics(self) -> list[str]:
        """Return the topics that have, or had, records; internal topics too."""
        return sorted({topic for topic, _ in self._topic_partitions()})

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that have, or had, records."""
        return sorted(partition for name, partition in self._topic_partitions() if name == topic)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return, for each partition, the first offset, and the offset after the last stable record."""
        stable = self._published(checkpoints.LAST_STABLE_OFFSETS)
        starts = self._published(checkpoints.LOG_START_OFFSETS)
        return {
            partition: self._bounds(TopicPartition(topic, partition), starts, stable)
            for partition in self.partitions(topic)
        }

    def topic_id(self, topic: str) -> str:
        """Return the topic's id, which differs after the topic is deleted and created again. Empty before its first
        record."""
        try:
            for partition in self.partitions(topic):
                if found := read_partition_metadata(self._storage, f"{topic}-{partition}"):
                    return found
        except OSError as error:
            raise storage_error(error, f"reading the id of {topic} in {self._storage.root}") from error
        return ""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        max_bytes: int = 1 << 20,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Iterator[bytes]:
        """Yield whole committed batches with the offsets from ``start`` to before ``end``, about ``max_bytes`` at a
        time.

        The first and the last batch may exceed the range, and batches of markers may be among them; decoding skips
        those. Every CRC is checked. Never reads beyond the last stable offset, and leaves out aborted records unless
        ``isolation`` includes them: then `aborted` returns which they are. Raises `OffsetOutOfRange` for records that
        retention deleted, and `CorruptRecord` for damage.
        """
        where = TopicPartition(topic, partition)
        # Published by the owner after its flush. What lies beyond may still be rolled back by a power cut, or be half
        # written.
        first, stable = self._bounds_of(where)
        if start < first:
            raise self._deleted(where, start, first)
        offset, end = start, min(end, stable)
        leaves_out = isolation is IsolationLevel.READ_COMMITTED
        aborted = self._aborted(where, start, end) if leaves_out and start < end else ()
        ranges = AbortedRanges(aborted)
        while offset < end:
            # Opened again for each segment: the owner may compact or delete segments between two of them.
            with contextlib.closing(self._open(where, offset)) as segment:
                for data, next_offset in self._read_segment(where, segment, offset, end, max_bytes):
                    offset = next_offset
                    if aborted:
                        data = committed_batches(data, ranges)
                    if data:
                        yield data

    def aborted(self, topic: str, partition: int, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions with offsets from ``start`` to before ``end``. Raises as `read`."""
        return self._aborted(TopicPartition(topic, partition), start, end)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first stable record at or after a time; None if all are older."""
        where = TopicPartition(topic, partition)
        first, stable = self._bounds_of(where)
        for base_offset in self._base_offsets(where):
            if base_offset >= stable:
                break
            with contextlib.closing(self._open(where, max(base_offset, first))) as segment:
                found = self._first_at(where, segment, timestamp_ms, first, stable)
            if found is not None:
                return found if found.offset < stable else None
        return None

    # -- one partition ------------------------------------------------------------------------------------------------

    def _read_segment(
        self, where: TopicPartition, segment: Segment, offset: int, end: int, max_bytes: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield (batches, offset after them) for the part of a range in one segment."""
        try:
            position, base_offset = segment.locate(offset)
            if position >= segment.size_bytes:
                raise self._ends_early(where, segment, base_offset, end)
            while position < segment.size_bytes and base_offset < end:
                data, base_offset = segment.read(
                    position, base_offset, max_bytes, end, one=True, check_crcs=True, gaps=False
                )
                position += len(data)
                yield bytes(data), base_offset
        except Damage as damage:
            raise corrupt_record(self._storage, where, damage) from None
        except OSError as error:
            raise storage_error(error, f"reading {where} at offset {offset}") from error

    # -- aborted transactions -----------------------------------------------------------------------------------------

    def _aborted(self, where: TopicPartition, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Call `_read_aborted` again after an error, because the log's owner may be compacting meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(CorruptRecord):
                return self._read_aborted(where, start, end)
        return self._read_aborted(where, start, end)

    def _read_aborted(self, where: TopicPartition, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions with offsets from ``start`` to before ``end``, from the ``.txnindex`` files.

        The files have no checksum. Entries that the newest snapshot contains are checked by the snapshot's, later ones
        by the marker in the log.
        """
        index = TransactionIndex()
        known = {segment.base_offset: segment for segment in self._indexed_segments(where)}
        base_offsets = self._base_offsets(where)
        for base_offset in base_offsets[max(bisect_right(base_offsets, start) - 1, 0) :]:
            path = stem_of(str(where), base_offset) + INDEX_SUFFIX
            data = self._read(path) or b""
            _, count, crc = known.get(base_offset, IndexedSegment(base_offset, 0, 0))
            entries = decode_entries(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
            # The owner may have merged the segment since the snapshot was taken. `_aborted` tries again then.
            if count and crc32c(data[: count * ENTRY_BYTES]) != crc:
                entries = None
            for number, entry in enumerate(entries or ()):
                if number >= count:
                    if entry.last_offset >= start and entry.first_offset < end and not self._agrees(where, entry):
                        entries = None
                        break
                    entry = entry._replace(last_stable_offset=0)  # not recorded in the log: search on
                if entry.last_offset > index.last_offset:  # skip those of a segment that is being merged into another
                    index.add(entry)
            if entries is None and base_offset in self._base_offsets(where):
                raise CorruptRecord(
                    f"{where}: {self._storage.root}/{path} does not say what the log says, so nobody can tell which "
                    "transactions were aborted. Open the log once, which makes the file anew (any eventbus command "
                    "with its file:// URL), then read again"
                )
            if index.is_complete(end):
                break
        return index.overlapping(start, end)

    def _indexed_segments(self, where: TopicPartition) -> list[IndexedSegment]:
        """Return the state of the ``.txnindex`` files in the newest good snapshot."""
        try:
            names = self._storage.listdir(str(where))
        except FileNotFoundError:
            return []
        for name in reversed([name for name in names if name.endswith(SNAPSHOT_SUFFIX)]):
            decoded = decode_snapshot(self._read(f"{where}/{name}") or b"")
            if decoded is not None:
                return decoded.segments
        return []

    def _agrees(self, where: TopicPartition, entry: AbortedEntry) -> bool:
        """True if the log has the first batch and the marker of an aborted transaction where the entry says."""
        end = self._batch_at(where, entry.last_offset)
        if end is None or end.header.base_offset != entry.last_offset:
            return False
        if not end.header.is_control or end.header.producer_id != entry.producer_id:
            return False
        marker = marker_of(end)
        if marker is None or marker.control_type is not ControlType.ABORT:
            return False
        # Retention has deleted the beginning of the transaction. The marker alone must do.
        if entry.first_offset < self._bounds_of(where)[0]:
            return True
        first = self._batch_at(where, entry.first_offset)
        if first is None or not first.header.records_count:
            return first is not None  # compaction took the records
        return (
            first.header.base_offset == entry.first_offset
            and first.header.producer_id == entry.producer_id
            and first.header.is_transactional
        )

    def _batch_at(self, where: TopicPartition, offset: int) -> RecordBatch | None:
        """Return the batch that contains an offset."""
        with contextlib.closing(self._open(where, offset)) as segment:
            try:
                position, base_offset = segment.locate(offset)
                data, _ = segment.read(position, base_offset, 0, offset + 1, one=True, check_crcs=True, gaps=False)
            except Damage:
                return None
        return RecordBatch(data) if data else None

    def _read(self, path: str) -> bytes | None:
        try:
            return read_whole(self._storage, path)
        except OSError as error:
            raise storage_error(error, f"reading {self._storage.root}/{path}") from error

    # -- segments -----------------------------------------------------------------------------------------------------

    def _first_at(
        self, where: TopicPartition, segment: Segment, timestamp_ms: int, first: int, stable: int
    ) -> OffsetAndTimestamp | None:
        """Search one segment. Its owner may be writing beyond the stable offset, so nothing there counts as damage."""
        try:
            with contextlib.suppress(Damage):
                if segment.largest_timestamp_ms() < timestamp_ms:
                    return None
            return segment.first_at(timestamp_ms, first)
        except Damage as damage:
            if damage.offset >= stable:
                return None
            raise corrupt_record(self._storage, where, damage) from None
        except OSError as error:
            raise storage_error(error, f"searching {where} by time") from error

    def _open(self, where: TopicPartition, offset: int) -> Segment:
        """Open the segment that contains an offset; its owner may be rolling and deleting meanwhile."""
        for _ in range(_ATTEMPTS):
            base_offsets = self._base_offsets(where)
            number = bisect_right(base_offsets, offset) - 1
            if number < 0:
                raise self._deleted(where, offset, base_offsets[0] if base_offsets else self._bounds_of(where)[0])
            with contextlib.suppress(FileNotFoundError):
                segment = self._segment(where, base_offsets[number])
                while not segment.size_bytes and number:  # empty since a full disk: the one before was continued
                    segment.close()
                    number -= 1
                    segment = self._segment(where, base_offsets[number])
                return segment
        raise self._deleted(where, offset, self._bounds_of(where)[0])

    def _segment(self, where: TopicPartition, base_offset: int) -> Segment:
        stem = stem_of(str(where), base_offset)
        # A .swap file is compacted and about to be swapped in: the segments it replaces may be gone already.
        with contextlib.suppress(FileNotFoundError):
            return Segment(self._storage, stem + SWAP, base_offset, 0, _INDEX_INTERVAL_BYTES, create=False)
        return Segment(self._storage, stem, base_offset, 0, _INDEX_INTERVAL_BYTES, create=False)

    def _base_offsets(self, where: TopicPartition) -> list[int]:
        try:
            names = self._storage.listdir(str(where))
        except FileNotFoundError:
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())

    def _bounds_of(self, where: TopicPartition) -> tuple[int, int]:
        if where not in self._topic_partitions():
            raise UnknownTopicOrPartition(
                f"there is no partition {where} in {self._storage.root}; topics there: {', '.join(self.topics())}"
            )
        return self._bounds(
            where,
            self._published(checkpoints.LOG_START_OFFSETS),
            self._published(checkpoints.LAST_STABLE_OFFSETS),
        )

    def _bounds(
        self, where: TopicPartition, starts: dict[TopicPartition, int], stable: dict[TopicPartition, int]
    ) -> tuple[int, int]:
        base_offsets = self._base_offsets(where)
        first = max(starts.get(where, 0), base_offsets[0] if base_offsets else 0)
        return first, max(first, stable.get(where, 0))

    def _topic_partitions(self) -> set[TopicPartition]:
        directories = map(parse_directory, self._storage.listdir(""))
        found = {where for where in directories if where is not None}
        return found | self._published(checkpoints.LAST_STABLE_OFFSETS).keys()

    def _published(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self._storage, name) or {}
        except OSError as error:
            raise storage_error(error, f"reading {self._storage.root}/{name}") from error

    def _deleted(self, where: TopicPartition, offset: int, first: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"{where} in {self._storage.root} begins at offset {first}; {offset} was deleted by retention. Read "
            "faster, keep more (retention.ms, retention.bytes), or start at the earliest offset"
        )

    def _ends_early(self, where: TopicPartition, segment: Segment, offset: int, end: int) -> CorruptRecord:
        return CorruptRecord(
            f"{where}: {self._storage.root}/{segment.path} ends at offset {offset}, though offsets up to {end} were "
            "published. If the machine crashed, open the log once to recover it (any eventbus command with its "
            "file:// URL), then read again"
        )
