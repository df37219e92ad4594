"""PostgreSQL: rows come by COPY, in the transaction of the account.

COPY takes CSV, which pyarrow writes in C; only times and bytes are made text here, with numpy. Rows of an upserted
table go to a temporary table first: what is there already is updated, the rest inserted.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from spark_sinks.targets.sql.dialect import Dialect, Layout, part, pieces
from spark_sinks.targets.sql.kinds import Column, Kind
from spark_sinks.targets.sql.values import Unfit, Years, wire

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

_YEARS = Years(-2_440_588, 2_145_042_905, "the years 4714 BC to 5874897")
"""The last day is that of dates. Arrow has no times that are too late for PostgreSQL's."""
_JSONB_BYTES = (1 << 28) - 1
"""The longest container or text in a value of jsonb."""
_ROWS, _GONE = "eventbus_rows", "eventbus_gone"
"""Temporary tables, of one transaction."""


class PostgresDialect(Dialect):
    title = "PostgreSQL"
    types: ClassVar[Mapping[Kind, str]] = {
        "boolean": "boolean",
        "int16": "smallint",
        "int32": "integer",
        "int64": "bigint",
        "uint64": "numeric(20)",
        "float32": "real",
        "float64": "double precision",
        "decimal": "numeric",
        "text": "text",
        "bytes": "bytea",
        "date": "date",
        "time": "time",
        "timestamp": "timestamp",
        "instant": "timestamptz",
        "json": "jsonb",
    }
    rows_at_once = 16_384
    limited = frozenset({"date", "timestamp", "instant", "json", "text"})

    def length(self, name: str) -> tuple[int, int]:
        return len(name.encode()), 63

    @staticmethod
    def longest_key(kind: Kind, keys: int) -> int | None:
        return 2_600 // keys  # an entry of an index takes a third of a page, 2,704 bytes with its header

    def indexes(self, layout: Layout) -> tuple[list[str], list[str]]:
        """It finds names itself, also for a table whose name has no letter to spare."""
        on = f"CREATE INDEX ON {self.qualified(layout)}"
        return [], [f"{on} ({self.quote(name)})" for name in layout.extra_keys]

    def comments(self, layout: Layout, columns: Sequence[Column]) -> list[str]:
        return [
            f"COMMENT ON COLUMN {self.qualified(layout)}.{self.quote(each.name)} IS {self.literal(each.comment)}"
            for each in columns
            if each.comment
        ]

    def widen(self, layout: Layout, column: Column, before: Column) -> list[str]:
        old, new = self.type_of(before, 1), self.type_of(column, 1)
        if old == new:
            return []
        name = self.quote(column.name)
        to = f"to_jsonb({name})" if column.kind == "json" else f"{name}::{new}"
        return [f"ALTER TABLE {self.qualified(layout)} ALTER COLUMN {name} TYPE {new} USING {to}"]

    # rows ------------------------------------------------------------------------------------------------------------

    def append(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        import pyarrow as pa
        from pyarrow.csv import WriteOptions, write_csv

        self.run(connection, "SET LOCAL TIME ZONE 'UTC'")
        into = f"{self.qualified(layout)} ({self.names(layout.names)})".replace("%%", "%")
        options = WriteOptions(include_header=False, batch_size=self.rows_at_once)
        with _cursor(connection) as cursor, cursor.copy(f"COPY {into} FROM STDIN (FORMAT csv)") as copy:
            for piece in pieces(batches, self.rows_at_once):
                sink = pa.BufferOutputStream()
                write_csv(pa.RecordBatch.from_arrays(self.arrays(layout, piece), layout.names), sink, options)
                copy.write(memoryview(sink.getvalue()))

    def upsert(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        rows = self._temporary(connection, _ROWS, layout, layout.columns)
        self.append(connection, rows, batches)
        version: Any = connection.dialect.server_version_info
        self.run(connection, self._merge(layout) if version >= (15,) else self._insert(layout))
        self.run(connection, f"DROP TABLE {self.quote(_ROWS)}")

    def _merge(self, layout: Layout) -> str:
        """Return a MERGE. Its join makes new rows 40 % cheaper than attempting to insert each row does."""
        quote = self.quote
        same = " AND ".join(f"old.{quote(name)} = new.{quote(name)}" for name in layout.key)
        newer = f" AND ({_older('old', 'new')})" if layout.is_ordered else ""
        changed = ", ".join(f"{quote(name)} = new.{quote(name)}" for name in layout.names if name not in layout.key)
        values = ", ".join(f"new.{quote(name)}" for name in layout.names)
        return (
            f"MERGE INTO {self.qualified(layout)} AS old USING {quote(_ROWS)} AS new ON {same} "
            f"WHEN MATCHED{newer} THEN UPDATE SET {changed} "
            f"WHEN NOT MATCHED THEN INSERT ({self.names(layout.names)}) VALUES ({values})"
        )

    def _insert(self, layout: Layout) -> str:
        """Return the upsert for PostgreSQL before 15, which has no MERGE."""
        changed = ", ".join(f"{self.quote(name)} = excluded.{self.quote(name)}" for name in layout.names)
        where = f" WHERE {_older('old', 'excluded')}" if layout.is_ordered else ""
        return (
            f"INSERT INTO {self.qualified(layout)} AS old ({self.names(layout.names)}) "
            f"SELECT {self.names(layout.names)} FROM {self.quote(_ROWS)} "
            f"ON CONFLICT ({self.names(layout.key)}) DO UPDATE SET {changed}{where}"
        )

    def delete(self, connection: Connection, layout: Layout, gone: pa.Table, by: Sequence[str]) -> None:
        columns = part(layout, [*by, "_partition", "_offset"]).columns
        self.append(connection, self._temporary(connection, _GONE, layout, columns), gone.to_batches())
        same = " AND ".join(f"old.{self.quote(name)} = gone.{self.quote(name)}" for name in by)
        using = f"USING {self.quote(_GONE)} AS gone WHERE {same} AND ({_older('old', 'gone')})"
        self.run(connection, f"DELETE FROM {self.qualified(layout)} AS old {using}")
        self.run(connection, f"DROP TABLE {self.quote(_GONE)}")

    def _temporary(self, connection: Connection, name: str, layout: Layout, columns: Sequence[Column]) -> Layout:
        kinds = ", ".join(f"{self.quote(each.name)} {self.type_of(each, 1)}" for each in columns)
        self.run(connection, f"CREATE TEMPORARY TABLE {self.quote(name)} ({kinds}) ON COMMIT DROP")
        return Layout("pg_temp", name, columns)

    @classmethod
    def wire(cls, array: pa.Array, column: Column) -> pa.Array:
        array = wire(array, column.kind, _YEARS)
        if column.kind == "json":
            _check_jsonb(array)
        if column.kind in ("text", "json"):
            return _without_nul(array, is_json=column.kind == "json")
        return _hexadecimal(array) if column.kind == "bytes" else array

    # reading ---------------------------------------------------------------------------------------------------------

    def read(self, column: Column) -> str:
        name = self.quote(column.name)
        match column.kind:
            case "timestamp" | "instant" | "time":
                return f"CAST(EXTRACT(epoch FROM {name}) * 1000000 AS bigint)"
            case "date":
                return f"{name} - DATE '1970-01-01'"
            case "json":
                return f"CAST({name} AS text)"
            case _:
                return name


def _cursor(connection: Connection) -> Any:
    """Return a cursor of psycopg itself, because SQLAlchemy has no COPY."""
    driver: Any = connection.connection.driver_connection
    return driver.cursor()


def _older(old: str, new: str) -> str:
    return f'{old}."_partition" <> {new}."_partition" OR {old}."_offset" < {new}."_offset"'


def _check_jsonb(texts: Any) -> None:
    """Raise `Unfit` for JSON that jsonb may be too small for. A number of one digit has two bytes as text and twelve in
    jsonb, so the longest possible form of each value counts.
    """
    import pyarrow.compute as pc

    compute: Any = pc
    bound = compute.binary_length(texts)
    if (compute.max(bound).as_py() or 0) * 16 <= _JSONB_BYTES:
        return
    for mark in ",:[{":
        bound = compute.add(bound, compute.multiply(compute.count_substring(texts, mark), 16))
    large = compute.fill_null(compute.greater(bound, _JSONB_BYTES), False)
    if compute.any(large).as_py():
        raise Unfit(
            large.to_numpy(zero_copy_only=False), f"a nested value that may exceed {_JSONB_BYTES:,} bytes of jsonb"
        )


def _without_nul(array: pa.Array, *, is_json: bool) -> pa.Array:
    """Raises `Unfit` where a text has the one character that PostgreSQL's do not have."""
    import pyarrow.compute as pc

    data = array.buffers()[2]
    if data is not None and (b"\\u0000" if is_json else b"\0") in memoryview(data).tobytes():
        # In JSON a backslash that is itself escaped escapes nothing.
        found = pc.match_substring_regex(array, r"(^|[^\\])(\\\\)*\\u0000" if is_json else r"\x00").fill_null(False)
        if pc.any(found).as_py():
            raise Unfit(found.to_numpy(zero_copy_only=False), "a text with the character U+0000")
    return array


def _hexadecimal(array: pa.Array) -> pa.Array:
    r"""Bytes as PostgreSQL reads them: ``\x00ff``."""
    import numpy as np
    import pyarrow as pa

    rows = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + rows + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    pairs = np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)
    starts = 2 * (offsets - offsets[0]) + 2 * np.arange(rows + 1)
    text = np.empty(starts[-1] // 2, np.uint16)
    is_data = np.ones(len(text), np.bool_)
    is_data[starts[:-1] // 2] = False
    text[is_data] = pairs[data]
    text[~is_data] = np.frombuffer(b"\\x", np.uint16)[0]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.LargeStringArray.from_buffers(rows, pa.py_buffer(starts), pa.py_buffer(text.tobytes()), nulls)
