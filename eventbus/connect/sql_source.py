"""``JdbcSource``: rows of tables, or of a query, as records; on any database that SQLAlchemy supports."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo

from eventbus.connect.connector import Context, Offset, SourceConnector, SourceRecord, partition_key
from eventbus.connect.settings import REQUIRED, Key
from eventbus.errors import ConfigError, SerializationError
from eventbus.suggest import nearest

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from eventbus.connect.sql_tables import Order, Place, Reader, Source

_SYNCHRONOUS = {
    "aiosqlite": "sqlite",
    "asyncpg": "postgresql+psycopg",
    "aiomysql": "mysql+pymysql",
    "asyncmy": "mysql+pymysql",
}
_JDBC = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
_BEGINS_AGAIN = "a connector that fails is restarted"


class SqlSource(SourceConnector):
    """A source of database rows. See docs/how-to/connect.md for the guarantees of each mode."""

    keys: ClassVar[Sequence[Key]] = (
        Key("connection.url", default=REQUIRED, doc="sqlite:///shop.db, postgresql+psycopg://host/db, jdbc:..."),
        Key("connection.user"),
        Key("connection.password"),
        Key("connection.attempts", ignored=_BEGINS_AGAIN),
        Key("connection.backoff.ms", ignored=_BEGINS_AGAIN),
        Key("mode", default=REQUIRED, choices=("bulk", "incrementing", "timestamp", "timestamp+incrementing")),
        Key("incrementing.column.name", default=""),
        Key("timestamp.column.name", "list", ()),
        Key("timestamp.delay.interval.ms", "int", 0, "how old a row must be", minimum=0),
        Key("timestamp.initial", refused="begin by a query: query=SELECT * FROM t WHERE changed > '2026-01-01'"),
        Key("timestamp.granularity", ignored="times are kept as the database has them"),
        Key("table.whitelist", "list", ()),
        Key("table.include.list", "list", ()),
        Key("table.blacklist", "list", ()),
        Key("table.exclude.list", "list", ()),
        Key("table.types", "list", ("TABLE",), "TABLE, VIEW"),
        Key("table.poll.interval.ms", "int", 60_000, "how often new tables are looked for", minimum=1),
        Key("schema.pattern", doc="the schema of the tables"),
        Key("catalog.pattern", ignored="name the database in connection.url"),
        Key("query", default="", doc="in place of tables"),
        Key("query.suffix", refused="write it into query"),
        Key("topic.prefix", default="", doc="before the table's name; with query the whole name of the topic"),
        Key("poll.interval.ms", "int", 5_000, "how often tables are read", minimum=1),
        Key("batch.max.rows", "int", 1_000, "rows of a transaction, at most", minimum=1),
        Key("validate.non.null", "bool", True),
        Key("quote.sql.identifiers", default="always", choices=("always", "never")),
        Key("numeric.mapping", default="none", choices=("none", "best_fit", "best_fit_eager_double", "precision_only")),
        Key("numeric.precision.mapping", ignored="Connect has replaced it by numeric.mapping"),
        Key("db.timezone", default="UTC", doc="of times without a zone, in criteria and in records"),
        Key("dialect.name", ignored="connection.url tells"),
        Key("db.fetch.size", ignored="batch.max.rows says how many rows are read at a time"),
        Key("transaction.isolation.mode", ignored="the database's default; a query reads one moment"),
    )

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        of = self.settings
        self.idle_ms = of["poll.interval.ms"]
        self._mode: str = of["mode"]
        self.repeats = self._mode == "bulk"
        self._limit: int = of["batch.max.rows"]
        if find_spec("sqlalchemy") is None:
            raise ConfigError('a SQL source needs SQLAlchemy: pip install "eventbus-log[sql]"')
        self._check()
        self._url = sqlalchemy_url(of["connection.url"].strip(), context.place("connection.url"))
        try:
            self._zone = ZoneInfo(of["db.timezone"])
        except (KeyError, ValueError, OSError):
            raise ConfigError(f"{context.place('db.timezone')}: there is no time zone {of['db.timezone']!r}") from None
        self._engine: Engine | None = None
        self._reader: Reader | None = None
        self._sources: list[Source] = []
        self._places: dict[str, Place] = {}
        """The position after the last row that was returned, by table."""
        self._offsets: Mapping[str, Offset] = {}
        self._to_do: deque[Source] = deque()
        """Tables that may have more rows, in this round."""
        self._rest: Any = None
        """The rows of a bulk read that are not returned yet."""
        self._looked_ms = 0

    def _check(self) -> None:
        """Check for settings that contradict each other."""
        of, place = self.settings, self.context.place
        increments = "incrementing" in self._mode
        has_times = "timestamp" in self._mode
        if of["incrementing.column.name"] and not increments:
            raise ConfigError(f"{place('incrementing.column.name')}: mode={self._mode} has no incrementing column")
        if of["timestamp.column.name"] and not has_times:
            raise ConfigError(f"{place('timestamp.column.name')}: mode={self._mode} has no timestamp column")
        if has_times and not of["timestamp.column.name"]:
            raise ConfigError(f"{place('mode')}: mode={self._mode} needs timestamp.column.name")
        lists = ("table.whitelist", "table.include.list", "table.blacklist", "table.exclude.list")
        if of["query"]:
            for key in lists:
                if of[key]:
                    raise ConfigError(f"{place(key)}: query and {key} exclude each other")
            if increments and not of["incrementing.column.name"]:
                raise ConfigError(f"{place('query')}: a query needs incrementing.column.name, which cannot be detected")
            if not of["topic.prefix"]:
                raise ConfigError(f"{place('query')}: with a query topic.prefix is the topic's whole name: give one")
        included = of["table.whitelist"] or of["table.include.list"]
        if included and (of["table.blacklist"] or of["table.exclude.list"]):
            raise ConfigError(f"{place('table.whitelist')}: tables are named, or left out: one of the two")

    def topics(self) -> Iterable[str]:
        return (self.settings["topic.prefix"],) if self.settings["query"] else ()

    # opening ---------------------------------------------------------------------------------------------------------

    def start(self, offsets: Mapping[str, Offset]) -> None:
        from eventbus.connect.sql_tables import Reader

        self._offsets = offsets
        self._engine = engine = open_engine(
            self._url, self.settings["connection.user"], self.settings["connection.password"],
            self.context.place("connection.url"), self._zone.key == "UTC",
        )  # fmt: skip
        self._reader = Reader(engine, self.settings["quote.sql.identifiers"] == "always", self._zone)
        self._look()

    def _look(self) -> None:
        """Look up the tables."""
        from eventbus.connect import sql_open

        assert self._engine is not None and self._reader is not None
        self._looked_ms = self.context.clock()
        known = {one.name for one in self._sources}
        for source in sql_open.sources(self._engine, self._reader, self.settings, self.context.place):
            if source.name in known:
                continue
            self._sources.append(source)
            stored = self._offsets.get(partition_key(source.partition), {})
            place = self._stored_place(source.order, stored) if source.order else None
            if place is not None:
                self._places[source.name] = place
                self._note_restart(source, place)
            elif stored and source.order:
                self.context.note(
                    f"{self.context.name}: {source.name}: what is stored, {stored}, does not fit mode={self._mode}: it "
                    "is read from its beginning"
                )

    def _note_restart(self, source: Source, place: Place) -> None:
        """Warn if the numbers of the table seem to have started over: new rows would be skipped."""
        assert self._reader is not None
        if self._mode != "incrementing" or not isinstance(place.rest[0], int):
            return
        highest = self._reader.highest(source)
        if isinstance(highest, int) and highest < place.rest[0]:
            self.context.note(
                f"{self.context.name}: {source.name} was read up to {source.order and source.order.incrementing}="
                f"{place.rest[0]}, and its highest is {highest}. If its numbers have begun again, new rows up to "
                f"{place.rest[0]} are skipped. Begin again with `eventbus connect offsets reset {self.context.name}`"
            )

    def _stored_place(self, order: Order, stored: Offset) -> Place | None:
        from eventbus.connect.sql_tables import place_of

        assert self._reader is not None
        return place_of(order, stored, is_sqlite=self._reader.is_sqlite)

    # reading ---------------------------------------------------------------------------------------------------------

    def poll(self) -> Sequence[SourceRecord]:
        if not self._to_do and self._rest is None:
            if self.context.clock() - self._looked_ms >= self.settings["table.poll.interval.ms"]:
                self._look()
            self._to_do.extend(self._sources)
            self._to_do.append(_END)
        while True:
            source = self._to_do[0]
            if source is _END:
                self._to_do.clear()
                return ()
            records, has_more = self._next(source)
            if not has_more:
                self._to_do.popleft()
            if records:
                return records

    def _next(self, source: Source) -> tuple[list[SourceRecord], bool]:
        """Return rows, and True if there may be more of them now."""
        from eventbus.connect.sql_tables import delayed

        assert self._reader is not None
        if source.order is None:
            return self._some_of_all(source), self._rest is not None
        until = None
        if source.order.timestamps:
            now = self._reader.now(self.context.clock())
            until = delayed(now, self.settings["timestamp.delay.interval.ms"])
        rows, has_more = self._reader.next_rows(source, self._places.get(source.name), self._limit, until)
        return [self._record(source, row) for row in rows], has_more

    def _some_of_all(self, source: Source) -> list[SourceRecord]:
        """Return rows of a bulk read. Its cursor stays open between polls, so a large table is not held in memory."""
        assert self._engine is not None and self._reader is not None
        if self._rest is None:
            connection = self._engine.connect().execution_options(stream_results=True, max_row_buffer=self._limit)
            self._rest = connection.execute(self._reader.everything(source))
        rows = self._rest.fetchmany(self._limit)
        if len(rows) < self._limit:
            self._close_rest()
        return [self._record(source, tuple(row)) for row in rows]

    def _record(self, source: Source, row: tuple[Any, ...]) -> SourceRecord:
        from eventbus.connect.sql_tables import offset_of

        assert self._reader is not None
        offset: Offset = {}
        if source.order is not None:
            place = self._places[source.name] = self._reader.place(source, row)
            offset = offset_of(source.order, place)
        try:
            schema, value = source.shape.read(row)
            if self._zone.key != "UTC":  # converters treat a time without a zone as UTC
                value = {name: _in_zone(one, self._zone) for name, one in value.items()}
        except SerializationError as error:
            schema, value = None, error
        return SourceRecord(topic=source.topic, value=value, schema=schema, partition=source.partition, offset=offset)

    def _close_rest(self) -> None:
        if self._rest is not None:
            connection = self._rest.connection
            self._rest.close()
            connection.close()
            self._rest = None

    def stop(self) -> None:
        self._close_rest()
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._reader = None


def _in_zone(value: Any, zone: ZoneInfo) -> Any:
    return value.replace(tzinfo=zone) if isinstance(value, datetime) and value.tzinfo is None else value


_END: Any = object()
"""Marks the end of a round, after its last table."""


def sqlalchemy_url(given: str, place: str) -> str:
    """Return a SQLAlchemy URL with a blocking driver, also for a JDBC URL. Raises ConfigError."""
    if given.startswith("jdbc:sqlite:"):
        path = given.removeprefix("jdbc:sqlite:").partition("?")[0].removeprefix("file:")
        return f"sqlite:///{path}"
    if given.startswith("jdbc:"):
        found = urlsplit(given.removeprefix("jdbc:"))
        if found.scheme not in _JDBC:
            raise ConfigError(
                f"{place}: {found.scheme or given!r} of JDBC is not known here: give SQLAlchemy's URL of the database, "
                "as mssql+pyodbc://... or oracle+oracledb://..."
            )
        query = dict(parse_qsl(found.query))
        login = f"{query['user']}:{query.get('password', '')}@" if "user" in query and "@" not in found.netloc else ""
        return f"{_JDBC[found.scheme]}://{login}{found.netloc}{found.path}"
    scheme, mark, rest = given.partition("://")
    if not mark:
        raise ConfigError(f"{place}: {given!r:.60} is not a URL of a database: sqlite:///shop.db, for one")
    driver = scheme.partition("+")[2]
    return f"{_SYNCHRONOUS.get(driver, scheme)}://{rest}"


def open_engine(url: str, user: str | None, password: str | None, place: str, in_utc: bool) -> Engine:
    """Create an engine, which connects on first use. Raises ConfigError for an invalid URL, or a missing driver."""
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.exc import ArgumentError

    try:
        made = sa.make_url(url)
        if user:
            made = made.set(username=user)
        if password:
            made = made.set(password=password)
        if made.drivername.startswith("sqlite"):
            file = made.database or ""
            if not file or file == ":memory:":
                raise ConfigError(f"{place}: a SQLite database in memory is empty: name a file")
            if not file.startswith("file:") and not Path(unquote(file)).exists():
                raise ConfigError(f"{place}: there is no SQLite database {file}")
        engine = sa.create_engine(made, pool_size=1, max_overflow=1, pool_pre_ping=True)
    except ArgumentError as error:
        raise ConfigError(f"{place}: {re.sub(r'://.*', '://...', url)}: {error}") from None
    except ImportError as error:
        raise ConfigError(
            f"{place}: the driver of {re.sub(r'://.*', '', url)} is missing: pip install {error.name}"
        ) from None
    if engine.dialect.name in ("mysql", "mariadb") and in_utc:
        event.listen(engine, "connect", _in_utc)
    return engine


def _in_utc(connection: Any, _: Any) -> None:
    """Set the session's time zone, in which a TIMESTAMP is returned."""
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")


def hinted(name: str, known: Iterable[str]) -> str:
    """Return the nearest name, or all names."""
    found = sorted(known)
    return nearest(name, found) or f"; there are {', '.join(found[:20]) or 'none'}"
