"""The values of our headers: texts with a limit, and numbers that any client may have written."""

from __future__ import annotations

from typing import Final

MAX_INT32: Final = (1 << 31) - 1
MAX_INT64: Final = (1 << 63) - 1
_GAP = b" [...] "


def text_bytes(text: str, most: int) -> bytes:
    """Return the text in UTF-8, or the two ends of a text that is longer than ``most`` bytes."""
    if len(text) > 4 * most:
        # Do not encode megabytes for the few bytes that are kept. What is cut here lies in the gap below.
        text = text[: 2 * most] + text[-2 * most :]
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data
    room = most - len(_GAP)
    start = data[: room // 2].decode("utf-8", "ignore").encode()
    return start + _GAP + data[len(start) - room :].decode("utf-8", "ignore").encode()


def number_of(value: bytes | None, most: int = MAX_INT64) -> int | None:
    """Return the number from 0 to ``most`` in the digits of ``value``, or None if it is not such a number."""
    if value is None or len(value) > 19 or not value.isdigit():
        return None
    number = int(value)
    return number if number <= most else None
