"""How often a transaction is run again, and after how long: pure, without a clock."""

from __future__ import annotations

import logging
import random

from outbox.claims import LostRace
from outbox.database import Trouble, is_missing, trouble_of

logger = logging.getLogger("outbox")

_MOST_AGAIN = 10
"""Conflicts in a row; beyond that they are no accident."""
_MOST_AWAY = 3
"""Losses of the connection in the middle of one's own work: it may be that work which causes them."""
_SHORTEST_SECONDS, _LONGEST_SECONDS, _MOST_DOUBLINGS = 0.005, 2.0, 10


class Tries:
    """Of one transaction."""

    def __init__(self, whose: str) -> None:
        """``whose``: for the log."""
        self._whose = whose
        self._counts: dict[Trouble, int] = {"conflict": 0, "away": 0, "other": 0}
        self._waits = 0
        self._is_told = False

    def pause_after(self, error: Exception, *, may_wait: bool) -> float | None:
        """Seconds until it is to be run again, after an error of the database's; None: the error stands.

        A deadlock, a serialization failure, a lock that was not had in time, a server that does not answer: for as
        long as that takes where ``may_wait``, because nothing of one's own was at work yet. There a table or a column
        that is missing is waited for, too. Else conflicts ten times, and three times what may be the work's own doing.
        """
        trouble = _trouble_of(error)
        if trouble == "other" and may_wait and is_missing(error):
            trouble = "away"
        if trouble == "other":
            return None
        if may_wait and not isinstance(error, LostRace):
            self._waits += 1
            if not self._is_told and (trouble == "away" or self._waits > _MOST_AGAIN):
                self._is_told = True
                logger.warning("%s waits for its database, and goes on by itself: %s", self._whose, error)
            return _jittered(self._waits + (4 if trouble == "away" else 0))
        self._counts[trouble] += 1
        count = self._counts[trouble]
        return None if count > (_MOST_AGAIN if trouble == "conflict" else _MOST_AWAY) else _jittered(count)


def _trouble_of(error: Exception) -> Trouble:
    if isinstance(error, LostRace):
        return "conflict"
    # A driver that raises the system's own errors: asyncpg, while it connects.
    return "away" if isinstance(error, OSError) else trouble_of(error)


def _jittered(count: int) -> float:
    """Twice as long each time, within bounds; not all at the same moment."""
    return min(_SHORTEST_SECONDS * 2 ** min(count, _MOST_DOUBLINGS), _LONGEST_SECONDS) * random.uniform(0.5, 1.0)
