"""Show the progress of a command: bars on a terminal, a line every few seconds elsewhere, nothing with ``--json``."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from eventbus.cli.output import Output, one_line

LINE_SECONDS = 5.0


class Bar(Protocol):
    """The progress of one thing."""

    def update(self, completed: int, total: int | None = None, remark: str = "") -> None: ...

    def show(self, is_shown: bool) -> None: ...

    def remove(self) -> None: ...


class Bars(Protocol):
    """Makes bars, and prints lines that do not end up within them."""

    def bar(self, name: str, total: int | None = None, completed: int = 0, *, is_shown: bool = True) -> Bar: ...

    def say(self, text: str) -> None: ...


@contextmanager
def progress_bars(out: Output, *, keep: bool = False) -> Generator[Bars]:
    """Yield a `Bars` on stderr. With ``keep`` the bars stay when the work is done."""
    if out.draws_on(out.stderr):
        from eventbus.cli.drawing import drawn_bars

        with drawn_bars(out.stderr, keep=keep) as bars:
            yield bars
    else:
        yield Lines(out)


class Lines:
    """Progress where no bar can be drawn."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self.noted_at = time.monotonic()

    def bar(self, name: str, total: int | None = None, completed: int = 0, *, is_shown: bool = True) -> Line:
        return Line(self, name, total)

    def say(self, text: str) -> None:
        if not self._out.json:
            self._out.note(text)


class Line:
    """The progress of one thing as lines; `Lines` limits how often all things together print one."""

    def __init__(self, lines: Lines, name: str, total: int | None) -> None:
        self._lines, self._name, self._total = lines, name, total
        self._began_at = time.monotonic()

    def update(self, completed: int, total: int | None = None, remark: str = "") -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if now - self._lines.noted_at < LINE_SECONDS:
            return
        self._lines.noted_at = now
        count = f"{completed:,}" if self._total is None else f"{completed:,} of {self._total:,}"
        rate = f"{completed / (now - self._began_at):,.0f} a second" if now > self._began_at else ""
        self._lines.say(f"{one_line(self._name)}: {', '.join(filter(None, (count, rate, remark)))}")

    def show(self, is_shown: bool) -> None:
        """Nothing is drawn, so nothing is hidden."""

    def remove(self) -> None:
        """Nothing is drawn, so nothing is left."""


@contextmanager
def progress_steps(out: Output, first: str) -> Generator[Callable[[str, int, int, str], None]]:
    """Yield a function that reports how far a named step is, a bar each; ``first`` is shown until then."""
    with progress_bars(out) as bars:
        known = {first: bars.bar(first)}

        def report(name: str, done: int, total: int, remark: str) -> None:
            if name not in known:
                if first in known:
                    known.pop(first).remove()
                known[name] = bars.bar(name, total)
            known[name].update(done, max(total, done), remark)

        yield report
