"""SIGINT and SIGTERM while a bus runs: the first one asks it to finish, the second one ends it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import anyio
import anyio.abc

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def hear_signals(
    on_signal: Callable[[signal.Signals, int], None],
    *,
    task_status: anyio.abc.TaskStatus[bool] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call ``on_signal`` with the first two signals and which one it is, 1 or 2; a third one kills the process.

    Says through ``task_status`` whether signals are heard: not so outside of the main thread, where they are somebody
    else's, nor on Windows.
    """
    with ExitStack() as stack:
        try:
            signals = stack.enter_context(anyio.open_signal_receiver(*SIGNALS))
        except (NotImplementedError, RuntimeError, ValueError):
            task_status.started(False)
            return
        stuck = stack.enter_context(_Stuck().watching())
        task_status.started(True)
        async for number in signals:
            stuck.heard += 1
            if stuck.heard > 2:  # a plain function in its thread, which nobody can stop
                kill_by(number)
            on_signal(signal.Signals(number), stuck.heard)


class _Stuck:
    """Ends a program whose event loop cannot hear: code that blocks it would hold every signal back.

    The interpreter runs a signal's Python handler in the middle of blocking code. When the loop has not heard of a
    signal for ``patience_seconds`` and another one comes, that code is interrupted, as a second Ctrl-C does it under
    `asyncio.run`; and the one after that kills.
    """

    def __init__(self, patience_seconds: float = 1.0) -> None:
        self.heard = 0
        """Signals that the loop has taken."""
        self._patience_seconds = patience_seconds
        self._arrived = 0
        self._waits_since = 0.0
        self._interrupted = False
        self._inner: dict[int, Any] = {}

    @contextmanager
    def watching(self) -> Generator[_Stuck]:
        for number in SIGNALS:
            self._inner[number] = signal.getsignal(number)
            signal.signal(number, self._arrive)
        try:
            yield self
        finally:
            for number, inner in self._inner.items():
                signal.signal(number, inner)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._arrived <= self.heard:
            self._waits_since = now
        elif now - self._waits_since >= self._patience_seconds:
            if self._interrupted:
                kill_by(number)
            self._interrupted = True
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self._arrived += 1
        inner = self._inner[number]
        if callable(inner):
            inner(number, frame)


def kill_by(number: int) -> None:
    """End the process as if nobody had ever handled the signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
