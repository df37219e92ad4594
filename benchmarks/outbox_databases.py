"""SQLite, PostgreSQL and MariaDB for the cases of ``bench.py --outbox``: what is committed is flushed to the disk."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from harness import Skip, scratch

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Engine

ROOT = Path(__file__).resolve().parents[1]
VALUE = b'{"order_id":"4711","customer":"customer042","amount":129.95,"currency":"EUR","items":3,"note":"a gift"}'
"""About 100 bytes."""


class Kind(NamedTuple):
    driver: str
    async_driver: str
    admin: str
    """The database that a server always has."""
    mark: str
    """Of a parameter, in statements of the plain driver."""


KINDS = {
    "SQLite": Kind("sqlite", "sqlite+aiosqlite", "", "?"),
    "PostgreSQL": Kind("postgresql+psycopg", "postgresql+asyncpg", "postgres", "%s"),
    "MariaDB": Kind("mysql+pymysql", "mysql+aiomysql", "mysql", "%s"),
}
_FLUSHED = {
    "PostgreSQL": ["--fsync=on", "--full_page_writes=on", "--shared_buffers=128MB"],
    "MariaDB": ["--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=128M"],
}
"""The tests' servers lose what a crash of the machine interrupts; of two settings the later one holds."""


@contextmanager
def database_servers(cases: Iterable[str]) -> Generator[None]:
    """The servers that the cases name, where they are installed; where not, the cases say so."""
    sys.path.insert(0, str(ROOT))
    from tests.database_servers import SERVERS, NotInstalledError

    names = [name for name in SERVERS if any(name in each for each in cases)]
    with ExitStack() as stack:
        for name in names:
            try:
                os.environ[_variable(name)] = stack.enter_context(_flushing(SERVERS[name], _FLUSHED[name])()).address
            except NotInstalledError as missing:
                os.environ[f"{_variable(name)}_MISSING"] = f"no {name} here: Debian's package {missing}"
        yield


def _flushing(server: Any, settings: list[str]) -> Any:
    class Flushing(server):
        def serve(self) -> list[str]:
            return [*super().serve(), *settings]

    return Flushing


def _variable(name: str) -> str:
    return f"BENCH_{name.upper()}"


@contextmanager
def database(name: str, folder: Path | None = None) -> Generator[URL]:
    """An empty database of this kind, a file of ``folder`` if it is one. Raises Skip where there is no server."""
    from sqlalchemy import URL, NullPool, create_engine, make_url, text

    kind = KINDS[name]
    if name == "SQLite":
        with scratch() as made:
            yield URL.create(kind.driver, database=str((folder or made) / "bench.db"))
        return
    address = os.environ.get(_variable(name))
    if address is None:
        raise Skip(os.environ.get(f"{_variable(name)}_MISSING", "bench.py --outbox starts the servers"))
    url = make_url(f"{kind.driver}://{address}/{kind.admin}")
    own = f"bench_{uuid4().hex[:12]}"
    admin = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {own}"))
    yield url.set(database=own)
    with admin.connect() as connection:
        forced = " WITH (FORCE)" if name == "PostgreSQL" else ""
        connection.execute(text(f"DROP DATABASE {own}{forced}"))


def engine_of(url: URL) -> Engine:
    """As services make it. SQLite: with a write-ahead log, and each commit flushed."""
    from sqlalchemy import create_engine

    engine = create_engine(url)
    _flush(engine)
    return engine


def async_engine_of(url: URL) -> Any:
    """The same of the asynchronous driver."""
    from sqlalchemy.ext.asyncio import create_async_engine

    by_driver = {kind.driver: kind.async_driver for kind in KINDS.values()}
    engine = create_async_engine(url.set(drivername=by_driver[url.drivername]))
    _flush(engine.sync_engine)
    return engine


def _flush(engine: Engine) -> None:
    from sqlalchemy import event

    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: _prepare(connection))


def _prepare(connection: Any) -> None:
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")


def raw_connection(url: URL) -> Any:
    """The plain driver's own connection, which SQLAlchemy has nothing to do with."""
    backend = url.get_backend_name()
    if backend == "sqlite":
        import sqlite3

        connection = sqlite3.connect(str(url.database))
        _prepare(connection)
        return connection
    if backend == "postgresql":
        import psycopg

        return psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database)
    import pymysql

    return pymysql.connect(host=url.host, port=url.port, user=url.username, database=url.database)


def fill(url: URL, outbox: Any, n: int) -> None:
    """``n`` events of 1,000 keys, as `Outbox.publish_many` writes them: by the thousand."""
    engine = engine_of(url)
    for start in range(0, n, 1_000):
        with engine.begin() as connection:
            numbers = range(start, min(start + 1_000, n))
            outbox.publish_many(connection, "log", [b"%08d%b" % (number, VALUE) for number in numbers], key=key_of)
    analyze(engine)
    engine.dispose()


def key_of(value: bytes) -> bytes:
    return b"customer%b" % value[5:8]


async def until(holds: Callable[[], object]) -> None:
    """Wait for what nobody tells of."""
    while not holds():  # noqa: ASYNC110 - a figure of a relay's, which is only counted
        await asyncio.sleep(0.002)


def analyze(engine: Engine) -> None:
    """What the server would do by itself in the middle of what is measured."""
    from sqlalchemy import text

    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
