"""The redo journal: a single flush instead of many.

Flushing many files separately costs a wait for each. A commit that touches many partitions writes its batches a second
time, into this file, and flushes only that. The acknowledgements are sent, and the partitions' own files are flushed
much later, all together (a *checkpoint*), after which the journal is emptied. After a crash, before any log is opened,
the journal is replayed: every batch is written to its place again. A log only grows, so that changes nothing where the
bytes had already arrived.

Each commit writes a frame::

    magic      4 bytes  "EBJ1"
    crc        uint32   CRC-32C of everything after it
    length     uint32   bytes of the parts
    sequence   uint64   the sequence of the previous frame plus 1
    parts:
        path length   uint16    path of the segment's log file
        id length     uint16    id of the topic the path belonged to
        path, id
        data length   uint32
        position      uint64    where in the file the data belongs
        data

Why a replay never does harm:

- *Torn frame*: the CRC fails. That frame was never acknowledged, and none was written after it.
- *Deleted and created again*: the directory's ``partition.metadata`` has another topic id, so old frames do not
  apply. It is durable before the first frame that contains it (a log's first flush is never journaled). A directory
  whose id was lost in a crash holds nothing that was acknowledged.
- *Deleted by retention*: the file is gone, the part is skipped.
- *Compacted*: another file has the segment's name. Only what is below the recovery point is compacted, the checkpoint
  is durable before that, and a part below the recovery point is skipped, because its bytes are already in their file.
- *Cut by recovery*: the journal is emptied, durably, before recovery cuts or anything is appended.
- *File shorter than a part's position*: bytes that were durable are missing. The part is skipped, so that recovery
  finds and reports the damage instead of a hole of zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from eventbus.errors import CorruptRecord
from eventbus.log.checkpoints import RECOVERY_POINTS, read_offsets
from eventbus.log.metadata import read_partition_metadata
from eventbus.log.storage import Buffer, File, OutOfDescriptors, Storage, read_whole, storage_error
from eventbus.records.batch import HEADER_BYTES, read_header
from eventbus.records.crc import crc32c

JOURNAL = "group-commit.journal"

_MAGIC = b"EBJ1"
_FRAME = struct.Struct(">4sIIQ")
_TARGET = struct.Struct(">HH")
_PLACE = struct.Struct(">IQ")
_CRC = struct.Struct(">I")
_CRC_START = 8


def part_target(path: str, topic_id: str) -> bytes:
    """Return the beginning of every part for a file."""
    name, identity = path.encode(), topic_id.encode()
    return _TARGET.pack(len(name), len(identity)) + name + identity


def part_place(size: int, position: int) -> bytes:
    """Return the fields between a part's target and its ``size`` bytes of data."""
    return _PLACE.pack(size, position)


