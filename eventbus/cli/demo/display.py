"""How the demo shows that it works: bars on a terminal, a line per step elsewhere, nothing beside JSON."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

from eventbus.cli.output import Output


class Bar(Protocol):
    """The progress of one step."""

    def update(self, completed: int) -> None: ...


class Display(Protocol):
    """Opens bars; a line of text goes above them."""

    def bar(self, name: str, total: int, completed: int = 0) -> Bar: ...

    def say(self, text: str) -> None: ...


class _Lines:
    """Without a terminal: one line when a step begins that has work to do, one when it is done."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def bar(self, name: str, total: int, completed: int = 0) -> Bar:
        return _Line(self._out, name, total, completed)

    def say(self, text: str) -> None:
        if not self._out.json:
            self._out.note(text)


class _Line:
    def __init__(self, out: Output, name: str, total: int, completed: int) -> None:
        self._out, self._name, self._total, self._last = out, name, total, completed
        if completed and completed < total and not out.json:
            out.note(f"  {name}: going on at {completed:,} of {total:,}")

    def update(self, completed: int) -> None:
        if self._last < self._total <= completed and not self._out.json:
            self._out.note(f"  {self._name}: {completed:,}")
        self._last = completed


class _Rich:
    def __init__(self, progress: Any) -> None:
        self._progress = progress

    def bar(self, name: str, total: int, completed: int = 0) -> Bar:
        return _RichBar(self._progress, self._progress.add_task(name, total=total, completed=completed))

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


class _RichBar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def update(self, completed: int) -> None:
        self._progress.update(self._task, completed=completed)


@contextmanager
def open_display(out: Output) -> Generator[Display]:
    """The display for where ``out`` writes; bars are drawn on stderr, and stay when they are done."""
    if not out.rich or not out.stderr.isatty():
        yield _Lines(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=out.stderr)) as progress:
        yield _Rich(progress)
