"""Java's ``.properties`` files, as Kafka's tools and brokers read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from eventbus.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def check_keywords(call: str, keywords: Iterable[str]) -> None:
    """Raise ConfigError for a keyword that Python code spells as a file does: ``linger.ms``.

    Call it after the settings were read, because unknown names have a different error.
    """
    for name in keywords:
        if "." in name:
            raise ConfigError(
                f"{call} does not accept {name!r}. Keyword arguments have underscores where Kafka's names have dots. "
                f"Pass {name.replace('.', '_')}=... or put {name} into a .properties file, and pass config_file=..."
            )


def check_dotted(where: str, name: str) -> None:
    """Raise ConfigError for a setting that a file or a command line spells as Python does: ``linger_ms``."""
    if "_" in name:
        raise ConfigError(
            f"{where}: {name!r} is spelt as in Python. Kafka's name has dots there. Write {name.replace('_', '.')}"
        )


def parse_properties(text: str) -> dict[str, str]:
    """Return keys and values of a properties file; the last value of a repeated key.

    Comments begin with ``#`` or ``!``, a backslash at the end of a line joins the next one, ``=``, ``:`` or blanks
    separate the key from its value, and ``\\uXXXX`` is a character (java.util.Properties). Raises ValueError for
    invalid escapes.
    """
    return {key: value for _, key, value in numbered_properties(text)}


def numbered_properties(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, key and value of each setting, including repeated ones."""
    for number, line in _logical_lines(text):
        key, end = _read(line, 0, "=: \t\f")
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        yield number, key, _read(rest, 0, "")[0]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    joined: str | None = None
    first = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip(" \t\f")
        if joined is None and (not line or line[0] in "#!"):
            continue
        first = number if joined is None else first
        line = (joined or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined = line[:-1]
        else:
            joined = None
            yield first, line
    if joined:
        yield first, joined


def _read(line: str, start: int, stops: str) -> tuple[str, int]:
    """Return the text up to one of ``stops`` that is not escaped, and its end."""
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
