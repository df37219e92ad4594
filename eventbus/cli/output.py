"""What a command prints: JSON when asked, tables on a terminal, plain columns into a pipe. Notes go to stderr.

Names and texts in it are often somebody else's (a schema's, a server's): what a terminal would take as a command is
spelled out, see `printable`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TextIO

import msgspec

_COMMANDS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed; those that turn the direction of text; halves of characters."""
_COMMANDS_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """What a terminal would obey, spelled as in Python: ``\\x1b[31m``."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Printable, and with line feeds spelled out as well: for a text within a line of ours."""
    return printable(text.replace("\n", "\\n"))


class Output:
    """Where one command writes. Streams are looked up at creation, so tests and callers may replace them."""

    def __init__(self, *, json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
        self.json = json
        self.stdout = stdout or sys.stdout
        self.stderr = stderr or sys.stderr

    @classmethod
    def of(cls, args: argparse.Namespace) -> Output:
        return cls(json=getattr(args, "json", False))

    @property
    def rich(self) -> bool:
        """True if tables are drawn: on a terminal, with rich installed, without ``--json``."""
        return self.draws_on(self.stdout)

    def draws_on(self, stream: TextIO) -> bool:
        """True if ``stream`` gets drawings: a terminal, with rich installed, without ``--json``."""
        return not self.json and stream.isatty() and find_spec("rich") is not None

    def line(self, text: str = "") -> None:
        """A line of the answer."""
        print(printable(text), file=self.stdout)

    def raw(self, text: str) -> None:
        """A text byte for byte, into a pipe or a file; a terminal gets it printable."""
        self.stdout.write(printable(text) if self.stdout.isatty() else text)

    def note(self, text: str) -> None:
        """A line beside the answer (warnings, totals): stderr, so a pipe holds the answer only."""
        print(printable(text), file=self.stderr, flush=True)

    def data(self, value: Any) -> None:
        """One JSON document on one line."""
        text = msgspec.json.encode(value).decode()
        print(_COMMANDS_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text), file=self.stdout)

    def answer(self, value: Any, text: str) -> None:
        """The same answer for programs and for people."""
        if self.json:
            self.data(value)
        else:
            self.line(text)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, dense: bool = False
    ) -> None:
        """Rows under headings, numbers set to the right; ``dense`` saves width. As JSON: a list of objects."""
        listed = list(rows)
        if self.json:
            keys = [column.lower().replace("-", "_").replace(" ", "_") for column in columns]
            self.data([dict(zip(keys, row, strict=True)) for row in listed])
        elif self.rich:
            from eventbus.cli.drawing import draw_table

            if title:
                self.heading(title)
            texts = [
                [f"{cell:,}" if type(cell) is int and not dense else _text(cell) for cell in row] for row in listed
            ]
            draw_table(self.stdout, columns, texts, numeric_columns(columns, listed), dense=dense)
        else:
            if title:
                self.line(f"{title}:")
            for text in plain_columns(columns, listed):
                self.line(text)

    def heading(self, text: str) -> None:
        """Print a heading, in bold on a terminal."""
        self._labelled(one_line(text), "bold", "")

    def field(self, name: str, value: str) -> None:
        """Print an indented line ``name  value``; nothing for an empty value."""
        if value:
            self._labelled(f"  {name:<10}", "dim", one_line(value))

    def _labelled(self, label: str, style: str, rest: str) -> None:
        if self.rich:
            from eventbus.cli.drawing import draw_line

            draw_line(self.stdout, label, style, rest)
        else:
            self.line(label + rest)

    def block(self, text: str) -> None:
        """Indent several lines, so that none of another program's text begins where ours does."""
        self.line(textwrap.indent(text.replace("\r\n", "\n"), "  ", lambda _: True))


def plain_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Aligned text columns, two blanks apart."""
    texts = [[column.upper() for column in columns], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in texts) for index in range(len(columns))]
    right = numeric_columns(columns, rows)
    lines: list[str] = []
    for row in texts:
        cells: list[str] = []
        for cell, width, is_number in zip(row, widths, right, strict=True):
            align: Callable[[str, int], str] = str.rjust if is_number else str.ljust
            cells.append(align(cell, width))
        lines.append("  ".join(cells).rstrip())
    return lines


def numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bool]:
    """Which of them hold numbers alone, or nothing."""
    return [
        bool(rows) and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        for index in range(len(columns))
    ]


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.1f}" if isinstance(cell, float) else one_line(str(cell))


def text_or_base64(name: str, value: bytes | None) -> dict[str, Any]:
    """Bytes for JSON: ``{name: text}`` when they are UTF-8, else ``{name_base64: ...}``; null stays null."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(value).decode()}


def key_text(key: bytes | str | None, most: int = 24) -> str:
    """Return a key within a line: its text, or hexadecimal, of at most so many characters."""
    if isinstance(key, bytes):
        try:
            key = key.decode() if len(key) < most * 8 else key[:most].decode(errors="ignore")
        except UnicodeDecodeError:
            key = f"0x{key[:most].hex()}"
    return "-" if key is None else first_line(one_line(key), most)


def first_line(text: str, most: int = 160) -> str:
    """Return the first line of a text, of at most so many characters."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 3]}..."
