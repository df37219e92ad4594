"""Dead letters on a terminal or in a pipe: tables whose last column has room, fields with their names, texts set in.

Everything in a letter is somebody else's: all of it is made printable, and no text of several lines begins at the edge,
where it would pass for one of ours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output, one_line

if TYPE_CHECKING:
    from rich.text import Text

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
            self._print([(one_line(text), "bold")])
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
            self._print([(label, "dim"), (one_line(value), "")])
        else:
            self._out.line(f"{label}{one_line(value)}")

    def text(self, text: str) -> None:
        """A text of several lines, set in."""
        self._out.line(textwrap.indent(text.replace("\r\n", "\n"), _INDENT, lambda _: True))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
        """Into a pipe all in columns. On a terminal the last column is wrapped where it does not fit."""
        if not self._out.rich:
            self._out.table(columns, rows, title=title or None)
            return
        from rich import box
        from rich.console import Console
        from rich.table import Table

        numeric = [all(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
        table = Table(
            box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 1, 0, 0), collapse_padding=True
        )
        for index, column in enumerate(columns):
            is_last = index == len(columns) - 1
            table.add_column(column, justify="right" if numeric[index] else "left", no_wrap=not is_last)
        for row in rows:
            table.add_row(*(_cell(value) for value in row))
        if title:
            self.heading(title)
        Console(file=self._out.stdout, highlight=False).print(table)

    def _print(self, parts: Sequence[tuple[str, str]]) -> None:
        from rich.console import Console
        from rich.text import Text

        Console(file=self._out.stdout, highlight=False, soft_wrap=True).print(Text.assemble(*parts), soft_wrap=True)


def _cell(value: Any) -> Text:
    from rich.text import Text

    return Text("-" if value is None else f"{value:,}" if isinstance(value, int) else one_line(str(value)))
