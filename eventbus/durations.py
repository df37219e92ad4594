"""Durations as people write them: ``"500ms"``, ``"5s"``, ``"1h30m"``."""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(f"(?:{_PART.pattern})+")


def read_duration(text: str) -> float | None:
    """Return the milliseconds, or None if the text is not a duration."""
    if _WHOLE.fullmatch(text) is None:
        return None
    return sum(float(number) * UNITS_MS[unit] for number, unit in _PART.findall(text))
