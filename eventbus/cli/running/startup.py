"""Handle SIGINT and SIGTERM until the bus does: a clean exit even during an import or the recovery of a log."""

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
    """Raised by a signal during the import of the service. As a BaseException, it is no error of the import."""


class Startup:
    """Signal handlers for the time before the bus installs its own, and after it has removed them.

    During the import a signal raises, during the start of the bus it cancels. A second signal kills the process.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """The signal that was received, if any."""
        self._react: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Startup:
        try:
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._arrive)
        except ValueError:  # not the main thread: the program handles signals itself
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
        """Cancel ``scope``, in which the bus starts, on a signal from now on."""
        home = Home()
        self._react = lambda: home.call_soon(scope.cancel)
        if self.number is not None:  # the service caught the exception during its import
            scope.cancel()

    def stops(self, bus: EventBus) -> None:
        """Stop the bus on a signal from now on, until `EventBus.run` installs its own handlers."""
        self._react = bus.stop
