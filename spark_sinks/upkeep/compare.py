"""Compare the values of a table with those in the log, by a hash of each row."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_sinks.shape import TOMBSTONE
from spark_sinks.targets.target import SinkState, Target
from spark_sinks.upkeep.offsets import WINDOW, Ranges, RangesBuilder
from spark_sinks.upkeep.rows import RowMaker
from spark_sinks.upkeep.table_offsets import own

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_NULL = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xFF51AFD7ED558CCD)
_SHIFT = np.uint64(33)


class Compared(NamedTuple):
    """The result: ``compared`` rows in ``columns``. ``left_out`` are columns whose type cannot be converted back."""

    compared: int
    columns: list[str]
    left_out: list[str]
    differing: dict[int, Ranges]


def compare_values(target: Target, state: SinkState, rows: RowMaker, records: Iterable[pa.RecordBatch]) -> Compared:
    """Compare rows with the records they were made of, which must ascend in each partition.

    It needs 8 bytes of memory for each offset in the table.
    """
    columns = state.columns()
    if columns is None:
        return Compared(0, [], [], {})
    kinds = {field.name: field.type for field in rows.columns if field.name != TOMBSTONE}
    wanted = [name for name in columns.names if name in kinds]
    left_out = _unfit(next(iter(target.read(wanted)), None), kinds)
    wanted = [name for name in wanted if name not in left_out]
    hashes = _Hashes()
    for batch in target.read(wanted):
        batch = own(batch, state.topic)
        hashes.put(batch, hash_rows(_cast(batch, wanted, kinds), keeps_nan=target.keeps_nan))
    builders: dict[int, RangesBuilder] = {}
    compared = 0
    for batch in records:
        decoded = rows(batch).rows
        if decoded.num_rows:
            partition, offsets = int(decoded.column("_partition")[0].as_py()), decoded.column("_offset").to_numpy()
            there, known = hashes.get(partition, offsets)
            differs = known & (there != hash_rows(_cast(decoded, wanted, kinds), keeps_nan=target.keeps_nan))
            compared += int(np.count_nonzero(known))
            builders.setdefault(partition, RangesBuilder()).add(offsets[differs])
    return Compared(compared, wanted, sorted(left_out), {each: built.build() for each, built in builders.items()})


class _Hashes:
    """Hashes of rows by offset."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, int], tuple[Hashes, NDArray[np.bool_]]] = {}

    def put(self, batch: pa.RecordBatch, hashes: Hashes) -> None:
        partitions, offsets = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("_partition", "_offset"))
        for partition in np.unique(partitions).tolist():
            own = partitions == partition
            for window in np.unique(offsets[own] // WINDOW).tolist():
                here = own & (offsets // WINDOW == window)
                if (partition, window) not in self._windows:
                    self._windows[partition, window] = np.zeros(WINDOW, np.uint64), np.zeros(WINDOW, bool)
                values, known = self._windows[partition, window]
                values[offsets[here] % WINDOW] = hashes[here]
                known[offsets[here] % WINDOW] = True

    def get(self, partition: int, offsets: NDArray[np.int64]) -> tuple[Hashes, NDArray[np.bool_]]:
        values, known = np.zeros(len(offsets), np.uint64), np.zeros(len(offsets), bool)
        for window in np.unique(offsets // WINDOW).tolist():
            found = self._windows.get((partition, window))
            if found is not None:
                here = offsets // WINDOW == window
                values[here], known[here] = (each[offsets[here] % WINDOW] for each in found)
        return values, known


def _unfit(batch: Any, kinds: dict[str, pa.DataType]) -> set[str]:
    """Return the columns that cannot be cast to the types of decoded rows; a database has other types."""
    import pyarrow as pa

    found: set[str] = set()
    if batch is None:
        return found
    for name in batch.schema.names:
        try:
            batch.column(name).cast(kinds[name])
        except (pa.ArrowException, NotImplementedError):  # Arrow's errors for an unsupported cast
            found.add(name)
    return found


def _cast(batch: pa.RecordBatch, names: Sequence[str], kinds: dict[str, pa.DataType]) -> list[Any]:
    columns = {name: batch.column(name) for name in names}
    return [column if column.type == kinds[name] else column.cast(kinds[name]) for name, column in columns.items()]


def hash_rows(columns: list[Any], *, keeps_nan: bool = True) -> Hashes:
    """Return a hash of each row over all its columns, valid in this process only.

    Unless ``keeps_nan``, NaN is null, and so is an infinite number within a nested value, which JSON has not either.
    """
    total: Hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        nulls = column.is_null(nan_is_null=not keeps_nan).to_numpy(zero_copy_only=False)
        with np.errstate(over="ignore"):
            total = (total ^ np.where(nulls, _NULL, _hash(column, keeps_nan))) * _MIX
            total ^= total >> _SHIFT
    return total


def _hash(column: Any, keeps_nan: bool) -> Hashes:
    import pyarrow as pa

    kind: Any = column.type
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type):
        return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    if pa.types.is_floating(kind):
        floats = (
            column.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        )  # no -0.0: SQLite has none
        floats[np.isnan(floats)] = np.nan
        return floats.view(np.uint64)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return _python_hashes(values)[indices] if values else np.zeros(len(column), np.uint64)
    texts = [re.sub(r"-0\.0(?!\d)", "0.0", repr(each)) for each in column.to_pylist()]  # nested, decimals
    return _python_hashes(texts if keeps_nan else [re.sub(r"-?\b(nan|inf)\b", "None", text) for text in texts])


def _python_hashes(values: Sequence[str | bytes]) -> Hashes:
    return np.array([hash(each) for each in values], np.int64).view(np.uint64)
