"""Sets of offsets with one bit each, to compare what a table holds of a partition with the log, window by window.

A hundred million offsets need 12.5 MB, and empty windows need nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bools = NDArray[np.bool_]

WINDOW = 1 << 20
"""Offsets that are compared at once. Windows begin at multiples of it."""
_SHIFT = 20
_MOST_RANGES = 100


class Ranges(msgspec.Struct, frozen=True):
    """A set of offsets: their count, and the first ranges as ``[first, last]``, both inclusive."""

    count: int = 0
    ranges: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        """Format the ranges as ``3, 17..20, ...``."""
        shown = [f"{first:,}" if first == last else f"{first:,}..{last:,}" for first, last in self.ranges]
        told = sum(last - first + 1 for first, last in self.ranges)
        return ", ".join((*shown, "...") if told < self.count else shown)

    def head(self, most: int) -> Ranges:
        """Return the same count with fewer ranges."""
        return Ranges(self.count, self.ranges[:most])


class RangesBuilder:
    """Collects ascending offsets. It keeps the first hundred ranges and counts all offsets."""

    def __init__(self) -> None:
        self._count = 0
        self._ranges: list[tuple[int, int]] = []

    def add(self, offsets: Int64s) -> None:
        """Add ascending offsets, all greater than the previous ones."""
        if not len(offsets):
            return
        self._count += len(offsets)
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        firsts = offsets[np.concatenate(([0], breaks))]
        lasts = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))]
        pairs = list(zip(firsts[: _MOST_RANGES + 1].tolist(), lasts[: _MOST_RANGES + 1].tolist(), strict=True))
        if self._ranges and pairs[0][0] == self._ranges[-1][1] + 1:
            self._ranges[-1] = self._ranges[-1][0], pairs.pop(0)[1]
        self._ranges += pairs[: _MOST_RANGES - len(self._ranges)]

    def build(self) -> Ranges:
        return Ranges(self._count, self._ranges)


class OffsetSet:
    """The offsets seen in one partition."""

    def __init__(self) -> None:
        self._windows: dict[int, NDArray[np.uint8]] = {}
        self.count = 0

    def add(self, offsets: Int64s) -> Int64s:
        """Add offsets in any order. Return those that were present already or occur twice, ascending."""
        twice = offsets[:0]
        if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():
            offsets = np.sort(offsets)
            repeats = offsets[1:] == offsets[:-1]
            twice = offsets[1:][repeats]
            offsets = offsets[np.concatenate(([True], ~repeats))]
        parts = np.split(offsets, np.flatnonzero(np.diff(offsets >> _SHIFT)) + 1) if len(offsets) else []
        there = [self._add_to_window(int(part[0]) >> _SHIFT, part) for part in parts]
        self.count += len(offsets) - sum(map(len, there))
        return np.union1d(twice, np.concatenate(there)) if there else twice

    def _add_to_window(self, number: int, offsets: Int64s) -> Int64s:
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = np.zeros(WINDOW // 8, np.uint8)
        local = offsets & (WINDOW - 1)
        places, bits = local >> 3, (1 << (local & 7)).astype(np.uint8)
        there = (window[places] & bits) != 0
        np.bitwise_or.at(window, places, bits)
        return offsets[there]

    def has(self, offsets: Int64s) -> Bools:
        """Return for each offset whether it is in the set. The offsets may be in any order."""
        found = np.zeros(len(offsets), bool)
        for number in np.unique(offsets >> _SHIFT).tolist():
            packed = self._windows.get(number)
            if packed is not None:
                here = np.flatnonzero(offsets >> _SHIFT == number)
                local = offsets[here] & (WINDOW - 1)
                found[here] = (packed[local >> 3] >> (local & 7)) & 1 == 1
        return found

    def windows(self) -> Iterator[int]:
        """Iterate over the numbers of windows with offsets, ascending."""
        return iter(sorted(self._windows))

    def window(self, number: int) -> Bools:
        """Return the membership of each of the `WINDOW` offsets in a window."""
        packed = self._windows.get(number)
        if packed is None:
            return np.zeros(WINDOW, bool)
        return np.unpackbits(packed, bitorder="little").view(bool)
