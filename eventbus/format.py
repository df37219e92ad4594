"""Durations, sizes, times and counts as every command, status and log line of this project writes them."""

from __future__ import annotations

from datetime import UTC, datetime

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_LARGER = (("h", 3_600_000), ("min", 60_000))


def format_duration(ms: float) -> str:
    """``0 s``, ``1 s``, ``90 s``, ``75 min``, ``5 h``, ``2 days``: of the unit that is full, none is rounded up."""
    for unit, size_ms, limit_ms in (("s", 1_000, 120_000), ("min", 60_000, 7_200_000), ("h", 3_600_000, 172_800_000)):
        if ms < limit_ms:
            return f"{max(ms, 0) // size_ms:.0f} {unit}"
    return f"{ms // 86_400_000:,.0f} days"


def format_setting(ms: float) -> str:
    """Return a configured duration, without rounding: ``100 ms``, ``5 s``, ``10 min``, ``90 s``."""
    for unit, size_ms in _LARGER:
        if ms >= size_ms and ms % size_ms == 0:
            return f"{ms / size_ms:g} {unit}"
    return f"{ms:g} ms" if ms < 1_000 else f"{ms / 1_000:g} s"


def format_age(time_ms: int | None, now_ms: int) -> str:
    """Return the duration since a time; 0 if the clock that wrote it is ahead, ``-`` without a time."""
    return "-" if time_ms is None else format_duration(now_ms - time_ms)


def format_time(time_ms: int | None) -> str:
    """``2013-01-31 18:00:00.000 UTC``; a number that is not a time stays a number."""
    if time_ms is None:
        return "?"
    try:
        text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):  # headers may hold any number
        return f"{time_ms} ms"
    return f"{text.removesuffix('+00:00')} UTC"


def format_size(size_bytes: int) -> str:
    """``512 B``, ``1.4 MiB``."""
    size = float(size_bytes)
    for unit in _SIZES[:-1]:
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"


def format_count(count: int, name: str) -> str:
    """``1 file``, ``1,200 files``."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"
