"""Make header values safe to print."""

from __future__ import annotations

import re

from eventbus.delays.header_values import text_bytes

_COMMANDS = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """Escape line breaks, and the control characters that a terminal would interpret."""
    return text if text.isprintable() else _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def text_of(value: bytes | None, most: int) -> str:
    """Decode ``value`` as UTF-8, replacing invalid bytes. A text longer than ``most`` bytes is cut as `text_bytes` cuts
    it.
    """
    if not value:
        return ""
    if len(value) > 2 * most:
        value = value[:most] + value[-most:]
    text = value.decode("utf-8", "replace")
    return text if len(value) <= most else text_bytes(text, most).decode()
