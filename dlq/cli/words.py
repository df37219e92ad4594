"""Times, amounts and rates, as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
_BARS = ".▁▂▃▄▅▆▇█"
_ASCII_BARS = ".-~=+ox#@"
"""For terminals that have no block characters."""


def when(time_ms: int | None) -> str:
    """``2013-01-31 18:00:00.000 UTC``; a number that is no time stays one."""
    if time_ms is None:
        return "?"
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):  # whoever writes headers may write any number
        return f"{time_ms} ms"
    return f"{text.removesuffix('+00:00')} UTC"


def how_long(duration_ms: int) -> str:
    """``12s``, ``3m``, ``2h``, ``5d``: the largest unit that is full."""
    for unit, size_ms in _UNITS:
        if duration_ms >= size_ms:
            return f"{duration_ms // size_ms:,}{unit}"
    return "0s"


def age(time_ms: int | None, now_ms: int) -> str:
    """How long ago; a clock that is ahead makes it 0s."""
    return "-" if time_ms is None else how_long(now_ms - time_ms)


def count_of(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size_of(size: int) -> str:
    """``214 bytes``, ``4.8 MiB``."""
    if size < 10_240:
        return count_of(size, "byte")
    return f"{size / 1024:,.1f} KiB" if size < 1_048_576 else f"{size / 1_048_576:,.1f} MiB"


def plot(counts: Sequence[int], encoding: str | None) -> str:
    """One character for each count: the highest one is full, and one that is not 0 is never empty."""
    bars = _BARS
    try:
        bars.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        bars = _ASCII_BARS
    most = max(counts, default=0) or 1
    return "".join(bars[-(-count * (len(bars) - 1) // most)] for count in counts)
