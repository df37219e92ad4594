"""Format a payload for display: JSON in lines, text unchanged, anything else in hexadecimal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec

from serdes.framing import prefix_size, schema_named

MOST_CHARACTERS = 20_000
"""Shown of a text, unless all of it is asked for."""
_MOST_HEX_BYTES = 512
_MOST_LAID_OUT = 262_144
_DEEPEST = 32
"""JSON that is larger, or nested deeper, is not formatted: its indentation could be many times its size."""
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_ODD_SHARE = 0.05
"""The largest share of control characters in bytes that are still shown as text."""


class Shown(NamedTuple):
    kind: str
    """The detected kind of payload, as in "JSON"."""
    text: str
    """The text, unescaped: it may contain terminal commands, so it must be printed by `Output` only."""
    left_out: int = 0
    """Characters, or bytes of a dump, that are not in the text."""


def show_payload(data: bytes | None, *, full: bool = False, most: int = MOST_CHARACTERS) -> Shown:
    """Format a payload by its bytes alone, without a schema registry."""
    if data is None:
        return Shown("null", "null")
    if not data:
        return Shown("empty", "")
    text = _as_text(data)
    if text is not None:
        lines = _in_lines(data)
        return _cut("text" if lines is None else "JSON", text if lines is None else lines, full, most)
    schema = schema_of(data)
    if schema is not None and (lines := _in_lines(data[prefix_size(data) :])) is not None:
        return _cut(f"JSON, {schema}", lines, full, most)
    length = len(data) if full else _MOST_HEX_BYTES
    kind = "bytes" if schema is None else f"bytes, {schema} perhaps"
    return Shown(kind, "\n".join(hex_lines(data[:length])), max(len(data) - length, 0))


def schema_of(data: bytes) -> str | None:
    """Return the schema that Confluent's framing names, if there is more to it than that: ``schema 7``."""
    try:
        return f"schema {schema_named(data)}" if len(data) > prefix_size(data) else None
    except ValueError:
        return None


def _cut(kind: str, text: str, full: bool, most: int) -> Shown:
    return Shown(kind, text) if full or len(text) <= most else Shown(kind, text[:most], len(text) - most)


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    odd = sum(character < " " and character not in "\t\r\n" for character in text)
    return text if odd <= len(text) * _ODD_SHARE else None


def _in_lines(data: bytes) -> str | None:
    """Return JSON with a line per field; None if the data is not a JSON object or list, or is too large."""
    if data[:1] not in (b"{", b"[") or len(data) > _MOST_LAID_OUT or _depth(data) > _DEEPEST:
        return None
    try:
        msgspec.json.decode(data)
        return msgspec.json.format(data, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _depth(data: bytes) -> int:
    """How deep brackets nest; those within strings are counted too, which only makes it more careful."""
    brackets = data.translate(None, _NO_BRACKETS)
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)


def hex_lines(data: bytes) -> Iterator[str]:
    """Yield lines like those of ``hexdump -C``: an offset, sixteen bytes, and their ASCII characters."""
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        left, right = part[:8].hex(" "), part[8:].hex(" ")
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{at:08x}  {left:<23}  {right:<23}  |{readable}|"
