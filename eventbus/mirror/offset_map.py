"""The exact mapping of source offsets to destination offsets, for one partition."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CHUNK_RUNS = 64
"""The number of runs per chunk. Small, because a transaction rewrites the last chunk; compaction keeps one."""


class Run(NamedTuple):
    """A number of consecutive records, without gaps on either side."""

    source: int
    destination: int
    length: int


class OffsetMap:
    """Grows at its end, as records are copied; shrinks at its beginning, once both sides have deleted them.

    Offsets of the two sides diverge: markers and aborted records take offsets, and compaction leaves gaps. The records
    between two gaps are a run: 24 bytes in memory, however many records it holds.
    """

    def __init__(self, base: int = 0) -> None:
        self.base = base
        """The destination's end before the first record was copied."""
        self._sources = array("q")
        self._destinations = array("q")
        self._counts = array("q")
        self._dropped_chunks = 0

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Run]:
        return map(Run._make, zip(self._sources, self._destinations, self._counts, strict=True))

    @property
    def position(self) -> int:
        """The source's offset after the last record that was copied; -1 if there is none."""
        return self._sources[-1] + self._counts[-1] if self._sources else -1

    @property
    def end(self) -> int:
        """The destination's offset after the last record that was copied."""
        return self._destinations[-1] + self._counts[-1] if self._sources else self.base

    def add(self, source: int, destination: int, count: int) -> None:
        """Append records. Raises ValueError unless they follow the last ones: they would be copied twice."""
        if source < self.position or destination < self.end or count < 1:
            raise ValueError(f"{Run(source, destination, count)} does not follow {self.position}, {self.end}")
        if source == self.position and destination == self.end and self._sources:
            self._counts[-1] += count
            return
        self._sources.append(source)
        self._destinations.append(destination)
        self._counts.append(count)

    def translate(self, source: int) -> int:
        """Return the position at the destination for a reader whose next offset at the source is ``source``.

        It is the copy of that record; if that has none (a marker, an aborted or compacted record), the next record that
        was copied; after the last of them, the end: records copied later have that offset or a higher one.
        """
        index = bisect_right(self._sources, source) - 1
        if index >= 0 and source < self._sources[index] + self._counts[index]:
            return self._destinations[index] + source - self._sources[index]
        return self._destinations[index + 1] if index + 1 < len(self) else self.end

    def copy_of(self, source: int) -> int | None:
        """Return the offset of a record's copy; None if it was not copied."""
        return _across(self._sources, self._destinations, self._counts, source)

    def origin_of(self, destination: int) -> int | None:
        """Return the offset of the record of which this is a copy; None if it is not a copy."""
        return _across(self._destinations, self._sources, self._counts, destination)

    # storage
    # --------------------------------------------------------------------------------------------------------------

    @property
    def last_chunk(self) -> int:
        """The number of the chunk that grows."""
        return self._dropped_chunks + max(len(self) - 1, 0) // CHUNK_RUNS

    def chunks_from(self, first: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (number, content) of the chunks from ``first`` on: source, destination and count of each run.

        Except in the first run, the offsets are relative to the end of the previous run, which keeps them small.
        """
        for number in range(max(first, self._dropped_chunks), self.last_chunk + 1 if len(self) else 0):
            begin = (number - self._dropped_chunks) * CHUNK_RUNS
            content: list[int] = []
            source_end = destination_end = 0
            for index in range(begin, min(begin + CHUNK_RUNS, len(self))):
                source, destination, count = self._sources[index], self._destinations[index], self._counts[index]
                content += (source - source_end, destination - destination_end, count)
                source_end, destination_end = source + count, destination + count
            yield number, content

    @classmethod
    def of_chunks(cls, base: int, chunks: Iterable[tuple[int, Sequence[int]]]) -> OffsetMap:
        """Return the stored map."""
        ordered = sorted(chunks)
        found = cls(base)
        found._dropped_chunks = ordered[0][0] if ordered else 0
        for _, content in ordered:
            source_end = destination_end = 0
            for at in range(0, len(content), 3):
                source, destination, count = (
                    source_end + content[at],
                    destination_end + content[at + 1],
                    content[at + 2],
                )
                found._sources.append(source)
                found._destinations.append(destination)
                found._counts.append(count)
                source_end, destination_end = source + count, destination + count
        return found

    def drop_before(self, source: int, destination: int) -> list[int]:
        """Drop runs that exist on neither side any more; return the numbers of deleted chunks. The last chunk stays."""
        gone = 0
        while (gone + 1) * CHUNK_RUNS < len(self):
            last = (gone + 1) * CHUNK_RUNS - 1
            count = self._counts[last]
            if self._sources[last] + count > source or self._destinations[last] + count > destination:
                break
            gone += 1
        for column in (self._sources, self._destinations, self._counts):
            del column[: gone * CHUNK_RUNS]
        dropped = list(range(self._dropped_chunks, self._dropped_chunks + gone))
        self._dropped_chunks += gone
        return dropped


def _across(here: array[int], there: array[int], counts: array[int], offset: int) -> int | None:
    index = bisect_right(here, offset) - 1
    if index < 0 or offset >= here[index] + counts[index]:
        return None
    return there[index] + offset - here[index]
