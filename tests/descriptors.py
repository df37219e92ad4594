"""File descriptors of this process, as a test sees them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eventbus.log import storage as storage_module


def open_files(folder: Path) -> list[str]:
    """Return the names of the open files in a folder. Threads of earlier tests may open and close others meanwhile."""
    names: list[str] = []
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since it was listed
            path = descriptor.readlink()
            if folder in path.parents:
                names.append(path.name)
    return names


def open_descriptors(folder: Path) -> int:
    return len(open_files(folder))


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Call with a folder and a limit: files in it cannot be opened while so many are open, as with ``ulimit -n``."""
    original = os.open

    def limit(folder: Path, count: int) -> None:
        def scarce(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if open_descriptors(folder) >= count:
                raise OSError(errno.EMFILE, "Too many open files")
            return original(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(storage_module.os, "open", scarce)

    return limit
