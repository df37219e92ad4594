"""The exit codes of ``eventbus run``."""

from __future__ import annotations

from collections.abc import Iterable

STOPPED = 0
"""Stopped on request, with all records in flight finished."""
FAILURE = 1
"""A handler has stopped, or the service could not run."""
CUT_OFF = 75
"""Stopped on request, but records in flight were cancelled after the drain timeout: EX_TEMPFAIL of sysexits.h."""
_SIGNALS = 128


def by_signal(number: int) -> int:
    """Return the exit code of a process that a signal ended at once, as shells compute it."""
    return _SIGNALS + number


def of_process(returncode: int) -> int:
    """Convert a return code of `subprocess`, where signals are negative, to that of a shell."""
    return by_signal(-returncode) if returncode < 0 else returncode


def worst(codes: Iterable[int]) -> int:
    """Return the exit code of several processes: a failure takes precedence, then a kill, then an interruption."""
    return max(codes, key=lambda code: (code == FAILURE, code), default=STOPPED)
