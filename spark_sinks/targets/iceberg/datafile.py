"""The entry of a file in an Iceberg manifest: its partition, and the bounds of its columns."""

# pyarrow and pyiceberg have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.typedef import Record


def data_file(transaction: Transaction, table: Path, path: str) -> DataFile:
    """A Parquet file that is in its place already, for the table that the transaction makes."""
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metadata = transaction.table_metadata
    schema = metadata.schema()
    file = table / path
    statistics_of = partial(
        data_file_statistics_from_parquet_metadata,
        parquet_metadata=pq.read_metadata(file),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    plan = compute_statistics_plan(schema, metadata.properties)
    try:
        statistics = statistics_of(stats_columns=plan)
    except (OverflowError, ValueError):  # a time outside of the years 1 to 9999: no bounds then
        counts = MetricsMode(MetricModeTypes.COUNTS)
        statistics = statistics_of(stats_columns={id: replace(each, mode=counts) for id, each in plan.items()})
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{metadata.location.rstrip('/')}/{path}",
        file_format=FileFormat.PARQUET,
        partition=_partition(transaction, file),
        file_size_in_bytes=file.stat().st_size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition(transaction: Transaction, file: Path) -> Record:
    """Return the partition of a file: the values of its first row, as a manifest has them (days and microseconds)."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import pyarrow.types as pt
    from pyiceberg.typedef import Record

    names = [field.name for field in transaction.table_metadata.spec().fields]
    if not names:
        return Record()
    with pq.ParquetFile(file) as parquet:
        row = parquet.read_row_group(0, names).slice(0, 1)
    values: list[Any] = []
    for name in names:
        column = row.column(name)
        if pt.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        elif pt.is_date(column.type):
            column = column.cast(pa.int32())
        values.append(column[0].as_py())
    return Record(*values)
