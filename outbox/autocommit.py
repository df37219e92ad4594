"""Find out whether each statement of a connection is a transaction of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, and an event would be published though the work around it is rolled back: take "
    'an engine without isolation_level="AUTOCOMMIT", and without autocommit of the driver'
)


def is_autocommit(connection: Connection) -> bool:
    """Each statement is a transaction of its own. Sends nothing to the server."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    # SQLite's drivers leave BEGIN to the program when they are asked to, as SQLAlchemy's page on savepoints has it.
    return is_driver_in_autocommit(connection) and not is_in_driver_transaction(connection)


def is_driver_in_autocommit(connection: Connection) -> bool:
    """The driver begins no transaction by itself."""
    dbapi_connection = connection.connection.dbapi_connection
    try:
        return dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection)
    except NotImplementedError:  # SQLAlchemy cannot detect it with this dialect, which then is not in autocommit
        return False


def is_in_driver_transaction(connection: Connection) -> bool:
    """A driver of SQLite has sent BEGIN or SAVEPOINT. False for other drivers."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))
