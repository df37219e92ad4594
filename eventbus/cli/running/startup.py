"""SIGINT and SIGTERM before the bus hears them itself: a clean end, in the middle of an import or of a recovery."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio

from eventbus.client.running.signals import SIGNALS
from eventbus.client.threads import Home

if TYPE_CHECKING:
    from eventbus import EventBus


class StoppedInStartup(BaseException):
    """The signal came while the service was imported. Nobody is to take it for an error of the import."""


class Startup:
    """Holds the process's handlers until the bus takes them over, and again when it gives them back.

    In the import a signal raises, in the start of the bus it cancels; a second one kills.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """Of the signal that came; None: none did."""
        self._react: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Startup:
        try:
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._arrive)
        except ValueError:  # not the main thread: signals are somebody else's
            self._before.clear()
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.number = signal.Signals(number)
        if self._react is None:
            raise StoppedInStartup
        self._react()

    def cancels(self, scope: anyio.CancelScope) -> None:
        """The bus is about to start, inside of this scope."""
        home = Home()
        self._react = lambda: home.call_soon(scope.cancel)
        if self.number is not None:  # the import has swallowed it
            scope.cancel()

    def stops(self, bus: EventBus) -> None:
        """It has started: `EventBus.run` will hear signals in a moment."""
        self._react = bus.stop
