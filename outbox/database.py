"""Run whole transactions on a database: in worker threads for a plain engine, on the event loop for an async one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast
from weakref import WeakSet

import anyio.to_thread

from eventbus.errors import ConfigError
from eventbus.forks import never_free, watch_forks
from eventbus.outages import MYSQL_AWAY, MYSQL_CONFLICT, SQLITE_CONFLICT, SQLSTATES_AWAY, SQLSTATES_CONFLICT
from outbox.autocommit import AUTOCOMMIT
from outbox.commit_listeners import watch

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")

Trouble = Literal["conflict", "away", "other"]
"""The kind of a database error: retry at once ("conflict"), wait for the server ("away"), or neither ("other")."""


_PREPARED_STATES = frozenset({"26000", "42P05"})
"""PostgreSQL's codes for a prepared statement that does not exist, or exists already."""


class _Engines:
    """The engines of this process that outboxes use."""

    def __init__(self) -> None:
        self._engines: WeakSet[Engine] = WeakSet()
        watch_forks(self)

    def add(self, engine: Engine) -> None:
        self._engines.add(engine)

    def after_fork_in_child(self) -> None:
        """Replace the connection pools. Two processes must not share a connection, so the parent keeps its own."""
        for engine in list(self._engines):
            never_free(engine.pool)  # a driver may end the parent's session at the server when it frees the connection
            engine.dispose(close=False)


_engines = _Engines()


class Database:
    """Runs functions of a plain SQLAlchemy `Connection`, each in one transaction.

    Code that uses the database is written once, for a plain connection, and works with every driver.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, abandons: bool = False) -> None:
        """A cancelled task waits for its thread, unless ``abandons`` is set: then the transaction continues alone.

        Raises ConfigError for an engine without transactions, or without a separate connection for each of them.
        """
        from sqlalchemy.ext.asyncio import AsyncEngine

        self.engine = engine
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        self.plain: Engine = plain
        self._abandons = abandons
        self._changed = threading.Condition()
        self._at_work = 0
        """Transactions running in worker threads, including abandoned ones."""
        check_engine(plain)
        watch(plain.dialect)
        _engines.add(plain)
        self._at_level = engine
        """The engine used by `run`, at the isolation level that outbox and inbox need."""
        if plain.dialect.name == "postgresql":
            self._at_level = engine.execution_options(isolation_level="READ COMMITTED")

    @property
    def dialect(self) -> str:
        """The name of the dialect: "sqlite", "postgresql", "mysql", "mariadb"."""
        return self.plain.dialect.name

    async def run(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn(connection, ...)`` in a transaction, which commits when it returns and rolls back when it raises.

        Raises what ``fn`` and the database raise. With a plain engine it runs in a worker thread, and a cancelled task
        waits for it unless the Database ``abandons``.

        On PostgreSQL it runs at READ COMMITTED, whatever the engine's level is. At SERIALIZABLE its reads would make
        transactions that write events fail, and at REPEATABLE READ it would fail where it could wait.
        """
        return await self._run_on(self._at_level, partial(_call, fn, args, kwargs))

    async def run_at_users_level(self, fn: Callable[[Connection], T]) -> T:
        """Like `run`, but at the isolation level of the engine, which handlers use."""
        return await self._run_on(self.engine, fn)

    async def _run_on(self, engine: Engine | AsyncEngine, call: Callable[[Connection], T]) -> T:
        from sqlalchemy.ext.asyncio import AsyncEngine

        if isinstance(engine, AsyncEngine):
            _check_asyncio()
            async with engine.begin() as connection:
                return await connection.run_sync(call)
        return await self._in_thread(partial(_begin, engine, call))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        is_over = False

        def run() -> T | None:
            with self._changed:
                if is_over:  # abandoned before it began
                    return None
                self._at_work += 1
            try:
                return call()
            finally:
                with self._changed:
                    self._at_work -= 1
                    self._changed.notify_all()

        try:
            return cast("T", await anyio.to_thread.run_sync(run, abandon_on_cancel=self._abandons))
        finally:
            with self._changed:
                is_over = True

    async def settle(self, seconds: float) -> None:
        """Wait up to ``seconds`` for abandoned transactions. Afterwards no connection of the engine is in use here."""

        def wait() -> None:
            with self._changed:
                self._changed.wait_for(lambda: not self._at_work, seconds)

        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def dispose(self) -> None:
        """Close the engine's idle connections."""
        from sqlalchemy.ext.asyncio import AsyncEngine

        if isinstance(self.engine, AsyncEngine):
            await self.engine.dispose()
        else:
            await anyio.to_thread.run_sync(self.plain.dispose)

    def run_here(self, fn: Callable[[Connection], T]) -> T:
        """Run ``fn`` in a transaction in this thread, with a plain engine."""
        return _begin(cast("Engine", self._at_level), fn)


