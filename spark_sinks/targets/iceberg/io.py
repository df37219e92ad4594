"""`SyncedFileIO`: pyiceberg's files, on disk before anything names them.

The catalog's database is synced by its own commit: one that named metadata which a power cut then took would be a table
that nobody can open.
"""

# pyarrow and pyiceberg have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from spark_sinks.targets.files import LocalFiles

SYNCED = {"py-io-impl": f"{__name__}.SyncedFileIO"}
"""The property of a catalog."""


class _Synced(io.BufferedWriter):
    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
        super().close()


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        directory = LocalFiles(path.parent)
        directory.makedirs("")
        file = _Synced(path.open("wb" if overwrite else "xb", buffering=0))
        directory.sync_dir("")
        return file


class SyncedFileIO(PyArrowFileIO):
    """Of tables in local directories."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, host))
