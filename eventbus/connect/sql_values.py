"""Convert column values to records: the types of a database as Kafka Connect's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, cast

import msgspec
from sqlalchemy import types
from sqlalchemy.dialects import mysql, postgresql

from eventbus.connect.values import DATE, DECIMAL, TIME, TIMESTAMP, Field, Schema, schema_of
from eventbus.errors import SerializationError

_MOST_SECONDS = 100_000_000_000
"""The largest number taken as seconds since the epoch; larger numbers are milliseconds."""

Read = Callable[[Any], Any]


class Column(NamedTuple):
    """A column of a table or a query."""

    name: str
    optional: bool
    schema: Schema | None
    """None for a column without a type, whose values have types."""
    read: Read


def column_of(name: str, kind: Any, *, optional: bool, mapping: str, is_sqlite: bool) -> Column:
    """Return the column. ``kind``: SQLAlchemy's type; ``mapping``: ``numeric.mapping``."""
    found = _schema_and_read(kind, mapping, is_sqlite)
    if found is None:
        return Column(name, optional, None, _same)
    schema, read = found
    return Column(name, optional, msgspec.structs.replace(schema, optional=optional), read)


def untyped(name: str) -> Column:
    """Return a column of a query, whose type depends on its values."""
    return Column(name, True, None, _same)


def _schema_and_read(kind: Any, mapping: str, is_sqlite: bool) -> tuple[Schema, Read] | None:  # noqa: C901 - a table of types
    match kind:
        case types.Boolean():
            return Schema("boolean"), bool
        case mysql.TINYINT():
            return Schema("int8"), int
        case types.SmallInteger():
            return Schema("int64" if is_sqlite else "int16"), int
        case types.BigInteger():
            return Schema("int64"), int
        case types.Integer():
            return Schema("int64" if is_sqlite or getattr(kind, "unsigned", False) else "int32"), int
        case types.Float():
            return Schema("float64"), float
        case types.Numeric():
            return _numeric(kind.precision, kind.scale, mapping)
        case types.DateTime():
            return Schema("int64", name=TIMESTAMP), _datetime
        case types.Date():
            return Schema("int32", name=DATE), _date
        case types.Time():
            return Schema("int32", name=TIME), _time
        case types.LargeBinary() | mysql.BIT() | postgresql.BYTEA():
            return Schema("bytes"), bytes
        case types.JSON():
            return Schema("string"), _json
        case types.ARRAY():
            inner = _schema_and_read(cast("Any", kind).item_type, mapping, is_sqlite) or (Schema("string"), str)
            items = msgspec.structs.replace(inner[0], optional=True)
            return Schema("array", items=items), lambda found: [None if one is None else inner[1](one) for one in found]
        case types.NullType():
            return None if is_sqlite else (Schema("string"), str)
        case _:
            return Schema("string"), _text


def _numeric(precision: int | None, scale: int | None, mapping: str) -> tuple[Schema, Read]:
    is_whole = scale == 0 and precision is not None and precision <= 18
    if mapping in ("best_fit", "best_fit_eager_double", "precision_only") and is_whole:
        return Schema("int64"), int
    if mapping in ("best_fit", "best_fit_eager_double"):
        return Schema("float64"), float
    if scale is None:
        return Schema("string"), lambda found: format(_decimal(found), "f")  # it may have any number of digits
    return Schema("bytes", name=DECIMAL, scale=scale), _decimal


class Shape:
    """Converts rows to structs. The schema is derived from the columns."""

    def __init__(self, name: str, columns: list[Column]) -> None:
        self.name = name
        self.columns = columns
        self._seen: dict[str, Schema] = {}
        """The types of the last values of columns without a type."""
        self._schema: Schema | None = None

    def read(self, row: tuple[Any, ...]) -> tuple[Schema, dict[str, Any]]:
        """Convert a row. Raises SerializationError with the column's name."""
        value: dict[str, Any] = {}
        for column, cell in zip(self.columns, row, strict=True):
            try:
                value[column.name] = found = None if cell is None else column.read(cell)
                if column.schema is None:
                    self._look(column.name, found)
            except (ValueError, TypeError, ArithmeticError, SerializationError) as error:
                raise SerializationError(f"column {column.name!r} of {self.name}: {cell!r:.60}: {error}") from None
        if self._schema is None:
            fields = [Field(one.name, one.schema or self._seen[one.name]) for one in self.columns]
            self._schema = Schema("struct", name=self.name, fields=tuple(fields))
        return self._schema, value

    def _look(self, name: str, value: Any) -> None:
        """Update the schema of a column without a type; a null leaves it unchanged."""
        if value is not None or name not in self._seen:
            found = schema_of(value)
            if self._seen.get(name) != found:
                self._seen[name], self._schema = found, None


def _same(found: Any) -> Any:
    return bytes(found) if isinstance(found, (memoryview, bytearray)) else found  # pyright: ignore[reportUnknownArgumentType]


def _text(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)


def _decimal(found: Any) -> Decimal:
    value = found if isinstance(found, Decimal) else Decimal(str(found))
    if not value.is_finite():
        raise ValueError("no number")
    return value


def _json(found: Any) -> str:
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _datetime(found: Any) -> datetime:
    match found:
        case datetime():
            return found
        case str():
            return datetime.fromisoformat(found)
        case int() | float():
            seconds = found / 1000 if abs(found) > _MOST_SECONDS else found
            return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
        case _:
            raise ValueError("no date and time")


def _date(found: Any) -> date:
    if isinstance(found, str):
        return datetime.fromisoformat(found).date()
    return found.date() if isinstance(found, datetime) else found


def _time(found: Any) -> time:
    match found:
        case str():
            return time.fromisoformat(found)
        case timedelta():
            return (datetime.min + found).time()
        case _:
            return found
