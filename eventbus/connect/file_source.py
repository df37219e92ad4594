"""``FileStreamSource``: a file's lines as records, following the file as ``tail -F`` does."""

from __future__ import annotations

import os
import select
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from eventbus.connect.connector import Context, Offset, SourceConnector, SourceRecord, partition_key
from eventbus.connect.settings import REQUIRED, Key
from eventbus.connect.values import STRING
from eventbus.errors import ConfigError, RecordTooLarge

_CHUNK_BYTES = 262_144
_HEAD_BYTES = 1_024


class FileStreamSource(SourceConnector):
    """Copies lines of ``file`` to ``topic``, from the last position on; without ``file``, of standard input.

    Text without a line feed is a line that is being written: it waits. A file that was truncated, or replaced, is read
    from its beginning; the rest of the old file comes first, as long as this process runs.
    """

    keys: ClassVar[Sequence[Key]] = (
        Key("file", default="", doc="to follow; standard input without one"),
        Key("topic", default=REQUIRED, doc="where its lines go"),
        Key("batch.size", "int", 2_000, "lines of a transaction, at most", minimum=1),
        Key("line.max.bytes", "int", 1_000_000, "a longer line stops the connector", minimum=1),
    )

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._path: str = self.settings["file"]
        self._topic: str = self.settings["topic"]
        self._batch: int = self.settings["batch.size"]
        self._limit: int = self.settings["line.max.bytes"]
        if self._path and Path(self._path).is_dir():
            raise ConfigError(f"{context.place('file')}: {self._path} is a directory: one file to a connector")
        self._file: BinaryIO | None = None
        self._position = 0
        """The position after the last line that was returned."""
        self._buffer = bytearray()
        """Bytes that were read, and not returned."""
        self._head = b""
        """The beginning of the file: a replacement with the same name begins differently."""
        self._stored: Offset = {}
        self._is_missing = False
        self._is_at_end = False

    def topics(self) -> Iterable[str]:
        return (self._topic,)

    @property
    def _partition(self) -> dict[str, Any]:
        return {"filename": self._path}

    # opening ---------------------------------------------------------------------------------------------------------

    def start(self, offsets: Mapping[str, Offset]) -> None:
        self._stored = dict(offsets.get(partition_key(self._partition), {}))

    def _open(self) -> bool:
        """Open the file at the last position."""
        try:
            file = Path(self._path).open("rb", buffering=0)  # noqa: SIM115 - it stays open between polls
        except FileNotFoundError:
            if not self._is_missing:
                self._is_missing = True
                self.context.note(f"{self.context.name}: there is no {self._path} yet; it is waited for")
            return False
        self._is_missing = False
        self._file = file
        self._buffer.clear()
        self._position = self._where_it_was(file)
        file.seek(self._position)
        self._head = _head(file, min(self._position, _HEAD_BYTES))
        return True

    def _where_it_was(self, file: BinaryIO) -> int:
        position, head_bytes = (self._stored.get(name, 0) for name in ("position", "head_bytes"))
        if not isinstance(position, int) or not isinstance(head_bytes, int) or position <= 0:
            return 0
        size = os.fstat(file.fileno()).st_size
        known = "head" not in self._stored or zlib.crc32(_head(file, head_bytes)) == self._stored["head"]
        if size >= position and known:
            return position
        why = (
            f"is shorter than it was ({size:,} bytes, {position:,} were read)" if size < position else "is another one"
        )
        self.context.note(f"{self.context.name}: {self._path} {why}: it is read from its beginning")
        return 0

    # reading ---------------------------------------------------------------------------------------------------------

    def poll(self) -> Sequence[SourceRecord]:
        if not self._path:
            return self._of_standard_input()
        if self._file is None and not self._open():
            return ()
        records = self._lines()
        if records:
            return records
        return self._lines() if self._is_changed() else ()

    def _lines(self) -> list[SourceRecord]:
        """Return whole lines, as many as a batch holds."""
        assert self._file is not None
        while b"\n" not in self._buffer:
            piece = self._file.read(_CHUNK_BYTES)
            if not piece:
                return []
            if _head(self._file, len(self._head)) != self._head:
                return self._lines() if self._reopen() else []  # truncated, and already longer again
            self._buffer += piece
            if b"\n" not in piece and len(self._buffer) > self._limit:
                raise self._too_long()
        return self._taken()

    def _taken(self) -> list[SourceRecord]:
        records: list[SourceRecord] = []
        start = 0
        while len(records) < self._batch:
            end = self._buffer.find(b"\n", start)
            if end < 0:
                break
            if end - start > self._limit:
                if records:
                    break  # return these first
                raise self._too_long()
            line = bytes(self._buffer[start:end]).removesuffix(b"\r")
            if len(self._head) < _HEAD_BYTES:
                self._head += bytes(self._buffer[start : end + 1])[: _HEAD_BYTES - len(self._head)]
            start = end + 1
            records.append(self._record(line, self._position + start))
        del self._buffer[:start]
        self._position += start
        return records

    def _record(self, line: bytes, position: int) -> SourceRecord:
        offset: Offset = {"position": position}
        if self._path:
            offset |= self._head_of(position)
        text = line.decode("utf-8", "surrogateescape")
        return SourceRecord(
            topic=self._topic, value=text, schema=STRING, partition=self._partition,
            offset=offset if self._path else {},
        )  # fmt: skip

    def _too_long(self) -> RecordTooLarge:
        return RecordTooLarge(
            f"{self._path or 'standard input'}: the line at byte {self._position:,} is longer than "
            f"line.max.bytes={self._limit:,}; is this a file of lines?"
        )

    def _is_changed(self) -> bool:
        """Check, at the end of the file, whether it was replaced; return True if there is more to read."""
        assert self._file is not None
        try:
            now = Path(self._path).open("rb", buffering=0)  # noqa: SIM115 - it may be kept open
        except FileNotFoundError:
            return False  # moved away; its replacement will come
        found, mine = os.fstat(now.fileno()), os.fstat(self._file.fileno())
        is_other = (found.st_ino, found.st_dev) != (mine.st_ino, mine.st_dev)
        goes_on = found.st_size >= self._position and _head(now, len(self._head)) == self._head
        if goes_on and not is_other:
            now.close()
            return False
        if is_other and not goes_on and self._buffer:
            # The writer of the old file has moved on, so its last line will never be completed.
            now.close()
            self._buffer += b"\n"
            return True
        now.close()
        return self._reopen()

    def _reopen(self) -> bool:
        assert self._file is not None
        self._file.close()
        self._file = None
        self._stored = {"position": self._position, **self._head_of(self._position)}
        return self._open()

    def _head_of(self, position: int) -> Offset:
        head = self._head[:position]
        return {"head": zlib.crc32(head), "head_bytes": len(head)}

    def _of_standard_input(self) -> Sequence[SourceRecord]:
        descriptor = sys.stdin.fileno()
        if not self._is_at_end and b"\n" not in self._buffer and select.select([descriptor], [], [], 0)[0]:
            piece = os.read(descriptor, _CHUNK_BYTES)
            self._buffer += piece
            if not piece:
                self._is_at_end = True
                self._buffer += b"\n" if self._buffer else b""
            elif b"\n" not in piece and len(self._buffer) > self._limit:
                raise self._too_long()
        return self._taken()

    def stop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _head(file: BinaryIO, size: int) -> bytes:
    """Read the beginning without changing the position."""
    at = file.tell()
    file.seek(0)
    found = file.read(size) if size else b""
    file.seek(at)
    return found
