"""Iterate over batch headers without creating objects: the most frequent operation of reading and recovery.

The CRC of a batch does not cover its first 17 bytes (base offset, length, leader epoch, magic), so the walk checks them
by their neighbours: each batch starts at the offset, and at the byte, where the batch before it ends. A leader epoch
may be anything; nothing here depends on it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from eventbus.log.storage import Buffer
from eventbus.records.crc import crc32c

_CHAIN = struct.Struct(">qi4xBI2xi").unpack_from
"""Reads base_offset, batch_length, magic, crc, last_offset_delta."""

_HEADER_BYTES = 61
_LENGTH_END = 12
"""``batch_length`` counts the bytes after itself: the next batch is at position + 12 + batch_length."""
_CRC_START = 21
_LEAST_LENGTH = _HEADER_BYTES - _LENGTH_END


class Walked(NamedTuple):
    """The result of a walk."""

    position: int
    """The end of the last whole batch, in the buffer."""
    next_offset: int
    damage: str
    """The fault of the batch at ``position``; empty if it is merely incomplete, or if the walk was completed."""


def walk(
    buffer: Buffer, position: int, next_offset: int, max_offset: int, *, check_crcs: bool, gaps: bool = False
) -> Walked:
    """Walk over whole batches from ``position``, the first of which starts at ``next_offset``.

    Ends before the first batch that starts at ``max_offset`` or later, or is incomplete, or damaged. ``gaps`` allows
    offsets to be missing between batches, as compaction leaves them.
    """
    view = memoryview(buffer)
    end = len(view)
    damage = ""
    while end - position >= _HEADER_BYTES:
        base_offset, length, magic, crc, delta = _CHAIN(view, position)
        if base_offset != next_offset and not (gaps and base_offset > next_offset):
            damage = f"offset {base_offset} stands where {next_offset} belongs"
            break
        if base_offset >= max_offset:
            break
        if magic != 2 or length < _LEAST_LENGTH or delta < 0:
            damage = f"no batch header (magic {magic}, length {length}, last offset delta {delta})"
            break
        stop = position + _LENGTH_END + length
        if stop > end:
            break
        if check_crcs and crc32c(view[position + _CRC_START : stop]) != crc:
            damage = "the CRC does not match"
            break
        next_offset = base_offset + delta + 1
        position = stop
    return Walked(position, next_offset, damage)


def skip_to(buffer: Buffer, offset: int, next_offset: int, *, gaps: bool = False) -> Walked:
    """Find the batch that contains ``offset``, or the first batch after it; the headers before it are checked."""
    view = memoryview(buffer)
    end = len(view)
    position = 0
    damage = ""
    while end - position >= _HEADER_BYTES:
        base_offset, length, magic, _, delta = _CHAIN(view, position)
        if base_offset != next_offset and not (gaps and base_offset > next_offset):
            damage = f"offset {base_offset} stands where {next_offset} belongs"
            break
        if magic != 2 or length < _LEAST_LENGTH or delta < 0:
            damage = f"no batch header (magic {magic}, length {length}, last offset delta {delta})"
            break
        if base_offset + delta >= offset:
            return Walked(position, base_offset, "")
        next_offset = base_offset + delta + 1
        position += _LENGTH_END + length
    return Walked(position, next_offset, damage)


def batch_bounds(header: Buffer) -> tuple[int, int, int]:
    """Return (base offset, next offset, size in bytes) of the header in ``header``; (-1, -1, 0) if it is not valid."""
    if len(header) < _HEADER_BYTES:
        return -1, -1, 0
    base_offset, length, magic, _, delta = _CHAIN(header, 0)
    if magic != 2 or length < _LEAST_LENGTH or delta < 0:
        return -1, -1, 0
    return base_offset, base_offset + delta + 1, _LENGTH_END + length
