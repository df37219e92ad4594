"""Open a partition's directory: find its segments, check them, and remove what a crash left incomplete.

Below the published durable watermark (``recovery_point``) nothing is read and nothing is ever cut: damage there is an
error for a human. Beyond it a crash may have left anything. The scan keeps the longest chain of whole batches, cuts
what follows with a warning, and writes what it keeps again. After a failed flush the kernel holds pages that are right
in memory, marked clean, and not on disk, so only a new write brings them there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from eventbus.errors import CorruptRecord
from eventbus.log.config import LogConfig
from eventbus.log.leftovers import is_own_file, remove_file, set_aside
from eventbus.log.metadata import read_partition_metadata, secure_partition_metadata, write_partition_metadata
from eventbus.log.segment import Damage, Segment
from eventbus.log.storage import Storage
from eventbus.log.swap import recover_swaps
from eventbus.records.batch import HEADER_BYTES, check_crc, read_header
from eventbus.types import TopicPartition

_logger = logging.getLogger("eventbus.log")

UNKNOWN = -1
"""The recovery point if its checkpoint is damaged: what was durable is unknown, so nothing valid may be cut."""

_CHUNK_BYTES = 1 << 20
_SEARCH_LIMIT_BYTES = 16 << 20
_EVERYTHING = 1 << 62


class Recovered(NamedTuple):
    """The result of a recovery."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    topic_id: str


def recover(
    storage: Storage,
    topic_partition: TopicPartition,
    config: LogConfig,
    now_ms: int,
    recovery_point: int,
    log_start_offset: int,
    clean_shutdown: bool,
    topic_id: str,
) -> Recovered:
    """Recover a partition's segments and the end of its log. See `PartitionLog.open` for the arguments."""
    directory = str(topic_partition)
    if storage.exists(directory):
        stored_id = read_partition_metadata(storage, directory)
        if topic_id and stored_id and stored_id != topic_id:
            if not set_aside(storage, directory, f"belongs to topic id {stored_id}, not to {topic_id}"):
                raise CorruptRecord(
                    f"{topic_partition} in {storage.describe()} cannot be opened. {directory} belongs to another topic "
                    f"(id {stored_id}, not {topic_id}) and cannot be renamed. Move the directory away"
                )
            stored_id = ""
        topic_id = topic_id or stored_id or storage.unique_id()
        if topic_id != stored_id and storage.exists(directory):
            write_partition_metadata(storage, directory, topic_id, sync=storage.durable)
    try:
        recover_swaps(storage, directory)
    except Damage as damage:
        raise corrupt_record(storage, topic_partition, damage) from damage
    segments = _find_segments(storage, directory, config, now_ms)
    if not segments:
        if recovery_point > log_start_offset:
            raise CorruptRecord(
                f"{topic_partition} in {storage.describe()} should hold offsets up to {recovery_point}, but its "
                f"directory has no segment. Restore {directory}/ from a backup, or see what going on without it costs: "
                f"eventbus log repair {storage.describe()}"
            )
        return Recovered([], log_start_offset, log_start_offset, topic_id)
    task = _Recovery(storage, topic_partition, config, segments, recovery_point, clean_shutdown, topic_id)
    try:
        log_end_offset = task.run()
    except Damage as damage:
        raise corrupt_record(storage, topic_partition, damage) from damage
    if log_start_offset > log_end_offset:
        # Possible only without fsync: records were deleted by request up to an offset whose tail was lost. Never reuse
        # offsets.
        task.drop_all()
        return Recovered([], log_start_offset, log_start_offset, topic_id)
    return Recovered(segments, max(log_start_offset, segments[0].base_offset), log_end_offset, topic_id)


