"""The work that every case does alike: the same records, the same pace."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

KEYS = [b"customer%03d" % number for number in range(1_000)]
"""11 bytes each, 1,000 distinct ones."""
KEY_BYTES = 11


def values(size_bytes: int) -> list[bytes]:
    """1,000 different values of one size; random, so that nothing compresses them by luck."""
    source = random.Random(size_bytes)
    return [source.randbytes(size_bytes) for _ in range(1_000)]


def pairs(n: int, size_bytes: int = 100) -> list[tuple[bytes, bytes]]:
    """``n`` key-value pairs, made before the clock starts."""
    pool = values(size_bytes)
    return [(KEYS[number % 1_000], pool[number * 7 % 1_000]) for number in range(n)]


async def paced(n: int, per_s: float, send: Callable[[int], Awaitable[None]]) -> float:
    """Call ``send`` ``n`` times at a steady pace, never waiting for late ones; the worst lateness, in s."""
    begin, worst = time.perf_counter(), 0.0
    for number in range(n):
        due = begin + number / per_s
        ahead = due - time.perf_counter()
        if ahead > 0:
            await asyncio.sleep(ahead)
        worst = max(worst, time.perf_counter() - due)
        await send(number)
    return worst
