"""Find the database and the outbox named by the options, and turn database errors into one-line messages."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from socket import gaierror
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from eventbus.cli.parser import UsageError
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Inspector
    from sqlalchemy.exc import DBAPIError

    from outbox import Outbox
    from outbox.database import Database

VARIABLE = "EVENTBUS_DATABASE"
_EXAMPLE = "postgresql://me@localhost/shop, mysql+pymysql://me@localhost/shop or sqlite:///shop.db"

_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "greenlet": "sqlalchemy[asyncio]",
}
"""Package to install for a missing module, if the names differ."""
_DRIVERS = {
    "postgresql": ("psycopg", "asyncpg", "psycopg2"),
    "mysql": ("pymysql", "aiomysql", "asyncmy"),
    "mariadb": ("pymysql", "aiomysql", "asyncmy"),
    "sqlite": ("aiosqlite",),
}
_OTHER_NAMES = {"postgres": "postgresql", "psql": "postgresql", "pg": "postgresql", "sqlite3": "sqlite"}


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the outbox."""
    group = parser.add_argument_group("which outbox")
    group.add_argument("--database", metavar="URL", help=f"as in {_EXAMPLE} (default: ${VARIABLE})")
    add_name(group)


def add_name(group: Any) -> None:
    group.add_argument(
        "--name", default="eventbus_outbox", help="what its tables' names begin with (default: eventbus_outbox)"
    )
    group.add_argument("--schema", help="the database's schema that its tables are in")


class Opened(NamedTuple):
    """An outbox that was found in its database."""

    outbox: Outbox
    database: Database
    place: str
    """The database's URL without the password."""


@asynccontextmanager
async def open_outbox(args: argparse.Namespace, *, notify: bool = False) -> AsyncGenerator[Opened]:
    """Open the database and find the outbox in it.

    The number of shards, the columns and the presence of an archive are read from the database, unless an option of the
    command sets them.
    """
    url = url_of(args)
    from outbox import Outbox
    from outbox.database import Database

    with plain_errors(url, args.name):
        engine = open_engine(url)
        database = Database(engine)
        try:
            found = await database.run(_find, args.name, args.schema)
            options: dict[str, Any] = {name: getattr(args, name, None) for name in ("shards", "columns")}
            options = {name: value for name, value in options.items() if value is not None}
            outbox = Outbox(engine, args.name, schema=args.schema, notify=notify, **found | options)
            yield Opened(outbox, database, _shown(url))
        finally:
            closing: Any = engine.dispose()
            if closing is not None:
                await closing


def needs_sqlalchemy() -> None:
    """Raise ConfigError if SQLAlchemy is not installed."""
    if find_spec("sqlalchemy") is None:
        raise ConfigError('SQLAlchemy is not installed: pip install "eventbus-log[sql]"')


def url_of(args: argparse.Namespace, *, must_exist: bool = True) -> URL:
    """Return the database's URL. Raises UsageError if it is missing or invalid; ConfigError for a file that does not
    exist.
    """
    needs_sqlalchemy()
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    given: str | None = args.database or os.environ.get(VARIABLE)
    if not given:
        raise UsageError(f"{args.program}: which database? Give its URL with --database, or in {VARIABLE}: {_EXAMPLE}")
    try:
        url = make_url(given)
    except ArgumentError:
        raise UsageError(f"--database {given}: that is not a database URL, as {_EXAMPLE}") from None
    if must_exist and url.get_backend_name() == "sqlite":
        _check_file(url)
    return url


def _check_file(url: URL) -> None:
    """Raise ConfigError for a missing file, which SQLite would create empty."""
    if not url.database or url.database == ":memory:":
        raise UsageError(f"--database {url}: a database in memory is its own process's; name a file: sqlite:///shop.db")
    if not url.database.startswith("file:") and not Path(url.database).exists():
        raise ConfigError(f"there is no file {Path(url.database).absolute()}: a service that uses the outbox makes it")


def open_engine(url: URL) -> Any:
    """Return an `Engine`, or an `AsyncEngine` for an async driver. Raises errors that `plain_errors` explains."""
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    if url.get_dialect().is_async:
        if find_spec("greenlet") is None:
            raise ModuleNotFoundError(name="greenlet")
        return create_async_engine(url)
    return create_engine(url)


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)


