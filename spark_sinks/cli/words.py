"""Durations, sizes and shares within a line."""

from __future__ import annotations

import argparse
import re

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def how_long(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``5 h``, ``2 days``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def how_large(size_bytes: int) -> str:
    """``512 B``, ``1.4 MiB``."""
    size = float(size_bytes)
    for unit in _SIZES[:-1]:
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_SIZES[-1]}"


def count_of(count: int, name: str) -> str:
    """``1 file``, ``1,200 files``."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def share(text: str) -> float:
    """An argparse type: ``1%`` or ``0.01``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 1% or 0.01, up to 100% or 1")
    return value
