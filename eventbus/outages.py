"""Classify errors: is it an outage, which every record would meet, or the fault of one record?

A record that meets an outage is handled again until the outage is over. So an error counts as an outage only if waiting
can help and no record causes it. That is true of a refused connection; it is not of a missing file, an answer of HTTP
404 or a statement that took too long. ``dlq.Retry`` uses the same classification and lets users add classes to it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from eventbus.errors import (
    EventBusError,
    SchemaNotReady,
    SerializationError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from serdes import SchemaRegistryError

_ERRNOS: Final = frozenset(
    {
        errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
        errno.ENOBUFS, errno.EBUSY, errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENETDOWN, errno.ENETUNREACH,
        errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ETIMEDOUT,
    }
)  # fmt: skip
"""System errors of disks, networks and resources. ENOENT, EACCES, ENAMETOOLONG and similar errors concern one path."""

SQLSTATES_AWAY: Final = ("08", "57P", "53", "25006")
"""Prefixes of SQLSTATEs: connection exceptions, shutdown of the server, no resources, a read-only transaction."""
SQLSTATES_CONFLICT: Final = frozenset({"40001", "40P01", "55P03"})
"""SQLSTATEs of a serialization failure, a deadlock, and a lock that was not available."""
MYSQL_AWAY: Final = frozenset(
    {1040, 1047, 1053, 1077, 1079, 1080, 1129, 1152, 1184, 1290, 1836, 2002, 2003, 2006, 2013, 2055, 4031}
)
MYSQL_CONFLICT: Final = frozenset({1020, 1205, 1213, 3572})
"""Record has changed since last read, lock wait timeout, deadlock, NOWAIT is set."""
SQLITE_CONFLICT: Final = ("database is locked", "database table is locked", "database schema is locked")
_SQLITE_AWAY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN")
_NO_CONNECTION = ("connect", "closed", "resolve", "unable to open")
"""Phrases for a missing connection, in messages of drivers that have neither a SQLSTATE nor a number."""


_FIRST_BACK_OFF_MS = 1_000
_LONGEST_BACK_OFF_MS = 60_000


def back_off_ms(calls: int) -> int:
    """Return how long to wait after this many calls that met an outage, without given delays: 1 s, 2 s, up to 60 s."""
    return min(_FIRST_BACK_OFF_MS << min(max(calls - 1, 0), 16), _LONGEST_BACK_OFF_MS)


def is_outage(error: BaseException) -> bool:
    """True if the error concerns every record and may be over later.

    The nearest known class decides, by name for libraries that need not be installed. A group is an outage if all
    exceptions in it are.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_outage, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    for cls in type(error).__mro__:
        judge = _CLASSES.get(cls)
        if judge is None:
            judge = _BY_NAME.get((cls.__module__.partition(".")[0], cls.__name__))
        if judge is not None:
            return judge(error)
    return False


def _always(error: BaseException) -> bool:
    return True


def _never(error: BaseException) -> bool:
    return False


def _of_ours(error: BaseException) -> bool:
    return isinstance(error, EventBusError) and error.retriable and not error.fatal


def _of_a_registry(error: BaseException) -> bool:
    return isinstance(error, SchemaRegistryError) and not error.is_final


def _of_the_system(error: BaseException) -> bool:
    """Judge OSError itself, also when user code raises it with only a text.

    An unknown subclass does not count, because libraries derive all sorts of errors from OSError, as requests does for
    HTTP 404 and smtplib for a recipient that is refused. Neither does a TimeoutError that the system did not raise: the
    record may take that long each time.
    """
    number = error.errno if isinstance(error, OSError) else None
    return number in _ERRNOS or (type(error) is OSError and number is None)


def _of_its_cause(error: BaseException) -> bool:
    """Judge a wrapper such as urllib's URLError, SQLAlchemy's or Django's by the error inside."""
    inner = getattr(error, "reason", None) or getattr(error, "orig", None) or error.__cause__
    lost: object = getattr(error, "connection_invalidated", False)
    return bool(lost) or (isinstance(inner, BaseException) and inner is not error and is_outage(inner))


def _of_a_database(error: BaseException) -> bool:
    """Judge a driver's OperationalError or InterfaceError by SQLSTATE or number, or by its text if it has neither."""
    detail: Any = error
    state = str(getattr(detail, "sqlstate", "") or getattr(detail, "pgcode", "") or "")
    if state:
        return state.startswith(SQLSTATES_AWAY) or state in SQLSTATES_CONFLICT
    number = next(iter(error.args), None)
    if isinstance(number, int):
        return number in MYSQL_AWAY or number in MYSQL_CONFLICT
    sqlite_name = str(getattr(detail, "sqlite_errorname", "") or "")
    if sqlite_name:
        return sqlite_name.startswith(_SQLITE_AWAY)
    text = str(error).lower()
    return any(phrase in text for phrase in _NO_CONNECTION)


_Judge = Callable[[BaseException], bool]

_CLASSES: Mapping[type[BaseException], _Judge] = {
    ConnectionError: _always,
    OSError: _of_the_system,
    socket.gaierror: _always,
    EventBusError: _of_ours,
    UnknownTopicOrPartition: _never,
    TopicAuthorizationFailed: _always,
    SerializationError: _never,
    SchemaNotReady: _always,
    SchemaRegistryError: _of_a_registry,
}

_BY_NAME: Mapping[tuple[str, str], _Judge] = {
    ("ssl", "SSLError"): _always,
    ("urllib", "URLError"): _of_its_cause,
    ("urllib", "HTTPError"): _never,
    ("smtplib", "SMTPServerDisconnected"): _always,
    ("smtplib", "SMTPConnectError"): _always,
    ("urllib3", "MaxRetryError"): _of_its_cause,
    ("urllib3", "NewConnectionError"): _always,
    ("urllib3", "ProtocolError"): _always,
    ("requests", "ConnectionError"): _always,
    ("requests", "ChunkedEncodingError"): _always,
    ("httpx", "NetworkError"): _always,
    ("httpx", "RemoteProtocolError"): _always,
    ("httpx", "ConnectTimeout"): _always,
    ("httpx", "PoolTimeout"): _always,
    ("httpcore", "NetworkError"): _always,
    ("httpcore", "RemoteProtocolError"): _always,
    ("httpcore", "ConnectTimeout"): _always,
    ("aiohttp", "ClientConnectionError"): _always,
    ("redis", "ConnectionError"): _always,
    ("redis", "AuthenticationError"): _never,
    ("pymongo", "ConnectionFailure"): _always,
    ("botocore", "HTTPClientError"): _always,
    ("pika", "AMQPConnectionError"): _always,
    ("elastic_transport", "ConnectionError"): _always,
    ("sqlalchemy", "DBAPIError"): _of_its_cause,
    ("sqlalchemy", "TimeoutError"): _always,
    ("django", "OperationalError"): _of_its_cause,
    ("django", "InterfaceError"): _of_its_cause,
    ("asyncpg", "PostgresError"): _of_a_database,
    ("asyncpg", "InterfaceError"): _of_a_database,
    **{
        (driver, name): _of_a_database
        for driver in (
            "psycopg", "psycopg2", "pymysql", "MySQLdb", "mysql", "asyncmy", "mariadb", "sqlite3", "oracledb", "pyodbc",
        )
        for name in ("OperationalError", "InterfaceError")
    },
}  # fmt: skip
"""Judges, by the names of the package and of the class."""
