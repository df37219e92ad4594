"""SQLite: rows are written one by one, which is fast without a server."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from eventbus.errors import ConfigError
from spark_sinks.targets.sql.dialect import Dialect, Layout
from spark_sinks.targets.sql.kinds import Column, Kind

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection, Engine

LOOKS = "eventbus_looks"
"""An execution option: the transaction only reads."""
_WIDER = {("BIGINT", "DOUBLE"), ("INTEGER", "DOUBLE"), ("INTEGER", "BIGINT"), ("REAL", "DOUBLE")}


class SqliteDialect(Dialect):
    """Times are text in UTC, decimals, nested values and integers beyond 63 bits are text. NaN is null."""

    title = "SQLite"
    folds_case = True
    types: ClassVar[Mapping[Kind, str]] = {
        "boolean": "BOOLEAN",
        "int16": "INTEGER",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "uint64": "TEXT",
        "float32": "REAL",
        "float64": "DOUBLE",
        "text": "TEXT",
        "bytes": "BLOB",
        "date": "DATE_TEXT",
        "time": "TIME_TEXT",
        "timestamp": "DATETIME_TEXT",
        "instant": "DATETIME_TEXT",
        "json": "JSON_TEXT",
    }
    """SQLite converts what it stores by these words: of any with ``TEXT`` in it, text stays text."""

    def prepare(self, engine: Engine) -> None:
        """Transactions that write begin as such: one that finds out later that it may not, would have to give up."""
        from sqlalchemy import event

        @event.listens_for(engine, "connect")
        def connected(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction]
            connection.isolation_level = None  # the driver must not begin transactions

        @event.listens_for(engine, "begin")
        def begins(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
            looks = connection.get_execution_options().get(LOOKS, False)
            connection.exec_driver_sql("BEGIN" if looks else "BEGIN IMMEDIATE")

    def type_of(self, column: Column, keys: int) -> str:
        return "DECIMAL_TEXT" if column.kind == "decimal" else super().type_of(column, keys)

    def length(self, name: str) -> tuple[int, int]:
        return len(name), 1_000

    def widen(self, layout: Layout, column: Column, before: Column) -> list[str]:
        old, new = self.type_of(before, 1), self.type_of(column, 1)
        if old == new or (old, new) in _WIDER:
            return []
        raise ConfigError(
            f"column {column.name!r} of {layout.table} is {old} and would have to be {new}, which SQLite cannot make "
            f"of it: land into a new table"
        )

    def upsert(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        marks = ", ".join([self.mark] * len(layout.columns))
        others = [self.quote(name) for name in layout.names if name not in layout.key]
        table = self.quote(layout.table)
        changed = ", ".join(f"{name} = excluded.{name}" for name in others)
        partition, offset = self.quote("_partition"), self.quote("_offset")
        newer = f"{table}.{partition} <> excluded.{partition} OR {table}.{offset} < excluded.{offset}"
        where = f" WHERE {newer}" if layout.is_ordered else ""
        statement = (
            f"INSERT INTO {self.qualified(layout)} ({self.names(layout.names)}) VALUES ({marks}) "
            f"ON CONFLICT ({self.names(layout.key)}) DO UPDATE SET {changed}{where}"
        )
        self.load(connection, statement, layout, batches)

    @classmethod
    def wire(cls, array: pa.Array, column: Column) -> pa.Array:
        import pyarrow as pa

        return array.cast(pa.string()) if column.kind == "uint64" else super().wire(array, column)

    def read(self, column: Column) -> str:
        name = self.quote(column.name)
        clock = {"timestamp": name, "instant": name, "time": f"'1970-01-01 ' || {name}"}.get(column.kind)
        if clock is not None:  # strftime would round the fraction up
            seconds = f"CAST(strftime('%s', substr({clock}, 1, 19)) AS INTEGER)"
            return f"{seconds} * 1000000 + CAST(substr({clock}, 21) AS INTEGER)"
        return f"CAST(strftime('%s', {name}) AS INTEGER) / 86400" if column.kind == "date" else name
