"""Floating-point numbers as Java prints them (``Double.toString``, ``Float.toString`` since Java 19)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable


def double_text(value: float) -> str:
    """Format a double as Jackson does: NaN and the infinities are strings."""
    if not math.isfinite(value):
        return f'"{_special(value)}"'
    return _layout(value, repr(value), lambda digits: float(digits) == value)


def float_text(value: float) -> str:
    """Format a 32-bit float as Jackson does."""
    single = as_float32(value)
    if not math.isfinite(single):
        return f'"{_special(single)}"'
    shortest = next(text for digits in range(9) if as_float32(float(text := f"{single:.{digits}e}")) == single)
    return _layout(single, shortest, lambda digits: as_float32(float(digits)) == single)


def as_float32(value: float) -> float:
    """Return the nearest 32-bit float."""
    try:
        return struct.unpack(">f", struct.pack(">f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _layout(value: float, shortest: str, is_same: Callable[[str], bool]) -> str:
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return sign + "0.0"
    mantissa, _, exponent = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + (len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0"))))
    digits = digits.rstrip("0") or "0"
    if len(digits) == 1:  # Java looks for two digits: the smallest double is 4.9E-324, not 5E-324
        nearer = f"{abs(value):.1e}"
        if is_same(sign + nearer):
            mantissa, _, exponent = nearer.partition("e")
            digits, power = mantissa.replace(".", "").rstrip("0"), int(exponent)
    if not -3 <= power < 7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    digits = digits.ljust(power + 2, "0")
    return f"{sign}{digits[: power + 1]}.{digits[power + 1 :]}"
