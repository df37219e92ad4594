"""MySQL and MariaDB: many rows in a statement, and tables that are made before the transaction, not in it."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from spark_sinks.targets.sql.dialect import Dialect, Layout
from spark_sinks.targets.sql.kinds import Column, Kind
from spark_sinks.targets.sql.values import Unfit

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

SESSION = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'"
"""Without these settings MySQL may truncate values that are too long, and reads times in the server's zone."""
_KEY_BYTES = 3_072
"""InnoDB's limit for all columns of an index together."""
_COMMENT = 1_024
"""The longest comment of a column, in characters."""


class MySqlDialect(Dialect):
    """Times are UTC. NaN is null; infinite numbers are refused."""

    title = "MySQL"
    is_transactional = False
    folds_case = True
    types: ClassVar[Mapping[Kind, str]] = {
        "boolean": "BOOLEAN",
        "int16": "SMALLINT",
        "int32": "INTEGER",
        "int64": "BIGINT",
        "uint64": "BIGINT UNSIGNED",
        "float32": "DOUBLE",  # a FLOAT is shown with six digits only
        "float64": "DOUBLE",
        "decimal": "DECIMAL",
        "text": "LONGTEXT CHARACTER SET utf8mb4",
        "bytes": "LONGBLOB",
        "date": "DATE",
        "time": "TIME(6)",
        "timestamp": "DATETIME(6)",
        "instant": "DATETIME(6)",
        "json": "JSON",
    }
    rows_at_once = 5_000
    longest_packet = "SELECT @@max_allowed_packet"
    table_options = " ENGINE=InnoDB"
    limited = frozenset({"date", "timestamp", "instant", "json", "float32", "float64"})
    counts_characters = True

    @property
    def _exact(self) -> str:
        """Texts that are not the same bytes are different keys, also where only spaces at the end differ."""
        return "utf8mb4_nopad_bin" if getattr(self.sqlalchemy, "is_mariadb", False) else "utf8mb4_0900_bin"

    @staticmethod
    def longest_key(kind: Kind, keys: int) -> int | None:
        return _KEY_BYTES // (4 if kind == "text" else 1) // keys

    def type_of(self, column: Column, keys: int) -> str:
        if column.is_key and column.kind == "text":
            return f"VARCHAR({self.longest_key('text', keys)}) CHARACTER SET utf8mb4 COLLATE {self._exact}"
        if column.is_key and column.kind == "bytes":
            return f"VARBINARY({self.longest_key('bytes', keys)})"
        return super().type_of(column, keys)

    def indexes(self, layout: Layout) -> tuple[list[str], list[str]]:
        """Put the indexes into CREATE TABLE: MySQL has no transactional DDL, so this creates both or neither."""
        return [f"INDEX ({self.quote(name)})" for name in layout.extra_keys], []

    def widen(self, layout: Layout, column: Column, before: Column) -> list[str]:
        return [] if self.type_of(before, 1) == self.type_of(column, 1) else self.change(layout, column)

    def change(self, layout: Layout, column: Column) -> list[str]:
        return [f"ALTER TABLE {self.qualified(layout)} MODIFY COLUMN {self.definition(column, 1)}"]

    def definition(self, column: Column, keys: int) -> str:
        comment = f" COMMENT {self.literal(column.comment[:_COMMENT])}" if column.comment else ""
        return super().definition(column, keys) + comment

    def upsert(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        marks = ", ".join([self.mark] * len(layout.columns))
        into = f"INSERT INTO {self.qualified(layout)} ({self.names(layout.names)}) VALUES ({marks})"
        # Drivers repeat the row's marks, and look for none in what follows.
        changed = ", ".join(self._change(layout, name) for name in self._in_order(layout)).replace("%%", "%")
        self.load(connection, f"{into} ON DUPLICATE KEY UPDATE {changed}", layout, batches)

    @staticmethod
    def _in_order(layout: Layout) -> list[str]:
        """Put the coordinates last: MySQL assigns columns in this order, and a comparison sees the assigned values."""
        last = [name for name in ("_offset", "_partition") if layout.is_ordered and name not in layout.key]
        return [name for name in layout.names if name not in (*layout.key, *last)] + last

    def _change(self, layout: Layout, name: str) -> str:
        column, partition, offset = self.quote(name), self.quote("_partition"), self.quote("_offset")
        if not layout.is_ordered:
            return f"{column} = VALUES({column})"
        newer = f"{partition} <> VALUES({partition}) OR {offset} < VALUES({offset})"
        return f"{column} = IF({newer}, VALUES({column}), {column})"

    @classmethod
    def wire(cls, array: pa.Array, column: Column) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.kind not in ("float32", "float64"):
            return super().wire(array, column)
        numbers = array.cast(pa.float64())
        if pc.any(pc.is_inf(numbers)).as_py():
            raise Unfit(pc.is_inf(numbers).fill_null(False).to_numpy(zero_copy_only=False), "an infinite number")
        return pc.if_else(pc.is_nan(numbers), None, numbers)

    def read(self, column: Column) -> str:
        name = self.quote(column.name)
        if column.kind in ("timestamp", "instant"):
            return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {name})"
        if column.kind == "date":
            return f"DATEDIFF({name}, '1970-01-01')"
        if column.kind == "time":
            return f"FLOOR(TIME_TO_SEC({name})) * 1000000 + MICROSECOND({name})"
        return name
