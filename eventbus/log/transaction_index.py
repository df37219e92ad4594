"""The aborted transactions of a partition, which read-committed readers need.

In memory they are sorted by the offset of their marker. On disk each segment has those whose marker it holds, in
``.txnindex``, Kafka's format; a segment without any has no file. 34 bytes an entry, big-endian::

    version int16 (0) | producer_id int64 | first_offset int64 | last_offset int64 | last_stable_offset int64

``last_stable_offset`` is the start of the oldest transaction that was open when this one ended: transactions that end
later began at that offset or after it. So a search may stop at the first entry whose ``last_stable_offset`` is beyond
its range.

Readers find aborted records by these offsets and not by scanning for markers. So the result does not depend on where a
fetch begins, nor on markers that compaction has removed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from eventbus.types import AbortedTransaction

SUFFIX = ".txnindex"
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedEntry(NamedTuple):
    """An aborted transaction, as stored in ``.txnindex``."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions by the offset of their marker."""

    __slots__ = ("_first_offsets", "_last_offsets", "_producer_ids", "_stable_offsets")

    def __init__(self, entries: Iterable[AbortedEntry] = ()) -> None:
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._stable_offsets = array("q")
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._last_offsets)

    def __iter__(self) -> Iterator[AbortedEntry]:
        return self._entries(0, len(self))

    @property
    def last_offset(self) -> int:
        """The offset of the newest marker, -1 if there is none."""
        return self._last_offsets[-1] if self._last_offsets else -1

    def add(self, entry: AbortedEntry) -> None:
        """Add the newest aborted transaction."""
        self._producer_ids.append(entry.producer_id)
        self._first_offsets.append(entry.first_offset)
        self._last_offsets.append(entry.last_offset)
        self._stable_offsets.append(entry.last_stable_offset)

    def overlapping(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return the transactions with any offset from ``start_offset`` to before ``end_offset``, by their marker."""
        number = bisect_left(self._last_offsets, start_offset)
        found: list[AbortedTransaction] = []
        while number < len(self._last_offsets):
            first_offset = self._first_offsets[number]
            if first_offset < end_offset:
                found.append(AbortedTransaction(self._producer_ids[number], first_offset, self._last_offsets[number]))
            if self._stable_offsets[number] >= end_offset:
                break
            number += 1
        return tuple(found)

    def is_complete(self, end_offset: int) -> bool:
        """True if no transaction that is added later can begin before ``end_offset``."""
        return bool(self._stable_offsets) and self._stable_offsets[-1] >= end_offset

    def between(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Return the entries whose marker is at ``start_offset`` or later and before ``end_offset``: those of a
        segment."""
        start, end = (bisect_left(self._last_offsets, offset) for offset in (start_offset, end_offset))
        return list(self._entries(start, end))

    def drop_before(self, offset: int) -> None:
        """Forget transactions that ended before ``offset``: their records are gone."""
        keep = bisect_left(self._last_offsets, offset)
        for column in (self._producer_ids, self._first_offsets, self._last_offsets, self._stable_offsets):
            del column[:keep]

    def remove(self, last_offsets: Collection[int]) -> None:
        """Forget the transactions with these markers: compaction removed them, and before that everything they
        aborted."""
        kept = [entry for entry in self if entry.last_offset not in last_offsets]
        self.__init__(kept)

    def _entries(self, start: int, end: int) -> Iterator[AbortedEntry]:
        columns = (self._producer_ids, self._first_offsets, self._last_offsets, self._stable_offsets)
        return map(AbortedEntry, *(column[start:end] for column in columns))


def encode_entries(entries: Iterable[AbortedEntry]) -> bytes:
    """Encode entries as in the file."""
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_entries(data: bytes) -> list[AbortedEntry] | None:
    """Decode a file; return None if the bytes cannot be the entries of a segment."""
    if len(data) % ENTRY_BYTES:
        return None
    entries: list[AbortedEntry] = []
    previous = -1
    for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(data):
        if version or producer_id < 0 or not 0 <= first_offset < last_offset or last_offset <= previous:
            return None
        if not 0 <= last_stable_offset <= last_offset + 1:
            return None
        entries.append(AbortedEntry(producer_id, first_offset, last_offset, last_stable_offset))
        previous = last_offset
    return entries
