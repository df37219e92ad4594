"""Dead letters on a terminal or in a pipe: tables, fields with their names, texts set in.

Everything in a letter is somebody else's: all of it is made printable, and no text of several lines begins at the edge,
where it would pass for one of ours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from eventbus.cli.output import Output, numeric_columns, one_line
from eventbus.cli.terminal import Terminal

_LABEL = 10
_INDENT = "  "


class Screen:
    """What is shown of dead letters, to people."""

    def __init__(self, out: Output) -> None:
        self._out = out

    @property
    def encoding(self) -> str | None:
        return getattr(self._out.stdout, "encoding", None)

    def heading(self, text: str) -> None:
        if self._out.rich:
            print(self._terminal.bold(one_line(text)), file=self._out.stdout)
        else:
            self._out.line(one_line(text))

    def line(self, text: str = "") -> None:
        self._out.line(_INDENT + one_line(text) if text else "")

    def field(self, name: str, value: str) -> None:
        """``name  value`` in a line; nothing for an empty value."""
        if not value:
            return
        label = _INDENT + name.ljust(_LABEL)
        if self._out.rich:
            print(f"{self._terminal.dim(label)}{one_line(value)}", file=self._out.stdout)
        else:
            self._out.line(f"{label}{one_line(value)}")

    def text(self, text: str) -> None:
        """A text of several lines, set in."""
        self._out.line(textwrap.indent(text.replace("\r\n", "\n"), _INDENT, lambda _: True))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
        """Into a pipe all in columns. On a terminal what does not fit goes on in the next line."""
        if not self._out.rich:
            self._out.table(columns, rows, title=title or None)
            return
        from eventbus.cli.tables import table_lines

        texts = [[_cell(value) for value in row] for row in rows]
        if title:
            self.heading(title)
        for line in table_lines(self._terminal, columns, texts, numeric_columns(columns, rows)):
            print(line, file=self._out.stdout)

    @property
    def _terminal(self) -> Terminal:
        return Terminal.of(self._out.stdout)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else one_line(str(value))
