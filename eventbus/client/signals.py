"""SIGINT and SIGTERM while a bus runs: the first one asks it to finish, the second one ends it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import anyio
import anyio.abc

logger = logging.getLogger("eventbus.life")

RUNNING = "running until SIGTERM or SIGINT (Ctrl-C)"
"""Said as soon as signals are heard."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_SECONDS = 1.0
"""How long the event loop may take to hear of a signal before the next one interrupts what blocks it."""


async def hear_signals(
    drain_seconds: float,
    on_first: Callable[[], None],
    on_second: Callable[[signal.Signals], None],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call ``on_first`` with the first signal, ``on_second`` with the second one; a third one kills the process.

    Outside of the main thread, where signals are somebody else's, and on Windows, it hears none. ``drain_seconds`` is
    how long the bus takes to close, for the log.
    """
    with ExitStack() as stack:
        try:
            signals = stack.enter_context(anyio.open_signal_receiver(*SIGNALS))
        except (NotImplementedError, RuntimeError, ValueError):
            logger.info("running until stop() is called: signals are not heard here")
            task_status.started()
            return
        stuck = stack.enter_context(_Stuck(_PATIENCE_SECONDS).watching())
        logger.info(RUNNING)
        task_status.started()
        async for one in signals:
            number = signal.Signals(one)
            stuck.heard += 1
            if stuck.heard == 1:
                logger.info(
                    "%s: stopping; records at work have up to %g s to finish (drain_timeout_ms), a second signal stops "
                    "at once", number.name, drain_seconds,
                )  # fmt: skip
                on_first()
            elif stuck.heard == 2:
                logger.warning(
                    "%s again: stopping at once; what is unfinished is not committed, and handled again after the next "
                    "start (a plain function ends when it returns; a third signal kills)", number.name,
                )  # fmt: skip
                on_second(number)
            else:
                kill_by(number)


class _Stuck:
    """Ends a program whose event loop cannot hear: code that blocks it would hold every signal back.

    The interpreter runs a signal's Python handler in the middle of blocking code. When the loop has not heard of a
    signal for ``patience_seconds`` and another one comes, that code is interrupted, as a second Ctrl-C does it under
    `asyncio.run`; and the one after that kills.
    """

    def __init__(self, patience_seconds: float) -> None:
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
