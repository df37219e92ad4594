"""File operations that a test lets fail before each one that lasts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from spark_sinks.targets.files import LocalFiles
from spark_sinks.targets.logged import TableLog
from tests.spark.targets.kit import Stepping, Steps

LASTING = ("makedirs", "create", "rename", "remove", "remove_empty", "exchange", "sync_dir", "sync_file")
COMMITS = ("create", "take_over", "fit", "commit", "merge", "compact")


def stepping_log(log: TableLog, steps: Steps) -> TableLog:
    """A log that may fail before and after each commit."""
    stepping: Any = Stepping(log, steps, COMMITS, after=COMMITS)
    return cast("TableLog", stepping)


class SteppingFiles(Stepping):
    """`LocalFiles` whose lasting operations are steps. A crash in `create` leaves half of a temporary file."""

    def __init__(self, inner: LocalFiles, steps: Steps) -> None:
        super().__init__(inner, steps, LASTING)
        self._root = inner.root

    def remove(self, *paths: str) -> None:
        for path in paths:
            self._steps.step()
            self._inner.remove(path)

    def create(self, path: str, data: bytes) -> bool:
        self._steps.step()
        target = self._root / path
        half = target.with_name(f".{target.name}.1")
        half.write_bytes(data[: len(data) // 2])
        self._steps.step()
        half.unlink()
        created: Any = self._inner.create(path, data)
        return created


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files and directories that this process syncs from now on."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not say which file a descriptor is of")
    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(Path(f"/proc/self/fd/{handle}").readlink()))
    return synced
