"""The entry of a file in a Delta log: its partition, its rows, and the least and greatest value of its columns."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.errors import ConfigError
from spark_sinks.names import retyped
from spark_sinks.partitions import partition_values
from spark_sinks.targets.logged import Placed
from spark_sinks.targets.place import Place
from spark_sinks.targets.storage import parquet_file

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction

_LONGEST_TEXT = 64
"""Longer texts bound nothing that anybody searches for, and the log would carry them."""


def add_action(table: Place, file: Placed, now_ms: int) -> AddAction:
    """Return the action that adds a Parquet file which is in its place already."""
    from deltalake.transaction import AddAction

    with parquet_file(table / file.path) as parquet:
        stats = msgspec.json.encode(_stats(parquet.metadata)).decode()
    return AddAction(file.path, file.size_bytes, partition_values(file.directory), now_ms, True, stats)


def delta_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns with the types of Delta. Raises `ConfigError` for a column whose type Delta does not have."""
    import pyarrow as pa
    from deltalake import Schema

    fields: list[pa.Field] = []
    for field in columns:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        kind = pa.string() if pa.types.is_large_string(kind) else kind
        kind = pa.binary() if pa.types.is_large_binary(kind) else kind
        try:
            has = pa.schema(Schema.from_arrow(pa.schema([retyped(field, kind)])).to_arrow()).field(0)
        except Exception as error:  # deltalake raises a bare Exception here
            raise ConfigError(
                f"column {field.name!r}: Delta has no type for {kind}; make another with transform="
            ) from error
        if has.type != kind:
            raise ConfigError(
                f"column {field.name!r}: Delta would make {has.type} of {kind}; make another with transform="
            )
        fields.append(has)
    return pa.schema(fields)


def _stats(metadata: Any) -> dict[str, Any]:
    """Statistics of a Parquet footer in Delta's terms; only columns where both mean the same by less and greater."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name, stats = column.path_in_schema, column.statistics
            if stats is None or "." in name or not stats.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + stats.null_count
            if not stats.has_min_max:
                if stats.null_count < column.num_values:
                    unknown.add(name)
                continue
            if not _has_bounds(stats):
                unknown.add(name)
                continue
            low[name] = min(low.get(name, stats.min), stats.min)
            high[name] = max(high.get(name, stats.max), stats.max)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _text(value) for name, value in low.items() if name not in unknown},
        "maxValues": {name: _text(value) for name, value in high.items() if name not in unknown},
        "nullCount": {name: count for name, count in nulls.items() if "." not in name},
    }


def _has_bounds(stats: Any) -> bool:
    try:
        return _bounds(stats.min) and _bounds(stats.max)
    except (OverflowError, ValueError):  # a time outside of the years 1 to 9999
        return False


def _bounds(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_TEXT
    return isinstance(value, (int, date)) and not isinstance(value, bool)  # not floats: NaN has no place in them


def _text(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
