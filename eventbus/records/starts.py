"""Find the positions of records in batches: each record begins with its length, and the next follows it.

That is a chain, which numpy cannot shorten. But each batch is a separate chain, so all batches are followed in
parallel: each step finds the next record of every batch. If only few chains are left, a Python loop over each of them
is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from eventbus.errors import CorruptRecord
from eventbus.records.varint import read_varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Pairs = NDArray[np.uint16]

_MAX_LONG_BYTES = 8
"""Longer varints (timestamp deltas beyond 10^16 ms) are left to the careful reader."""
_SIDE_BY_SIDE = 48
"""From this many chains on, a step of numpy costs less than a step of Python for each of them."""


class Unusual(Exception):
    """Raised for data that only the careful reader can judge."""


def _two_byte_tables() -> tuple[Int64s, NDArray[np.uint8]]:
    """Return tables, by two bytes as a little-endian number: the varint at their start, and its size (0 if longer)."""
    pair = np.arange(1 << 16, dtype=np.int64)
    first, second = pair & 0xFF, pair >> 8
    raw = np.where(first < 0x80, first, first & 0x7F | second << 7)
    size = np.where(first < 0x80, 1, np.where(second < 0x80, 2, 0)).astype(np.uint8)
    return (raw >> 1) ^ -(raw & 1), size


_VALUES, _SIZES = _two_byte_tables()
_STRIDES = np.where(_SIZES > 0, _VALUES + _SIZES, 0)
"""The distance from a record's length to the next record; 0 if the varint is longer."""


def byte_pairs(data: bytes) -> Pairs:
    """Return, for each position, the two bytes there as a number."""
    return np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))


def read_varints(pairs: Pairs, data: NDArray[np.uint8], positions: Int64s) -> tuple[Int64s, Int64s]:
    """Decode the varints at ``positions``; return them and the positions after them."""
    pair = pairs[positions]
    values, sizes = _VALUES.take(pair), _SIZES.take(pair)
    if not sizes.all():
        (longer,) = np.nonzero(sizes == 0)
        values[longer], sizes[longer] = _read_long_varints(data, positions[longer])
    return values, positions + sizes


def _read_long_varints(data: NDArray[np.uint8], positions: Int64s) -> tuple[Int64s, NDArray[np.uint8]]:
    raw = np.zeros(len(positions), np.int64)
    sizes = np.zeros(len(positions), np.uint8)
    more = np.ones(len(positions), np.int64)
    for index in range(_MAX_LONG_BYTES):
        byte = data[positions + sizes].astype(np.int64)
        raw |= (byte & 0x7F) * more << 7 * index
        sizes += more.astype(np.uint8)
        more &= byte >> 7
        if not more.any():
            return (raw >> 1) ^ -(raw & 1), sizes
    raise Unusual


def record_starts(
    data: bytes, pairs: Pairs, begins: Sequence[int], ends: Sequence[int], counts: Sequence[int]
) -> Int64s:
    """Return the position of each record, of batches whose records are in ``data`` from ``begins`` to ``ends``.

    Raises `Unusual` or `IndexError` for records that do not end where their batch does. The result is undefined for
    negative lengths.
    """
    if len(counts) >= _SIDE_BY_SIDE:
        return _side_by_side(data, pairs, np.array(begins), np.array(ends), np.array(counts))
    starts: list[int] = []
    for begin, end, count in zip(begins, ends, counts, strict=True):
        _follow(data, begin, end, count, starts)
    return np.array(starts, np.int64)


def _side_by_side(data: bytes, pairs: Pairs, begins: Int64s, ends: Int64s, counts: Int64s) -> Int64s:
    longest_first = np.argsort(-counts, kind="stable")
    at, ends, into = begins[longest_first], ends[longest_first], (counts.cumsum() - counts)[longest_first]
    counts = counts[longest_first]
    starts = np.empty(int(counts.sum()), np.int64)
    steps = int(counts[_SIDE_BY_SIDE - 1])
    for chains in np.searchsorted(-counts, -np.arange(steps)).tolist():
        here, number = at[:chains], into[:chains]
        starts[number] = here
        number += 1
        strides = _STRIDES.take(pairs[here])
        if not strides.all():
            (longer,) = np.nonzero(strides == 0)
            lengths, sizes = _read_long_varints(np.frombuffer(data, np.uint8), here[longer])
            strides[longer] = lengths + sizes
        here += strides
    for chain in range(int(np.searchsorted(-counts, -steps))):  # chains that continue
        rest: list[int] = []
        _follow(data, int(at[chain]), int(ends[chain]), int(counts[chain]) - steps, rest)
        starts[into[chain] : into[chain] + len(rest)] = rest
        at[chain] = ends[chain]
    if (at != ends).any():
        raise Unusual
    return starts


def _follow(data: bytes, position: int, end: int, count: int, starts: list[int]) -> None:
    """Append the positions of the next ``count`` records, which are the last of their batch."""
    append = starts.append
    for _ in range(count):
        append(position)
        first = data[position]
        if first < 128:
            position += (first >> 1) + 1
        else:
            second = data[position + 1]
            if second < 128:
                position += (first >> 1) + (second << 6) - 62
            else:
                try:
                    length, position = read_varint(data, position, end)
                except CorruptRecord:
                    raise Unusual from None
                position += length
    if position != end:
        raise Unusual
