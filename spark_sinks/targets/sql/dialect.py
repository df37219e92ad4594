"""The differences between databases: types, limits, and how to write many rows quickly."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.targets.sql.kinds import Column, Kind
from spark_sinks.targets.sql.values import Unfit, refusal, wire

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection, Engine
    from sqlalchemy.engine import Dialect as SqlDialect


LONGEST_ROW_BYTES = 500_000_000
"""SQLite's limit is a billion bytes, and PostgreSQL's about that, of a text in which each byte takes two."""


class Layout(NamedTuple):
    """A table: where it is, its columns in order, and those that tell its rows apart (none: every record is a row)."""

    schema: str | None
    table: str
    columns: Sequence[Column]
    key: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def is_ordered(self) -> bool:
        """Rows say where they come from, so that the newer of two is known."""
        return {"_partition", "_offset"} <= set(self.names)

    @property
    def extra_keys(self) -> list[str]:
        """Columns that rows are deleted by, besides the primary key."""
        return [column.name for column in self.columns if column.is_key and column.name not in self.key]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


class Dialect(ABC):
    """Statements for one kind of database. Names are always quoted, values never stand in a statement."""

    title: ClassVar[str]
    is_transactional: ClassVar[bool] = True
    """Making and changing tables is part of a transaction."""
    folds_case: ClassVar[bool] = False
    """Columns ``a`` and ``A`` are one."""
    types: ClassVar[Mapping[Kind, str]]
    rows_at_once: ClassVar[int] = 10_000
    table_options: ClassVar[str] = ""
    limited: ClassVar[frozenset[Kind]] = frozenset({"date", "timestamp", "instant", "json"})
    """The kinds of columns that the database does not hold every value of."""
    longest_packet: ClassVar[str | None] = None
    """The query for the bytes of the longest statement; None: `LONGEST_ROW_BYTES` limits a row."""
    counts_characters: ClassVar[bool] = False
    """True if `longest_key` of a text counts characters, not bytes."""

    def __init__(self, dialect: SqlDialect) -> None:
        self.sqlalchemy = dialect
        self.quote = dialect.identifier_preparer.quote_identifier
        self.mark = "?" if dialect.paramstyle == "qmark" else "%s"

    def longest_row_bytes(self, connection: Connection) -> int:
        """Return how long the texts and bytes of a row may be.

        A row must fit in a statement, in which each byte may be escaped, with the names of the columns.
        """
        if self.longest_packet is None:
            return LONGEST_ROW_BYTES
        packet = int(connection.exec_driver_sql(self.longest_packet).scalar_one())
        return max(packet // 2 - (64 << 10), packet // 4)

    def prepare(self, engine: Engine) -> None:  # noqa: B027 - most need nothing
        """Set up its connections."""

    def length(self, name: str) -> tuple[int, int]:
        """How long a name is, and how long it may be."""
        return len(name), 64

    def check(self, layout: Layout) -> None:
        """Raise `ConfigError` for a table whose name cannot be, instead of what databases make of it: a shorter one."""
        for name in (layout.table, layout.schema):
            length, longest = self.length(name) if name is not None else (1, 1)
            if not 1 <= length <= longest or (name and "\0" in name):
                raise ConfigError(f"{name!r} cannot be a name in {self.title}: 1 to {longest} long; choose another")

    # tables ----------------------------------------------------------------------------------------------------------

    def qualified(self, layout: Layout) -> str:
        table = self.quote(layout.table)
        return f"{self.quote(layout.schema)}.{table}" if layout.schema else table

    def type_of(self, column: Column, keys: int) -> str:
        """``keys``: how many columns of the table are keys, for databases with a limit on all of them."""
        if column.kind == "decimal":
            digits = column.type.precision - min(column.type.scale, 0)
            return f"{self.types['decimal']}({digits},{max(column.type.scale, 0)})"
        return self.types[column.kind]

    @staticmethod
    def longest_key(kind: Kind, keys: int) -> int | None:
        """Return the size of the longest value of a key column, in a table with ``keys`` of them; None: any."""
        return None

    def create(self, layout: Layout) -> list[str]:
        """Return the statements that make a table. One that holds records has them as its primary key."""
        keys = sum(column.is_key for column in layout.columns)
        # Nullable, what is not a key: of a record without a value, and of those before a column was added.
        lines = [self.definition(column, keys) for column in layout.columns]
        if layout.key:
            lines.append(f"PRIMARY KEY ({self.names(layout.key)})")
        within, after = self.indexes(layout)
        body = ", ".join([*lines, *within])
        table = f"CREATE TABLE IF NOT EXISTS {self.qualified(layout)} ({body}){self.table_options}"
        return [table, *after, *self.comments(layout, layout.columns)]

    def definition(self, column: Column, keys: int) -> str:
        """Return a column as CREATE TABLE and ALTER TABLE have it."""
        return f"{self.quote(column.name)} {self.type_of(column, keys)}"

    def comments(self, layout: Layout, columns: Sequence[Column]) -> list[str]:
        """Return the statements that comment new columns, if their definitions do not."""
        return []

    def literal(self, text: str) -> str:
        from sqlalchemy import literal

        return str(literal(text).compile(dialect=self.sqlalchemy, compile_kwargs={"literal_binds": True}))

    def indexes(self, layout: Layout) -> tuple[list[str], list[str]]:
        """Return the indexes of keys besides the primary key: parts of CREATE TABLE, and statements after it."""
        on = f"ON {self.qualified(layout)}"
        return [], [
            f"CREATE INDEX {self.quote(f'ix_{layout.table}_{name}')} {on} ({self.quote(name)})"
            for name in layout.extra_keys
        ]

    def add(self, layout: Layout, column: Column) -> list[str]:
        table = f"ALTER TABLE {self.qualified(layout)} ADD COLUMN {self.definition(column, 1)}"
        return [table, *self.comments(layout, [column])]

    def change(self, layout: Layout, column: Column) -> list[str]:
        """Give a column without values a type."""
        raise NotImplementedError(f"{self.title} never leaves a column without its rows")

    @abstractmethod
    def widen(self, layout: Layout, column: Column, before: Column) -> list[str]:
        """Return what gives a column a wider type; nothing if it has it. Raises `ConfigError` if no statement can."""

    def names(self, names: Iterable[str]) -> str:
        return ", ".join(self.quote(name) for name in names)

    def run(self, connection: Connection, statement: str, rows: Sequence[Sequence[Any]] | None = None) -> None:
        """A statement, for each of the rows if there are any."""
        if rows is None:
            connection.exec_driver_sql(statement)
        elif rows:
            connection.exec_driver_sql(statement, [tuple(row) for row in rows])

    # rows ------------------------------------------------------------------------------------------------------------

    def append(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows; batches have the columns of the layout."""
        marks = ", ".join([self.mark] * len(layout.columns))
        into = f"INSERT INTO {self.qualified(layout)} ({self.names(layout.names)}) VALUES ({marks})"
        self.load(connection, into, layout, batches)

    @abstractmethod
    def upsert(self, connection: Connection, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        """Add rows, or replace those of their keys, if they are not newer. No key is in ``batches`` twice."""

    def delete(self, connection: Connection, layout: Layout, gone: pa.Table, by: Sequence[str]) -> None:
        """Delete rows by some columns of ``gone``, those that are older than what its ``_partition, _offset`` say."""
        same = " AND ".join(f"{self.quote(name)} = {self.mark}" for name in by)
        older = f" AND ({self.quote('_partition')} <> {self.mark} OR {self.quote('_offset')} < {self.mark})"
        statement = f"DELETE FROM {self.qualified(layout)} WHERE {same}{older}"
        self.load(connection, statement, part(layout, [*by, "_partition", "_offset"]), gone.to_batches())

    def load(self, connection: Connection, statement: str, layout: Layout, batches: Iterable[pa.RecordBatch]) -> None:
        """Run a statement for each row."""
        for batch in pieces(batches, self.rows_at_once):
            columns = [array.to_pylist() for array in self.arrays(layout, batch)]
            self.run(connection, statement, list(zip(*columns, strict=True)))

    def arrays(self, layout: Layout, batch: pa.RecordBatch) -> list[Any]:
        """The columns of a layout as the database takes them. Raises `SerializationError` for what it cannot hold."""
        arrays: list[Any] = []
        for column in layout.columns:
            try:
                arrays.append(self.wire(batch.column(column.name), column))
            except Unfit as unfit:
                unfit.why += f", which {self.title} cannot hold"
                raise refusal(unfit, column, batch) from None
        return arrays

    @classmethod
    def wire(cls, array: pa.Array, column: Column) -> pa.Array:
        """Return a column as the driver takes it. May raise `Unfit`."""
        return wire(array, column.kind)

    # reading ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, column: Column) -> str:
        """Return the expression that gives a column as `values.unwire` takes it."""

    def select(self, layout: Layout, names: Sequence[str]) -> str:
        wanted = ", ".join(self.read(layout.column(name)) for name in names)
        return f"SELECT {wanted} FROM {self.qualified(layout)}"


def pieces(batches: Iterable[pa.RecordBatch], rows: int) -> Iterable[pa.RecordBatch]:
    """Yield the same rows, not too many at once."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def part(layout: Layout, names: Sequence[str]) -> Layout:
    """Some of the columns."""
    return layout._replace(columns=[layout.column(name) for name in names])
