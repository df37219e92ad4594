"""A circuit breaker: pause a handler for a while after most of its calls have failed. Pure: times are arguments."""

from __future__ import annotations

from collections import deque
from typing import Literal

from dlq import checks
from eventbus.durations import Duration, positive, shown
from eventbus.errors import ConfigError

CircuitState = Literal["closed", "open", "half-open"]

_LOOK_AGAIN_MS = 500
"""How often callers that wait for the probe's result check again."""


class Circuit:
    """Stop trying records for ``open`` once ``failures`` (a share) of the last ``of`` calls failed, then try one.

    It works like Resilience4j's count-based window and never opens before ``of`` calls were made. After ``open`` the
    circuit is half-open: one record is tried as a probe. If the probe succeeds, the circuit closes and starts counting
    from zero; otherwise it opens again. Failures that are caused by the record rather than a dependency (undecodable
    records, `Reject`, `Skip`, and errors that are never retried) are not counted.

    Records wait in their partitions while the circuit is open, and none becomes a dead letter because of it. A failed
    probe waits in the retry topic, so that the next probe is another record.
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
    """The state of one handler's `Circuit`. ``state`` is as of the last method call."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit
        self._calls: deque[bool] = deque(maxlen=circuit.of)
        """Results of the last calls. True means failed."""
        self._failed = 0
        self.until_ms = 0
        """When an open circuit becomes half-open, or when a half-open one considers its probe lost and may start
        another.
        """
        self.state: CircuitState = "closed"

    def admit(self, now_ms: int) -> int:
        """Return the milliseconds until the next call may be made. When half-open, 0 admits exactly one caller, the
        probe.
        """
        if self.state == "closed":
            return 0
        if (left := self._left(now_ms)) > 0:
            return left if self.state == "open" else min(left, _LOOK_AGAIN_MS)
        self.state = "half-open"
        self.until_ms = now_ms + self._circuit.open_ms
        return 0

    def handled(self, count: int) -> None:
        """Record that ``count`` calls succeeded."""
        if count <= 0 or self.state == "open":  # calls that began before the circuit opened
            return
        if self.state == "half-open":
            self._close()
        elif not self._failed:
            self._calls.extend([False] * min(count, self._circuit.of - len(self._calls)))
        else:
            for _ in range(min(count, self._circuit.of)):
                self._add(False)

    def failed(self, now_ms: int) -> int:
        """Record a failed call and return how many milliseconds its record must wait in its partition.

        0 means that the failure policy decides. A failed probe returns 0 as well although the circuit is open again.
        Otherwise a record that always fails would be every probe and would keep the circuit open.
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
