"""A circuit breaker: when most calls of a handler fail, it is let alone for a while. Pure: told the time."""

from __future__ import annotations

from collections import deque
from typing import Literal

from dlq import checks
from eventbus.durations import Duration, positive, shown
from eventbus.errors import ConfigError

CircuitState = Literal["closed", "open", "half-open"]

_LOOK_AGAIN_MS = 500
"""How soon those that wait for the probe's end ask again."""


class Circuit:
    """When ``failures`` (a share) of the last ``of`` calls failed, no record is tried for ``open``; then one is.

    As Resilience4j's count-based window: nothing happens before ``of`` calls were made. Behind ``open`` the circuit is
    half-open: one record is tried, and when it is handled the circuit closes and counts from the beginning; when it
    fails it opens again. What says more of the record than of the dependency (undecodable ones, `Reject`, `Skip`, and
    errors that are never retried) counts neither way. Meanwhile records wait in their place, none becomes a dead letter
    because of an open circuit; the one it was tried with waits in the retry topic, so that the next try is another's.
    """

    def __init__(self, *, failures: float = 0.5, of: int = 20, open: Duration = "30s") -> None:
        self.failures = checks.share("Circuit(failures=", failures, "the share of calls that fail, above 0 up to 1")
        self.of = checks.whole("Circuit(of", of, 1)
        if not failures:
            raise ConfigError("Circuit(failures=0): it would open without a failure; above 0 up to 1, say 0.5")
        self.open_ms = positive(open, f"Circuit(open={open!r})")

    def __repr__(self) -> str:
        return f"Circuit(failures={self.failures:g}, of={self.of}, open={shown(self.open_ms)!r})"


class Breaker:
    """A `Circuit` at work for one handler. ``state`` is as of the last call of any method."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._calls: deque[bool] = deque(maxlen=circuit.of)
        """The last ones; True: failed."""
        self._failed = 0
        self.until_ms = 0
        """Open: when it ends. Half-open: when the probe is taken for lost, and another may begin."""
        self.state: CircuitState = "closed"

    def admit(self, now_ms: int) -> int:
        """Milliseconds until the next call may be made; 0: now. Half-open, the 0 is for one caller: the probe."""
        if self.state == "closed":
            return 0
        if (left := self._left(now_ms)) > 0:
            return left if self.state == "open" else min(left, _LOOK_AGAIN_MS)
        self.state = "half-open"
        self.until_ms = now_ms + self._circuit.open_ms
        return 0

    def handled(self, count: int) -> None:
        """So many calls went well."""
        if count <= 0 or self.state == "open":  # of calls that had begun before
            return
        if self.state == "half-open":
            self._close()
        elif not self._failed:
            self._calls.extend([False] * min(count, self._circuit.of - len(self._calls)))
        else:
            for _ in range(min(count, self._circuit.of)):
                self._add(False)

    def failed(self, now_ms: int) -> int:
        """A call failed. Milliseconds for which its record is to wait in its place.

        0: the record goes its way. So does the probe, though the circuit is open again: else a record that always fails
        would be tried over and over, and would keep the circuit open.
        """
        if self.state == "open":
            return max(self._left(now_ms), 1)
        if self.state == "half-open":
            self._open(now_ms)
            return 0
        self._add(True)
        if len(self._calls) < self._circuit.of or self._failed < self._circuit.failures * self._circuit.of:
            return 0
        self._open(now_ms)
        return self._circuit.open_ms

    def _left(self, now_ms: int) -> int:
        if self.until_ms - now_ms > self._circuit.open_ms:  # the clock was set back
            self.until_ms = now_ms + self._circuit.open_ms
        return self.until_ms - now_ms

    def _add(self, failed: bool) -> None:
        if len(self._calls) == self._circuit.of:
            self._failed -= self._calls[0]
        self._calls.append(failed)
        self._failed += failed

    def _open(self, now_ms: int) -> None:
        self.state = "open"
        self.until_ms = now_ms + self._circuit.open_ms
        self._calls.clear()
        self._failed = 0

    def _close(self) -> None:
        self.state = "closed"
        self.until_ms = 0
