"""How ``eventbus run`` ends, as a number."""

from __future__ import annotations

from collections.abc import Iterable

STOPPED = 0
"""Asked to, and all that was begun is finished."""
FAILURE = 1
"""A handler has stopped, or the service could not run."""
CUT_OFF = 75
"""Asked to, but records at work were cancelled: the time to finish was over. sysexits.h calls it EX_TEMPFAIL."""
_SIGNALS = 128


def by_signal(number: int) -> int:
    """Ended at once, as by a second signal: what shells say of it."""
    return _SIGNALS + number


def of_process(returncode: int) -> int:
    """As a shell has it: `subprocess` counts signals below zero."""
    return by_signal(-returncode) if returncode < 0 else returncode


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of several processes: a failure takes precedence, then a kill, then an interruption."""
    return max(codes, key=lambda code: (code == FAILURE, code), default=STOPPED)
