"""Insert rows in the caller's transaction with a statement that is compiled once.

Every business transaction pays for it, and compiling a SQLAlchemy statement costs as much as the insert itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from eventbus.errors import ConfigError
from outbox.database import now_sql, trouble_of
from outbox.schema import explained, lock_name

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.engine import Connection, Dialect
    from sqlalchemy.sql.dml import Insert

    from outbox.tables import OutboxTables

Row = dict[str, Any]

IN = "_in"
"""Suffix of parameters that are added to the database's clock, such as ``due_ms_in``."""


_DEADLOCK = (
    "With strict_order, each event locks the shard of its key until the transaction ends, and different keys can share "
    "a shard. Two transactions that publish events of several keys one by one can wait for each other. Run the "
    "transaction again, or publish the events with a single publish_many, which takes its locks in sorted order."
)


class Inserter:
    """Inserts rows of events. Thread-safe."""

    def __init__(self, tables: OutboxTables, *, strict_order: bool) -> None:
        self._tables = tables
        self._strict_order = strict_order
        self._compiled: WeakKeyDictionary[Dialect, dict[tuple[bool, tuple[str, ...]], _Compiled]] = WeakKeyDictionary()

    def insert(self, connection: Connection, rows: Sequence[Row], *, is_later: bool, relative: tuple[str, ...]) -> None:
        """Insert rows. ``relative`` names columns whose values are added to the database's clock.

        Raises what the database raises, and ConfigError if its tables are missing or outdated.
        """
        try:
            if self._strict_order and not is_later:
                self._lock(connection, {row["shard"] for row in rows})
            options = connection.get_execution_options()
            # A connection that streams results opens a server-side cursor for each statement, which INSERT cannot have.
            own = {"stream_results": False} if options.get("stream_results") else None
            if "schema_translate_map" in options:
                statement = self._statement(is_later, relative, connection.dialect)
                connection.execute(statement, rows, execution_options=own)
            else:
                compiled = self._compiled_for(connection.dialect, is_later, relative)
                connection.exec_driver_sql(compiled.text, compiled.parameters(rows), execution_options=own)
        except Exception as error:  # `explained` recognizes the database's errors
            raise explained(error, self._tables) from error.__cause__

    def _compiled_for(self, dialect: Dialect, is_later: bool, relative: tuple[str, ...]) -> _Compiled:
        of_dialect = self._compiled.get(dialect)
        if of_dialect is None:
            of_dialect = self._compiled[dialect] = {}
        known = of_dialect.get((is_later, relative))
        if known is None:
            keys = [column.key for column in self._table(is_later).c if column.key not in ("id", *relative)]
            statement = self._statement(is_later, relative, dialect)
            known = of_dialect[is_later, relative] = _Compiled(statement, keys, dialect)
        return known

    def _table(self, is_later: bool) -> Table:
        return self._tables.later if is_later else self._tables.events

    def _statement(self, is_later: bool, relative: tuple[str, ...], dialect: Dialect) -> Insert:
        from sqlalchemy import BigInteger, bindparam, insert, literal_column

        now: ColumnElement[int] = literal_column(now_sql(dialect.name), BigInteger)
        statement = insert(self._table(is_later)).inline()  # inline: the id is not needed, so omit RETURNING
        return statement.values({name: now + bindparam(name + IN) for name in relative}) if relative else statement

    def _lock(self, connection: Connection, shards: set[int]) -> None:
        """Let writers of a shard commit one after another. SQLite allows only one writer anyway.

        The locked rows are those of meta, which relays do not change, so relays and writers never wait for each other.
        """
        from sqlalchemy import select

        meta = self._tables.meta
        names = [lock_name(shard) for shard in shards]
        in_order = select(meta.c.name).where(meta.c.name.in_(names)).order_by(meta.c.name).with_for_update()
        try:
            locked = connection.scalars(in_order).all()
        except Exception as error:  # whatever a driver raises
            if trouble_of(error) == "conflict":
                error.add_note(_DEADLOCK)
            raise
        if len(locked) < len(names):
            raise ConfigError(
                f"{meta.fullname} has no rows to lock: outbox.create_tables(), or what `eventbus outbox ddl` prints"
            )


class _Compiled:
    """A compiled INSERT. Every driver accepts numbers, texts and bytes without conversion."""

    def __init__(self, statement: Insert, keys: list[str], dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=keys)
        self.text = str(compiled)
        self._names: list[str] = compiled.positiontup or []
        """Names of positional parameters, in order. Empty if the driver takes parameters by name."""

    def parameters(self, rows: Sequence[Row]) -> Any:
        names = self._names
        found: list[Any] = [tuple([row[name] for name in names]) for row in rows] if names else list(rows)
        return found[0] if len(found) == 1 else found
