"""Show the progress of the demo: bars on a terminal, a line per step elsewhere, nothing with JSON."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from eventbus.cli.output import Output

if TYPE_CHECKING:
    from eventbus.cli.bars import Bars


class Bar(Protocol):
    """The progress of one step."""

    def update(self, completed: int) -> None: ...


class Display(Protocol):
    """Opens bars; lines of text appear above them."""

    def bar(self, name: str, total: int, completed: int = 0) -> Bar: ...

    def say(self, text: str) -> None: ...


class _Lines:
    """Without a terminal: prints a line when a step with work begins, and another when it is done."""

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


class _Bars:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars

    def bar(self, name: str, total: int, completed: int = 0) -> Bar:
        return self._bars.add(f"  {name:<28}", total, completed)

    def say(self, text: str) -> None:
        self._bars.say(text)


@contextmanager
def open_display(out: Output) -> Generator[Display]:
    """Open the display for the destination of ``out``; bars are drawn on stderr, and stay when they are done."""
    if not out.rich or not out.stderr.isatty():
        yield _Lines(out)
        return
    from eventbus.cli.bars import Bars

    with Bars(out.stderr, keep=True) as bars:
        yield _Bars(bars)
