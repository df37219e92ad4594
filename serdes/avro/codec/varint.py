"""Avro's integers: zig-zag, seven bits a byte. Generated code reads single bytes itself and calls these for others."""

from __future__ import annotations

from struct import Struct
from typing import Any

ZIGZAG = tuple((n >> 1) ^ -(n & 1) for n in range(128))
"""The decoded number of each single byte."""
_MOST_SMALL = 1024


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and where the next thing begins. IndexError when the data end before it does.

    Written out: a timestamp has six bytes, and a loop over them costs twice as much.
    """
    a = data[at]
    if a < 128:
        return (a >> 1) ^ -(a & 1), at + 1
    b = data[at + 1]
    if b < 128:
        n = a + (b << 7) - 0x80
        return (n >> 1) ^ -(n & 1), at + 2
    c = data[at + 2]
    if c < 128:
        n = a + (b << 7) + (c << 14) - 0x4080
        return (n >> 1) ^ -(n & 1), at + 3
    d = data[at + 3]
    if d < 128:
        n = a + (b << 7) + (c << 14) + (d << 21) - 0x204080
        return (n >> 1) ^ -(n & 1), at + 4
    n = a + (b << 7) + (c << 14) + (d << 21) - 0x10204080
    shift = 28
    for here in range(at + 4, at + 10):
        e = data[here]
        if e < 128:
            n += e << shift
            if n >> 64:
                break
            return (n >> 1) ^ -(n & 1), here + 1
        n += (e & 127) << shift
        shift += 7
    raise ValueError("the number has more than 64 bits")


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Return the 32-bit number at ``at``, and the position after it. Raises as `read_long` does."""
    n, at = read_long(data, at)
    if not -0x80000000 <= n <= 0x7FFFFFFF:
        raise ValueError(f"the number {n} has more than 32 bits")
    return n, at


def read_length(data: bytes, at: int) -> tuple[int, int]:
    """How long something is, and where it begins."""
    n, at = read_long(data, at)
    if n < 0:
        raise ValueError(f"the length {n} is negative")
    return n, at


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """How many items a block has, and where the first begins. A negative one is followed by the block's size."""
    n, at = read_long(data, at)
    if n >= 0:
        return n, at
    if n == -1 << 63:
        raise ValueError(f"the block's count {n} is out of range")
    size, at = read_length(data, at)
    if size > len(data) - at:
        raise ValueError(f"a block of {size} bytes, but {len(data) - at} are left")
    return -n, at


def _bytes_of(n: int) -> bytes:
    n = (n << 1) ^ (n >> 63)
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


SMALL = {n: _bytes_of(n) for n in range(-64, _MOST_SMALL)}
"""The numbers that are met most; generated code looks here before it calls `long_bytes`."""
small = SMALL.get


def long_bytes(n: Any) -> bytes:
    """Return a number of 64 bits. Raises TypeError, ValueError."""
    if not isinstance(n, int):
        raise TypeError(f"{n!r:.80} is {type(n).__name__}, not int")
    if not -0x8000000000000000 <= n <= 0x7FFFFFFFFFFFFFFF:
        raise ValueError(f"{n} does not fit an Avro long (64 bits)")
    n = (n << 1) ^ (n >> 63)
    if n < 0x4000:
        return bytes((n & 127 | 128, n >> 7)) if n > 127 else bytes((n,))
    if n < 0x10000000:
        if n < 0x200000:
            return bytes((n & 127 | 128, n >> 7 & 127 | 128, n >> 14))
        return bytes((n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21))
    head = bytes((n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21 & 127 | 128))
    n >>= 28
    if n < 0x4000:
        return head + (bytes((n & 127 | 128, n >> 7)) if n > 127 else bytes((n,)))
    return head + _tail(n)


def _tail(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def int_bytes(n: Any) -> bytes:
    """Return a number of 32 bits."""
    if isinstance(n, int) and not -0x80000000 <= n <= 0x7FFFFFFF:
        raise ValueError(f"{n} does not fit an Avro int (32 bits)")
    return long_bytes(n)


FLOAT = Struct("<f")
DOUBLE = Struct("<d")
