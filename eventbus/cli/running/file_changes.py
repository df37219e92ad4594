"""Watch the Python files of a service for changes, for ``--reload``."""

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
"""Changes are reported once no file has changed for this time, because an editor writes a file in several steps."""
_DEBOUNCE_MS = 400
"""Changes are reported at the latest after this time: a version control system may write for longer."""


def check_watching(directories: Sequence[str]) -> None:
    """Check the directories. Raises ConfigError if watchfiles is not installed, UsageError for a missing directory."""
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError('--reload needs watchfiles: pip install "eventbus-log[reload]"')
    for directory in directories:
        if not Path(directory).is_dir():
            raise UsageError(f"eventbus run: --reload-dir {directory}: there is no such directory")


def watch_files(directories: Sequence[str], on_change: Callable[[list[str]], object]) -> None:
    """Call ``on_change``, in another thread, with the relative paths of Python files that have changed."""
    from watchfiles import PythonFilter, watch

    def run() -> None:
        changes = watch(
            *directories, watch_filter=PythonFilter(), debounce=_DEBOUNCE_MS, step=_STEP_MS, raise_interrupt=False
        )
        for found in changes:
            on_change(sorted({os.path.relpath(path) for _, path in found}))

    threading.Thread(target=run, name="files", daemon=True).start()


def forget_compiled(files: Sequence[str]) -> None:
    """Delete the compiled files.

    Python compares the size and the modification time in seconds, so it would miss a change of the same size that was
    made in the second of the compilation.
    """
    for file in files:
        with suppress(OSError):  # a file of another user stays, and Python compares it as usual
            Path(importlib.util.cache_from_source(file)).unlink()
