"""Draw tables, bold text and progress bars on a terminal with rich. Without rich a terminal gets what a pipe gets.

Rich is the extra ``cli``. It is imported here alone, and this module only when something is drawn: it takes 50 ms.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as RemainingColumn
from rich.table import Table
from rich.text import Text

_NARROWEST = 12
"""Text columns are not folded into less."""


def console_of(stream: TextIO) -> Console:
    """Return a console that interprets no markup: cells and names come from other programs."""
    return Console(file=stream, markup=False, emoji=False, highlight=False)


def draw_line(stream: TextIO, label: str, style: str, rest: str = "") -> None:
    """Print ``label`` in a style and ``rest`` after it, on one line however long it is."""
    console_of(stream).print(Text.assemble((label, style), rest), soft_wrap=True)


def draw_table(
    stream: TextIO,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    *,
    dense: bool = False,
) -> None:
    """Print rows under bold headings. Text that does not fit goes on in the next line; no number is broken."""
    table = Table(
        box=None if dense else box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
        header_style="bold",
    )  # fmt: skip
    console = console_of(stream)
    for index, (column, is_number) in enumerate(zip(columns, numeric, strict=True)):
        if is_number:
            table.add_column(Text(column), justify="right", no_wrap=True, min_width=_width(index, columns, rows))
        else:
            table.add_column(Text(column), overflow="fold", min_width=min(_width(index, columns, rows), _NARROWEST))
    for row in rows:
        table.add_row(*map(Text, row))
    least = sum(column.min_width or 0 for column in table.columns) + 2 * len(columns)
    if console.width < least:
        table.width = least
    console.print(table, crop=False)


def _width(index: int, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return max(Text(row[index]).cell_len for row in (columns, *rows))


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


class DrawnBar:
    """One line of a `DrawnBars`."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def update(self, completed: int, total: int | None = None, remark: str = "") -> None:
        self._progress.update(self._task, completed=completed, total=total, remark=remark)

    def show(self, is_shown: bool) -> None:
        """Show or hide the bar. A bar that is shown again forgets how fast it was."""
        if is_shown and not self._progress.tasks[self._progress.task_ids.index(self._task)].visible:
            self._progress.reset(self._task)
        self._progress.update(self._task, visible=is_shown)

    def remove(self) -> None:
        self._progress.remove_task(self._task)


class DrawnBars:
    """Progress bars at the bottom of a terminal; what `say` prints goes above them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def bar(self, name: str, total: int | None = None, completed: int = 0, *, is_shown: bool = True) -> DrawnBar:
        task = self._progress.add_task(name, total=total, completed=completed, visible=is_shown, remark="")
        return DrawnBar(self._progress, task)

    def say(self, text: str) -> None:
        self._progress.console.print(Text(text), soft_wrap=True)


@contextmanager
def drawn_bars(stream: TextIO, *, keep: bool = False) -> Generator[DrawnBars]:
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), _RateColumn(),
        RemainingColumn(compact=True, elapsed_when_finished=True), TextColumn("{task.fields[remark]}", markup=False),
    )  # fmt: skip
    # Output has looked up its streams already, so redirecting sys.stdout would not catch what it prints.
    with Progress(
        *columns, console=console_of(stream), transient=not keep, redirect_stdout=False, redirect_stderr=False
    ) as progress:
        yield DrawnBars(progress)
