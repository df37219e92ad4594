"""Serialize topic indexes, and cache them on disk between runs of the command line.

A cached index is only a copy of the topic. One that cannot be read or does not match is rebuilt.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import time
import zlib
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from dlq.index import Cell, PartitionIndex, Segment, TopicIndex
from dlq.selection import STATUSES, CaseKey

logger = logging.getLogger("dlq")

_FORMAT = f"eventbus-dead-letters-1-{sys.byteorder}"
"""Columns are written in native byte order."""
_KEPT_SECONDS = 30 * 24 * 3600
_COLUMNS = {"q": 8, "I": 4}


class UnreadableIndex(Exception):
    """The file is not a readable index, so it must be rebuilt."""


class _Segment(msgspec.Struct, array_like=True):
    offsets: bytes
    cases: bytes
    times: bytes
    statuses: bytes
    states: bytes
    sums: dict[int, Cell]


class _Partition(msgspec.Struct, array_like=True):
    next_offset: int
    segments: list[_Segment]


class _File(msgspec.Struct, array_like=True):
    format: str
    topic: str
    topic_id: str
    state_topic_id: str
    states_until: int
    cases: list[CaseKey]
    partitions: dict[int, _Partition]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


def dump(index: TopicIndex) -> bytes:
    """Serialize the index, followed by a checksum."""
    partitions = {
        number: _Partition(one.next_offset, [_written(segment) for segment in one.segments])
        for number, one in index.partitions.items()
    }
    data = _encode(
        _File(_FORMAT, index.topic, index.topic_id, index.state_topic_id, index.states_until, index.cases, partitions)
    )
    return data + zlib.crc32(data).to_bytes(4, "big")


def load(data: bytes) -> TopicIndex:
    """Restore an index written by `dump`. Raises UnreadableIndex for anything else."""
    if len(data) < 4 or zlib.crc32(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "big"):
        raise UnreadableIndex("it is damaged")
    try:
        found = _decode(memoryview(data)[:-4])
    except msgspec.MsgspecError as error:
        raise UnreadableIndex(f"it is none: {error}") from None
    if found.format != _FORMAT:
        raise UnreadableIndex(f"it is in the format {found.format!r:.60}, not {_FORMAT!r}")
    partitions = {
        number: PartitionIndex(one.next_offset, [_read(segment, len(found.cases)) for segment in one.segments])
        for number, one in found.partitions.items()
    }
    index = TopicIndex(found.topic, found.topic_id, found.cases, partitions)
    index.state_topic_id, index.states_until = found.state_topic_id, found.states_until
    return index


def _written(segment: Segment) -> _Segment:
    return _Segment(
        segment.offsets.tobytes(),
        segment.cases.tobytes(),
        segment.times.tobytes(),
        bytes(segment.statuses),
        segment.states.tobytes(),
        segment.sums(),
    )


def _read(found: _Segment, cases: int) -> Segment:
    count = len(found.statuses)
    segment = Segment(
        _column("q", found.offsets, count),
        _column("I", found.cases, count),
        _column("q", found.times, count),
        bytearray(found.statuses),
        _column("q", found.states, count),
        found.sums,
    )
    if not count or max(segment.cases) >= cases or max(segment.statuses) >= len(STATUSES):
        raise UnreadableIndex("its columns do not fit its cases")
    return segment


def _column(kind: Literal["q", "I"], data: bytes, count: int) -> array[int]:
    if len(data) != _COLUMNS[kind] * count:
        raise UnreadableIndex("its columns differ in length")
    column: array[int] = array(kind)
    column.frombytes(data)
    return column


def cache_folder() -> Path:
    """Return the user's cache folder for indexes, below ``XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "eventbus" / "dead-letters"


class IndexCache:
    """Indexes in a folder, named after their topics' ids, which are globally unique."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, topic: str, topic_id: str) -> TopicIndex | None:
        """Return the cached index, or None if there is none that can be read."""
        path = self._path(topic_id)
        if path is None:
            return None
        try:
            index = load(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, UnreadableIndex) as error:
            logger.debug("%s: %s; the index is rebuilt", path, error)
            return None
        return index if (index.topic, index.topic_id) == (topic, topic_id) else None

    def save(self, index: TopicIndex) -> None:
        """Replace the file atomically, and remove files that were not written for a month.

        A failure is only logged: the index is rebuilt next time.
        """
        path = self._path(index.topic_id)
        if path is None:
            return
        written: str | None = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, written = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(dump(index))
            Path(written).replace(path)
            for other in self._folder.iterdir():
                if other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    other.unlink()
        except OSError as error:
            logger.debug("%s: %s; the index is not kept", path, error)
            if written is not None:
                with suppress(OSError):
                    Path(written).unlink()

    def _path(self, topic_id: str) -> Path | None:
        """Return the file's path, or None if the id is not one: Kafka before 2.8 has no topic ids."""
        if not re.fullmatch(r"[A-Za-z0-9_-]{16,64}", topic_id) or not topic_id.strip("A-_"):
            return None
        return self._folder / f"{topic_id}.index"
