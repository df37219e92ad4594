"""The entry of a file in an Iceberg manifest: its partition, and the bounds of its columns."""

# pyarrow and pyiceberg have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_sinks.targets.logged import Placed
from spark_sinks.targets.place import Place
from spark_sinks.targets.storage import parquet_file

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.typedef import Record


def data_file(transaction: Transaction, table: Place, file: Placed) -> DataFile:
    """A Parquet file that is in its place already, for the table that the transaction makes."""
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
    with parquet_file(table / file.path) as parquet:
        footer, partition = parquet.metadata, _partition(transaction, parquet)
    statistics_of = partial(
        data_file_statistics_from_parquet_metadata,
        parquet_metadata=footer,
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
        file_path=f"{metadata.location.rstrip('/')}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=file.size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition(transaction: Transaction, parquet: pq.ParquetFile) -> Record:
    """Return the partition of a file: the values of its first row, as a manifest has them (days and microseconds)."""
    import pyarrow as pa
    import pyarrow.types as pt
    from pyiceberg.typedef import Record

    names = [field.name for field in transaction.table_metadata.spec().fields]
    if not names:
        return Record()
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
