"""Find the connection of the transaction that an event belongs to."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, cast

from eventbus.errors import ConfigError
from eventbus.forks import forked
from outbox.autocommit import AUTOCOMMIT, is_autocommit
from outbox.commit_listeners import is_savepoint_in_autocommit, is_savepoint_unseen

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session
    from sqlalchemy.sql.expression import ClauseElement

Plain: TypeAlias = Union["Session", "Connection", "scoped_session[Any]"]
Asynchronous: TypeAlias = Union["AsyncSession", "AsyncConnection", "async_scoped_session[Any]"]

_PROCESS = "eventbus.outbox.process"
"""Key in ``Connection.info`` of the id of the process that first wrote an event over this connection."""
_BEFORE_FLUSH = (
    "A before_flush listener publishes an event. The changes of the session have not been sent yet, so the event would "
    "have an id that is older than the locks on their rows, and events of a key could be out of order. Publish in an "
    "after_flush or before_commit listener."
)
_UNSEEN_SAVEPOINT = (
    "A savepoint was opened before the outbox knew this engine. SQLite's driver sends SAVEPOINT without BEGIN, so the "
    "event would be committed with the savepoint even if the transaction is rolled back. Make the outbox with the "
    "engine, Outbox(engine), or call outbox.database(engine) when the program starts."
)
_BEGIN = "`with Session.begin() as session:`, `with engine.begin() as connection:`, or `connection.begin()` before it"


@cache
def _kind(of: type[Any]) -> Literal["session", "connection", "asynchronous", "registry", None]:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    if issubclass(of, Session):
        return "session"
    if issubclass(of, Connection):
        return "connection"
    if issubclass(of, (AsyncSession, AsyncConnection)):
        return "asynchronous"
    return "registry" if issubclass(of, (scoped_session, async_scoped_session)) else None


def own(session: Any) -> tuple[Any, bool]:
    """Return the session or connection itself, and whether it is async. Raises ConfigError for anything else."""
    kind = _kind(cast("type[Any]", type(session)))
    if kind == "registry":
        return own(session.registry())
    if kind is None:
        name = session.__name__ if isinstance(session, type) else type(session).__name__
        raise ConfigError(
            "an event is written with the Session, AsyncSession, Connection or AsyncConnection whose transaction it "
            f"belongs to, and this is {name}: {_BEGIN}"
        )
    return session, kind == "asynchronous"


def connection_of(session: Any, table: ClauseElement) -> Connection:
    """Return the connection of the transaction, after the pending changes of a session have been sent over it.

    Raises ConfigError where an event could not be part of a transaction; and what the database raises for the changes.
    """
    is_session = _kind(cast("type[Any]", type(session))) == "session"
    if is_session:
        connection = _of_session(session, table)
    else:
        connection = session
        if connection.closed:
            raise ConfigError("the connection is closed: publish before the end of its `with` block")
        if not connection.in_transaction():
            raise ConfigError(f"the connection is in no transaction, so the event would belong to none: {_BEGIN}")
    if is_autocommit(connection) or is_savepoint_in_autocommit(connection):
        raise ConfigError(AUTOCOMMIT)
    process = connection.info.setdefault(_PROCESS, os.getpid())
    if process != os.getpid():
        raise forked("outbox.publish", "This session's connection to the database", process)
    if is_savepoint_unseen(connection):
        raise ConfigError(_UNSEEN_SAVEPOINT)
    if is_session:
        _flush(session)
    return connection


def _flush(session: Session) -> None:
    """Send the pending changes of the session, also with ``autoflush=False``.

    Rows of a key are locked by the statements that change them. An event that gets its id before its transaction has
    these locks could have a lower id than the event of a transaction that holds them, and commits first.
    """
    if not getattr(session, "_flushing", False):
        session.flush()
        return
    # A listener of the session is running. A flush opens a subtransaction after `before_flush`, and the changes have
    # been sent when `after_flush` is called.
    origin = getattr(getattr(session, "_transaction", None), "origin", None)
    if getattr(origin, "name", "SUBTRANSACTION") != "SUBTRANSACTION":
        raise ConfigError(_BEFORE_FLUSH)


def _of_session(session: Session, table: ClauseElement) -> Connection:
    from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError

    if not session.autobegin and not session.in_transaction():
        raise ConfigError(f"the session has no transaction, and autobegin=False: session.begin() first, or {_BEGIN}")
    try:
        return session.connection(bind_arguments={"clause": table})
    except PendingRollbackError:
        raise  # an earlier error requires a rollback, and the message says so
    except UnboundExecutionError as error:
        raise ConfigError(
            f"the session has no database for the table {table}: sessionmaker(engine), or with several databases "
            "sessionmaker(binds={..., outbox.tables.events: engine})"
        ) from error
    except InvalidRequestError as error:  # closed permanently, or its transaction is being committed
        raise ConfigError(f"the session takes no event now: {error}") from error
