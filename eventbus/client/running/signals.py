"""SIGINT and SIGTERM while a bus runs: the first signal lets it finish, the second signal ends it."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import anyio
import anyio.abc

from eventbus.client.threads import Home
from eventbus.forks import watch_forks

logger = logging.getLogger("eventbus.bus_run")

RUNNING = "running until SIGTERM or SIGINT (Ctrl-C)"
"""Logged once signals are handled."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_SECONDS = 1.0
"""How long the event loop may take to handle a signal before the next signal interrupts the code that blocks it."""


async def hear_signals(
    drain_seconds: float,
    on_first: Callable[[], None],
    on_second: Callable[[signal.Signals], None],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Call ``on_first`` after the first signal and ``on_second`` after the second; a third one kills the process.

    Outside of the main thread, where Python does not deliver signals, it does nothing. ``drain_seconds`` is how long
    the bus may take to close, for the log message.
    """
    listener = _Listener()
    try:
        _everybody.add(listener)
    except ValueError:
        listener.close()
        logger.info("running until stop() is called: signals are handled only in the main thread")
        task_status.started()
        return
    try:
        logger.info(RUNNING)
        task_status.started()
        async for number in listener.heard:
            listener.count += 1
            if listener.count == 1:
                logger.info(
                    "%s: stopping; records in flight have up to %g s to finish (drain_timeout_ms), a second signal "
                    "stops at once", number.name, drain_seconds,
                )  # fmt: skip
                on_first()
            elif listener.count == 2:
                logger.warning(
                    "%s again: stopping at once; what is unfinished is not committed, and handled again after the next "
                    "start (a plain function continues in its thread; a third signal kills)", number.name,
                )  # fmt: skip
                on_second(number)
            else:
                _kill_by(number)
    finally:
        _everybody.remove(listener)
        listener.close()


class _Listener:
    """A bus that handles signals in its event loop."""

    def __init__(self) -> None:
        self._home = Home()
        self._say, self.heard = anyio.create_memory_object_stream[signal.Signals](math.inf)
        self.count = 0
        """Number of signals that the loop has handled."""
        self._arrived = 0
        self._waits_since = 0.0

    def arrive(self, number: signal.Signals) -> bool:
        """Take a signal at any point of the program. Return True if the loop has not handled the last in time."""
        now = time.monotonic()
        if self._arrived <= self.count:
            self._waits_since = now
        elif now - self._waits_since >= _PATIENCE_SECONDS:
            return True
        self._arrived += 1
        try:
            self._home.call_soon(partial(self._pass_on, number))
        except RuntimeError:
            logger.debug("%s: a loop that handled signals is closed", number.name)
        return False

    def _pass_on(self, number: signal.Signals) -> None:
        with suppress(anyio.ClosedResourceError):  # it no longer listens
            self._say.send_nowait(number)

    def close(self) -> None:
        self._say.close()
        self.heard.close()


class _Everybody:
    """The process's handler of both signals while buses listen. Each bus gets each signal.

    The interpreter also calls it in the middle of code that blocks the loop, which would delay every signal. If the
    loop does not handle a signal for a while, the next signal interrupts that code, as a second Ctrl-C does under
    `asyncio.run`, and another one kills the process.
    """

    def __init__(self) -> None:
        self._listeners: list[_Listener] = []
        self._before: dict[int, Any] = {}
        self._interrupted = False
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Restore the default handlers in the child: the buses run in the parent, and a SIGTERM must end the child."""
        for listener in [*self._listeners]:
            self.remove(listener)

    def add(self, listener: _Listener) -> None:
        """Add a bus. Raises ValueError outside of the main thread."""
        if not self._listeners:
            self._before = {number: signal.signal(number, self._arrive) for number in SIGNALS}
            self._interrupted = False
        self._listeners.append(listener)

    def remove(self, listener: _Listener) -> None:
        if listener not in self._listeners:  # in a forked child
            return
        self._listeners.remove(listener)
        if not self._listeners:
            for number, before in self._before.items():
                if signal.getsignal(number) == self._arrive:  # unless other code has replaced the handler
                    signal.signal(number, before)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        if not any([listener.arrive(signal.Signals(number)) for listener in self._listeners]):
            return
        if self._interrupted:
            _kill_by(number)
        self._interrupted = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _kill_by(number: int) -> None:
    """End the process as the default handler of the signal does."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


_everybody = _Everybody()
