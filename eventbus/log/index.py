"""The two indexes of a segment, in Kafka's formats: offset to position, and timestamp to offset.

Both are caches of the log. They are loaded on first use, trusted only if the batch header that an entry points at
agrees, and rebuilt from the log otherwise. Entries gather in memory and are written to the file in groups.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from operator import lt
from struct import Struct

from eventbus.log.storage import File, Storage

_SWAP = sys.byteorder == "little"
_TIME_ENTRY = Struct(">qI")

LARGEST_RELATIVE_OFFSET = 2**31 - 1
"""The largest relative offset that Kafka's indexes can hold."""


class OffsetIndex:
    """``.index``: 4 bytes last offset of a batch, relative to the segment's first; 4 bytes position of that batch."""

    ENTRY_BYTES = 8
    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, position: int) -> None:
        """Add an entry. An offset that does not fit is left out: looking it up only takes a longer scan."""
        if relative_offset > LARGEST_RELATIVE_OFFSET:
            return
        self._offsets.append(relative_offset)
        self._positions.append(position)

    def floor(self, relative_offset: int) -> tuple[int, int] | None:
        """Return the last entry at or before an offset, as (relative offset, position)."""
        slot = bisect_right(self._offsets, relative_offset) - 1
        return (self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def last(self) -> tuple[int, int] | None:
        return (self._offsets[-1], self._positions[-1]) if self._offsets else None

    def entries(self) -> Iterator[tuple[int, int]]:
        return zip(self._offsets, self._positions, strict=True)

    def cut(self, position: int) -> None:
        """Forget batches at or beyond a position."""
        keep = bisect_right(self._positions, position - 1)
        del self._offsets[keep:]
        del self._positions[keep:]

    def cut_offset(self, relative_offset: int) -> None:
        """Forget batches that end at or beyond an offset."""
        keep = bisect_right(self._offsets, relative_offset - 1)
        del self._offsets[keep:]
        del self._positions[keep:]

    def encode(self, start: int) -> bytes:
        """Return the entries from number ``start`` on, as in the file."""
        mixed = array("I", bytes(8 * (len(self) - start)))
        # Kafka stores big-endian pairs. Two slices and a byte swap are cheaper than packing each pair.
        mixed[0::2] = self._offsets[start:]
        mixed[1::2] = self._positions[start:]
        if _SWAP:
            mixed.byteswap()
        return mixed.tobytes()

    def decode(self, data: bytes) -> bool:
        """Replace the entries; return False if the bytes cannot be an index. Zeros at the end are Kafka's
        preallocation."""
        mixed = array("I", data[: len(data) // 8 * 8])
        if _SWAP:
            mixed.byteswap()
        offsets, positions = mixed[0::2], mixed[1::2]
        while positions and not positions[-1]:
            offsets.pop()
            positions.pop()
        self._offsets, self._positions = offsets, positions
        return all(map(lt, offsets, offsets[1:])) and all(map(lt, positions, positions[1:]))


class TimeIndex:
    """``.timeindex``: 8 bytes largest timestamp so far; 4 bytes last offset of the batch that brought it, relative."""

    ENTRY_BYTES = 12
    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    def add(self, timestamp_ms: int, relative_offset: int) -> None:
        """Add an entry if the timestamp is larger than all before."""
        if relative_offset <= LARGEST_RELATIVE_OFFSET and (not self._timestamps or timestamp_ms > self._timestamps[-1]):
            self._timestamps.append(timestamp_ms)
            self._offsets.append(relative_offset)

    def floor(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the last entry at or before a time, as (timestamp, relative offset)."""
        slot = bisect_right(self._timestamps, timestamp_ms) - 1
        return (self._timestamps[slot], self._offsets[slot]) if slot >= 0 else None

    def last(self) -> tuple[int, int] | None:
        return (self._timestamps[-1], self._offsets[-1]) if self._timestamps else None

    def entries(self) -> Iterator[tuple[int, int]]:
        return zip(self._timestamps, self._offsets, strict=True)

    def cut(self, relative_offset: int) -> None:
        """Forget offsets at or beyond this one."""
        keep = bisect_right(self._offsets, relative_offset - 1)
        del self._timestamps[keep:]
        del self._offsets[keep:]

    def encode(self, start: int) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps[start:], self._offsets[start:]))

    def decode(self, data: bytes) -> bool:
        self._timestamps, self._offsets = array("q"), array("I")
        for timestamp_ms, offset in _TIME_ENTRY.iter_unpack(data[: len(data) // 12 * 12]):
            if not timestamp_ms and not offset and self._timestamps:
                break  # Kafka preallocates index files; the first entry itself may be all zeros
            self._timestamps.append(timestamp_ms)
            self._offsets.append(offset)
        rising = all(map(lt, self._timestamps, self._timestamps[1:]))
        return rising and all(map(lt, self._offsets, self._offsets[1:]))


class IndexFile:
    """The file of an index. Nothing depends on it, so disk errors are not raised from here."""

    __slots__ = ("_index", "_path", "_storage", "_written")

    def __init__(self, storage: Storage, path: str, index: OffsetIndex | TimeIndex) -> None:
        self._storage = storage
        self._path = path
        self._index = index
        self._written = 0

    def exists(self) -> bool:
        return self._storage.exists(self._path)

    def load(self) -> bool:
        """Fill the index from the file; return False if it does not exist or is not an index."""
        file = self._open(create=False)
        if file is None:
            return False
        try:
            good = self._index.decode(file.pread(0, file.size))
        except OSError:
            return False
        finally:
            file.close()
        self._written = len(self._index) if good else 0
        return good

    def save(self) -> None:
        """Write the entries that are only in memory to the file."""
        if self._written == len(self._index):
            return
        file = self._open(create=True)
        if file is None:
            return
        start = self._written * self._index.ENTRY_BYTES
        try:
            # The file may have entries that were cut from memory, or a part of an entry from a write that failed.
            if file.size != start:
                file.truncate(start)
            file.append(self._index.encode(self._written))
            self._written = len(self._index)
        except OSError:
            pass  # a full disk; the entries stay in memory and are written with the next ones
        finally:
            file.close()

    def create(self) -> None:
        """Create the file if it does not exist yet."""
        file = self._open(create=True)
        if file is not None:
            file.close()

    def trim(self) -> None:
        """Adapt to entries that were cut off: the next entries overwrite them in the file."""
        self._written = min(self._written, len(self._index))

    def unload(self) -> None:
        """Drop every entry; `load` reads the file again, and without it the next `save` writes all entries."""
        self._index.cut(0)
        self._written = 0

    def _open(self, create: bool) -> File | None:
        try:
            return self._storage.open(self._path, create=create)
        except OSError:
            return None
