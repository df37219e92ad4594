"""The part of a landing that runs in Spark's tasks: rows in, staged Parquet files out.

Spark's own Parquet writer goes row by row through the JVM; pyarrow writes the columns as they are, in the same process
that decoded them: about a third of the CPU time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.columns import DATE, RowDecoder, RowSchema
from spark_sinks.files import disk_errors

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DIRECTORIES = 1_000
"""More partition directories than this in one task are a mistake, not a layout."""
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_ROWS = 262_144
_BUFFERED_BYTES = 128 << 20

REPORT_COLUMNS = (
    "path string, directory string, rows bigint, size_bytes bigint, "
    "failed bigint, failed_partition int, failed_offset bigint, reason string"
)


class Report(NamedTuple):
    """One row from a task: a staged file, or, with ``failed`` > 0, rows it could not decode and where the first stands.

    ``directory`` is the file's partition directory, or the topic of the undecodable rows.
    """

    path: str
    directory: str
    rows: int
    size_bytes: int
    failed: int = 0
    failed_partition: int = -1
    failed_offset: int = -1
    reason: str = ""


class DecodeTask:
    """``mapInArrow``: source columns to table columns; rows below ``landed`` are dropped.

    Raises `SerializationError` at the first batch with an undecodable row.
    """

    def __init__(self, rows: RowSchema, landed: dict[int, int]) -> None:
        self._rows = rows
        self._landed = landed

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = self._rows.decoder()
        for batch in batches:
            fresh = above(batch, self._landed)
            decoded, report = _decode(decoder, fresh)
            if decoded is None:
                raise SerializationError(undecodable([report]))
            yield decoded


class WriteTask:
    """``mapInArrow``: table columns to staged files, and their `Report`\\s to the driver.

    With ``rows`` it takes source columns and decodes them first: one pass through Python instead of two.
    """

    def __init__(
        self, stage: str, rows: RowSchema | None, landed: dict[int, int], partition_by: Sequence[str], compression: str
    ) -> None:
        self._stage = stage
        self._rows = rows
        self._landed = landed
        self._partition_by = tuple(partition_by)
        self._compression = compression

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        decoder = self._rows.decoder() if self._rows is not None else None
        writer = StageWriter(Path(self._stage), self._partition_by, self._compression)
        failures: list[Report] = []
        for batch in batches:
            rows: pa.RecordBatch | None = batch
            if decoder is not None:
                rows, failure = _decode(decoder, above(batch, self._landed))
                if rows is None:
                    failures.append(failure)
            if rows is not None and not failures:  # after a failure the rest is only counted
                writer.write(rows)
        reports = failures or writer.finish()
        if reports:
            columns: list[list[Any]] = [list(column) for column in zip(*reports, strict=True)]
            yield pa.RecordBatch.from_pydict(dict(zip(Report._fields, columns, strict=True)), schema=_report_schema())


class StageWriter:
    """Writes rows into one staged file per partition directory."""

    def __init__(self, stage: Path, partition_by: Sequence[str], compression: str) -> None:
        self._stage = stage
        self._partition_by = tuple(partition_by)
        self._compression = compression
        self._open: dict[str, _StagedParquet] = {}
        self._buffered_bytes = 0
        # A retried task must not touch the files of the attempt before it, which may still be running.
        self._attempt = uuid.uuid4().hex[:12]

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, rows in split_by_directory(batch, self._partition_by):
            if directory not in self._open:
                self._add(directory, rows.schema)
            self._open[directory].add(rows)
            self._buffered_bytes += rows.nbytes
        if self._buffered_bytes > _BUFFERED_BYTES:
            for file in self._open.values():
                file.flush()
            self._buffered_bytes = 0

    def finish(self) -> list[Report]:
        """Complete and sync all files."""
        return [file.finish(directory) for directory, file in sorted(self._open.items())]

    def _add(self, directory: str, schema: pa.Schema) -> None:
        if len(self._open) == MAX_DIRECTORIES:
            raise ConfigError(
                f"partition_by={list(self._partition_by)} makes more than {MAX_DIRECTORIES} directories in one task; "
                f"choose a column with fewer values"
            )
        path = self._stage / f"{self._attempt}-{len(self._open):04d}.staged"
        self._open[directory] = _StagedParquet(path, schema, self._compression)


class _StagedParquet:
    """One file: batches are gathered to row groups of a useful size."""

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        import pyarrow.parquet as pq

        self._path = path
        self._batches: list[pa.RecordBatch] = []
        self._waiting = 0
        self._rows = 0
        with disk_errors(path, "create"):
            self._file = path.open("xb")
            self._writer = pq.ParquetWriter(self._file, schema, compression=compression)

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._waiting += batch.num_rows
        if self._waiting >= _ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._batches:
            with disk_errors(self._path, "write"):
                self._writer.write_table(pa.Table.from_batches(self._batches))
            self._rows += self._waiting
            self._waiting = 0
            self._batches.clear()

    def finish(self, directory: str) -> Report:
        self.flush()
        with disk_errors(self._path, "write"):
            self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
            self._file.close()
        return Report(self._path.name, directory, self._rows, size)


def above(batch: pa.RecordBatch, landed: dict[int, int]) -> pa.RecordBatch:
    """The rows of a source batch that the ledger does not hold yet."""
    import numpy as np

    if not landed or batch.num_rows == 0:
        return batch
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    next_offsets = np.zeros(int(max(partitions.max(), *landed)) + 1, np.int64)
    next_offsets[list(landed)] = list(landed.values())
    fresh = batch.column("offset").to_numpy(zero_copy_only=False) >= next_offsets[partitions]
    return batch if fresh.all() else batch.filter(_boolean(fresh))


def split_by_directory(batch: pa.RecordBatch, partition_by: Sequence[str]) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by partition directory (``month=1/origin=JFK``), without the columns that name it."""
    import numpy as np

    if batch.num_rows == 0:
        return []
    if not partition_by:
        return [("", batch)]
    group = np.zeros(batch.num_rows, np.int64)
    names = [""]
    for column in partition_by:
        codes, values = _codes(batch, column)
        group = group * len(values) + codes
        names = [f"{name}/{column}={value}".lstrip("/") for name in names for value in values]
    rest = batch.select([name for name in batch.schema.names if name not in partition_by])
    present = np.unique(group)
    if len(present) == 1:
        return [(names[int(present[0])], rest)]
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], present, side="right")
    parts: list[tuple[str, pa.RecordBatch]] = []
    start = 0
    for code, end in zip(present.tolist(), bounds.tolist(), strict=True):
        parts.append((names[code], rest.take(_indices(order[start:end]))))
        start = end
    return parts