# the outbox in it -----------------------------------------------------------------------------------------------------


def _find(connection: Connection, name: str, schema: str | None) -> dict[str, Any]:
    """Return the arguments with which the outbox was created. Raises ConfigError if it does not exist."""
    from sqlalchemy import column, inspect, select, table

    inspector = inspect(connection)
    if not inspector.has_table(name, schema) or not inspector.has_table(f"{name}_meta", schema):
        _no_outbox(inspector, name, schema)
    names = {existing["name"] for existing in inspector.get_columns(name, schema)}
    meta = table(f"{name}_meta", column("name"), column("value"), schema=schema)
    shards = connection.execute(select(meta.c.value).where(meta.c.name == "shards")).scalar()
    return {
        "shards": int(shards) if shards else 64,
        "columns": "debezium" if "aggregatetype" in names else "plain",
        "archive": inspector.has_table(f"{name}_archive", schema),
    }


def _no_outbox(inspector: Inspector, name: str, schema: str | None) -> NoReturn:
    tables = set(inspector.get_table_names(schema))
    there = sorted(name[: -len("_shards")] for name in tables if name.endswith("_shards"))
    others = [one for one in there if {one, f"{one}_meta"} <= tables]
    where = f" in schema {schema!r}" if schema else ""
    if others:
        raise ConfigError(f"there is no outbox {name!r}{where}; there is {', '.join(others)}: name it with --name")
    raise ConfigError(
        f"there is no outbox {name!r}{where} in this database: create its tables with outbox.create_tables(), a "
        "migration with op.create_outbox(), or what `eventbus outbox ddl` prints; or name another with --name, --schema"
    )


# errors ---------------------------------------------------------------------------------------------------------------


@contextmanager
def plain_errors(url: URL, name: str) -> Generator[None]:
    """Turn errors of SQLAlchemy and drivers into a ConfigError of one line."""
    from sqlalchemy.exc import DBAPIError, MissingGreenlet, NoSuchModuleError

    try:
        yield
    except NoSuchModuleError:
        _unknown_dialect(url)
    except MissingGreenlet as error:
        _install(error, 'an asynchronous driver needs greenlet: pip install "sqlalchemy[asyncio]"')
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("outbox", "eventbus"):
            raise
        _install(error, _missing_driver(url, error.name))
    except DBAPIError as error:
        raise ConfigError(_explained(error, url, name)) from error
    # asyncpg raises these directly
    except (ConnectionRefusedError, ConnectionResetError, TimeoutError, gaierror) as error:
        raise ConfigError(f"{_shown(url)} cannot be reached: {error.strerror or error}") from error


def _install(cause: Exception, cure: str) -> NoReturn:
    raise ConfigError(cure) from cause


def _unknown_dialect(url: URL) -> NoReturn:
    meant = _OTHER_NAMES.get(url.get_backend_name())
    cure = f"say {meant}://" if meant else f"as {_EXAMPLE}"
    raise UsageError(f"--database: {url.drivername}:// is not a database that SQLAlchemy supports; {cure}") from None


def _missing_driver(url: URL, module: str) -> str:
    backend = url.get_backend_name()
    package = _PACKAGES.get(module, module)
    if module == "greenlet":
        return f'{url.drivername}:// is asynchronous, which needs greenlet: pip install "{package}"'
    text = f'{url.drivername}:// means the driver {module}, which is not installed: pip install "{package}"'
    others = _installed(_DRIVERS.get(backend, ()))
    if others:
        text += f", or use what is there: {' or '.join(f'{backend}+{one}://' for one in others)}"
    return text


def _installed(modules: Sequence[str]) -> list[str]:
    return [one for one in modules if find_spec(one) is not None]


def _explained(error: DBAPIError, url: URL, name: str) -> str:
    said = str(error.orig).strip().partition("\n")[0]
    if error.connection_invalidated or error.statement is None:
        return f"{_shown(url)} cannot be reached: {said}"
    return f"outbox {name!r} in {_shown(url)}: {said}; `eventbus outbox check` checks its tables"
