"""Detect connections on which each statement commits on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, and an event would be published though the work around it is rolled back: take "
    'an engine without isolation_level="AUTOCOMMIT", and without autocommit of the driver'
)


def is_autocommit(connection: Connection) -> bool:
    """True if the connection is in AUTOCOMMIT. Sends nothing to the server."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    # A SQLite driver can leave BEGIN to the program, as SQLAlchemy's documentation on savepoints recommends.
    return is_driver_in_autocommit(connection) and not is_in_driver_transaction(connection)


def is_driver_in_autocommit(connection: Connection) -> bool:
    """True if the driver does not begin transactions automatically."""
    dbapi_connection = connection.connection.dbapi_connection
    try:
        return dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection)
    except NotImplementedError:  # SQLAlchemy cannot detect it for this dialect, which then has no autocommit
        return False


def is_in_driver_transaction(connection: Connection) -> bool:
    """True if a SQLite driver has sent BEGIN or SAVEPOINT. Always False for other drivers."""
    return bool(getattr(connection.connection.driver_connection, "in_transaction", False))
