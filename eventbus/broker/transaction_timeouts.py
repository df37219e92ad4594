"""Timeouts of open transactions, and the sweeps that find them. Part of the broker; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from eventbus.broker.transaction_ends import NEVER_MS


class Timeouts:
    """The deadline of each open transaction, by transactional id.

    Like Kafka, the log does not end a transaction at its deadline, but compares all of them at intervals
    (``transaction.abort.timed.out.transaction.cleanup.interval.ms``). A producer that is late by less than an interval
    can usually still commit. Deadlines are not stored: time spent closed does not count.
    """

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._first_sweep_ms = now_ms
        self._deadlines: dict[str, int] = {}
        self.next_sweep_ms = NEVER_MS
        """The first sweep that finds a transaction past its deadline."""

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._deadlines

    def set(self, transactional_id: str, deadline_ms: int) -> None:
        """Set or replace the deadline of a transaction."""
        self._deadlines[transactional_id] = deadline_ms
        self.next_sweep_ms = min(self.next_sweep_ms, self._sweep_after(deadline_ms))

    def drop(self, transactional_id: str) -> None:
        """Remove the deadline of a transaction that was decided. The sweep for it finds nothing."""
        self._deadlines.pop(transactional_id, None)

    def sweep(self, now_ms: int, timeout_ms_of: Callable[[str], int]) -> list[str]:
        """Return the transactions past their deadline. The next sweep returns those that could not be aborted again.

        A clock that was set back does not prolong transactions: each ends at most its whole timeout from now.
        """
        due = [transactional_id for transactional_id, deadline_ms in self._deadlines.items() if deadline_ms <= now_ms]
        for transactional_id, deadline_ms in self._deadlines.items():
            # If the clock was set back by a day, the old deadline would be a day away.
            self._deadlines[transactional_id] = min(deadline_ms, now_ms + timeout_ms_of(transactional_id))
        for transactional_id in due:
            # The caller drops what it aborts. A transaction that a full disk kept stays due, for the next sweep.
            self._deadlines[transactional_id] = now_ms + 1
        self.next_sweep_ms = min(map(self._sweep_after, self._deadlines.values()), default=NEVER_MS)
        return due

    def _sweep_after(self, deadline_ms: int) -> int:
        """Return the time of the first sweep at or after a deadline."""
        return deadline_ms + (self._first_sweep_ms - deadline_ms) % self._interval_ms

    def check(self, open_ids: Collection[str]) -> None:
        """Check that exactly the open transactions have deadlines, and that each will be found; or AssertionError."""
        assert set(open_ids) == self._deadlines.keys(), f"open {sorted(open_ids)}, timed {sorted(self._deadlines)}"
        assert all(self._sweep_after(deadline_ms) >= self.next_sweep_ms for deadline_ms in self._deadlines.values())
