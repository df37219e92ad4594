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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
    )
    console = Console(file=out.stderr, highlight=False, markup=False)
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as progress:
        if first:
            tasks[first] = progress.add_task(first, total=None, remark="")

        def move(what: str, done: int, total: int, remark: str) -> None:
            if first in tasks and what != first:
                progress.remove_task(tasks.pop(first))
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total, remark=remark)
            progress.update(tasks[what], completed=done, total=max(total, done), remark=remark)

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