def _call(fn: Callable[..., T], args: Any, kwargs: Any, connection: Connection) -> T:
    return fn(connection, *args, **kwargs)


def _begin(engine: Engine, fn: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return fn(connection)


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "SQLAlchemy's asynchronous engines need asyncio, and this is another event loop: take a plain engine, "
            "create_engine(...), whose transactions run in worker threads"
        ) from None


def check_engine(engine: Engine) -> None:
    """Raise ConfigError for an engine whose connections are in AUTOCOMMIT or shared between transactions."""
    from sqlalchemy.pool import SingletonThreadPool, StaticPool

    if isinstance(engine.pool, (SingletonThreadPool, StaticPool)):
        whose = "every thread" if isinstance(engine.pool, SingletonThreadPool) else "all threads"
        raise ConfigError(
            f"this engine has one connection for {whose}, so that transactions side by side would meet in one, or in "
            'databases of their own: take a file, create_engine("sqlite:///app.db"), also in tests'
        )
    if engine.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise ConfigError(AUTOCOMMIT)


def now_ms(connection: Connection) -> int:
    """Return the database's clock in milliseconds since the epoch. All relays and writers share this clock."""
    from sqlalchemy import text

    return int(connection.execute(text(f"SELECT {now_sql(connection.dialect.name)}")).scalar_one())


def now_sql(dialect: str) -> str:
    """Return the SQL expression for `now_ms`."""
    return {
        "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
        "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
        # Not UNIX_TIMESTAMP(NOW(3)): in a time zone with daylight saving time, one hour a year occurs twice.
    }.get(dialect, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000")


def proxy_advice(error: BaseException) -> str:
    """Return what to change if a proxy has lost a prepared statement, else ""."""
    original: Any = getattr(error, "orig", None)
    state = str(getattr(original, "sqlstate", "") or getattr(original, "pgcode", "") or "")
    if state not in _PREPARED_STATES:
        return ""
    arguments = (
        '{"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": '
        'lambda: f"__{uuid4()}__"}'
        if "asyncpg" in type(original).__module__
        else '{"prepare_threshold": None}'
    )
    return (
        "A prepared statement is not on the connection that it was prepared on, or another client prepared one of that "
        "name. A proxy such as PgBouncer with pool_mode=transaction gives each transaction another connection. Turn "
        f"prepared statements off, create_engine(..., connect_args={arguments}), or set max_prepared_statements in "
        "PgBouncer 1.21 or later"
    )


def trouble_of(error: BaseException) -> Trouble:
    """Classify an error that a transaction raised. Errors from outside the database are "other"."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
    from sqlalchemy.exc import TimeoutError as PoolTimeout

    if isinstance(error, (PoolTimeout, ConnectionError)):
        return "away"
    if not isinstance(error, DBAPIError):
        return "other"
    original: Any = error.orig
    state = str(getattr(original, "sqlstate", "") or getattr(original, "pgcode", "") or "")
    if state in SQLSTATES_CONFLICT:
        return "conflict"
    if state.startswith(SQLSTATES_AWAY) or error.connection_invalidated:
        return "away"
    number: Any = next(iter(getattr(original, "args", ())), None)
    if number in MYSQL_CONFLICT:
        return "conflict"
    if number in MYSQL_AWAY:
        return "away"
    said = str(original).lower()
    if any(phrase in said for phrase in SQLITE_CONFLICT):
        return "conflict"
    if isinstance(error, (OperationalError, InterfaceError)) and not state and not isinstance(number, int):
        # psycopg without a connection and sqlite's "unable to open database file" have no error code.
        return "away" if "connect" in said or "unable to open" in said or "closed" in said else "other"
    return "other"


_MISSING_SQLSTATES = frozenset({"42P01", "42703", "3F000", "42501"})
"""Undefined table, undefined column, invalid schema name, insufficient privilege."""
_MISSING_MYSQL = frozenset({1044, 1049, 1054, 1142, 1143, 1146})
_MISSING_SQLITE = ("no such table", "no such column", "has no column named")


def is_missing(error: BaseException) -> bool:
    """Return True if a table, a column or a privilege is missing: a migration is late, or under way.

    Only for statements of the outbox and the inbox. For those of a handler it is a fault in the handler.
    """
    from sqlalchemy.exc import DBAPIError

    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    state = str(getattr(original, "sqlstate", "") or getattr(original, "pgcode", "") or "")
    number: Any = next(iter(getattr(original, "args", ())), None)
    said = str(original).lower()
    return state in _MISSING_SQLSTATES or number in _MISSING_MYSQL or any(text in said for text in _MISSING_SQLITE)
