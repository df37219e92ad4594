"""`SyncedFileIO`: flush pyiceberg's files to disk before anything refers to them.

The commit of the catalog's database is durable by itself. If it referred to metadata that a power cut then lost, the
table could not be opened.
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
    """A file IO for tables in local directories that flushes each new file, and its directory, to disk."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, host, path = self.parse_location(location, self.properties)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, host))
