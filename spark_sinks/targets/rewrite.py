"""Few Parquet files of many, a row group at a time."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from spark_sinks.partitions import partition_values
from spark_sinks.targets.place import Place, text_of
from spark_sinks.targets.storage import new_file, parquet_file
from spark_sinks.targets.target import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BYTES = 512 << 20
"""A rewritten file is closed when it is larger than this."""
_ROW_GROUP_ROWS = 262_144


class Rewritten(NamedTuple):
    """A new file, complete and synced."""

    path: Place
    rows: int
    size_bytes: int


class Rewrite(Protocol):
    """`rewrite`, so that a test can stand in for it."""

    def __call__(
        self, sources: Sequence[Place], columns: pa.Schema, name: Callable[[int], Place], compression: str
    ) -> list[Rewritten]: ...


def rewrite(
    sources: Sequence[Place], columns: pa.Schema, name: Callable[[int], Place], compression: str
) -> list[Rewritten]:
    """Write the rows of ``sources``, in their order, into files called ``name(0)``, ``name(1)``, ...

    Their columns are ``columns`` and whatever else a source has; what a source lacks is null. Raises `StorageError`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for source in sources:
        with parquet_file(source) as file:
            others = [field for field in file.schema_arrow if field.name not in columns.names]
        columns = pa.schema([*columns, *others])
    written: list[Rewritten] = []
    groups = _row_groups(sources, columns)
    group = next(groups, None)
    while group is not None:
        path = name(len(written))
        rows = 0
        with new_file(path) as file:
            with pq.ParquetWriter(file, columns, compression=compression) as writer:
                while group is not None and file.tell() < FILE_BYTES:
                    writer.write_table(group, row_group_size=_ROW_GROUP_ROWS)
                    rows += group.num_rows
                    group = next(groups, None)
            size_bytes = file.tell()
        written.append(Rewritten(path, rows, size_bytes))
    return written


def fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return a batch with these columns: wider types, and nulls where it has none."""
    import pyarrow as pa

    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def rows_of(place: Place | str, directory: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file with these columns; the file's partition directory has what the file lacks."""
    import pyarrow as pa

    with parquet_file(place) as file:
        has = set(file.schema_arrow.names)
        named = {name: text for name, text in partition_values(directory).items() if name not in has}
        # Not without any column: such a batch has no rows.
        for batch in file.iter_batches(columns=sorted(has & {*columns.names, "_offset"})):
            for name in named.keys() & {*columns.names}:
                kind = columns.field(name).type
                value = pa.scalar(named[name], pa.string()).cast(kind)
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            yield fitted(batch, columns)


def _row_groups(sources: Sequence[Place], columns: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for source in sources:
        with parquet_file(source) as file:
            for batch in file.iter_batches():
                waiting.append(fitted(batch, columns))
                if sum(each.num_rows for each in waiting) >= _ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(waiting)
                    waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def write_file(path: Place, directory: str, batches: list[pa.RecordBatch], compression: str) -> StagedFile:
    """Write batches of one schema to a Parquet file and sync it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_batches(batches)
    with new_file(path) as file:
        pq.write_table(table, file, compression=compression, row_group_size=_ROW_GROUP_ROWS)
        size_bytes = file.tell()
    return StagedFile(text_of(path), directory, table.num_rows, size_bytes)