class _Recovery:
    """Recovers one partition; ``segments`` is changed in place."""

    def __init__(
        self,
        storage: Storage,
        topic_partition: TopicPartition,
        config: LogConfig,
        segments: list[Segment],
        recovery_point: int,
        clean_shutdown: bool,
        topic_id: str,
    ) -> None:
        self.storage = storage
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments = segments
        # Compaction leaves gaps, but only in what was durable: beyond the watermark a gap is a loss in a crash.
        self.gaps = "compact" in config.cleanup_policy and recovery_point == UNKNOWN
        self.recovery_point = max(recovery_point, segments[0].base_offset)
        self.watermark = _EVERYTHING if clean_shutdown or recovery_point == UNKNOWN else self.recovery_point
        self.unknown = recovery_point == UNKNOWN
        self.clean_shutdown = clean_shutdown

    def run(self) -> int:
        """Recover the log. Return its end offset."""
        segments = self.segments
        # A roll creates the next segment before its first batch, so a crash in between leaves it empty.
        empty = [segment for segment in segments[1:] if not segment.file.size]
        for segment in empty:
            segments.remove(segment)
        number = len(segments) - 1
        if not self.clean_shutdown:
            # Segments below the recovery point were flushed and are not read, however large the log is.
            while number and segments[number].base_offset > self.recovery_point:
                number -= 1
        next_offset = self._scan(segments[number], resume=True)
        while number + 1 < len(segments):
            following = segments[number + 1]
            if following.base_offset != next_offset and not (self.gaps and following.base_offset > next_offset):
                self._refuse_below(segments[number], following.base_offset)
                self._drop_from(number + 1, f"{segments[number].path} ends at offset {next_offset}")
                break
            segments[number].finish_indexes()
            number += 1
            next_offset = self._scan(following, resume=False)
        if next_offset < self.recovery_point:
            # Acknowledged records are missing. To continue would assign their offsets again.
            last = segments[-1]
            raise Damage(last.path, last.file.size, next_offset, "the file ends too early")
        self._settle_empty(empty, next_offset)
        self._read_first_timestamp(segments[-1])
        return next_offset

    def _settle_empty(self, empty: list[Segment], end_offset: int) -> None:
        """Keep the empty segment that starts at the end of the log; remove those beyond.

        Earlier empty segments stay, unused: a roll on a full disk leaves them, and the log continues in the segment
        before.
        """
        first_beyond = len(self.segments)
        for segment in empty:
            if segment.base_offset < end_offset:
                segment.close()
                continue
            self.segments.append(segment)
            first_beyond += segment.base_offset == end_offset
        self._drop_from(first_beyond, "never begun")

    def drop_all(self) -> None:
        """Drop all segments, because every record was deleted by request."""
        self._drop_from(0, "every record below the log start offset was deleted by request")

    def _scan(self, segment: Segment, *, resume: bool) -> int:
        """Check a segment; the first segment only from its last trustworthy index entry below the watermark on."""
        below = (self.recovery_point if not self.clean_shutdown else _EVERYTHING) if resume else 0
        position, offset = segment.resume(below)
        scan = segment.scan(position, offset, check_crcs=True, gaps=self.gaps)
        if scan.damage:
            self._cut(segment, Damage(segment.path, scan.position, scan.next_offset, scan.damage))
        if not self.clean_shutdown and self.storage.durable:
            self._write_again(segment, scan.next_offset, cut=bool(scan.damage))
        return scan.next_offset

    def _cut(self, segment: Segment, damage: Damage) -> None:
        """Remove a torn tail; refuse if that would remove something that was durable."""
        # With an unknown watermark only a torn end may be cut: a valid batch after the damage may have been
        # acknowledged, and then so were the damaged bytes before it.
        last = segment is self.segments[-1]
        torn_off = last and not self.clean_shutdown and not _valid_batch_after(segment, damage.position)
        if damage.offset < self.watermark and not (self.unknown and torn_off):
            raise damage
        lost = segment.file.size - damage.position
        _logger.warning(
            "%s: cutting %d bytes at position %d (offset %d) that no flush had covered: %s",
            damage.path, lost, damage.position, damage.offset, damage.what,
        )  # fmt: skip
        segment.file.truncate(damage.position)

    def _refuse_below(self, segment: Segment, offset: int) -> None:
        if offset < self.watermark:
            raise Damage(segment.path, segment.file.size, offset, "the segment that follows does not join")

    def _drop_from(self, number: int, why: str) -> None:
        """Remove segments that do not continue the chain."""
        if number == len(self.segments):
            return
        # Backwards, so that a crash half way leaves a chain that is shorter, and never one with a hole.
        for segment in reversed(self.segments[number:]):
            if segment.file.size:
                _logger.warning("%s: dropping %d bytes: %s", segment.path, segment.file.size, why)
            segment.file.close()
            remove_segment(self.storage, segment.stem)
        del self.segments[number:]
        if self.storage.durable:
            self.storage.sync_dir(str(self.topic_partition))

    def _write_again(self, segment: Segment, end_offset: int, *, cut: bool) -> None:
        """Write the kept tail again and make it, and the cut, durable (see the module's docstring)."""
        position = segment.file.size
        if self.recovery_point < end_offset:
            position, _ = segment.locate(self.recovery_point, gaps=self.gaps)
        if position == segment.file.size and segment.base_offset < self.recovery_point and not cut:
            return
        while position < segment.file.size:
            data = segment.file.pread(position, _CHUNK_BYTES)
            segment.file.pwrite(position, data)
            position += len(data)
        segment.file.sync()
        # The topic's id and the directory's name must be durable, too, before records in it are acknowledged again.
        secure_partition_metadata(self.storage, str(self.topic_partition), self.topic_id)
        self.storage.sync_dir("")

    def _read_first_timestamp(self, segment: Segment) -> None:
        """Read the first timestamp of the active segment, from which rolling by time counts."""
        if segment.file.size:
            segment.first_timestamp_ms = read_header(segment.file.pread(0, HEADER_BYTES)).max_timestamp_ms


