"""The entries of one partition that become due at a time: retry partitions and scheduled records share this queue.

The users read their partition from the log, each in its own format, and `add` what waits. So a queue that is filled
again after a restart is equal to the one before.

1. An entry is BLOCKED, READY or TAKEN. Only a READY entry falls due. Its user decides what blocks an entry: an earlier
   record of its key, or an error.
2. READY entries are taken in the order of their due times, and entries with the same due time in the order of their
   numbers.
3. The heap holds ranks instead of entries. The rank of an entry that was removed, taken, blocked or given another time
   stays in the heap until it comes up. The heap is rebuilt before such ranks outnumber the entries.
"""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

logger = logging.getLogger("eventbus.delays")

BLOCKED: Final = 0
READY: Final = 1
TAKEN: Final = 2
NUMBER_BITS: Final = 63
CLOCKS_DIFFER_MS: Final = 5_000
"""How much the clocks of two machines of one service may differ."""
PLAUSIBLE_MS: Final = 1_577_836_800_000
"""A time in 2020. A clock that shows an earlier time has not been set yet."""
NO_LIMIT: Final = 1 << 62
_NUMBER_MASK = (1 << NUMBER_BITS) - 1
_MOST_STALE = 1_000
"""The number of useless ranks that are kept in the heap before it is rebuilt."""


def rank_of(due_ms: int, number: int) -> int:
    """Return the sort key of the heap: one integer takes less memory than two and a tuple."""
    return due_ms << NUMBER_BITS | number


class Due(msgspec.Struct, gc=False, eq=False):
    """The base of entries. An entry must not refer to anything that refers to it: such a cycle would never be freed."""

    rank: int
    """The due time, and in the low bits the entry's number. Numbers are unique in a queue, and rise."""
    state: int
    delay_ms: int | None
    """The time from the entry's write until it is due, by its writer's clock. None if a due time was given."""

    @property
    def due_ms(self) -> int:
        return self.rank >> NUMBER_BITS

    @due_ms.setter
    def due_ms(self, due_ms: int) -> None:
        self.rank = rank_of(due_ms, self.rank & _NUMBER_MASK)

    @property
    def size(self) -> int:
        """The size of the entry in bytes."""
        raise NotImplementedError  # each kind of entry has its own

    def corrected_ms(self, now_ms: int) -> int | None:
        """Return the due time that replaces a time from a wrong clock, or None if the time may be right."""
        if self.delay_ms is not None and self.due_ms - now_ms > self.delay_ms + CLOCKS_DIFFER_MS:
            return now_ms + self.delay_ms
        return None


E = TypeVar("E", bound=Due)


class DelayQueue(Generic[E]):
    """``entries`` holds all entries by number, in the order in which they were added; ``taken`` counts the TAKEN."""

    def __init__(self) -> None:
        self.entries: dict[int, E] = {}
        self.taken = 0
        self._heap: list[int] = []
        self._unchecked: list[E] = []
        """Entries added since the last `correct`. The clock that their times come from may be wrong."""
        self._latest_now_ms = 0

    def add(self, entry: E) -> None:
        self.entries[entry.rank & _NUMBER_MASK] = entry
        self._unchecked.append(entry)

    def remove(self, entry: E) -> None:
        del self.entries[entry.rank & _NUMBER_MASK]
        self.taken -= entry.state == TAKEN

    def block(self, entry: E) -> None:
        self.taken -= entry.state == TAKEN
        entry.state = BLOCKED

    def unblock(self, entry: E) -> None:
        """Make an entry READY."""
        entry.state = READY
        heappush(self._heap, entry.rank)
        if len(self._heap) > 2 * len(self.entries) + _MOST_STALE:
            self._rebuild()

    def put_back(self, entry: E) -> None:
        """Make an entry READY again if it is still TAKEN."""
        if entry.state == TAKEN and self.entries.get(entry.rank & _NUMBER_MASK) is entry:
            self.taken -= 1
            self.unblock(entry)

    def next_due_ms(self) -> int | None:
        """Return when the next READY entry is due, or None without a READY entry."""
        heap = self._heap
        while heap:
            if self._ready(heap[0]) is not None:
                return heap[0] >> NUMBER_BITS
            heappop(heap)
        return None

    def take(self, now_ms: int, most: int, most_bytes: int = NO_LIMIT) -> list[E]:
        """Take entries that are due, until there are ``most`` of them or they have ``most_bytes``."""
        taken: list[E] = []
        heap, end = self._heap, rank_of(now_ms + 1, 0)
        while heap and heap[0] < end and len(taken) < most and most_bytes > 0:
            entry = self._ready(heappop(heap))
            if entry is not None:
                entry.state = TAKEN
                most_bytes -= entry.size
                taken.append(entry)
        self.taken += len(taken)
        return taken

    def correct(self, now_ms: int, where: str) -> list[E]:
        """Replace due times that come from a wrong clock, perhaps years ahead, and log one warning.

        Return the entries whose time was replaced. Otherwise the entries would wait as long as the clock was wrong. A
        time can be wrong only if another process has written it, or if the clock was set since. All entries are checked
        only in the second case.
        """
        is_set = now_ms < self._latest_now_ms or self._latest_now_ms < PLAUSIBLE_MS <= now_ms
        self._latest_now_ms = now_ms
        unchecked, self._unchecked = self._unchecked, []
        corrected: list[E] = []
        latest_ms = 0
        for entry in self.entries.values() if is_set else unchecked:
            is_waiting = entry.state != TAKEN and self.entries.get(entry.rank & _NUMBER_MASK) is entry
            due_ms = entry.corrected_ms(now_ms) if is_waiting else None
            if due_ms is not None:
                latest_ms = max(latest_ms, entry.due_ms)
                entry.due_ms = due_ms
                corrected.append(entry)
        if corrected:
            self._rebuild()
            logger.warning(
                "%d times at which records of %s are due were computed by a clock that was wrong. They are not within "
                "their own interval or delay from now, the latest in %d s, and are computed again. Check the clocks of "
                "the machines of this service.",
                len(corrected), where, (latest_ms - now_ms) // 1000,
            )  # fmt: skip
        return corrected

    def _ready(self, rank: int) -> E | None:
        entry = self.entries.get(rank & _NUMBER_MASK)
        return entry if entry is not None and entry.state == READY and entry.rank == rank else None

    def _rebuild(self) -> None:
        self._heap = sorted(entry.rank for entry in self.entries.values() if entry.state == READY)
