"""A database, asked for whole transactions: of a plain engine in worker threads, of an asynchronous one on the loop."""

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
from outbox.wakes import watch

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")

Trouble = Literal["conflict", "away", "other"]
"""What an error of a database means: run the transaction again at once, wait until the server answers, or neither."""


_PREPARED_STATES = frozenset({"26000", "42P05"})
"""PostgreSQL: a prepared statement does not exist, or exists already."""


class _Engines:
    """The engines of this process that outboxes use."""

    def __init__(self) -> None:
        self._engines: WeakSet[Engine] = WeakSet()
        watch_forks(self)

    def add(self, engine: Engine) -> None:
        self._engines.add(engine)

    def after_fork_in_child(self) -> None:
        """Leave the pools to the parent: two processes must not talk over one connection. New ones are opened here."""
        for engine in list(self._engines):
            never_free(engine.pool)  # a driver that frees a connection may end its session at the server
            engine.dispose(close=False)


_engines = _Engines()


class Database:
    """Runs plain functions of a SQLAlchemy `Connection`, each as a transaction of its own.

    One code path for every driver: what talks to the database is written once, for a plain connection.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, abandons: bool = False) -> None:
        """``abandons``: whoever is cancelled does not wait for a plain engine's transaction, which goes on by itself.

        Raises ConfigError for an engine that cannot give transactions, or one per thread.
        """
        from sqlalchemy.ext.asyncio import AsyncEngine

        self.engine = engine
        plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
        self.plain: Engine = plain
        self._abandons = abandons
        self._changed = threading.Condition()
        self._at_work = 0
        """Transactions in worker threads, also those that nobody waits for any more."""
        check_engine(plain)
        watch(plain.dialect)
        _engines.add(plain)
        self._at_level = engine
        """The engine of `run`, at the level that the transactions of an outbox and an inbox need."""
        if plain.dialect.name == "postgresql":
            self._at_level = engine.execution_options(isolation_level="READ COMMITTED")

    @property
    def dialect(self) -> str:
        """The name of the dialect: "sqlite", "postgresql", "mysql", "mariadb"."""
        return self.plain.dialect.name

    async def run(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn(connection, ...)`` in a transaction: committed when it returns, rolled back when it raises.

        Raises what ``fn`` and the database raise. A plain engine's transaction is one hop to a worker thread; it is
        waited for when the task is cancelled, unless it ``abandons``.

        On PostgreSQL it runs at READ COMMITTED, whatever the level of the engine is. At SERIALIZABLE, what it reads
        would make transactions fail that write events; at REPEATABLE READ it would fail where it can wait.
        """
        return await self._run_on(self._at_level, partial(_call, fn, args, kwargs))

    async def run_at_users_level(self, fn: Callable[[Connection], T]) -> T:
        """The same at the level of the engine, as a handler's transactions are."""
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
                if is_over:  # abandoned before it began: it need not
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
        """Wait for what was abandoned, for so long at most: afterwards no connection of the engine is in use here."""

        def wait() -> None:
            with self._changed:
                self._changed.wait_for(lambda: not self._at_work, seconds)

        await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)

    async def dispose(self) -> None:
        """Close its connections, those that are not in use."""
        from sqlalchemy.ext.asyncio import AsyncEngine

        if isinstance(self.engine, AsyncEngine):
            await self.engine.dispose()
        else:
            await anyio.to_thread.run_sync(self.plain.dispose)

    def run_here(self, fn: Callable[[Connection], T]) -> T:
        """`run` for a plain engine, in this thread."""
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
    """Raises ConfigError where an event could not be part of a transaction, or two transactions would be one."""
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
    """The database's clock, in milliseconds since the epoch: the one that all relays and writers share."""
    from sqlalchemy import text

    return int(connection.execute(text(f"SELECT {now_sql(connection.dialect.name)}")).scalar_one())


def now_sql(dialect: str) -> str:
    """The same as an expression."""
    return {
        "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
        "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
        # Not UNIX_TIMESTAMP(NOW(3)): a time zone of the session with summer time has one hour twice a year.
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
    """What to make of an error that a transaction raised: see `Trouble`. What is not the database's is "other"."""
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
        # A driver that could not connect has no code to give: psycopg, and sqlite's "unable to open database file".
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
