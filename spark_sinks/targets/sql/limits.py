"""`SqlLimits`: the rows that a database cannot hold, found in the task that decoded them."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_sinks.shape import KEY, TOMBSTONE
from spark_sinks.targets.sql.kinds import Column, columns_of, held
from spark_sinks.targets.sql.values import Unfit

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_sinks.targets.sql.dialect import Dialect


class SqlLimits(NamedTuple):
    """The limits of one kind of database, for a table that is upserted by these columns; pickled to the tasks."""

    dialect: type[Dialect]
    upsert: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, str]]:
        """Yield masks of rows that the database cannot hold, each with the reason."""
        import pyarrow as pa

        keys = tuple(name for name in {*self.upsert, KEY} if name in rows.schema.names) if self.upsert else ()
        schema = held(pa.schema([field for field in rows.schema if field.name != TOMBSTONE]))
        for column in columns_of(schema, keys):
            array = rows.column(column.name)
            try:
                if column.kind in self.dialect.limited:
                    self.dialect.wire(array.cast(column.type, safe=False), column)
                if column.is_key and column.kind in ("text", "bytes"):
                    self._check_key(array, column, len(keys))
            except Unfit as unfit:
                yield unfit.mask, f"its {column.name!r} is {unfit.why}, which {self.dialect.title} cannot hold"

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
