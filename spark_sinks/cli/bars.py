"""How it goes: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from eventbus.cli.output import Output

LINE_SECONDS = 5.0
Move = Callable[[str, int, int, str], None]
"""Takes what is being done, how much of it is done, how much there is, and a remark."""


@contextmanager
def bars(out: Output, first: str = "") -> Generator[Move]:
    """``first``: what is shown before anything is known."""
    if out.json or not out.stderr.isatty():
        yield _Lines(out)
        return
    from eventbus.cli.bars import Bar, Bars

    known: dict[str, Bar] = {}
    with Bars(out.stderr) as block:
        if first:
            known[first] = block.add(first)

        def move(what: str, done: int, total: int, remark: str) -> None:
            if first in known and what != first:
                known.pop(first).remove()
            if what not in known:
                known[what] = block.add(what, total)
            known[what].update(done, max(total, done), remark)

        yield move


class _Lines:
    """A line on stderr every few seconds; nothing beside JSON."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._said_at = time.monotonic()

    def __call__(self, what: str, done: int, total: int, remark: str) -> None:
        now = time.monotonic()
        if not self._out.json and now - self._said_at >= LINE_SECONDS:
            self._said_at = now
            self._out.note(f"{what}: {done:,} of {total:,}{f', {remark}' if remark else ''}")


def pairs(out: Output, fields: dict[str, Any]) -> None:
    """``name  value`` lines, set in; empty values are left out."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        if value not in ("", None):
            out.line(f"  {name:<{width}}  {value}")
