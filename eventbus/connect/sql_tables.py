"""Database queries: rows after a position, in an order in which none is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from eventbus.connect.connector import Offset
from eventbus.connect.sql_values import Shape
from eventbus.errors import SerializationError

_FOR_SQLITE = "%Y-%m-%d %H:%M:%S.%f"


class Order(NamedTuple):
    """The columns by which a table is read, and which its offsets hold."""

    timestamps: tuple[str, ...] = ()
    """The timestamp columns; the first that is not null is used."""
    incrementing: str | None = None
    keys: tuple[str, ...] = ()
    """The primary key, which distinguishes rows with the same time if nothing else does."""

    is_aware: bool = False
    """True if its times have a time zone."""

    @property
    def is_unique(self) -> bool:
        """True if no two rows have the same position."""
        return self.incrementing is not None or bool(self.keys)


class Place(NamedTuple):
    """The position of a row."""

    timestamp: Any = None
    rest: tuple[Any, ...] = ()
    """The value of the incrementing column, or of the key columns."""


class Source(NamedTuple):
    """A table, or a query: one partition of the connector."""

    name: str
    topic: str
    partition: dict[str, Any]
    rows: Any
    """The table or query as SQLAlchemy's FROM."""
    shape: Shape
    order: Order | None
    """None reads everything each time."""


class Reader:
    """The statements for one database."""

    def __init__(self, engine: sa.Engine, quote: bool, zone: ZoneInfo) -> None:
        self._engine = engine
        self._quote = quote
        self._zone = zone
        self.is_sqlite = engine.dialect.name == "sqlite"

    def now(self, clock_ms: int) -> datetime:
        """Return the database's time, because its rows have its times."""
        match self._engine.dialect.name:
            case "postgresql":
                statement, is_utc = "SELECT CURRENT_TIMESTAMP", False
            case "mysql" | "mariadb":
                statement, is_utc = "SELECT UTC_TIMESTAMP(6)", True
            case _:
                return datetime.fromtimestamp(clock_ms / 1000, UTC)
        with self._engine.connect() as connection:
            found: datetime = connection.execute(sa.text(statement)).scalar_one()
        return found.replace(tzinfo=UTC) if is_utc else found

    def everything(self, source: Source) -> Any:
        return self._select(source)

    def next_rows(
        self, source: Source, place: Place | None, limit: int, until: datetime | None
    ) -> tuple[list[tuple[Any, ...]], bool]:
        """Return rows after ``place`` and before the time ``until``, in order, and True if there may be more."""
        order = source.order
        assert order is not None
        columns = self._ordered(order)
        statement = self._select(source).order_by(*columns).limit(limit)
        condition = columns[0].is_not(None) if place is None else _rows_after(columns, _values(order, place))
        statement = statement.where(condition)
        if until is not None:
            statement = statement.where(self._before(order, until))
        rows = self._rows(statement)
        if order.is_unique or len(rows) < limit:
            return rows, len(rows) == limit
        # Rows with the same time belong together, and there may be more rows with the last time.
        last = self.place(source, rows[-1]).timestamp
        whole = [row for row in rows if self.place(source, row).timestamp != last]
        return whole or self._rows(self._select(source).where(columns[0] == _given(last))), True

    def highest(self, source: Source) -> Any:
        """Return the highest number of a table's incrementing column; None if it has no rows."""
        assert source.order is not None
        [(found,)] = self._rows(sa.select(sa.func.max(self._ordered(source.order)[-1])).select_from(source.rows))
        return _simple(found)

    def place(self, source: Source, row: tuple[Any, ...]) -> Place:
        """Return the position of a row. Raises SerializationError for a row without one."""
        order = source.order
        assert order is not None
        at = {column.name: index for index, column in enumerate(source.shape.columns)}
        times = [row[at[name]] for name in order.timestamps if row[at[name]] is not None]
        if times and not isinstance(times[0], (datetime, date) if not self.is_sqlite else str):
            raise SerializationError(f"{source.name}: {times[0]!r:.60} in {order.timestamps[0]!r} is no date and time")
        rest = [row[at[name]] for name in ((order.incrementing,) if order.incrementing else order.keys)]
        return Place(times[0] if times else None, tuple(map(_simple, rest)))

    def columns_of(self, query: Any) -> list[str]:
        """Return the columns of a query."""
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(sa.text("*")).select_from(query).limit(0)).keys())

    def named(self, name: str) -> sa.sql.quoted_name:
        return sa.sql.quoted_name(name, quote=self._quote)

    def _rows(self, statement: Any) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    def _select(self, source: Source) -> Any:
        columns: list[ColumnElement[Any]] = [sa.column(self.named(one.name)) for one in source.shape.columns]
        return sa.select(*columns).select_from(source.rows)

    def _ordered(self, order: Order) -> list[ColumnElement[Any]]:
        columns: list[ColumnElement[Any]] = [sa.column(self.named(name)) for name in order.timestamps]
        first: list[ColumnElement[Any]] = (
            [sa.func.coalesce(*columns) if len(columns) > 1 else columns[0]] if columns else []
        )
        rest = (order.incrementing,) if order.incrementing else order.keys
        return [*first, *(sa.column(self.named(name)) for name in rest)]

    def _before(self, order: Order, until: datetime) -> ColumnElement[bool]:
        column = self._ordered(order)[0]
        if self.is_sqlite:
            # Its times are texts in several formats. A text that is not a time is not skipped: reading it raises an
            # error.
            found = sa.func.julianday(column)
            bound = until.astimezone(self._zone).strftime(_FOR_SQLITE)
            return sa.or_(found < sa.func.julianday(bound), sa.and_(found.is_(None), column.is_not(None)))
        return column < _given(until if order.is_aware else until.astimezone(self._zone).replace(tzinfo=None))


