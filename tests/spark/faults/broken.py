"""Tasks of Spark that fail in the midst of their work, once; and a process of Spark's own, found by its parent.

monkeypatch.setattr("spark_sinks.running.FusedTask", dying(tmp_path / "died", "staged"))
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spark_sinks.tasks import FusedTask, WriteTask

KILLED, STAGED, FULL = "killed", "staged", "full"
"""Killed before it wrote, killed after it wrote all, out of space after half a file."""


class BrokenTask(FusedTask):
    """Breaks in the first ``times`` processes that come to it."""

    def __init__(self, marks: Path, how: str, times: int, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._marks = str(marks)
        self._how = how
        self._times = times

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        if not self._takes_a_mark():
            yield from super().__call__(batches)
        elif self._how == FULL:
            yield from self._on_a_full_disk(batches)
        else:
            if self._how == STAGED:
                all_written = [*super().__call__(batches)]
                assert all_written
            os.kill(os.getpid(), signal.SIGKILL)

    def _takes_a_mark(self) -> bool:
        for number in range(self._times):
            try:
                os.close(os.open(f"{self._marks}-{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False

    def _on_a_full_disk(self, batches: Iterator[Any]) -> Iterator[Any]:
        def fsync(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        real, os.fsync = os.fsync, fsync
        try:
            yield from super().__call__(batches)
        finally:
            os.fsync = real


def breaking(marks: Path, how: str, times: int = 1) -> Callable[..., BrokenTask]:
    """In place of `FusedTask`."""

    def make(directory: str, ranges: Any, write: WriteTask, *, skip_lost: bool) -> BrokenTask:
        assert not skip_lost
        return BrokenTask(marks, how, times, directory, ranges, write)

    return make