class Journal:
    """The journal of a running engine, empty at first. `write` and `reset` run in the thread that flushes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._file: File | None = None
        self._named = False
        self._sequence = 0
        self.broken = False
        """The journal could not be flushed or cut: it is not used until the log is reopened."""

    @property
    def size_bytes(self) -> int:
        return self._file.size if self._file is not None and not self.broken else 0

    def open(self) -> bool:
        """Prepare for `write`; return False if the journal cannot be used. Its descriptor is held from now on."""
        if self._file is None and not self.broken:
            try:
                file = self._storage.open(JOURNAL, create=True)
                file.hold()
            except OSError:
                return False  # a full disk, or no descriptor: flush each file instead
            assert not file.size, f"{JOURNAL} was not replayed: call replay() first"
            self._file = file
        return not self.broken

    def write(self, parts: list[Buffer]) -> bool:
        """Add a frame, the concatenation of ``parts``, and flush it.

        Return False if the frame could not be written: then nothing has happened. Raises `OSError` if the flush failed;
        then the content of the disk is unknown.
        """
        file = self._file
        assert file is not None
        try:
            file.append(_encode(parts, self._sequence + 1))
        except OSError:
            # A full disk may have taken a part of the frame. Without the cut the next frame would follow that part, and
            # a replay, which ends at the first bad frame, would never reach it.
            self._cut(file, file.size)
            return False
        self._sequence += 1
        self._sync(file)
        return True

    def reset(self) -> None:
        """Empty the journal. Everything in it must already be on disk in its own file."""
        if self._file is not None and self.size_bytes:
            self._cut(self._file, 0)
            self._sync(self._file)

    def close(self) -> None:
        if self._file is not None:
            self._file.release()
            self._file.close()
            self._file = None

    def _cut(self, file: File, size: int) -> None:
        try:
            file.truncate(size)
        except OSError:
            # What the file holds now is unknown, so commits flush their files directly until the log is reopened.
            self.broken = True

    def _sync(self, file: File) -> None:
        try:
            file.sync()
            if not self._named:
                # A file whose directory entry is not on disk does not exist after a power cut. Once is enough.
                self._storage.sync_dir("")
                self._named = True
        except OutOfDescriptors:
            raise
        except OSError:
            self.broken = True
            raise


def replay(storage: Storage) -> int:
    """Write the journal's content to its place, then empty the journal; return the number of frames.

    Call this before any log is opened. Bytes are written even where they seem to be there already: after a failed flush
    the kernel shows pages that never reached the disk. Raises `CorruptRecord` if a damaged frame precedes a good one,
    and `StorageError` for disk errors.
    """
    if not storage.durable or not storage.exists(JOURNAL):
        return 0
    try:
        return _replay(storage)
    except OSError as error:
        raise storage_error(error, f"replaying {storage.describe()}/{JOURNAL}") from error


def replay_good(storage: Storage, *, dry_run: bool) -> None:
    """Write to its place what a damaged journal holds before the damage; with ``dry_run`` only look for damage.

    Raises `CorruptRecord` afterwards if it is damaged, and leaves the journal unchanged. An undamaged journal is
    replayed and emptied.
    """
    if not storage.durable or not storage.exists(JOURNAL):
        return
    if not dry_run:
        _replay(storage)
        return
    for _ in _frames(read_whole(storage, JOURNAL) or b"", f"{storage.describe()}/{JOURNAL}"):
        pass


def _replay(storage: Storage) -> int:
    journal = storage.open(JOURNAL)
    try:
        data = journal.pread(0, journal.size)
        targets = _Targets(storage)
        count = 0
        try:
            for body in _frames(data, f"{storage.describe()}/{JOURNAL}"):
                targets.apply(body)
                count += 1
        finally:
            targets.sync()  # also before the damage: repair moves a damaged journal away
        # Only after `sync`: until then the journal is the only durable copy. A crash here replays it again, harmlessly.
        if journal.size:
            journal.truncate(0)
            journal.sync()
        return count
    finally:
        journal.close()


class _Targets:
    """The segments that a replay writes to."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._files: dict[str, File | None] = {}
        self._ids: dict[str, str] = {}
        points = read_offsets(storage, RECOVERY_POINTS) or {}
        self._recovery_points = {str(topic_partition): offset for topic_partition, offset in points.items()}

    def apply(self, body: memoryview) -> None:
        start = 0
        while start < len(body):
            path_length, id_length = _TARGET.unpack_from(body, start)
            start += _TARGET.size
            path = str(body[start : start + path_length], "utf-8")
            start += path_length
            topic_id = str(body[start : start + id_length], "utf-8")
            start += id_length
            data_length, position = _PLACE.unpack_from(body, start)
            start += _PLACE.size
            data = body[start : start + data_length]
            file = self._file(path, topic_id)
            # A shorter file has lost bytes that were durable. Writing past its end would fill the gap with zeros, which
            # hides the damage from recovery.
            if file is not None and file.size >= position and not self._is_settled(path, data):
                file.pwrite(position, data)
            start += data_length

    def _is_settled(self, path: str, data: memoryview) -> bool:
        """True if the batches are below the recovery point. All of them are, or none: both end where commits end."""
        point = self._recovery_points.get(path.rpartition("/")[0], 0)
        return len(data) >= HEADER_BYTES and read_header(data).base_offset < point

    def sync(self) -> None:
        for file in self._files.values():
            if file is not None:
                file.sync()
                file.close()

    def _file(self, path: str, topic_id: str) -> File | None:
        """Return the file if it still belongs to the topic for which the frame was written."""
        directory = path.rpartition("/")[0]
        if directory not in self._ids:
            self._ids[directory] = read_partition_metadata(self._storage, directory)
        if not topic_id or self._ids[directory] != topic_id:
            return None
        if path not in self._files:
            try:
                self._files[path] = self._storage.open(path)
            except FileNotFoundError:
                self._files[path] = None
        return self._files[path]


def _encode(parts: list[Buffer], sequence: int) -> bytearray:
    frame = bytearray(_FRAME.size)
    frame += b"".join(parts)
    _FRAME.pack_into(frame, 0, _MAGIC, 0, len(frame) - _FRAME.size, sequence)
    _CRC.pack_into(frame, 4, crc32c(memoryview(frame)[_CRC_START:]))
    return frame


def _frames(data: bytes, path: str) -> Iterator[memoryview]:
    """Yield the parts of each frame, up to the first bad frame."""
    start = 0
    sequence = None
    while (frame := _frame_at(data, start)) is not None and sequence in (None, frame[0] - 1):
        sequence, body = frame
        yield body
        start += _FRAME.size + len(body)
    if len(data) - start < _FRAME.size:
        return
    _, _, length, sequence = _FRAME.unpack_from(data, start)
    # A torn frame is the last: the next is written only after this one was flushed. A good successor proves damage.
    following = _frame_at(data, start + _FRAME.size + length)
    if following is not None and following[0] == sequence + 1:
        raise CorruptRecord(
            f"{path} is damaged at position {start}, in a commit that was acknowledged. Restore the file from a "
            "backup, or move it away: the logs then open without what only the journal held"
        )


def _frame_at(data: bytes, start: int) -> tuple[int, memoryview] | None:
    """Return (sequence, parts) of the frame at a position if it is complete."""
    if len(data) - start < _FRAME.size:
        return None
    magic, crc, length, sequence = _FRAME.unpack_from(data, start)
    end = start + _FRAME.size + length
    view = memoryview(data)
    if magic != _MAGIC or end > len(data) or crc32c(view[start + _CRC_START : end]) != crc:
        return None
    return sequence, view[start + _FRAME.size : end]
