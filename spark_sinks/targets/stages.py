"""The directory in which staged files wait for the transaction that loads them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from eventbus.errors import ConfigError, StorageError
from spark_sinks.targets.files import disk_errors
from spark_sinks.targets.place import is_object
from spark_sinks.targets.target import SinkState


class Stage:
    """A directory for each table, below ``root`` (None: the system's, which this machine's tasks can write).

    Its name contains the table's id, so that the next landing of the table finds what a crash left.
    """

    def __init__(self, root: str | None) -> None:
        if root is not None and is_object(root):
            raise ConfigError(
                f"stage={root.partition('?')[0]!r} cannot be used. Files for a database wait in a local directory that "
                f"driver and tasks share. Name one."
            )
        self._root = root

    def directory(self, state: SinkState) -> str:
        """That of the next batch, absolute. What an earlier landing staged is not in it."""
        directory = self._of_table(state) / f"{state.epoch:06d}-{state.sequence:010d}"
        with disk_errors(directory, "create"):
            if self._root is None:
                self._make_private(directory.parent)
            directory.mkdir(parents=True, exist_ok=True)
        return str(directory)

    def clear(self, state: SinkState) -> None:
        """Remove whatever is staged for the table."""
        shutil.rmtree(self._of_table(state), ignore_errors=True)

    def _of_table(self, state: SinkState) -> Path:
        return Path(self._root or tempfile.gettempdir()).absolute() / f"eventbus-stage-{state.id}"

    @staticmethod
    def _make_private(directory: Path) -> None:
        """Create the directory for this user only: in /tmp another user may have created it to read the rows."""
        directory.mkdir(mode=0o700, exist_ok=True)
        if os.name != "nt" and directory.stat().st_uid != os.getuid():
            raise StorageError(f"{directory} belongs to another user: choose another directory with stage=")
