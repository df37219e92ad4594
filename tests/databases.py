"""SQL databases for tests: of each kind a fresh one, empty, in a file or on a server that the whole run shares.

    from tests.databases import database, databases, new_database

    async def test_something(database: Database) -> None: ...            # on every kind of ``KINDS``

    @pytest.mark.parametrize("database", ["sqlite", "asyncpg"], indirect=True)
    async def test_on_two(database: Database) -> None: ...

    async def test_with_two(new_database: NewDatabase) -> None:
        one, two = new_database("psycopg"), new_database("mariadb")

The servers are private ones, see `tests.database_servers`, or those of ``EVENTBUS_TEST_POSTGRES_URL`` and
``EVENTBUS_TEST_MARIADB_URL`` (``mysql+pymysql://user:password@host/database``), where tests make databases of their
own. Where there is none, or no driver, a test is skipped with the reason;
with ``EVENTBUS_TEST_DATABASES=require`` it fails.
"""

from __future__ import annotations

import importlib.util
import os
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tests.database_servers import NotInstalledError, shared
from tests.tiers import quick

REQUIRED = os.environ.get("EVENTBUS_TEST_DATABASES") == "require"


class Kind(NamedTuple):
    """A driver, and how it is spoken to."""

    driver: str
    plain_driver: str
    """Of the same database, without a loop."""
    modules: tuple[str, ...]
    server: str = ""
    is_async: bool = False


KINDS = {
    "sqlite": Kind("sqlite", "sqlite", ()),
    "sqlite-async": Kind("sqlite+aiosqlite", "sqlite", ("aiosqlite",), is_async=True),
    "psycopg": Kind("postgresql+psycopg", "postgresql+psycopg", ("psycopg",), "PostgreSQL"),
    "asyncpg": Kind("postgresql+asyncpg", "postgresql+psycopg", ("psycopg", "asyncpg"), "PostgreSQL", True),
    "mariadb": Kind("mysql+pymysql", "mysql+pymysql", ("pymysql",), "MariaDB"),
    "mariadb-async": Kind("mysql+aiomysql", "mysql+pymysql", ("pymysql", "aiomysql"), "MariaDB", True),
}
MORE_KINDS = {"psycopg-async": Kind("postgresql+psycopg", "postgresql+psycopg", ("psycopg",), "PostgreSQL", True)}
"""For those who ask for them."""
ON_SERVERS = [name for name, kind in KINDS.items() if kind.server]
THREE = ["sqlite", "psycopg", "mariadb"]
"""One kind of each database."""

_ADMIN = {
    "PostgreSQL": ("EVENTBUS_TEST_POSTGRES_URL", "postgresql+psycopg", "postgres"),
    "MariaDB": ("EVENTBUS_TEST_MARIADB_URL", "mysql+pymysql", "mysql"),
}
"""By server: a variable that may name one, and how its owner reaches it."""

_EMPTY_POSTGRESQL = """
DO $$
DECLARE name text;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
END $$
"""


class Database:
    """An empty database, and an engine of its kind."""

    def __init__(self, kind: str, url: URL, **options: Any) -> None:
        self.kind = kind
        self._kind = KINDS.get(kind) or MORE_KINDS[kind]
        self._url = url
        self._options = options
        self._engines: list[Any] = []
        self._through: int | None = None
        self.is_async = self._kind.is_async
        self.engine: Any = self.new_engine()
        """An `Engine` or an `AsyncEngine`."""
        self.plain: Engine = self.new_plain() if self.is_async else self.engine
        """Without a loop: to look at it from beside."""

    @property
    def url(self) -> str:
        """For a process that makes its own engine of this kind."""
        return self._url.set(drivername=self._kind.driver).render_as_string(hide_password=False)

    @property
    def plain_url(self) -> str:
        return self._url.set(drivername=self._kind.plain_driver).render_as_string(hide_password=False)

    def go_through(self, port: int) -> None:
        """Have engines that are made from now on connect to a proxy on this port, except ``plain`` ones."""
        self._through = port

    def new_engine(self, **options: Any) -> Any:
        """Another of its kind: what another process has."""
        create = create_async_engine if self.is_async else create_engine
        return self._new(create, self.through(self.url), options)

    def through(self, url: str) -> str:
        """Return the URL with the port of the proxy, if `go_through` was called."""
        return make_url(url).set(port=self._through or self._url.port).render_as_string(hide_password=False)

    def new_plain(self, **options: Any) -> Engine:
        return self._new(create_engine, self.plain_url, options)

    def _new(self, create: Callable[..., Any], url: str, options: dict[str, Any]) -> Any:
        engine = create(url, **self._options, **options)
        if engine.dialect.name == "sqlite":
            plain = getattr(engine, "sync_engine", engine)
            event.listen(plain, "connect", _never_wait_for_the_disk)
        self._engines.append(engine)
        return engine

    async def aclose(self) -> None:
        for engine in self._engines:
            if hasattr(engine, "sync_engine"):
                await engine.dispose()
            else:
                engine.dispose()


