"""How long something is, as people write it: seconds, ``"5m"``, or a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

from eventbus.errors import ConfigError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_WHOLE = re.compile(f"(?:{_PART.pattern})+")
_LONGEST_MS = 366 * _UNITS_MS["d"]

FORMS = 'seconds, a text such as "500ms", "5s", "10m" or "1h30m", or a timedelta'


def milliseconds(given: Any, what: str) -> int:
    """``what`` completes the error's message: the option as it was given. Raises ConfigError for what is no time."""
    exact = _read(given)
    if exact is None:
        raise ConfigError(f"{what}: {FORMS}")
    if not 0 <= exact <= _LONGEST_MS:
        raise ConfigError(f"{what}: from 0 to 366 days")
    return math.ceil(exact)  # never earlier than asked


def positive(given: Any, what: str) -> int:
    """The same, and more than 0."""
    if (result := milliseconds(given, what)) == 0:
        raise ConfigError(f"{what}: more than 0")
    return result


def shown(ms: int) -> str:
    """The same in the largest unit that goes into it: ``"90s"``, ``"2h"``."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def _read(given: Any) -> float | None:
    if isinstance(given, timedelta):
        return given / timedelta(milliseconds=1)
    if isinstance(given, str):
        if _WHOLE.fullmatch(given) is None:
            return None
        return sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(given))
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        return None
    return given * 1000.0 if abs(given) <= _LONGEST_MS else math.inf
