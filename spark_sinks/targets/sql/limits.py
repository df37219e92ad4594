"""`SqlLimits`: the rows that a database cannot hold, found in the task that decoded them."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_sinks.shape import KEY, TOMBSTONE
from spark_sinks.targets.sql.dialect import LONGEST_ROW_BYTES
from spark_sinks.targets.sql.kinds import Column, columns_of, held, json_texts
from spark_sinks.targets.sql.values import Unfit

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_sinks.targets.sql.dialect import Dialect


_SMALL = 64
"""A batch whose columns are so many times smaller than the limit has no row that exceeds it, also as JSON."""


class SqlLimits(NamedTuple):
    """The limits of one kind of database, for a table that is upserted by these columns; pickled to the tasks."""

    dialect: type[Dialect]
    upsert: tuple[str, ...]
    longest_bytes: int = LONGEST_ROW_BYTES

    def __call__(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, str]]:
        """Yield masks of rows that the database cannot hold, each with the reason."""
        import pyarrow as pa

        keys = tuple(name for name in {*self.upsert, KEY} if name in rows.schema.names) if self.upsert else ()
        schema = held(pa.schema([field for field in rows.schema if field.name != TOMBSTONE]))
        columns = columns_of(schema, keys)
        for column in columns:
            array = rows.column(column.name)
            try:
                if column.kind in self.dialect.limited:
                    self.dialect.wire(array.cast(column.type, safe=False), column)
                if column.is_key and column.kind in ("text", "bytes"):
                    self._check_key(array, column, len(keys))
            except Unfit as unfit:
                yield unfit.mask, f"its {column.name!r} is {unfit.why}, which {self.dialect.title} cannot hold"

        yield from self._too_long(rows, columns)

    def _too_long(self, rows: pa.RecordBatch, columns: Sequence[Column]) -> Iterator[tuple[Any, str]]:
        """Yield masks of rows that are too long for a statement, by the column that has most of each."""
        import numpy as np

        if rows.nbytes * _SMALL < self.longest_bytes:
            return
        long = [column for column in columns if column.kind in ("text", "bytes", "json")]
        sizes = np.array([_sizes(rows.column(column.name), column) for column in long]).reshape(len(long), -1)
        too_long = sizes.sum(axis=0) > self.longest_bytes
        for number in np.unique(sizes[:, too_long].argmax(axis=0)).tolist() if too_long.any() else ():
            yield (
                too_long & (sizes.argmax(axis=0) == number),
                f"its {long[number].name!r} makes a row of more than {self.longest_bytes:,} bytes, which "
                f"{self.dialect.title} cannot take in one statement",
            )

    def _check_key(self, array: Any, column: Column, keys: int) -> None:
        import pyarrow.compute as pc

        compute: Any = pc
        most = self.dialect.longest_key(column.kind, keys)
        if most is None:
            return
        is_text = column.kind == "text" and self.dialect.counts_characters
        sizes = compute.utf8_length(array) if is_text else compute.binary_length(array)
        long = compute.fill_null(compute.greater(sizes, most), False)
        if compute.any(long).as_py():
            unit = "characters" if is_text else "bytes"
            raise Unfit(long.to_numpy(zero_copy_only=False), f"a key of more than {most:,} {unit}")


def _sizes(array: Any, column: Column) -> Any:
    """Return the bytes of each value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    if column.kind == "json":
        array = pa.array(json_texts(array), pa.large_string())
    elif pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return compute.fill_null(compute.binary_length(array), 0).to_numpy(zero_copy_only=False).astype("int64")
