"""The positions of the records of one schema, whose fields are read in step.

Reads never leave the data, which is followed by more zeros than a record can be read past its end before a check stops
it. The cursor of a bad record is not moved further, and its values are garbage that is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Mask = Any
"""Rows as a boolean array; None means all rows."""

SLOW = -1
"""Stands for a reason: the record must be read separately by `serial`."""

ENDS_EARLY = "the message ends before the value does"
TOO_LONG = "the number has more than 64 bits"
TOO_LONG_INT = "the number has more than 32 bits"
NEGATIVE = "the length is negative"

_ONES = np.uint64(0x7F7F7F7F7F7F7F7F)
_CONTINUED = np.uint64(0x8080808080808080)
_FIRST = np.uint64(0x80)
_PAIRS = np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)
_QUADS = np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)
_HALVES = np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)
_1, _2, _3, _4, _7, _8, _56, _63 = (np.uint64(each) for each in (1, 2, 3, 4, 7, 8, 56, 63))
_BYTE = np.uint64(0xFF)


class Data:
    """The bytes, and the eight-byte words that begin at each of them."""

    def __init__(self, source: NDArray[np.uint8], padding: int) -> None:
        """``padding`` is how far a record may be read past its end."""
        size = len(source)
        self.bytes = np.empty(size + padding + 16, np.uint8)
        self.bytes[:size] = source
        self.bytes[size:] = 0
        self.words: NDArray[np.uint64] = np.ndarray((size + padding + 8,), "<u8", self.bytes, strides=(1,))


class Cursor:
    """The positions of some records. ``live`` are those that are not bad; None means all."""

    def __init__(self, data: Data, at: NDArray[np.int64], end: NDArray[np.int64], reasons: list[str]) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.live: Mask = None
        self.why: NDArray[np.int32] | None = None
        """The problem of each record, as its number in ``reasons``: 0 for none, or `SLOW`."""
        self.reasons = reasons

    def __len__(self) -> int:
        return len(self.at)

    # records that leave ----------------------------------------------------------------------------------------------

    def fail(self, bad: Mask, present: Mask, path: str, reason: str) -> None:
        """Mark the ``bad`` records among those ``present``. A record read past its end gets only that reason."""
        if present is not None:
            bad = bad & present
        if not bad.any():
            return
        over = self.at > self.end
        for mask, why in ((bad & over, ENDS_EARLY), (bad & ~over, reason)):
            if mask.any():
                self.reasons.append(f"field {path}: {why}" if path else why)
                self._leave(mask, len(self.reasons))

    def hand_over(self, rows: NDArray[np.int64]) -> None:
        """Let these records be read separately, because reading them in step would cost more."""
        mask = np.zeros(len(self), bool)
        mask[rows] = True
        self._leave(mask, SLOW)

    def _leave(self, mask: Mask, why: int) -> None:
        if self.why is None:
            self.why = np.zeros(len(self), np.int32)
            self.live = np.ones(len(self), bool)
        self.why[mask & (self.why == 0)] = why
        self.live = self.live & ~mask

    def still(self, present: Mask) -> Mask:
        """Return the records of ``present`` that have not become bad."""
        if self.live is None:
            return present
        return self.live if present is None else present & self.live

    # subsets ---------------------------------------------------------------------------------------------------------

    def part(self, rows: NDArray[np.int64]) -> Cursor:
        """Return a cursor over some of the records. `rejoin` copies its positions back."""
        return Cursor(self.data, self.at[rows], self.end[rows], self.reasons)

    def rejoin(self, part: Cursor, rows: NDArray[np.int64]) -> None:
        self.at[rows] = part.at
        if part.why is not None:
            for why in np.unique(part.why[part.why != 0]).tolist():
                mask = np.zeros(len(self), bool)
                mask[rows[part.why == why]] = True
                self._leave(mask, why)

    # reading ---------------------------------------------------------------------------------------------------------

    def advance(self, by: Any, present: Mask) -> None:
        self.at = self.at + (by if present is None else by * present)

    def byte(self, present: Mask) -> NDArray[np.uint8]:
        found = self.data.bytes[self.at]
        self.advance(1, present)
        return found

    def word(self, ahead: int = 0) -> NDArray[np.uint64]:
        """Return the next eight bytes, little-endian, without moving."""
        return self.data.words[self.at + ahead if ahead else self.at]

    def number(self, present: Mask, path: str) -> NDArray[np.int64]:
        """Read Avro's long. Rows that are not ``present`` have arbitrary values."""
        word = self.word()
        if not (word & _FIRST).any():
            self.advance(1, present)
            return _unzigzag(word & np.uint64(0x7F))
        stop = ~word & _CONTINUED
        below = (stop & (~stop + _1)) - _1  # all bits below the bit that ends the number
        raw = word & below & _ONES
        raw = (raw & _PAIRS[0]) | ((raw & _PAIRS[1]) >> _1)
        raw = (raw & _QUADS[0]) | ((raw & _QUADS[1]) >> _2)
        raw = (raw & _HALVES[0]) | ((raw & _HALVES[1]) >> _4)
        size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        longer = stop == 0
        if longer.any():
            self._longest(np.flatnonzero(longer), raw, size, present, path)
        self.advance(size, present)
        return _unzigzag(raw)

    def _longest(self, rows: Any, raw: Any, size: Any, present: Mask, path: str) -> None:
        """Add the ninth and tenth byte of numbers that have them."""
        word = self.data.words[self.at[rows] + 8]
        ninth, tenth = word & _BYTE, (word >> _8) & _BYTE
        raw[rows] |= (ninth & np.uint64(0x7F)) << _56
        more = ninth >= _FIRST
        raw[rows[more]] |= (tenth[more] & _1) << _63
        size[rows] = 9 + more
        bad = np.zeros(len(self), bool)
        bad[rows[more & (tenth > _1)]] = True
        self.fail(bad, present, path, TOO_LONG)

    def length(self, present: Mask, path: str) -> NDArray[np.int64]:
        """Read the length of bytes, checked to be within the record; 0 for rows that are not present."""
        size = self.number(present, path)
        return self._within(size, present, path)

    def _within(self, size: Any, present: Mask, path: str) -> NDArray[np.int64]:
        room = self.end - self.at
        negative, over = size < 0, size > room
        if present is not None:
            size = size * present
        if negative.any() or over.any():
            self.fail(negative, present, path, NEGATIVE)
            self.fail(over, self.still(present), path, ENDS_EARLY)
            live = self.still(present)
            size = size if live is None else size * live
        return size

    def span(self, size: int, present: Mask, path: str) -> NDArray[np.int64]:
        """Like `length`, for a fixed length."""
        return self._within(np.full(len(self), size, np.int64), present, path)

    def check_ends(self, path: str) -> None:
        """Mark records as bad that were read past their end."""
        over = self.at > self.end
        if over.any():
            self.fail(over, self.live, path, ENDS_EARLY)


def _unzigzag(raw: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (raw >> _1).view(np.int64) ^ -(raw & _1).view(np.int64)
