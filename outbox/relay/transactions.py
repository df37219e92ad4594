"""Run the relay's transactions on a suitable engine, and retry them after conflicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio

from eventbus.errors import ConfigError
from outbox.database import Database, trouble_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")

_ATTEMPTS = 10
_SQLITE_ATTEMPTS = 5_000
_CONFLICT_SECONDS = 0.02
_LOCKED_SECONDS = 0.002


def engine_for(engine: Engine | AsyncEngine) -> Engine | AsyncEngine:
    """Return the engine itself, or for MySQL a copy with separate connections at READ COMMITTED.

    MySQL's default level, REPEATABLE READ, locks the gap after deleted rows. A relay would have to wait for every
    writer that has just written there.
    """
    from sqlalchemy import Engine, event
    from sqlalchemy.ext.asyncio import AsyncEngine

    plain = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    dialect: Any = plain.dialect
    if dialect.name not in ("mysql", "mariadb"):
        return engine
    options = {name: value for name, value in plain.get_execution_options().items() if name != "isolation_level"}
    own = Engine(
        plain.pool.recreate(), dialect, plain.url, execution_options=options, hide_parameters=plain.hide_parameters
    )

    def read_committed(connection: Any, _: object) -> None:
        dialect.set_isolation_level(connection, "READ COMMITTED")

    event.listen(own, "connect", read_committed)
    return AsyncEngine(own) if isinstance(engine, AsyncEngine) else own


def check_isolation(connection: Connection) -> None:
    """Raise ConfigError if a relay would see rows of transactions that may still be rolled back."""
    level = connection.get_isolation_level()
    if level in ("READ UNCOMMITTED", "AUTOCOMMIT"):
        raise ConfigError(
            f"the engine of the outbox's relay has the isolation level {level}: give the relay a separate engine, "
            'engine.execution_options(isolation_level="READ COMMITTED")'
        )


class Transactions:
    """Runs plain functions of a `Connection`, each in a transaction, and retries them after a conflict.

    SQLite's own wait for a lock sleeps longer each time, so a writer without pauses always wins. The lock is therefore
    retried every other millisecond here.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_sqlite = database.dialect == "sqlite"

    async def run(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a transaction. Raises what ``fn`` and the database raise."""
        for _ in range(_SQLITE_ATTEMPTS if self._is_sqlite else _ATTEMPTS):
            try:
                if self._is_sqlite:
                    return await self._database.run(_impatiently, fn, args, kwargs)
                return await self._database.run(fn, *args, **kwargs)
            except Exception as error:
                if trouble_of(error) != "conflict":
                    raise
            seconds = _LOCKED_SECONDS if self._is_sqlite else _CONFLICT_SECONDS
            await anyio.sleep(random.uniform(seconds / 2, seconds))  # real time, because databases run in real time
        return await self._database.run(fn, *args, **kwargs)


def _impatiently(connection: Connection, fn: Callable[..., T], args: Any, kwargs: Any) -> T:
    with _no_waiting(connection):
        return fn(connection, *args, **kwargs)


@contextmanager
def _no_waiting(connection: Connection) -> Generator[None]:
    """Make SQLite raise an error at once while another connection holds the lock."""
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute("PRAGMA busy_timeout")
        patience = cursor.fetchone()[0]
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {patience}")
    finally:
        cursor.close()
