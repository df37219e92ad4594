"""Bars on a terminal: a line for each thing that is being done, drawn again as it moves; what is said goes above them.

Nothing runs beside the work: a bar is drawn when it is told something, ten times a second at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from eventbus.cli.output import one_line, printable
from eventbus.cli.terminal import Terminal, fitting, padded, width_of

_DRAW_SECONDS = 0.1
_WINDOW_SECONDS = 30.0
"""How far back one looks for how fast it goes."""
_WIDEST = 40
_NARROWEST = 8


class Bar:
    """One thing that is being done. Made by `Bars.add`."""

    def __init__(self, bars: Bars, name: str, total: int | None, completed: int, is_shown: bool) -> None:
        self._bars = bars
        self.name = one_line(name)
        self.total = total
        self.completed = completed
        self.remark = ""
        self.is_shown = is_shown
        self._began = bars.now()
        self._seen: deque[tuple[float, int]] = deque([(self._began, completed)], maxlen=1_000)
        self._done_at: float | None = None

    def update(self, completed: int, total: int | None = None, remark: str = "") -> None:
        """How much is done, of how much (None: as it was said before), and what else there is to say."""
        total = self.total if total is None else total
        now = self._bars.now()
        is_done = total is not None and completed >= total
        news = is_done and self._done_at is None
        self._done_at = (self._done_at or now) if is_done else None
        self.completed, self.total, self.remark = completed, total, one_line(remark)
        self._seen.append((now, completed))
        while now - self._seen[0][0] > _WINDOW_SECONDS:
            self._seen.popleft()
        self._bars.draw(at_once=news)

    def show(self, is_shown: bool) -> None:
        """``True`` begins anew: what was done before is not counted into how fast it goes."""
        if is_shown and not self.is_shown:
            self._began = self._bars.now()
            self._seen = deque([(self._began, self.completed)], maxlen=1_000)
        self.is_shown = is_shown
        self._bars.draw(at_once=True)

    def remove(self) -> None:
        self._bars.remove(self)

    @property
    def rate(self) -> float:
        """A second, of late."""
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        return (done - before) / (now - then) if now > then else 0.0

    @property
    def seconds(self) -> float | None:
        """Until it is done, at this rate; how long it took, once it is. None: not known yet."""
        if self._done_at is not None:
            return self._done_at - self._began
        left = (self.total or self.completed) - self.completed
        return left / self.rate if self.rate > 0 else None


class Bars:
    """A block of lines at the bottom of a terminal. ``keep``: it stays there when the work is done.

    ``clock``: seconds that only grow. May be told of from several threads.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        keep: bool = False,
        clock: Callable[[], float] = time.monotonic,
        terminal: Terminal | None = None,
    ) -> None:
        self._stream = stream
        self._keep = keep
        self.now = clock
        self._fixed = terminal
        self._bars: list[Bar] = []
        self._drawn = 0
        """How many lines stand there."""
        self._drawn_at = -_DRAW_SECONDS
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            lines = self._lines() if self._keep else []
            self._write("".join(f"{line}\n" for line in lines))
            self._bars.clear()

    def add(self, name: str, total: int | None = None, completed: int = 0, *, is_shown: bool = True) -> Bar:
        with self._lock:
            bar = Bar(self, name, total, completed, is_shown)
            self._bars.append(bar)
        self.draw(at_once=True)
        return bar

    def remove(self, bar: Bar) -> None:
        with self._lock:
            self._bars.remove(bar)
        self.draw(at_once=True)

    def say(self, text: str) -> None:
        """A line above the bars."""
        with self._lock:
            self._write(f"{printable(text)}\n")
            self.draw(at_once=True)

    def draw(self, *, at_once: bool = False) -> None:
        with self._lock:
            now = self.now()
            if not self._terminal.obeys or (not at_once and now - self._drawn_at < _DRAW_SECONDS):
                return
            self._drawn_at = now
            lines = self._lines()
            self._write("\n".join(lines))
            self._drawn = len(lines)

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def _terminal(self) -> Terminal:
        """Looked at anew: its user may make it wider."""
        return self._fixed or Terminal.of(self._stream)

    def _write(self, text: str) -> None:
        """In place of the block."""
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        clear = f"\r{up}\x1b[J" if self._drawn else ""
        self._drawn = 0
        if clear or text:
            self._stream.write(clear + text)
            self._stream.flush()

    def _lines(self) -> list[str]:
        shown = [bar for bar in self._bars if bar.is_shown]
        terminal = self._terminal
        names = max((width_of(bar.name) for bar in shown), default=0)
        return [line_of(terminal, bar, names) for bar in shown]


def line_of(terminal: Terminal, bar: Bar, name_width: int = 0) -> str:
    """``name  ━━━━━━────  12,345/20,000  1,234/s  0:00:06  remark``, one place narrower than the terminal."""
    name = padded(bar.name, name_width)
    if bar.total is None:
        count = f"{bar.completed:,}" if bar.completed else "…" if terminal.lines else "..."
        return fitting("  ".join(filter(None, (name, count, bar.remark))), terminal.columns - 1)
    count = f"{bar.completed:,}/{bar.total:,}"
    rate = f"{bar.rate:,.0f}/s" if bar.rate > 0 else ""
    rest = "  ".join(filter(None, (count, rate, _clock(bar.seconds), bar.remark)))
    room = terminal.columns - 1 - width_of(name) - width_of(rest) - (4 if name else 2)
    if room < _NARROWEST:
        return fitting(f"{name}  {rest}" if name else rest, terminal.columns - 1)
    width = min(room, _WIDEST)
    done = round(width * min(max(bar.completed / bar.total, 0.0), 1.0)) if bar.total else width
    full, empty = ("━", "─") if terminal.lines else ("#", "-")
    drawn = terminal.green(full * done) + terminal.dim(empty * (width - done))
    return "  ".join(filter(None, (name, drawn, rest)))


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"