def delayed(now: datetime, delay_ms: int) -> datetime:
    return now - timedelta(milliseconds=delay_ms)


def offset_of(order: Order, place: Place) -> Offset:
    """Return the position in its stored form."""
    offset: Offset = {}
    if order.timestamps:
        offset["timestamp"] = place.timestamp if isinstance(place.timestamp, str) else place.timestamp.isoformat()
    if order.incrementing:
        offset["incrementing"] = place.rest[0]
    elif order.keys:
        offset["key"] = list(place.rest)
    return offset


def place_of(order: Order, offset: Offset, *, is_sqlite: bool) -> Place | None:
    """Return the stored position; None if it does not fit this order."""
    time, rest = offset.get("timestamp"), offset.get("key", [])
    if order.incrementing:
        rest = [offset["incrementing"]] if "incrementing" in offset else []
    if (order.timestamps and not isinstance(time, str)) or (order.is_unique and not rest):
        return None
    try:
        found = datetime.fromisoformat(time) if isinstance(time, str) and not is_sqlite else time
    except ValueError:
        return None
    return Place(found if order.timestamps else None, tuple(rest))


def _values(order: Order, place: Place) -> Sequence[Any]:
    return [*([place.timestamp] if order.timestamps else []), *place.rest]


def _rows_after(columns: Sequence[ColumnElement[Any]], values: Sequence[Any]) -> ColumnElement[bool]:
    """Return (a, b) > (1, 2) in a form that every database supports; the first condition can use an index."""
    first, value = columns[0], _given(values[0])
    if len(columns) == 1:
        return first > value
    return sa.and_(first >= value, sa.or_(first > value, _rows_after(columns[1:], values[1:])))


def _given(value: Any) -> ColumnElement[Any]:
    """Return a parameter in the driver's own type: a value that came from it goes back to it."""
    return sa.bindparam(None, value, type_=sa.types.NullType())


def _simple(value: Any) -> Any:
    if isinstance(value, Decimal) and value == int(value):
        return int(value)
    return str(value) if isinstance(value, UUID) else value
