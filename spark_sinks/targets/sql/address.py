"""Parse the address of a table: a database's URL, ``#``, and the table (``postgresql://me@host/shop#sales.orders``)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import URL

EXAMPLE = "postgresql://me@host/shop#orders, mysql://me@host/shop#orders or sqlite:///shop.db#orders"
_TABLE = re.compile(r"(?:(?P<schema>\w[\w$ -]*)\.)?(?P<table>\w[\w$ -]*)")
_DRIVERS = {
    "postgresql": ("psycopg",),
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
"""That are known to work, the first one first."""
_MODULES = {"mysqldb": "MySQLdb", "pysqlite": "sqlite3"}
_OTHER_NAMES = {"postgres": "postgresql", "psql": "postgresql", "pg": "postgresql", "sqlite3": "sqlite"}


class Address(NamedTuple):
    """A table of a database. ``table`` is None where the topic says it."""

    url: URL
    schema: str | None
    table: str | None

    @property
    def name(self) -> str:
        """Return the address for messages, without the password and without options, which may contain another."""
        url = self.url._replace(
            drivername=self.url.get_backend_name(), password=None
        )  # `set` takes None for "as it is"
        shown = url.set(query={}).render_as_string()
        return f"{shown}#{self.qualified}" if self.table else shown

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else str(self.table)


def parse_address(to: str) -> Address:
    """Parse ``to``. Raises `ConfigError` for an invalid address, and for a driver that is not installed."""
    if find_spec("sqlalchemy") is None:
        raise ConfigError('SQLAlchemy is not installed: pip install "eventbus-log[sql]"')
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    text, schema, table = _split(to)
    scheme, _, rest = text.partition("://")
    if scheme in _OTHER_NAMES:
        text = f"{_OTHER_NAMES[scheme]}://{rest}"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError(f"to={scheme}://... is not a URL of a database, as in {EXAMPLE}") from None
    address = Address(_with_driver(url), schema, table)
    if "table" in url.query:
        raise ConfigError(f"to={address.name}: write the table after a #, as in {EXAMPLE}")
    if url.get_backend_name() == "sqlite":
        _check_file(address)
    elif not url.database:
        raise ConfigError(f"to={address.name} names no database, as in {EXAMPLE}")
    return address


def table_of(topic: str) -> str:
    """The table of a topic where none is named: small letters, digits and underscores, as SQL takes without quotes."""
    name = re.sub(r"\W+", "_", topic, flags=re.ASCII).lower()
    return f"_{name}" if name[0].isdigit() else name


def with_topic(to: str, topic: str) -> str:
    """Return ``to`` with the table of a topic, which replaces ``{topic}`` or is appended if ``to`` names no table."""
    to = to.replace("{topic}", table_of(topic))
    return to if _split(to)[2] is not None else f"{to.removesuffix('#')}#{table_of(topic)}"


def _split(to: str) -> tuple[str, str | None, str | None]:
    before, mark, after = to.rpartition("#")
    if not mark or "@" in after:  # a # of a password
        return to, None, None
    if not after:
        return before, None, None
    found = _TABLE.fullmatch(after)
    if found is None:
        raise ConfigError(f"to=...#{after} does not name a table; write table or schema.table, as in {EXAMPLE}")
    return before, found["schema"], found["table"]


def _with_driver(url: URL) -> URL:
    """Return the URL with a driver that is installed and that a landing can use."""
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise ConfigError(
            f"to={backend}://...: a landing writes PostgreSQL, MySQL, MariaDB and SQLite, as in {EXAMPLE}"
        )
    _, plus, asked = url.drivername.partition("+")
    known = _DRIVERS[backend]
    if plus and asked not in known:
        raise ConfigError(f"to={url.drivername}://...: a landing cannot use the driver {asked}; say {backend}://")
    for driver in (asked,) if plus else known:
        if find_spec(_MODULES.get(driver, driver)) is not None:
            return url.set(drivername=f"{backend}+{driver}")
    package = {"psycopg": "psycopg[binary]", "mysqldb": "mysqlclient"}.get(asked or known[0], asked or known[0])
    raise ConfigError(f'{url.drivername}:// needs a driver that is not installed: pip install "{package}"')


def _check_file(address: Address) -> None:
    database = address.url.database
    if not database or database == ":memory:" or "mode=memory" in database:
        raise ConfigError("to=sqlite://: a database in memory ends with this process; name a file, sqlite:///shop.db")
    if not database.startswith("file:") and not Path(database).absolute().parent.is_dir():
        raise ConfigError(f"to={address.name}: there is no directory {Path(database).absolute().parent}: make it first")


def file_is_missing(address: Address) -> bool:
    """True if the SQLite file does not exist. Connecting would create it, so this is checked first."""
    if address.url.get_backend_name() != "sqlite":
        return False
    database = address.url.database or ""
    return not database.startswith("file:") and not Path(database).exists()