def _valid_batch_after(segment: Segment, position: int) -> bool:
    """True if a whole, valid batch follows the damage: then it is a hole, not a torn end."""
    data = segment.file.pread(position, _SEARCH_LIMIT_BYTES)
    # The length field of a damaged header cannot be trusted, so every byte 2 (the magic, byte 16 of a header) is tried.
    # It starts at 17 to skip the damaged batch itself; the CRC excludes chance.
    magic = data.find(2, 17)
    while magic >= 0:
        with contextlib.suppress(CorruptRecord):
            check_crc(data, read_header(data, magic - 16), magic - 16)
            return True
        magic = data.find(2, magic + 1)
    return False


def _find_segments(storage: Storage, directory: str, config: LogConfig, now_ms: int) -> list[Segment]:
    """Return the segments in a directory by offset; leftover files are removed."""
    if not storage.exists(directory):
        return []
    names = storage.listdir(directory)
    stems = [name[:-4] for name in names if name.endswith(".log") and name[:-4].isdecimal()]
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if is_own_file(name) and (
            suffix in ("tmp", "deleted") or (suffix in ("index", "timeindex") and stem not in stems)
        ):
            remove_file(storage, f"{directory}/{name}")
    segments = [
        Segment(storage, f"{directory}/{stem}", int(stem), now_ms, config.index_interval_bytes, create=False)
        for stem in stems
    ]
    segments.sort(key=lambda segment: segment.base_offset)
    return segments


def remove_segment(storage: Storage, stem: str) -> None:
    """Remove the files of a segment, the log first."""
    # An index without a log is recognized as a leftover at the next start; a log without an index would be rebuilt.
    for suffix in (".log", ".index", ".timeindex"):
        if storage.exists(stem + suffix):
            storage.remove(stem + suffix)


def missing_offsets(segments: Sequence[Segment], published_start: int | None) -> str:
    """Return which offsets are missing before the first segment; empty if none are, or if no start was published.

    Retention publishes the new log start offset before it deletes a segment, so a first segment beyond the published
    offset was not deleted by the log.
    """
    if not segments or published_start is None or segments[0].base_offset <= published_start:
        return ""
    first = segments[0]
    return (
        f"{first.base_offset - published_start:,} offsets ({published_start} to {first.base_offset - 1}) are missing: "
        f"the log starts at offset {published_start}, and its first segment is {first.path}"
    )


def corrupt_record(storage: Storage, topic_partition: TopicPartition, damage: Damage) -> CorruptRecord:
    """Return the error for damage where none may be, with what to do."""
    return CorruptRecord(
        f"{topic_partition} is damaged: {storage.describe()}/{damage.path} at position {damage.position} "
        f"(offset {damage.offset}): {damage.what}. These bytes were on disk once, so nothing was changed. Restore the "
        f"file from a backup, or see what giving the damaged bytes up costs: eventbus log repair {storage.describe()}"
    )
