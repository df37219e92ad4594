"""The part of a landing that runs in Spark's tasks: rows in, staged Parquet files out.

Spark's own Parquet writer goes row by row through the JVM; pyarrow writes the columns as they are, in the same process
that decoded them: about a third of the CPU time.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from eventbus.errors import ConfigError, SerializationError
from spark_sinks.decoding.columns import RowDecoder, RowSchema
from spark_sinks.shape import DATE
from spark_sinks.targets.files import disk_errors

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DIRECTORIES = 4_000
"""More partition directories than this in one task (a decade of days) are a mistake, not a layout."""
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_ROWS = 262_144
_BUFFERED_BYTES = 256 << 20

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
    """Gathers rows by partition directory and writes each directory's rows as one complete file.

    Only a task with more rows than `_BUFFERED_BYTES` writes before its end, and then several files per directory: no
    file stays open, however many directories there are.
    """

    def __init__(self, stage: Path, partition_by: Sequence[str], compression: str) -> None:
        self._stage = stage
        self._partition_by = tuple(partition_by)
        self._compression = compression
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._reports: list[Report] = []
        # A retried task must not touch the files of the attempt before it, which may still be running.
        self._attempt = uuid.uuid4().hex[:12]

    def write(self, batch: pa.RecordBatch) -> None:
        for directory, rows in split_by_directory(batch, self._partition_by):
            self._waiting.setdefault(directory, []).append(rows)
            self._waiting_bytes += rows.nbytes
        if len(self._waiting) > MAX_DIRECTORIES:
            raise ConfigError(
                f"partition_by={list(self._partition_by)} makes more than {MAX_DIRECTORIES} directories in one task; "
                f"choose a column with fewer values"
            )
        if self._waiting_bytes > _BUFFERED_BYTES:
            self._write_files()

    def finish(self) -> list[Report]:
        """Write what is left; the reports of all files, complete and synced."""
        self._write_files()
        return self._reports

    def _write_files(self) -> None:
        for directory, batches in sorted(self._waiting.items()):
            path = self._stage / f"{self._attempt}-{len(self._reports):05d}.staged"
            self._reports.append(_write_file(path, directory, batches, self._compression))
        self._waiting.clear()
        self._waiting_bytes = 0


def _write_file(path: Path, directory: str, batches: list[pa.RecordBatch], compression: str) -> Report:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(batches)
    with disk_errors(path, "write"), path.open("xb") as file:
        pq.write_table(table, file, compression=compression, row_group_size=_ROW_GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())
        return Report(path.name, directory, table.num_rows, file.tell())


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
    topic, partition, offset = (batch.column(name)[bad.first].as_py() for name in ("topic", "partition", "offset"))
    return None, Report("", topic, 0, 0, bad.failed, partition, offset, bad.reason)


def _codes(batch: pa.RecordBatch, column: str) -> tuple[Any, list[str]]:
    """For each row the number of its value, and the values as directory names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column == DATE and column not in batch.schema.names:
        in_utc = pc.cast(batch.column("_timestamp"), pa.timestamp("us", "UTC"))  # a session may have another zone
        array = pc.cast(in_utc, pa.date32(), safe=False)
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
