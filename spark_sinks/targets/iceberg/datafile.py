"""What an Iceberg manifest says of a file: its partition, and the bounds of its columns."""

# pyarrow and pyiceberg have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_sinks.targets.parts import partition_values

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.typedef import Record


def data_file(transaction: Transaction, table: Path, path: str, directory: str) -> DataFile:
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
        partition=_partition(transaction, directory),
        file_size_in_bytes=file.stat().st_size,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition(transaction: Transaction, directory: str) -> Record:
    from pyiceberg.expressions.literals import literal
    from pyiceberg.typedef import Record

    metadata = transaction.table_metadata
    schema = metadata.schema()
    values = partition_values(directory)
    kinds = [(field.name, schema.find_type(field.source_id)) for field in metadata.spec().fields]
    typed = [None if (text := values.get(name)) is None else literal(text).to(kind).value for name, kind in kinds]
    return Record(*typed)
