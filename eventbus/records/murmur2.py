"""MurmurHash2 as in Kafka's Java client (``org.apache.kafka.common.utils.Utils.murmur2``), the default partitioner
of keyed records. Byte-exact, so that a key goes to the same partition from every client."""

from __future__ import annotations

from struct import Struct

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_WORDS = [Struct(f"<{count}I").unpack_from for count in range(65)]


def murmur2(key: bytes) -> int:
    """Return the hash of ``key`` as an unsigned 32-bit number (Java's ``int`` has the same bits, signed)."""
    length = len(key)
    words = _WORDS[length >> 2] if length < 260 else Struct(f"<{length >> 2}I").unpack_from
    state = _SEED ^ length
    for word in words(key):
        word = word * _M & _MASK
        state = (state * _M ^ (word ^ word >> 24) * _M) & _MASK
    if length & 3:
        state = (state ^ int.from_bytes(key[length & -4 :], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    return state ^ state >> 15


def to_positive(number: int) -> int:
    """Clear the sign bit like Kafka's ``Utils.toPositive``; this is not the absolute value."""
    return number & 0x7FFFFFFF
