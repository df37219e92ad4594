"""How long something is, as people write it: seconds, ``"5m"``, or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from eventbus.durations import UNITS_MS, read_duration
from eventbus.errors import ConfigError

_LONGEST_MS = 366 * UNITS_MS["d"]

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
        if ms and ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def _read(given: Any) -> float | None:
    if isinstance(given, timedelta):
        return given / timedelta(milliseconds=1)
    if isinstance(given, str):
        return read_duration(given)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or math.isnan(given):
        return None
    return given * 1000.0 if abs(given) <= _LONGEST_MS else math.inf
