"""The three tiers of the tests, and what a test of the core tier may not do.

core    Base dependencies only: no child process, no JVM, no database server, no sleep in a thread. ``make test-core``
        runs it in a minute. A test without a mark belongs to it.
system  One real proof of each promise that needs a process, a JVM, a database, a foreign client or an extra library.
        ``make test`` runs core and system.
slow    All targets, drivers and kills, and a tenth of the seeds, see `of_today`. ``make test-full`` runs everything.

A module sets its tier with ``pytestmark = pytest.mark.system``, a test with a decorator, a parameter with ``marks=``.
Of several that a test inherits, the slowest is its tier.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TIERS = ("core", "system", "slow")
_MODULE_TIER = re.compile(r"^pytestmark = (?:\[[^\]]*|.*)mark\.(system|slow)\b", re.MULTILINE)
_MODULE_GROUP = re.compile(r"""^pytestmark = (?:\[[^\]]*|.*)mark\.xdist_group\("(\w+)"\)""", re.MULTILINE)
_CHILD_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"}
SLOW_TIMEOUT_SECONDS = 600
"""For a slow test without a timeout of its own. Two JVMs that start one after the other exceed the default on a loaded
machine."""
SECONDS_PER_DAY = 86_400
LONGEST_SLEEP_SECONDS = 0.02
"""Threads of a test may hand over to one another; they may not wait for time to pass."""


def quick(values: Iterable[Any], chosen: int | Collection[Any]) -> list[Any]:
    """Return all ``values`` for parametrize; those not ``chosen`` are marked slow.

    ``chosen`` is how many of the first values stay in the faster tier, or those values themselves. A tuple holds the
    values of several parameters.
    """
    every = list(values)
    kept = every[:chosen] if isinstance(chosen, int) else list(chosen)
    assert all(value in every for value in kept), f"{kept} contains values that are not in {every}"
    rows = [(value, value if type(value) is tuple else (value,)) for value in every]  # a named tuple is one value
    return [pytest.param(*row, marks=() if value in kept else pytest.mark.slow) for value, row in rows]


def of_today(seeds: range) -> range:
    """Return the tenth of a long range of seeds that today's slow tier tries: each seed is tried once in ten days.

    With ``EVENTBUS_TEST_SEEDS=all`` these are all seeds, which repeats a failure of another day.
    """
    if os.environ.get("EVENTBUS_TEST_SEEDS") == "all":
        return seeds
    return seeds[int(time.time() / SECONDS_PER_DAY) % 10 :: 10]


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test: the slowest of the marks that it has or inherits, or core."""
    marks = {mark.name for mark in item.iter_markers()}
    return next((tier for tier in reversed(TIERS) if tier in marks), "core")


def tier_of_file(path: Path) -> str:
    """Return the tier that a file gives to all of its tests, without importing it (its libraries may be missing)."""
    found = _MODULE_TIER.search(path.read_text(encoding="utf-8"))
    return found[1] if found else "core"


@cache
def group_of_file(path: Path) -> str | None:
    """Return the ``xdist_group`` that a file gives to all of its tests, or None, without importing it."""
    found = _MODULE_GROUP.search(path.read_text(encoding="utf-8"))
    return found[1] if found else None


def sort_key(items: Iterable[pytest.Item]) -> Callable[[pytest.Item], tuple[str, bool, int]]:
    """Return the key that puts groups (``xdist_group``) first, then files with system tests, then the others.

    Of those, files of the top folder are first: they are about the whole project, and take long.
    """
    above_core = {item.path for item in items if tier_of(item) != "core"}
    return lambda item: (group_of_file(item.path) or "~", item.path not in above_core, len(item.path.parts))


class CoreGuard:
    """Fails a core test at the moment it starts a process or sleeps in a thread.

    An audit hook sees processes that any library starts. It cannot be removed, so one guard serves the whole run and
    acts only while ``running`` is set.
    """

    def __init__(self) -> None:
        self.running: str | None = None
        """The id of the core test that runs now."""
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def watch(self, test: str) -> Generator[None]:
        """Watch while a core test runs."""
        self.running = test
        real_sleep = time.sleep
        # A session fixture of another tier may have left threads that sleep, such as those of py4j.
        earlier = set(threading.enumerate()) - {threading.current_thread()}

        @functools.wraps(real_sleep)  # `eventbus doctor` looks for its module and its name
        def checked_sleep(seconds: float) -> None:
            if seconds > LONGEST_SLEEP_SECONDS and threading.current_thread() not in earlier:
                self._fail(f"sleeps for {seconds} s")
            real_sleep(seconds)

        time.sleep = checked_sleep  # Python raises no audit event for it before 3.13
        try:
            yield
        finally:
            time.sleep = real_sleep
            self.running = None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHILD_PROCESS and self.running is not None:
            self._fail(f"starts a process ({arguments[0] if arguments else event})")

    def _fail(self, what: str) -> None:
        raise AssertionError(f"{self.running} is in the core tier and {what}. Mark it system, or use a fake clock.")
