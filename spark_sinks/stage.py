"""Staged files: a task writes them complete and synced, and the driver makes them part of the table.

Spark's own Parquet writer goes row by row through the JVM; pyarrow writes the columns as they are, in the same process
that decoded them: about a third of the CPU time.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.partitions import FIRST_DAY, LAST_DAY, directory_name
from spark_sinks.shape import DATE
from spark_sinks.targets.place import place_of, text_of
from spark_sinks.targets.rewrite import rewrite, write_file
from spark_sinks.targets.target import RowLimits, StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DIRECTORIES = 4_000
"""More partition directories than this in one task (a decade of days) are a mistake, not a layout."""
_MANY_FILES = 64
"""A batch of so many files is left as its tasks wrote it."""
_JOINED_BYTES = 32 << 20
"""Larger files of one directory are not joined: that would take longer than the landing."""
_BUFFERED_BYTES = 256 << 20


class Layout(NamedTuple):
    """How rows are laid out in files.

    ``date_of``: the column whose day (UTC) is `shape.DATE`, in a table that is partitioned by it. ``in_files``: the
    files contain the partition columns. ``limits``: what the table cannot hold besides, see `Target.limits`.
    """

    partition_by: tuple[str, ...] = ()
    date_of: str = "_timestamp"
    compression: str = "zstd"
    in_files: bool = False
    limits: RowLimits | None = None

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Return the partition columns that rows with these columns do not have."""
        known = {*columns, DATE} if self.date_of in columns else {*columns}
        return [name for name in self.partition_by if name not in known]

    def makes_date(self, columns: Sequence[str]) -> bool:
        """Return True if `shape.DATE` is made of another column here."""
        return DATE in self.partition_by and DATE not in columns


class StageWriter:
    """Collects rows by partition directory and writes the rows of each directory as one complete file.

    Only a task with more rows than `_BUFFERED_BYTES` writes before its end, and then several files per directory: no
    file stays open, however many directories there are.
    """

    def __init__(self, stage: str, layout: Layout) -> None:
        self._stage = place_of(stage)
        self._layout = layout
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._files: list[StagedFile] = []
        # A retried task must not touch the files of the attempt before it, which may still be running.
        self._attempt = uuid.uuid4().hex[:12]

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, rows in split_by_directory(batch, self._layout):
            self._waiting.setdefault(directory, []).append(rows)
            self._waiting_bytes += rows.nbytes
        if len(self._waiting) > MAX_DIRECTORIES:
            raise ConfigError(
                f"partition_by={list(self._layout.partition_by)} makes more than {MAX_DIRECTORIES} directories in one "
                f"task; choose a column with fewer values"
            )
        if self._waiting_bytes > _BUFFERED_BYTES:
            self._write_files()

    def finish(self) -> list[StagedFile]:
        """Write the remaining rows. Return all files, complete and synced."""
        self._write_files()
        return self._files

    def _write_files(self) -> None:
        for directory, batches in sorted(self._waiting.items()):
            path = self._stage / f"{self._attempt}-{len(self._files):05d}.staged"
            self._files.append(write_file(path, directory, batches, self._layout.compression))
        self._waiting.clear()
        self._waiting_bytes = 0


def joined(files: Sequence[StagedFile], compression: str) -> list[StagedFile]:
    """Join the small files of each directory. Each task of a batch over many days writes a file for every day.

    The small files go with the rest of the stage after the commit.
    """
    import pyarrow as pa

    if len(files) <= _MANY_FILES:
        return list(files)
    by_directory: dict[str, list[StagedFile]] = {}
    for file in files:
        by_directory.setdefault(file.directory, []).append(file)
    found: list[StagedFile] = []
    for directory, parts in by_directory.items():
        if len(parts) == 1 or sum(each.size_bytes for each in parts) > _JOINED_BYTES:
            found += parts
            continue
        places = [place_of(each.path) for each in sorted(parts)]
        written = rewrite(
            places,
            pa.schema([]),
            lambda number, first=places[0]: first.with_name(f"{first.name}.{number}"),
            compression,
        )
        found += [StagedFile(text_of(each.path), directory, each.rows, each.size_bytes) for each in written]
    return found


def split_by_directory(batch: pa.RecordBatch, layout: Layout) -> list[tuple[str, pa.RecordBatch]]:
    """Return the rows of a batch by partition directory (``month=1/origin=JFK``).

    The partition columns stay in the rows only with ``layout.in_files``.
    """
    import numpy as np

    if batch.num_rows == 0:
        return []
    if not layout.partition_by:
        return [("", batch)]
    if layout.makes_date(batch.schema.names):
        batch = batch.append_column(DATE, _days(batch.column(layout.date_of)))
    group = np.zeros(batch.num_rows, np.int64)
    names = [""]
    for column in layout.partition_by:
        encoded: Any = batch.column(column).dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        group = group * len(values) + encoded.indices.to_numpy(zero_copy_only=False)
        directories = [directory_name(column, value, len(layout.partition_by)) for value in values]
        names = [f"{name}/{directory}".lstrip("/") for name in names for directory in directories]
    dropped = () if layout.in_files else layout.partition_by
    rest = batch.select([name for name in batch.schema.names if name not in dropped])
    present = np.unique(group)
    if len(present) == 1:
        return [(names[int(present[0])], rest)]
    if not (group[1:] >= group[:-1]).all():  # else, say by days of ascending times, slices copy nothing
        order = np.argsort(group, kind="stable")
        group, rest = group[order], rest.take(_indices(order))
    bounds = np.searchsorted(group, present, side="right").tolist()
    starts = [0, *bounds[:-1]]
    return [
        (names[code], rest.slice(start, end - start))
        for code, start, end in zip(present.tolist(), starts, bounds, strict=True)
    ]


def _days(moment: Any) -> Any:
    """Return the days (UTC) of a column of times, with null for days that readers of directories do not know."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    if not pa.types.is_date(moment.type):
        moment = compute.cast(moment, pa.timestamp("us", "UTC"))  # a session may have another zone
    days = compute.cast(moment, pa.date32(), safe=False)
    numbers = days.cast(pa.int32())
    known = compute.and_(compute.greater_equal(numbers, FIRST_DAY), compute.less_equal(numbers, LAST_DAY))
    return compute.if_else(known, days, pa.scalar(None, days.type))


def _indices(order: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(order)