def directory_value(value: Any) -> str:
    """A partition value as Hive writes it in a path; readers turn it back."""
    if value is None or value == "":
        return NULL_DIRECTORY
    if isinstance(value, bool):
        return str(value).lower()
    return quote(str(value), safe=" ,+@~-_.")


def undecodable(failures: Sequence[Report]) -> str:
    """The sentence for rows that do not fit the schema."""
    first = min(failures, key=lambda report: (report.failed_partition, report.failed_offset))
    count = sum(report.failed for report in failures)
    where = f"{first.directory}-{first.failed_partition} at offset {first.failed_offset}"
    records = "1 record does" if count == 1 else f"{count:,} records do"
    return f"{records} not fit the schema, the first in {where}: {first.reason}. Nothing of this batch was landed"


def _decode(decoder: RowDecoder, batch: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Report]:
    rows, bad = decoder.rows(batch)
    if bad is None:
        return rows, Report("", "", 0, 0)
    topic, partition, offset = (batch.column(name)[bad.index].as_py() for name in ("topic", "partition", "offset"))
    return None, Report("", topic, 0, 0, bad.count, partition, offset, bad.reason)


def _codes(batch: pa.RecordBatch, column: str) -> tuple[Any, list[str]]:
    """For each row the number of its value, and the values as directory names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column == DATE and column not in batch.schema.names:
        array = pc.cast(batch.column("_timestamp"), pa.date32(), safe=False)
    else:
        array = batch.column(column)
    encoded: Any = array.dictionary_encode(null_encoding="encode")
    values = [directory_value(each) for each in encoded.dictionary.to_pylist()]
    return encoded.indices.to_numpy(zero_copy_only=False), values


def _boolean(mask: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(mask)


def _indices(order: Any) -> pa.Array:
    import pyarrow as pa

    return pa.array(order)


def _report_schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = (text, text, number, number, number, pa.int32(), number, text)
    return pa.schema(list(zip(Report._fields, kinds, strict=True)))