class Databases:
    """Makes databases. Whoever asks first for a server starts it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        """That all workers of the run share."""
        self._stack = ExitStack()
        self._admins: dict[str, Engine] = {}
        self._empty: list[URL] = []
        """PostgreSQL's databases that tests have left: to empty one takes a tenth of the time of CREATE DATABASE."""

    def create(self, kind: str, folder: Path, **options: Any) -> Database:
        """``folder`` is for those that are files, ``options`` are those of its engines."""
        found = self.check(kind)
        name = f"test_{uuid.uuid4().hex}"
        if not found.server:
            return Database(kind, URL.create("sqlite", database=str(folder / f"{name}.db")), **options)
        admin = self.admin(found.server)
        if found.server == "PostgreSQL" and self._empty:
            return Database(kind, self._empty.pop(), **options)
        utf8 = " CHARACTER SET utf8mb4" if found.server == "MariaDB" else ""
        self._execute(found.server, f"CREATE DATABASE {name}{utf8}")
        return Database(kind, admin.url.set(database=name), **options)

    def check(self, kind: str) -> Kind:
        """Skips the test where there is no driver, or no server."""
        found = KINDS.get(kind) or MORE_KINDS[kind]
        for module in found.modules:
            if importlib.util.find_spec(module) is None:
                skip(f"the driver {module} is not installed")
        if found.server:
            self.admin(found.server)
        return found

    def release(self, database: Database) -> None:
        """Drop a database, or empty it for the next test. Connections that are still open are closed by the server."""
        url = make_url(database.plain_url)
        if url.get_backend_name() == "mysql":
            self._execute("MariaDB", f"DROP DATABASE {url.database}")
        elif url.get_backend_name() == "postgresql":
            emptying = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
            with emptying.connect() as connection:
                connection.execute(text(_EMPTY_POSTGRESQL))
            self._empty.append(url)

    def _execute(self, server: str, statement: str) -> None:
        with self.admin(server).connect() as connection:
            connection.execute(text(statement))

    def admin(self, server: str) -> Engine:
        """Who makes databases on it."""
        if server not in self._admins:
            variable, driver, database = _ADMIN[server]
            url = os.environ.get(variable) or f"{driver}://{self._address(server, variable)}/{database}"
            self._admins[server] = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        return self._admins[server]

    def _address(self, server: str, variable: str) -> str:
        try:
            return self._stack.enter_context(shared(server, self._folder))
        except NotInstalledError as missing:
            skip(f"no {server} server: install Debian's package {missing}, or name a server in {variable}")

    def close(self) -> None:
        for url in self._empty:
            self._execute("PostgreSQL", f"DROP DATABASE {url.database} WITH (FORCE)")
        self._stack.close()


def before_next_look_seconds() -> float:
    """Return how long to wait before ``information_schema.innodb_trx`` is read again.

    InnoDB answers from a copy that it renews only if nobody has read it for 0.1 s. Tests on one server that read it
    more often, or at equal intervals in turns, keep each other from ever seeing a new transaction.
    """
    return random.uniform(0.15, 0.6)


def skip(reason: str) -> NoReturn:
    if REQUIRED:
        pytest.fail(f"{reason}; EVENTBUS_TEST_DATABASES=require")
    pytest.skip(reason)  # says which server or driver is not installed


def _never_wait_for_the_disk(connection: Any, _: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


NewDatabase = Callable[..., Database]
"""Of a kind; keywords are its engines' options."""


def of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    made = Databases(of_run(tmp_path_factory))
    yield made
    made.close()


@pytest.fixture
async def new_database(databases: Databases, tmp_path: Path) -> AsyncIterator[NewDatabase]:
    """Makes a database of a kind; all are gone after the test."""
    made: list[Database] = []

    def create(kind: str, **options: Any) -> Database:
        made.append(databases.create(kind, tmp_path, **options))
        return made[-1]

    yield create
    for each in made:
        await each.aclose()
        databases.release(each)


MOST = ["sqlite", "asyncpg", "mariadb"]
"""Each database, with a loop or without one: tests/outbox/writing shows that every driver is spoken to alike."""


@pytest.fixture(params=quick(KINDS, MOST))
def database(request: pytest.FixtureRequest, new_database: NewDatabase) -> Database:
    """A fresh one, of each kind."""
    return new_database(request.param)
