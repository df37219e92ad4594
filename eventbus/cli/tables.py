"""Tables for a terminal: texts to lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from eventbus.cli.terminal import Terminal, folded, padded, width_of

_NARROWEST = 12
"""Texts are not folded into less: a row would become a pillar."""


def table_lines(
    terminal: Terminal,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    *,
    dense: bool = False,
) -> list[str]:
    """Rows under bold headings, numbers set to the right. Where it is too wide the widest texts go on in the next line:
    nothing is cut off, and no number is broken. ``dense``: no rule, and one blank between columns."""
    gap = 1 if dense else 2
    widths = _widths(columns, rows, numeric, terminal.columns - gap * (len(columns) - 1))
    rule = "─" if terminal.lines else "-"

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, numeric, strict=True)
        return (" " * gap).join(padded(cell, width, right=right) for cell, width, right in placed).rstrip()

    lines = [terminal.bold(line(columns))]
    if not dense:
        lines.append(terminal.dim(rule * min(sum(widths) + gap * (len(widths) - 1), terminal.columns)))
    for row in rows:
        pieces = [folded(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines += map(line, zip_longest(*pieces, fillvalue=""))
    return lines


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], room: int) -> list[int]:
    """As wide as their widest cells; if that is too much, texts share what numbers and headings leave."""
    wide = [max(width_of(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    least = [
        width if is_number else min(width, max(width_of(column), _NARROWEST))
        for column, width, is_number in zip(columns, wide, numeric, strict=True)
    ]

    def at_most(most: int) -> list[int]:
        return [max(low, min(width, most)) for low, width in zip(least, wide, strict=True)]

    shares = map(at_most, range(max(room, 0), _NARROWEST, -1))
    return wide if sum(wide) <= room else next((share for share in shares if sum(share) <= room), least)
