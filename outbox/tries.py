"""How often a transaction is run again, and after how long: pure, without a clock."""

from __future__ import annotations

import logging
import random

from outbox.claims import LostRace
from outbox.database import Trouble, trouble_of

logger = logging.getLogger("outbox")

_MOST_AGAIN = 10
"""Conflicts in a row; beyond that they are no accident."""
_MOST_AWAY = 3
"""Losses of the connection in the middle of one's own work: it may be that work which causes them."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.005, 2.0


class Tries:
    """Of one transaction."""

    def __init__(self, whose: str) -> None:
        """``whose``: for the log."""
        self._whose = whose
        self._counts: dict[Trouble, int] = {"conflict": 0, "away": 0, "other": 0}
        self._waits = 0
        self._is_told = False

    def pause_after(self, error: Exception, *, may_wait: bool) -> float | None:
        """Seconds until it is to be run again; None: the error stands.

        A deadlock, a serialization failure, a lock that was not had in time: again, at most ten times. A database that
        does not answer: for as long as that takes where ``may_wait``, because nothing of one's own was at work yet;
        else three times.
        """
        trouble: Trouble = "conflict" if isinstance(error, LostRace) else trouble_of(error)
        if trouble == "other":
            return None
        self._counts[trouble] += 1
        count = self._counts[trouble]
        if trouble == "conflict":
            return None if count > _MOST_AGAIN else _jittered(count)
        if may_wait:
            self._waits += 1
            if not self._is_told:
                self._is_told = True
                logger.warning("%s waits for its database, and goes on by itself: %s", self._whose, error)
            return _jittered(self._waits + 4)
        return None if count - self._waits > _MOST_AWAY else _jittered(count)


def _jittered(count: int) -> float:
    """Twice as long each time, within bounds; not all at the same moment."""
    return min(_SHORTEST_SECONDS * 2**count, _LONGEST_SECONDS) * random.uniform(0.5, 1.0)
