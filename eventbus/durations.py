"""Durations as users write them: a number, a text such as ``"500ms"`` or ``"1h30m"``, or a timedelta.

A number counts seconds, except in a setting whose name ends in ``_ms``. Texts may also be ISO 8601, ``"PT1H30M"``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from eventbus.errors import ConfigError

Duration: TypeAlias = float | str | timedelta
"""Seconds, a text such as ``"500ms"`` or ``"1h30m"``, or a timedelta."""
Milliseconds: TypeAlias = int | str | timedelta
"""A setting in milliseconds: a number of them, a text such as ``"500ms"`` or ``"1h30m"``, or a timedelta."""

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
LONGEST_MS = 366 * UNITS_MS["d"]
FORMS = 'seconds, a text such as "500ms", "5s", "10m" or "1h30m", or a timedelta'

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|min|m|h|d|w)")
_WHOLE = re.compile(f"(?:{_PART.pattern})+")
_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_ISO = re.compile(
    rf"P(?=.)(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=.)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE
)


def read_duration(text: str) -> float | None:
    """Return the milliseconds, or None if the text is not a duration."""
    if _WHOLE.fullmatch(text) is not None:
        parts = _PART.findall(text)
    elif (iso := _ISO.fullmatch(text)) is not None:
        parts = [*zip(iso.groups("0"), "wdhms", strict=True)]
    else:
        return None
    total = sum(float(number) * UNITS_MS[unit] for number, unit in parts)
    return total if math.isfinite(total) else None


def exact_ms(given: Any) -> float | None:
    """Return the milliseconds of a `Duration`, or None for another value."""
    if isinstance(given, timedelta):
        return given / timedelta(milliseconds=1)
    if isinstance(given, str):
        return read_duration(given)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or given != given:  # NaN
        return None
    return given * 1000.0 if abs(given) < 1e15 else math.inf if given > 0 else -math.inf


def milliseconds(given: Any, what: str) -> int:
    """Return a `Duration` in milliseconds, rounded up so that nothing ends earlier than requested.

    ``what`` begins the message: the option as it was given. Raises ConfigError for another value.
    """
    exact = exact_ms(given)
    if exact is None:
        raise ConfigError(f"{what}: {FORMS}")
    if not 0 <= exact <= LONGEST_MS:
        raise ConfigError(f"{what}: from 0 to 366 days")
    return math.ceil(round(exact, 6))  # 0.1 * 3 s is 300.00000000000006 ms


def positive(given: Any, what: str) -> int:
    """Return the result of `milliseconds` if it is more than 0."""
    if (result := milliseconds(given, what)) == 0:
        raise ConfigError(f"{what}: more than 0")
    return result


def seconds(given: Any, what: str, or_none: str = "") -> float:
    """Return a time limit in seconds. Raises ConfigError for a value that is not a `Duration` of more than 0.

    ``or_none`` ends the message if None means that there is no limit.
    """
    exact = exact_ms(given)
    if exact is None:
        raise ConfigError(f"{what}: {FORMS}{or_none}")
    if not 0 < exact < math.inf:
        raise ConfigError(f"{what}: more than 0 seconds{or_none}")
    return exact / 1000


def setting_ms(value: Any) -> Any:
    """Return the number of milliseconds of a setting that was given as a timedelta or as text with a unit.

    Other values are returned as they are: the setting's own check accepts or refuses them.
    """
    exact = value / timedelta(milliseconds=1) if isinstance(value, timedelta) else None
    if isinstance(value, str):
        exact = read_duration(value.strip())
    return value if exact is None else math.ceil(round(exact, 6))


def texts_of(configs: Mapping[str, object] | None) -> dict[str, str]:
    """Return a topic's configs as Kafka writes them: ``True`` as "true", ``"7d"`` of ``retention.ms`` as a number."""
    values = {name: setting_ms(value) if name.endswith(".ms") else value for name, value in (configs or {}).items()}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def shown(ms: int) -> str:
    """Return the duration in the largest unit that divides it: ``"90s"``, ``"2h"``."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % UNITS_MS[unit] == 0:
            return f"{ms // UNITS_MS[unit]}{unit}"
    return f"{ms}ms"
