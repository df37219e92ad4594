"""What a terminal can show, and how much room a text takes on it. Pure but for `Terminal.of`."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from typing import NamedTuple, TextIO

_COLUMNS = 80
_WORDS = re.compile(r"\S+\s*|\s+")


class Terminal(NamedTuple):
    """How wide it is and what it obeys."""

    columns: int = _COLUMNS
    obeys: bool = True
    """Bold, and moves of the cursor."""
    colors: bool = True
    lines: bool = True
    """Its encoding has characters for lines."""

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """By the environment (COLUMNS, TERM, NO_COLOR: https://no-color.org) and by the stream itself."""
        obeys = os.environ.get("TERM", "") not in ("dumb", "unknown")
        if sys.platform == "win32":  # the old console prints commands as they are
            obeys = obeys and bool({"WT_SESSION", "TERM", "ANSICON"} & os.environ.keys())
        return cls(_columns_of(stream), obeys, obeys and not os.environ.get("NO_COLOR"), _has_lines(stream))

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.obeys else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.obeys and text else text

    def green(self, text: str) -> str:
        return f"\x1b[32m{text}\x1b[0m" if self.colors and text else text


def _columns_of(stream: TextIO) -> int:
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):  # no file behind it, or none that is a terminal
        return _COLUMNS


def _has_lines(stream: TextIO) -> bool:
    try:
        "━─…".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def width_of(text: str) -> int:
    """Places on the screen: Chinese and the like take two, accents on a letter none."""
    return len(text) if text.isascii() else sum(map(_places, text))


def _places(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fitting(text: str, width: int) -> str:
    """How much of its beginning fits."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, character in enumerate(text):
        used += _places(character)
        if used > width:
            return text[:index]
    return text


def padded(text: str, width: int, *, right: bool = False) -> str:
    """As wide as ``width``; ``right``: set to the right."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks


def folded(text: str, width: int) -> list[str]:
    """In lines that fit, between words where it can be; nothing is cut off."""
    if width_of(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in _WORDS.findall(text):
        if line and width_of(line + word.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        while width_of(word.rstrip()) > width:
            piece = fitting(word, width) or word[0]
            lines.append(piece)
            word = word[len(piece) :]
        line += word
    return [*lines, line.rstrip()] if line.strip() else lines
