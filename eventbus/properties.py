"""Java's ``.properties`` files, as Kafka's tools and brokers read them."""

from __future__ import annotations

from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties file; of a key that stands there twice, the last value.

    Comments begin with ``#`` or ``!``, a backslash at the end of a line joins the next one, ``=``, ``:`` or blanks part
    the key from its value, and ``\\uXXXX`` is a character (java.util.Properties). Raises ValueError for a broken one.
    """
    result: dict[str, str] = {}
    for line in _logical_lines(text):
        key, end = _read(line, 0, "=: \t\f")
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        result[key] = _read(rest, 0, "")[0]
    return result


def _logical_lines(text: str) -> Iterator[str]:
    joined: str | None = None
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if joined is None and (not line or line[0] in "#!"):
            continue
        line = (joined or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined = line[:-1]
        else:
            joined = None
            yield line
    if joined:
        yield joined


def _read(line: str, start: int, stops: str) -> tuple[str, int]:
    """The text up to one of ``stops`` that is not escaped, and where it ends."""
    out: list[str] = []
    at = start
    while at < len(line) and line[at] not in stops:
        if line[at] != "\\":
            out.append(line[at])
            at += 1
            continue
        letter = line[at + 1 : at + 2]
        if letter == "u":
            digits = line[at + 2 : at + 6]
            if len(digits) < 4:
                raise ValueError(f"\\u{digits} in {line!r}: four hexadecimal digits follow a \\u")
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            out.append(_ESCAPES.get(letter, letter))
            at += 2
    return "".join(out), at
