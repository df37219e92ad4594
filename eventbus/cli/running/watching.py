"""Which of a service's files have changed."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from eventbus.cli.parser import UsageError
from eventbus.errors import ConfigError

_STEP_MS = 50
"""A change is told when nothing more has changed for so long: an editor writes a file in several steps,"""
_DEBOUNCE_MS = 400
"""or after so long: a version control system writes many."""


def check_watching(directories: Sequence[str]) -> None:
    """Raises ConfigError without watchfiles, UsageError for a directory that is none."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError('--reload needs watchfiles: pip install "eventbus-log[reload]"')
    for directory in directories:
        if not Path(directory).is_dir():
            raise UsageError(f"eventbus run: --reload-dir {directory}: there is no such directory")


def watch_files(directories: Sequence[str], on_change: Callable[[list[str]], object]) -> None:
    """Call ``on_change``, in another thread, with the Python files that have changed, as seen from here."""
    from watchfiles import PythonFilter, watch

    def run() -> None:
        changes = watch(
            *directories, watch_filter=PythonFilter(), debounce=_DEBOUNCE_MS, step=_STEP_MS, raise_interrupt=False
        )
        for found in changes:
            on_change(sorted({os.path.relpath(path) for _, path in found}))

    threading.Thread(target=run, name="files", daemon=True).start()


def forget_compiled(files: Sequence[str]) -> None:
    """A change within the second in which the file was compiled, to one of the same size, is none to Python."""
    for file in files:
        with suppress(OSError):  # of another user, or no directory: what may not be forgotten is compared as ever
            Path(importlib.util.cache_from_source(file)).unlink()
