"""Waits of a partition, as `EventBus.health` reports them."""

from __future__ import annotations

_LONG_SECONDS = 1.0


class Wait:
    """Something that does not work now, and that a partition tries until it works."""

    __slots__ = ("_tries", "reason", "since")

    def __init__(self, reason: str, now: float) -> None:
        """``now``: in seconds on the backend's timers, as all times here."""
        self.reason = reason
        self.since = now
        self._tries = 1

    def text(self, now: float) -> str:
        tries = f", tried {self._tries:,} times" if self._tries > 1 else ""
        return f"{self.reason} (for {now - self.since:.0f} s{tries})"

    def is_long(self, now: float) -> bool:
        """Return True if it has lasted longer than an answer usually takes."""
        return now - self.since >= _LONG_SECONDS

    def again(self, reason: str) -> Wait:
        """Count a try that met ``reason``."""
        self.reason = reason
        self._tries += 1
        return self


def tried(wait: Wait | None, reason: str, now: float) -> Wait:
    """Return the wait after a try that failed; ``wait`` is the one before it."""
    return Wait(reason, now) if wait is None else wait.again(reason)
