"""Reduce a batch to the newest row, or the tombstone, of each key.

Records of a partition are ordered by their offsets. Records of a key in several partitions are ordered by their times,
and rows without coordinates by their order in the files.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_sinks.shape import KEY, TOMBSTONE
from spark_sinks.targets.target import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = ("_partition", "_offset")


class Newest(NamedTuple):
    """``rows``: for each file which of its rows are written, a mask. ``gone``: the newest tombstone of each ``_key``,
    with its place. ``outlived``: the keys (and places) of rows which a tombstone followed, where keys are not ``_key``:
    what the table holds of them goes too.
    """

    rows: list[Any]
    gone: pa.Table | None = None
    outlived: pa.Table | None = None


def newest(files: Sequence[StagedFile], key: Sequence[str]) -> Newest:
    """Reads the columns that say it, of all files: no more of a batch than that is in memory at once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_read(pq.ParquetFile(file.path), key) for file in files]
    bounds = np.cumsum([table.num_rows for table in tables])[:-1]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    is_put = np.ones(table.num_rows, np.bool_)
    if TOMBSTONE in table.column_names:
        is_put = ~_numbers(table.column(TOMBSTONE), fill=False)
    puts = _last(table, np.flatnonzero(is_put), key)
    gone = outlived = None
    if not is_put.all():
        ends = _last(table, np.flatnonzero(~is_put), [KEY])
        dead = _is_followed(table, puts, ends)
        gone = table.select([KEY, *_PLACE]).take(ends)
        if tuple(key) != (KEY,) and dead.any():
            outlived = table.select([*dict.fromkeys((*key, *_PLACE))]).take(puts[dead])
        puts = puts[~dead]
    mask = np.zeros(table.num_rows, np.bool_)
    mask[puts] = True
    return Newest(np.split(mask, bounds), gone, outlived)


def _read(file: Any, key: Sequence[str]) -> pa.Table:
    wanted = dict.fromkeys((*key, KEY, *_PLACE, "_timestamp", TOMBSTONE))
    return file.read([name for name in wanted if name in file.schema_arrow.names])


def _last(table: pa.Table, rows: Any, key: Sequence[str]) -> Any:
    """Return the last of these rows for each key."""
    import numpy as np

    if not len(rows):
        return rows
    codes = _codes([table.column(name).take(rows) for name in key])
    if not set(_PLACE) <= set(table.column_names):
        return rows[_last_positions(codes, np.arange(len(rows)))]
    partitions, offsets = (_numbers(table.column(name))[rows] for name in _PLACE)
    within = _codes_of_numbers(codes * (int(partitions.max()) + 1) + partitions)
    found = _last_positions(within, np.argsort(offsets, kind="stable"))
    if len(found) > int(codes.max()) + 1:  # a key in several partitions
        times = _numbers(table.column("_timestamp"))[rows] if "_timestamp" in table.column_names else offsets
        order = np.lexsort((partitions[found], times[found]))
        found = found[_last_positions(codes[found], order)]
    return rows[found]


def _last_positions(codes: Any, order: Any) -> Any:
    """Return the last position of each code in an order."""
    import numpy as np

    last = np.empty(int(codes.max()) + 1, np.int64)
    last[codes[order]] = order  # numpy keeps the last assignment to a repeated index
    return last


def _is_followed(table: pa.Table, puts: Any, ends: Any) -> Any:
    """Return, for each put, True if the tombstone of its ``_key`` came after it."""
    import numpy as np
    import pyarrow.compute as pc

    keys = table.column(KEY)
    which = pc.index_in(keys.take(puts), value_set=keys.take(ends)).fill_null(-1).to_numpy()
    partitions, offsets = (_numbers(table.column(name)) for name in _PLACE)
    times = _numbers(table.column("_timestamp")) if "_timestamp" in table.column_names else offsets
    end = ends[np.maximum(which, 0)]
    same = partitions[end] == partitions[puts]
    later = np.where(
        same,
        offsets[end] > offsets[puts],
        (times[end] > times[puts]) | ((times[end] == times[puts]) & (partitions[end] > partitions[puts])),
    )
    return (which >= 0) & later


def _codes(columns: Sequence[Any]) -> Any:
    """Numbers from 0 for what is the same in all of the columns."""
    codes: Any = None
    for column in columns:
        found = column.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = found.indices.to_numpy(zero_copy_only=False).astype("int64")
        codes = numbers if codes is None else _codes_of_numbers(codes * max(len(found.dictionary), 1) + numbers)
    return codes


def _codes_of_numbers(numbers: Any) -> Any:
    import pyarrow as pa

    return pa.array(numbers).dictionary_encode().indices.to_numpy(zero_copy_only=False)


def _numbers(column: Any, *, fill: Any = 0) -> Any:
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.fill_null(fill).to_numpy()
