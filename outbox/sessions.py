"""Whose transaction an event belongs to: the connection behind a session, or the reason why there is none."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, cast

from eventbus.errors import ConfigError
from eventbus.forks import forked
from outbox.database import AUTOCOMMIT, is_autocommit

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session
    from sqlalchemy.sql.expression import ClauseElement

Plain: TypeAlias = Union["Session", "Connection", "scoped_session[Any]"]
Asynchronous: TypeAlias = Union["AsyncSession", "AsyncConnection", "async_scoped_session[Any]"]

_PROCESS = "eventbus.outbox.process"
"""The key in ``Connection.info`` of the process that first wrote an event over this connection."""
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
    """The session or connection itself, and whether it is asynchronous. Raises ConfigError for anything else."""
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
    """The connection of its transaction. Raises ConfigError where an event could not be part of one."""
    if _kind(cast("type[Any]", type(session))) == "session":
        connection = _of_session(session, table)
    else:
        connection = session
        if connection.closed:
            raise ConfigError("the connection is closed: publish before the end of its `with` block")
        if not connection.in_transaction():
            raise ConfigError(f"the connection is in no transaction, so the event would belong to none: {_BEGIN}")
    if is_autocommit(connection):
        raise ConfigError(AUTOCOMMIT)
    process = connection.info.setdefault(_PROCESS, os.getpid())
    if process != os.getpid():
        raise forked("outbox.publish", "This session's connection to the database", process)
    return connection


def _of_session(session: Session, table: ClauseElement) -> Connection:
    from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError

    if not session.autobegin and not session.in_transaction():
        raise ConfigError(f"the session has no transaction, and autobegin=False: session.begin() first, or {_BEGIN}")
    try:
        return session.connection(bind_arguments={"clause": table})
    except PendingRollbackError:
        raise  # of an error before this one: it says what to do
    except UnboundExecutionError as error:
        raise ConfigError(
            f"the session has no database for the table {table}: sessionmaker(engine), or with several databases "
            "sessionmaker(binds={..., outbox.tables.events: engine})"
        ) from error
    except InvalidRequestError as error:  # closed for good, or its transaction is being committed
        raise ConfigError(f"the session takes no event now: {error}") from error
