"""Decide how often a transaction is retried, and after which delay. It uses no clock."""

from __future__ import annotations

import logging
import random

from outbox.claims import LostRace
from outbox.database import Trouble, is_missing, trouble_of

logger = logging.getLogger("outbox")

_MOST_AGAIN = 10
"""Maximum number of conflicts. More of them are unlikely to be accidental."""
_MOST_AWAY = 3
"""Maximum number of lost connections during the caller's own statements, which may themselves cause the losses."""
_SHORTEST_SECONDS, _LONGEST_SECONDS, _MOST_DOUBLINGS = 0.005, 2.0, 10


class Tries:
    """Counts the failed attempts of one transaction."""

    def __init__(self, whose: str) -> None:
        """``whose`` names the transaction in the log."""
        self._whose = whose
        self._counts: dict[Trouble, int] = {"conflict": 0, "away": 0, "other": 0}
        self._waits = 0
        self._is_logged = False

    def pause_after(self, error: Exception, *, may_wait: bool) -> float | None:
        """Return the seconds until the next attempt after an error of the database, or None if the error is final.

        A deadlock, a serialization failure, a lock timeout, and a server that does not answer are retried without limit
        if ``may_wait``, because then none of the caller's own statements has run yet. So are missing tables and
        columns. Otherwise conflicts are retried ten times, and lost connections, which the statements may cause, three
        times.
        """
        trouble = _trouble_of(error)
        if trouble == "other" and may_wait and is_missing(error):
            trouble = "away"
        if trouble == "other":
            return None
        if may_wait and not isinstance(error, LostRace):
            self._waits += 1
            if not self._is_logged and (trouble == "away" or self._waits > _MOST_AGAIN):
                self._is_logged = True
                logger.warning("%s waits for its database, and continues automatically: %s", self._whose, error)
            return _jittered(self._waits + (4 if trouble == "away" else 0))
        self._counts[trouble] += 1
        count = self._counts[trouble]
        return None if count > (_MOST_AGAIN if trouble == "conflict" else _MOST_AWAY) else _jittered(count)


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, LostRace):
        return "conflict"
    # asyncpg raises the system's own errors while it connects.
    return "away" if isinstance(error, OSError) else trouble_of(error)


def _jittered(count: int) -> float:
    """Return an exponential delay with jitter, so that waiting tasks do not retry simultaneously."""
    return min(_SHORTEST_SECONDS * 2 ** min(count, _MOST_DOUBLINGS), _LONGEST_SECONDS) * random.uniform(0.5, 1.0)
