"""The accounts of a database's tables: the table ``eventbus_sinks``, with a row for each table that is landed.

The row changes in the transaction that changes the rows of its table, so the two never disagree. ``epoch`` and
``sequence`` are separate columns next to the account, so that the UPDATE of a commit contains its own condition. They
also show whether a commit happened whose answer was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from eventbus.errors import CorruptRecord
from spark_sinks.targets.target import SinkState, read_account

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

TABLE = "eventbus_sinks"


class Account:
    """The row of one table. All calls belong to a transaction of the caller's."""

    def __init__(self, schema: str | None, table: str) -> None:
        from sqlalchemy import BigInteger, Column, MetaData, String, Text
        from sqlalchemy import Table as SqlTable
        from sqlalchemy.dialects.mysql import LONGTEXT

        # MySQL compares text without regard to case, and names of tables have it on most systems.
        name = String(64).with_variant(String(64, collation="utf8mb4_bin"), "mysql", "mariadb")
        self._row = table
        self._table: Table = SqlTable(
            TABLE,
            MetaData(),
            Column("table_name", name, primary_key=True),
            Column("epoch", BigInteger, nullable=False),
            Column("sequence", BigInteger, nullable=False),
            Column("account", Text().with_variant(LONGTEXT(charset="utf8mb4"), "mysql", "mariadb"), nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    def exists(self, connection: Connection) -> bool:
        from sqlalchemy import inspect

        return inspect(connection).has_table(TABLE, self._table.schema)

    def make(self, connection: Connection) -> None:
        from sqlalchemy.schema import CreateTable

        connection.execute(CreateTable(self._table, if_not_exists=True))

    def load(self, connection: Connection, *, lock: bool = False) -> SinkState | None:
        """Return the account, or None if the table has none. ``lock`` keeps it unchanged until the transaction ends.

        Raises `CorruptRecord` for an account that cannot be read.
        """
        from sqlalchemy import select

        columns = self._table.c
        asked = select(columns.epoch, columns.sequence, columns.account).where(columns.table_name == self._row)
        row = connection.execute(asked.with_for_update() if lock else asked).one_or_none()
        if row is None:
            return None
        state = read_account(row.account, f"table {self._row} in {TABLE}")
        if (state.epoch, state.sequence) != (row.epoch, row.sequence):
            raise CorruptRecord(
                f"the account of table {self._row} in {TABLE} is of epoch {state.epoch} and sequence {state.sequence}, "
                f"and its columns say {row.epoch} and {row.sequence}: restore it from a copy"
            )
        return state

    def insert(self, connection: Connection, state: SinkState) -> None:
        """Insert the account of a new table. The database's unique key refuses a second landing that does it too."""
        from sqlalchemy import insert

        connection.execute(insert(self._table).values(table_name=self._row, **_columns(state)))

    def replace(self, connection: Connection, old: SinkState, new: SinkState) -> bool:
        """Replace ``old`` and lock the row until the transaction ends; False if the account is not ``old`` any more."""
        from sqlalchemy import update

        columns = self._table.c
        is_old = (columns.table_name == self._row, columns.epoch == old.epoch, columns.sequence == old.sequence)
        return connection.execute(update(self._table).where(*is_old).values(**_columns(new))).rowcount == 1


def _columns(state: SinkState) -> dict[str, int | str]:
    return {"epoch": state.epoch, "sequence": state.sequence, "account": msgspec.json.encode(state).decode()}
