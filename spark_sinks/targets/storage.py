"""Open a place, whether it is on a disk or in an object store: its file operations, Parquet files, new files."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_sinks.targets.files import Files, LocalFiles, disk_errors
from spark_sinks.targets.place import ObjectPath, Place, place_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from spark_sinks.targets.objects import ObjectFiles

MakeFiles = Callable[[Place], Files]


def files_at(place: Place) -> Files:
    """Return the file operations below a place."""
    return LocalFiles(place) if isinstance(place, Path) else _objects(place)


def parquet_file(place: Place | str) -> pq.ParquetFile:
    """Open a Parquet file. Raises `StorageError`, and `pyarrow.ArrowInvalid` for a file that is not one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = place_of(place) if isinstance(place, str) else place
    try:
        if isinstance(place, Path):
            with disk_errors(place, "read"):
                return pq.ParquetFile(place)
        return pq.ParquetFile(_objects(place.parent).reader(place.name), pre_buffer=True)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"{place}: {error}") from error


@contextlib.contextmanager
def new_file(place: Place) -> Generator[IO[bytes]]:
    """Write a new file, which is durable at the end of the block. An object appears only when it is complete."""
    if isinstance(place, Path):
        with disk_errors(place, "write"), place.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    with tempfile.TemporaryFile() as file:
        with disk_errors(place, "write"):
            yield file
        _objects(place.parent).upload(place.name, file)


def _objects(place: ObjectPath) -> ObjectFiles:
    from spark_sinks.targets.objects import ObjectFiles

    return ObjectFiles(place)
