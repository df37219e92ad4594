"""What goes into a header, and what comes out of one: texts with a limit, and numbers read with care."""

from __future__ import annotations

import re
from typing import Final

MAX_INT32: Final = (1 << 31) - 1
MAX_INT64: Final = (1 << 63) - 1
_GAP = b" [...] "
_COMMANDS = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def text_bytes(text: str, most: int) -> bytes:
    """UTF-8 of at most ``most`` bytes; of a longer text its two ends."""
    if len(text) > 4 * most:
        # No megabytes are encoded for the few that stay. What is cut here lies in the gap below.
        text = text[: 2 * most] + text[-2 * most :]
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data
    room = most - len(_GAP)
    start = data[: room // 2].decode("utf-8", "ignore").encode()
    return start + _GAP + data[len(start) - room :].decode("utf-8", "ignore").encode()


def one_line(text: str) -> str:
    """For a line of a service's log: what would end the line, or what a terminal would obey, is spelled out."""
    return text if text.isprintable() else _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def text_of(value: bytes | None, most: int) -> str:
    """The text that ``value`` is, or looks like; cut as `text_bytes` cuts."""
    if not value:
        return ""
    if len(value) > 2 * most:
        value = value[:most] + value[-most:]
    text = value.decode("utf-8", "replace")
    return text if len(value) <= most else text_bytes(text, most).decode()


def number_of(value: bytes | None, most: int = MAX_INT64) -> int | None:
    """The number written in ``value`` in digits, from 0 to ``most``; None for everything else."""
    if value is None or len(value) > 19 or not value.isdigit():
        return None
    number = int(value)
    return number if number <= most else None
