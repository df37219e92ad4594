"""Find the records of a topic that an upserted table should show: the newest of each key, unless it is a deletion."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spark_sinks.shape import KEY, TOMBSTONE

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

_REDUCE_ROWS = 1_000_000
_PARTITION, _OFFSET, _DEAD, _RECORD_KEY = "\0partition", "\0offset", "\0dead", "\0record key"


class Shown(NamedTuple):
    """Offsets of one partition, ascending.

    ``either`` is for keys found in several partitions: the newest of those depends on the order in which they were
    landed.
    """

    newest: Int64s
    either: Int64s
    deleted: Int64s


class Newest:
    """Find the newest row of each key. Add each partition in order of offsets. Holds one row per key and partition."""

    def __init__(self, width: int) -> None:
        self._keys = [f"\0{number}" for number in range(width)]
        self._rows = _LastOf([*self._keys, _PARTITION], [_OFFSET, _DEAD, _RECORD_KEY])
        self._deaths = _LastOf([_RECORD_KEY, _PARTITION], [_OFFSET])

    def add_records(self, batch: pa.RecordBatch) -> None:
        """Add records of the source, identified by their key. A record without a value is a deletion."""
        import pyarrow as pa

        columns = [batch.column("key"), batch.column("partition"), batch.column("offset")]
        dead = batch.column("value").is_null()
        unused = pa.nulls(batch.num_rows, pa.binary())
        self._rows.add([*columns, dead, unused])

    def add_rows(self, batch: pa.RecordBatch, upsert: Sequence[str]) -> None:
        """Add decoded rows, identified by the columns ``upsert``. A tombstone deletes all rows with its key."""
        key = next(name for name in (KEY, "key") if name in batch.schema.names)
        rows, dead = batch.filter(_not(batch.column(TOMBSTONE))), batch.filter(batch.column(TOMBSTONE))
        columns = [rows.column(name) for name in (*upsert, "_partition", "_offset", TOMBSTONE, key)]
        self._rows.add(columns)
        self._deaths.add([dead.column(name) for name in (key, "_partition", "_offset")])

    def shown(self) -> dict[int, Shown]:
        """Return the offsets by partition."""
        import pyarrow as pa
        import pyarrow.compute as pc

        compute: Any = pc
        rows = self._rows.table()
        if rows is None:
            return {}
        deaths = self._deaths.table()
        if deaths is not None and deaths.num_rows:
            deaths = deaths.rename_columns([_RECORD_KEY, _PARTITION, "\0death"])
            rows = rows.join(deaths, [_RECORD_KEY, _PARTITION], join_type="left outer")
            died = compute.greater(compute.fill_null(rows.column("\0death"), -1), rows.column(_OFFSET))
            rows = rows.set_column(rows.schema.get_field_index(_DEAD), _DEAD, compute.or_(rows.column(_DEAD), died))
        count = rows.group_by(self._keys).aggregate([(_PARTITION, "count")])
        spread = count.filter(compute.greater(count.column(f"{_PARTITION}_count"), 1))
        places = _numbers(rows, _PARTITION), _numbers(rows, _OFFSET), _numbers(rows, _DEAD).astype(bool)
        either = np.zeros(rows.num_rows, bool)
        if spread.num_rows:
            rows = rows.append_column("\0row", pa.array(np.arange(rows.num_rows)))
            either[_numbers(rows.join(spread.select(self._keys), self._keys, join_type="left semi"), "\0row")] = True
        partitions, offsets, dead = places
        return {
            int(partition): Shown(
                np.sort(offsets[(partitions == partition) & ~dead & ~either]),
                np.sort(offsets[(partitions == partition) & either]),
                np.sort(offsets[(partitions == partition) & dead & ~either]),
            )
            for partition in np.unique(partitions)
        }


class _LastOf:
    """The last row of each key."""

    def __init__(self, keys: list[str], rest: list[str]) -> None:
        self._keys = keys
        self._rest = rest
        self._parts: list[pa.Table] = []
        self._fresh = 0

    def add(self, columns: Iterable[Any]) -> None:
        import pyarrow as pa

        part = pa.table(list(columns), [*self._keys, *self._rest])
        self._parts.append(part)
        self._fresh += part.num_rows
        if self._fresh > _REDUCE_ROWS:
            self._parts, self._fresh = [self._reduced()], 0

    def table(self) -> pa.Table | None:
        return self._reduced() if self._parts else None

    def _reduced(self) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        together = pa.concat_tables(self._parts, promote_options="permissive")
        # One thread, because "last" depends on the order of rows.
        options = pc.ScalarAggregateOptions(skip_nulls=False)
        asked = [(name, "last", options) for name in self._rest]
        last = together.group_by(self._keys, use_threads=False).aggregate(asked)
        names = [name.removesuffix("_last") if name.endswith("_last") else name for name in last.column_names]
        return last.rename_columns(names).select([*self._keys, *self._rest])


def _numbers(table: pa.Table, name: str) -> Any:
    import pyarrow as pa

    return table.column(name).cast(pa.int64()).to_numpy()


def _not(column: Any) -> Any:
    import pyarrow as pa

    return pa.array(~column.to_numpy(zero_copy_only=False).astype(bool))
